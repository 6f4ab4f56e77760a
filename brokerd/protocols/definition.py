"""Definition of a delivery protocol for the rest of the project.

A definition contains every difference between two protocols that other code depends on, so no
other code tests a protocol's name. A new protocol needs a folder beside this file with a
definition, and one line in `registry`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol, Self, runtime_checkable

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.message_kind import MessageKind
from brokerd.model.operator_acts import NO_AUTHORITY, OperatorAuthority
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.outage import Outage, Reached, find_closed_route, open_routes
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.parts.records import Positions


class Order(StrEnum):
    """The order in which subscribers receive publications."""

    PUBLISHER = "publisher"
    """Publications of one publisher arrive in publishing order."""
    TOTAL = "total"
    """As PUBLISHER, and two subscribers receive their common publications in the same order."""
    TOPIC = "topic"
    """Publications of one publisher within a topic arrive in publishing order."""
    STREAM = "stream"
    """Publications of one publisher within a stream arrive in publishing order."""
    NONE = "none"

    @property
    def is_of_sources(self) -> bool:
        """True if no publication overtakes an earlier publication of the same publisher."""
        return self in (Order.PUBLISHER, Order.TOTAL)


class Acknowledgement(StrEnum):
    """The meaning of an acknowledgement that a publisher receives for a publication."""

    DELIVERED = "delivered"
    """Every subscription that is owed the publication has acknowledged."""
    STORED = "stored"
    """The publication is on disk, at as many brokers as the protocol requires, until delivery."""
    HANDED_ON = "handed on"
    """The publication was forwarded, and may be lost."""


class Parameters(Protocol):
    """The parameters of a protocol in a topology file: a frozen dataclass with defaults."""

    @property
    def client_linger_ns(self) -> int:
        """Duration for which the state of a client without a session is kept."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Return the parameters in `values`, with defaults for missing keys.

        Raises:
            ConfigError: an unknown key or an invalid value; names the key in `where`.
        """

    def check(self, where: str) -> None:
        """Check that brokers may run with these parameters.

        Raises:
            ConfigError: the combination breaks a promise of the protocol; states the reason in
                `where`.
        """

    def warnings(self) -> tuple[str, ...]:
        """Return weaker promises than a reader may expect, one sentence per promise."""


@runtime_checkable
class ReplicationParameters(Protocol):
    """Parameters of a protocol that stores the state of brokers with clients at other brokers."""

    @property
    def replicas(self) -> int:
        """Number of disks with the state of a broker with clients, the broker's own included."""

    def check_topology(self, topology: Topology, where: str) -> None:
        """Check that all brokers of a topology can have so many replicas.

        Raises:
            ConfigError: a broker cannot; names the largest valid value, and `where`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Guarantees within the failures that a protocol tolerates.

    Attributes:
        exactly_once: every matching publication reaches every subscriber once, in `order`,
            without a gap except announced gaps. Otherwise failures may lose publications.
        members_may_change: brokers may join and leave during operation.
        roles_may_change: the roles of brokers in the overlay may change during operation.
        order: the order in which subscribers receive publications.
        topic: the attribute with the topic of a publication; "" without topics.
        gaps: the reasons with which a gap may be announced to a subscriber; empty if there are
            no gaps.
        gap_age_ns: least age of a publication in a gap at the announcement.
        gap_ages_ns: `gap_age_ns` of the publishers of each stream of a broker, None without gaps; a
            publisher is in the stream of its number's remainder. Empty: the same for all.
        absence_gaps: the reasons with which a gap may be announced to a subscriber that its broker
            had no session with for `client_linger_ns`; of publications of any age.
        retention_may_change: the bounds of early release may change while brokers run.
        redelivers: a subscriber that restarts may receive uncommitted publications again, marked
            as redelivered.
        resumes_elsewhere: a subscription resumes at any broker that the client attaches to, from
            the positions that the client sends.
        leaves_freely: as `resumes_elsewhere`, and brokers keep no state of clients: a client may
            move with unanswered requests, and publishes as the same source at the next broker.
        keeps_committed: a broker stores the committed positions of a subscription on request.
    """

    exactly_once: bool
    members_may_change: bool
    roles_may_change: bool = False
    order: Order = Order.PUBLISHER
    topic: str = ""
    gaps: tuple[str, ...] = ()
    gap_age_ns: int = 0
    gap_ages_ns: tuple[int | None, ...] = ()
    absence_gaps: tuple[str, ...] = ()
    retention_may_change: bool = False
    redelivers: bool = False
    resumes_elsewhere: bool = False
    leaves_freely: bool = False
    keeps_committed: bool = False

    def as_mapping(self) -> dict[str, Any]:
        """Return the guarantees that deliveries are judged by, for the manifest of a run."""
        promised = {
            "exactly_once": self.exactly_once,
            "order": str(self.order),
            "gaps": list(self.gaps),
            "redelivers": self.redelivers,
        }
        more = {
            "gap_age_ns": self.gap_age_ns,
            "gap_ages_ns": [*self.gap_ages_ns],
            "topic": self.topic,
        }
        return {**promised, **{name: value for name, value in more.items() if value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreContext:
    """The place and the configuration of a core.

    Attributes:
        topology: the topology at the broker's start. A core reads the overlay of its own kind
            only, and receives changes as events.
        parameters: the parameters of the core's protocol.
        decode_attributes: reads attribute blobs; raises ValueError if a blob is malformed.
        authority: signs operator's acts; without an authority the core accepts none.
    """

    broker: BrokerNumber
    topology: Topology
    parameters: Any
    decode_attributes: DecodeAttributes
    authority: OperatorAuthority = NO_AUTHORITY


@dataclass(frozen=True, slots=True)
class Excess:
    """Lost brokers and links beyond the failures that a protocol tolerates.

    Attributes:
        brokers: a smallest subset of the lost brokers that is too many, in reading order.
        reason: a description for people.
    """

    brokers: tuple[BrokerNumber, ...]
    reason: str


def excess_of_routes(topology: Topology, parameters: Any, lost: FailedElements) -> Excess | None:
    """Return lost brokers that close a route between two remaining brokers; None if all are open.

    Args:
        topology: the routes are the routes of the topology's first kind.
    """
    closed = find_closed_route(topology, lost)
    if closed is None:
        return None
    needed = list(lost.brokers)
    for broker in lost.brokers:
        fewer = tuple(other for other in needed if other != broker)
        if find_closed_route(topology, FailedElements(fewer, lost.links)) is not None:
            needed.remove(broker)
    origin, home = find_closed_route(topology, FailedElements(tuple(needed), lost.links)) or closed
    names = topology.brokers
    return Excess(tuple(needed), f"no route leads from {names[origin]} to {names[home]}")


def find_reached_over_routes(topology: Topology, parameters: Any, outage: Outage) -> Reached:
    """Return the brokers with a route to each subscriber's broker, of a topology's first kind."""
    return open_routes(topology, outage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolDefinition:
    """A delivery protocol.

    Attributes:
        name: in files, commands and logs.
        kind: of topologies that the protocol runs on.
        parameters: the class of parameters; a class with `delta` receives the topology's δ, and
            one with `replicas` is a class of ReplicationParameters.
        messages: between brokers of the protocol; the numbers belong to the protocol.
        acknowledgement: the meaning of an acknowledgement with the parameters.
        logs: the names of a broker's logs with the parameters.
        stream_logs: the names of further logs, as many as the topology requires.
        bypasses_links: whether publications bypass a broken link between live brokers.
        core: the module with `make_core`, which makes a broker's core from a CoreContext. Only
            processes that run brokers import the module.
        pack_positions: encodes the positions of a subscription as the content of a resume token.
        unpack_positions: the inverse; raises ResumeTokenRefused if the content is invalid.
        excess: returns the lost brokers and links that are too many for the promises to hold
            between all remaining brokers; None if the loss is tolerated.
        topic_attribute: the attribute with a publication's topic; None without topics.
        check_topology: raises ConfigError, naming `where`, if the protocol cannot run on this
            topology of its kind.
        hosts_clients: whether a broker may have clients.
        order: of publications at subscribers, if the parameters decide it; None: as in
            `promises`.
        gap_ages_ns: least age of publications in a gap for each stream of a broker, or one for all,
            if the parameters decide it; 0: any age; None: there are no gaps.
        fault_bound: greatest number of brokers and links that may fail at once, at any place, if
            `excess` is not the only bound.
        reaches: returns, for a subscriber's broker, the brokers from which publications arrive
            during an outage. As `excess`, the function receives the topology as its kind sees it;
            by default it follows the routes.
        title: the name for people, with an article if there is one; "": as `name`.
        recovery: the recovery from failures, for readers of a report; whole sentences.
        wiring: a property of the topology for a figure's caption, such as "δ = 1"; "": none.
        check_decommission: raises ConfigError, naming `where`, if the other brokers cannot
            continue permanently without a broker; None: no broker may be decommissioned. With the
            check, cores are DecommissioningProtocols.
        keeps_loss: the reason for which a broker that lost durable state cannot announce the
            loss, so that the operator cannot accept the loss; "" if it can. By default no broker
            can.
        topology_parameters: names of parameters that the section of the topology's kind sets, in
            place of the section of parameters.
        chain_words: further words for drawn brokers whose joint failure is tolerated, and is not,
            in fault schedules; () for none.
        partition_counters: counters of a core that rise only after a partition.
        checks: the module with further facts for simulations; "" for none.
    """

    name: str
    kind: str
    parameters: type[Parameters]
    messages: tuple[MessageKind, ...]
    promises: Promises
    acknowledgement: Callable[[Any], Acknowledgement]
    logs: Callable[[Any], tuple[str, ...]]
    bypasses_links: Callable[[Any], bool]
    core: str
    pack_positions: Callable[[Positions], bytes]
    unpack_positions: Callable[[bytes], Positions]
    check_topology: Callable[[Topology, str], None] = lambda topology, where: None
    order: Callable[[Any], Order] | None = None
    gap_ages_ns: Callable[[Any], tuple[int | None, ...]] | None = None
    hosts_clients: Callable[[Topology, BrokerNumber], bool] = lambda topology, broker: True
    excess: Callable[[Topology, Any, FailedElements], Excess | None] = excess_of_routes
    fault_bound: Callable[[Topology, Any], int | None] = lambda topology, parameters: None
    reaches: Callable[[Topology, Any, Outage], Reached] = find_reached_over_routes
    stream_logs: Callable[[Topology, Any], tuple[str, ...]] = lambda topology, parameters: ()
    title: str = ""
    recovery: str = ""
    wiring: Callable[[Topology, Any], str] = lambda topology, parameters: ""
    topic_attribute: Callable[[Any], str] | None = None
    check_decommission: Callable[[Topology, BrokerNumber, str], None] | None = None
    keeps_loss: Callable[[Topology, Any, BrokerNumber], str] = lambda topology, parameters, own: (
        "brokers of this protocol cannot announce what they lost"
    )
    topology_parameters: tuple[str, ...] = ()
    partition_counters: tuple[str, ...] = ()
    chain_words: tuple[()] | tuple[str, str] = ()
    checks: str = ""

    def make_core(self, context: CoreContext) -> DeliveryProtocol:
        """Return one broker's core; its first event is Started."""
        core: DeliveryProtocol = import_module(self.core).make_core(context)
        return core

    def restores(self, topology: Topology, parameters: Any, broker: BrokerNumber) -> bool:
        """Return True if a broker restores lost durable state from other brokers by itself."""
        if not isinstance(parameters, ReplicationParameters):
            return False
        return parameters.replicas > 1 and self.hosts_clients(topology, broker)

    def promises_with(self, parameters: Any) -> Promises:
        """Return the guarantees with these parameters."""
        promises = self.promises
        if self.order is not None:
            promises = replace(promises, order=self.order(parameters))
        if self.topic_attribute is not None:
            promises = replace(promises, topic=self.topic_attribute(parameters))
        if self.gap_ages_ns is not None:
            ages_ns = self.gap_ages_ns(parameters)
            age_ns = min((each for each in ages_ns if each is not None), default=None)
            promises = replace(
                promises,
                gaps=promises.gaps if age_ns is not None else (),
                gap_age_ns=age_ns or 0,
                gap_ages_ns=ages_ns if len({*ages_ns}) > 1 else (),
            )
        return promises

    def check_decommissioned(self, topology: Topology, broker: BrokerNumber, where: str) -> None:
        """Check that the other brokers can continue permanently without a broker.

        Raises:
            ConfigError: they cannot; states the reason in `where`.
        """
        if self.check_decommission is None:
            raise ConfigError(
                f"{where}: with {self.name} no broker is decommissioned: the others wait for "
                "it, or continue without it"
            )
        self.check_decommission(topology, broker, where)

    def all_logs(self, topology: Topology, parameters: Any) -> tuple[str, ...]:
        """Return the names of all logs of a broker."""
        return (*self.logs(parameters), *self.stream_logs(topology, parameters))

    def homes(self, topology: Topology) -> tuple[str, ...]:
        """Return the brokers that may have clients."""
        return tuple(
            name
            for number, name in enumerate(topology.brokers)
            if self.hosts_clients(topology, number)
        )

    def surroundings(self, topology: Topology, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the brokers that a broker may exchange sessions with, in ascending order."""
        return topology.overlay(self.kind).surroundings(broker)
