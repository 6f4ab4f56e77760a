"""The registry of delivery protocols: the one module that names all of them."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.operator_acts import NO_AUTHORITY, OperatorAuthority
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.outage import Outage, Reached
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import ALL_PROTOCOLS, Topology, nearest
from brokerd.protocols.best_effort.definition import BEST_EFFORT
from brokerd.protocols.definition import (
    CoreContext,
    Excess,
    Promises,
    ProtocolDefinition,
    excess_of_routes,
    find_reached_over_routes,
)
from brokerd.protocols.delta_tree.definition import DELTA_TREE
from brokerd.protocols.durable.definition import DURABLE
from brokerd.protocols.ges.definition import GES
from brokerd.protocols.ges_reliable.definition import GES_RELIABLE
from brokerd.protocols.gryphon.definition import GRYPHON
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.multi_proxy.definition import MULTI_PROXY

FIRST_MESSAGE_NUMBER: Final = 32
"""Lower numbers belong to messages that all protocols share."""

DELTA: Final = "delta"
"""The key for the number of tolerated failures; a topology sets δ in the section of its kind."""


def by_name(definitions: Iterable[ProtocolDefinition]) -> Mapping[str, ProtocolDefinition]:
    """Return the definitions by name, in the order given.

    Raises:
        ImportError: two definitions have the same name, two messages have the same number, or a
            number is reserved; names both.
    """
    found: dict[str, ProtocolDefinition] = {}
    numbers: dict[int, str] = {}
    for definition in definitions:
        if definition.name in found:
            modules = [each.core for each in (found[definition.name], definition)]
            raise ImportError(
                f"two protocols are called {definition.name!r}: {' and '.join(modules)}"
            )
        found[definition.name] = definition
        for kind in definition.messages:
            name = f"{definition.name}: {kind.type.__name__}"
            if kind.number < FIRST_MESSAGE_NUMBER:
                raise ImportError(f"{name} has the number {kind.number}, which no protocol may")
            if kind.number in numbers:
                raise ImportError(f"{numbers[kind.number]} and {name} both have {kind.number}")
            numbers[kind.number] = name
    return found


DEFINITIONS: Final = by_name(
    (BEST_EFFORT, DELTA_TREE, GRYPHON, DURABLE, MULTI_PROXY, GES, GES_RELIABLE)
)
"""All definitions by name."""


DEFAULT: Final = DELTA_TREE.name
"""The protocol that runs if the user names none."""


def import_cores() -> None:
    """Import the cores of all protocols, for a process that forks many brokers.

    Otherwise the first core of a protocol imports its module.
    """
    for definition in DEFINITIONS.values():
        import_module(definition.core)


def definition_of(protocol: str) -> ProtocolDefinition:
    """Return the protocol with this name.

    Raises:
        ConfigError: no protocol has this name; suggests the nearest name.
    """
    if protocol not in DEFINITIONS:
        raise ConfigError(f"protocol = {protocol!r}{nearest(protocol, [*DEFINITIONS])}")
    return DEFINITIONS[protocol]


def read_topology(values: Mapping[str, Any], where: str) -> Topology:
    """Return the topology in a TOML document's content, with checked parameters of protocols.

    Raises:
        ConfigError: names `where`, the key, the value and the nearest valid one.
    """
    topology = Topology.from_mapping(values, where)
    for protocol, _ in topology.settings:
        if protocol != ALL_PROTOCOLS and protocol not in DEFINITIONS:
            known = nearest(protocol, [*DEFINITIONS])
            raise ConfigError(f"{where}: parameters: no protocol called {protocol!r}{known}")
    known_keys = {name for each in DEFINITIONS.values() for name in _names(each)} - {DELTA}
    for key in topology.settings_of(ALL_PROTOCOLS):
        if key not in known_keys:
            known = nearest(key, sorted({*known_keys, DELTA}))
            raise ConfigError(f"{where}: parameters: unknown key {key!r}{known}")
    for protocol in DEFINITIONS:
        own = f".{protocol}" if topology.settings_of(protocol) else ""
        _parameters_of(topology, protocol, where).check(f"{where}: parameters{own}")
    return topology


def check_runs_on(topology: Topology, protocol: str, where: str = "topology") -> None:
    """Check that a protocol runs on a kind of overlay that the topology carries.

    Raises:
        ConfigError: no protocol has this name, or the protocol does not run on the topology's
            kinds (names the protocols that do) or on this topology of its kind.
    """
    definition = definition_of(protocol)
    kind = definition.kind
    if kind not in topology.kinds:
        fit = protocols_for(topology)
        raise ConfigError(
            f"{where}: protocol {protocol!r} runs on kind {kind!r}, and {topology.name} is of "
            f"kind {', '.join(topology.kinds)}; protocols that run on it: "
            f"{', '.join(fit) or 'none'}"
        )
    definition.check_topology(topology, where)


def protocols_for(topology: Topology) -> tuple[str, ...]:
    """Return the names of the protocols that run on a topology."""
    fit = []
    for name, definition in DEFINITIONS.items():
        if definition.kind in topology.kinds:
            with suppress(ConfigError):
                definition.check_topology(topology, name)
                fit.append(name)
    return tuple(fit)


def parameters_on(topology: Topology, protocol: str, where: str = "topology") -> Any:
    """Return a topology's parameters of a protocol, with defaults for missing keys.

    Raises:
        ConfigError: an unknown protocol or key, an invalid value, or a protocol that does not run
            on the topology; names the mistake.
    """
    check_runs_on(topology, protocol, where)
    return _parameters_of(topology, protocol, where)


def _parameters_of(topology: Topology, protocol: str, where: str) -> Any:
    definition = definition_of(protocol)
    names = _names(definition)
    has_delta = DELTA in names and definition.kind in topology.kinds
    values = {DELTA: topology.delta} if has_delta else {}
    of_all = topology.settings_of(ALL_PROTOCOLS)
    values |= {key: value for key, value in of_all.items() if key in names}
    own = topology.settings_of(protocol)
    section = f"parameters.{protocol}" if own else "parameters"
    if DELTA in own:
        raise ConfigError(f"{where}: parameters.{protocol}: delta stands in [{definition.kind}]")
    return definition.parameters.from_mapping({**values, **own}, f"{where}: {section}")


def _names(definition: ProtocolDefinition) -> tuple[str, ...]:
    kind: Any = definition.parameters
    return tuple(item.name for item in fields(kind))


@dataclass(frozen=True, slots=True)
class RunningProtocol:
    """A protocol and its topology, with the tolerance of both together.

    Attributes:
        topology: of the protocol's kind only.
        protocol: None if no protocol runs on such a topology; its routes then decide.
    """

    topology: Topology
    protocol: ProtocolDefinition | None
    parameters: Any

    def excess(self, lost: FailedElements) -> Excess | None:
        """Return the lost brokers and links beyond the tolerance; None if the loss is tolerated."""
        if self.protocol is None:
            return excess_of_routes(self.topology, None, lost)
        return self.protocol.excess(self.topology, self.parameters, lost)

    def homes(self) -> tuple[str, ...]:
        """Return the present brokers that may have clients."""
        present = self.topology.present()
        if self.protocol is None:
            return present
        return tuple(name for name in self.protocol.homes(self.topology) if name in present)

    @property
    def description(self) -> str:
        """The name and the δ or other section of the topology, as `delta_tree (delta 1)`.

        Without a protocol, the name of the topology's kind stands in front.
        """
        name = f"kind {self.topology.kind}" if self.protocol is None else self.protocol.name
        return f"{name} ({self.topology.section.description})"

    def tolerates(self, lost: FailedElements) -> bool:
        """Return True if all remaining brokers continue after a loss."""
        return self.excess(lost) is None

    @property
    def fault_bound(self) -> int | None:
        """Greatest number of simultaneous failures of brokers and links; None if unbounded.

        `excess` decides on each failure, too.
        """
        if self.protocol is None:
            return None
        return self.protocol.fault_bound(self.topology, self.parameters)

    def find_reached(self, outage: Outage) -> Reached:
        """Return the brokers from which publications arrive at each subscriber's broker."""
        if self.protocol is None:
            return find_reached_over_routes(self.topology, None, outage)
        return self.protocol.reaches(self.topology, self.parameters, outage)

    def promises(self) -> Promises:
        """Return the guarantees within the tolerated failures."""
        assert self.protocol is not None, f"nothing runs on {self.topology.name}"
        return self.protocol.promises_with(self.parameters)

    def words(self) -> dict[str, str]:
        """Return the protocol's title, recovery and wiring, for the manifest of a run."""
        assert self.protocol is not None, f"nothing runs on {self.topology.name}"
        return {
            "title": self.protocol.title or self.protocol.name,
            "recovery": self.protocol.recovery,
            "wiring": self.protocol.wiring(self.topology, self.parameters),
        }

    def possible_peers(self, broker: str) -> tuple[str, ...]:
        """Return the brokers that a broker may have sessions with."""
        topology = self.topology
        near = topology.overlay().surroundings(topology.number_of(broker))
        return tuple(topology.brokers[number] for number in near)


def protocol_on(topology: Topology, protocol: str | None = None) -> RunningProtocol:
    """Return a topology with a protocol; by default the usual protocol that runs on the topology.

    Raises:
        ConfigError: the protocol does not run on such a topology.
    """
    if protocol is None:
        fit = protocols_for(topology)
        if not fit:
            return RunningProtocol(topology.restrict_to_kind(topology.kind), None, None)
        protocol = DEFAULT if DEFAULT in fit else fit[0]
    definition = definition_of(protocol)
    parameters = parameters_on(topology, protocol)
    return RunningProtocol(topology.restrict_to_kind(definition.kind), definition, parameters)


def make_protocol(
    name: str,
    broker: BrokerNumber,
    topology: Topology,
    parameters: Any,
    decode_attributes: DecodeAttributes,
    authority: OperatorAuthority = NO_AUTHORITY,
) -> DeliveryProtocol:
    """Return one broker's core of the protocol `name`; its first event is Started.

    Args:
        topology: of all brokers, including this broker.
        decode_attributes: reads attribute blobs; raises ValueError if a blob is malformed.
        authority: signs operator's acts.

    Raises:
        ConfigError: no protocol has this name.
    """
    context = CoreContext(
        broker=broker,
        topology=topology,
        parameters=parameters,
        decode_attributes=decode_attributes,
        authority=authority,
    )
    return definition_of(name).make_core(context)


def core_counters(topology: Topology, name: str) -> frozenset[str]:
    """Return the names of the counters and gauges that cores of a protocol have on a topology.

    Raises:
        ConfigError: no protocol has this name, or the protocol does not run on the topology.
    """
    running = protocol_on(topology, name)
    context = CoreContext(
        broker=0,
        topology=running.topology,
        parameters=running.parameters,
        decode_attributes=lambda blobs: [],
    )
    return frozenset(definition_of(name).make_core(context).statistics())
