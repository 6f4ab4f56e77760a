"""The registry of delivery protocols: the one module that names all of them."""

from collections.abc import Iterable, Iterator, Mapping
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
from brokerd.protocols.definition import (
    CoreContext,
    Excess,
    Promises,
    ProtocolDefinition,
    ReplicationParameters,
    excess_of_routes,
    find_reached_over_routes,
)
from brokerd.protocols.interface import DeliveryProtocol

FIRST_MESSAGE_NUMBER: Final = 32
"""Lower numbers belong to messages that all protocols share."""

DELTA: Final = "delta"
"""The key for the number of tolerated failures; a topology sets δ in the section of its kind."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A protocol whose definition is imported at the first use.

    Attributes:
        definition: its place, as "module:CONSTANT".
        kind: the kind of overlay on which the protocol runs.
        numbers: message numbers of the protocol; some may be free.
    """

    name: str
    definition: str
    kind: str
    numbers: tuple[range, ...]

    def load(self) -> ProtocolDefinition:
        """Import the definition.

        Raises:
            ImportError: the definition has another name or kind, or a message with a number of
                another protocol.
        """
        module, _, constant = self.definition.partition(":")
        found: ProtocolDefinition = getattr(import_module(module), constant)
        if (found.name, found.kind) != (self.name, self.kind):
            raise ImportError(
                f"{self.definition} is {found.name!r} on kind {found.kind!r}, and registered as "
                f"{self.name!r} on kind {self.kind!r}"
            )
        for message in found.messages:
            if not any(message.number in each for each in self.numbers):
                raise ImportError(
                    f"{self.name}: {message.type.__name__} has the number {message.number}, which "
                    "is not registered"
                )
        return found


class Registry(Mapping[str, ProtocolDefinition]):
    """Definitions by name, in the order of registration.

    Raises:
        ImportError: two protocols have the same name or number, or a number is reserved; names
            both.
    """

    def __init__(self, registrations: Iterable[Registration]) -> None:
        self._rows: dict[str, Registration] = {}
        self._loaded: dict[str, ProtocolDefinition] = {}
        self._by_number: dict[int, str] = {}
        for row in registrations:
            if row.name in self._rows:
                places = self._rows[row.name].definition, row.definition
                raise ImportError(f"two protocols are called {row.name!r}: {' and '.join(places)}")
            self._rows[row.name] = row
            for number in (number for each in row.numbers for number in each):
                if number < FIRST_MESSAGE_NUMBER:
                    raise ImportError(f"{row.name} has the number {number}, which no protocol may")
                if number in self._by_number:
                    raise ImportError(
                        f"{self._by_number[number]} and {row.name} both have {number}"
                    )
                self._by_number[number] = row.name

    def __getitem__(self, name: str) -> ProtocolDefinition:
        if name not in self._loaded:
            self._loaded[name] = self._rows[name].load()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def kind_of(self, name: str) -> str:
        """Return the kind of overlay on which a protocol runs, without importing it."""
        return self._rows[name].kind

    def protocol_of(self, number: int) -> str | None:
        """Return the protocol to which a message number belongs; None if there is none."""
        return self._by_number.get(number)


def _registration(name: str, kind: str, *numbers: range) -> Registration:
    module = f"brokerd.protocols.{name}.definition"
    return Registration(name, f"{module}:{name.upper()}", kind, numbers)


DEFINITIONS: Final = Registry(
    (
        _registration("best_effort", "tree", range(32, 48)),
        _registration("delta_tree", "tree", range(48, 64)),
        _registration("gryphon", "cells", range(64, 80), range(150, 154)),
        _registration("durable", "cells", range(80, 96)),
        _registration("multi_proxy", "bipartite", range(96, 112), range(117, 118), range(128, 135)),
        _registration("ges", "hierarchy", range(112, 117), range(135, 150)),
        _registration("ges_reliable", "hierarchy", range(118, 128)),
    )
)
"""All definitions by name, imported at the first use."""


DEFAULT: Final = "delta_tree"
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
    of_all = topology.settings_of(ALL_PROTOCOLS)
    known_keys = _known_keys() if of_all else set()
    for key in of_all:
        if key not in known_keys:
            known = nearest(key, sorted({*known_keys, DELTA}))
            raise ConfigError(f"{where}: parameters: unknown key {key!r}{known}")
    for protocol in DEFINITIONS:
        if not topology.settings and DEFINITIONS.kind_of(protocol) not in topology.kinds:
            continue  # its defaults are valid, and it need not be imported
        own = f".{protocol}" if topology.settings_of(protocol) else ""
        parameters = _parameters_of(topology, protocol, where)
        parameters.check(f"{where}: parameters{own}")
        if DEFINITIONS.kind_of(protocol) in topology.kinds:
            _check_replicas(topology, parameters, f"{where}: parameters{own}")
    return topology


def _known_keys() -> set[str]:
    return {name for each in DEFINITIONS.values() for name in _names(each)} - {DELTA}


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
    for name in DEFINITIONS:
        if DEFINITIONS.kind_of(name) in topology.kinds:
            with suppress(ConfigError):
                definition_of(name).check_topology(topology, name)
                fit.append(name)
    return tuple(fit)


def parameters_on(topology: Topology, protocol: str, where: str = "topology") -> Any:
    """Return a topology's parameters of a protocol, with defaults for missing keys.

    Raises:
        ConfigError: an unknown protocol or key, an invalid value, or a protocol that does not run
            on the topology; names the mistake.
    """
    check_runs_on(topology, protocol, where)
    parameters = _parameters_of(topology, protocol, where)
    _check_replicas(topology, parameters, f"{where}: parameters")
    return parameters


def _check_replicas(topology: Topology, parameters: Any, where: str) -> None:
    if isinstance(parameters, ReplicationParameters):
        parameters.check_topology(topology, where)


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

    Names with a stream are left out: a broker without clients does not have them.

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
    names = definition_of(name).make_core(context).statistics()
    return frozenset(each for each in names if "." not in each)
