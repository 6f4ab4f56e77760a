"""What a delivery protocol is to everybody else: one definition, registered once.

Whatever two protocols differ in and somebody else must know stands here, and nobody asks a
protocol's name. Bringing a protocol means a folder beside this file with a definition in it, and
one line in `registry`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol, Self

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.message_kind import MessageKind
from brokerd.model.operator_acts import NO_AUTHORITY, OperatorAuthority
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.outage import Outage, Reached, closed_route, open_routes
from brokerd.overlay.routes import Lost
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.parts.positions import Positions


class Order(StrEnum):
    """In which order subscribers get publications."""

    PUBLISHER = "publisher"
    """Those of one publisher in the order it published them."""
    TOTAL = "total"
    """That, and any two subscribers get what both get in the same order."""
    TOPIC = "topic"
    """Those of one publisher within a topic in the order it published them."""
    STREAM = "stream"
    """Those of one publisher within a stream in the order it published them."""
    NONE = "none"

    @property
    def is_of_sources(self) -> bool:
        """True if no publication overtakes an earlier publication of the same publisher."""
        return self in (Order.PUBLISHER, Order.TOTAL)


class Acknowledgement(StrEnum):
    """What a publisher knows of a publication once it is told that this is done."""

    DELIVERED = "delivered"
    """Everybody who is owed it has it."""
    STORED = "stored"
    """It is on disk, at as many brokers as the protocol says, and will be delivered."""
    HANDED_ON = "handed on"
    """It was passed on, and may be lost."""


class Parameters(Protocol):
    """What a topology file may set of a protocol: a frozen dataclass with defaults."""

    @property
    def client_linger_ns(self) -> int:
        """How long a vanished client's subscriptions stay, and what is for it is held."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """The parameters in `values`, with the defaults for what is not there.

        Raises:
            ConfigError: an unknown key, or a value that cannot be; says which, in `where`.
        """

    def check(self, where: str) -> None:
        """Make sure that brokers may run with them.

        Raises:
            ConfigError: together they break the protocol's promises; says why, in `where`.
        """

    def warnings(self) -> tuple[str, ...]:
        """What is promised less than somebody may expect, for people; one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What holds within the failures that a protocol tolerates.

    Attributes:
        exactly_once: each publication that matches reaches each subscriber once, in `order`,
            without a gap but for those announced; without, some are lost when something fails.
        members_may_change: brokers may join and leave meanwhile.
        roles_may_change: brokers may come to be something else in the overlay meanwhile.
        order: in which subscribers get publications.
        topic: the attribute with the topic of a publication; "": no topics.
        gaps: the reasons for which a subscriber may be told that it does not get some; none:
            never.
        gap_age_ns: what lies in a gap was published so long before that is told, at least.
        redelivers: a subscriber that starts again may get once more, marked as such, what it had
            not committed.
        resumes_elsewhere: a subscription goes on at whichever broker its client attaches to, where
            it says how far it has come.
        leaves_freely: and brokers keep nothing of their clients: one may go to another broker
            whatever it has asked for and not been answered, and publishes as the same source there.
        keeps_committed: a broker keeps how far a subscription is committed, for whoever asks it to.
    """

    exactly_once: bool
    members_may_change: bool
    roles_may_change: bool = False
    order: Order = Order.PUBLISHER
    topic: str = ""
    gaps: tuple[str, ...] = ()
    gap_age_ns: int = 0
    redelivers: bool = False
    resumes_elsewhere: bool = False
    leaves_freely: bool = False
    keeps_committed: bool = False

    def as_mapping(self) -> dict[str, Any]:
        """What deliveries are judged by, for the manifest of a run."""
        promised = {
            "exactly_once": self.exactly_once,
            "order": str(self.order),
            "gaps": list(self.gaps),
            "redelivers": self.redelivers,
        }
        more = {"gap_age_ns": self.gap_age_ns, "topic": self.topic}
        return {**promised, **{name: value for name, value in more.items() if value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreContext:
    """Where a core is, and what it is told.

    Attributes:
        topology: as the broker was started with. A core takes what it may know out of the overlay
            of its own kind, and hears of what changes by events.
        parameters: of its protocol.
        decode_attributes: reads attribute blobs; raises ValueError when one is malformed.
        authority: signs what only an operator may order; none: no such order is taken.
    """

    broker: BrokerNumber
    topology: Topology
    parameters: Any
    decode_attributes: DecodeAttributes
    authority: OperatorAuthority = NO_AUTHORITY


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a protocol does not go on with some brokers and links lost.

    Attributes:
        brokers: of those that are lost, as few as are too many, in an order for people.
        reason: what they are, for people.
    """

    brokers: tuple[BrokerNumber, ...]
    reason: str


def excess_of_routes(topology: Topology, parameters: Any, lost: Lost) -> Excess | None:
    """Lost brokers without which a route is closed between two that are left; None: all are open.

    Args:
        topology: its first kind's routes are meant.
    """
    closed = closed_route(topology, lost)
    if closed is None:
        return None
    needed = list(lost.brokers)
    for broker in lost.brokers:
        fewer = tuple(other for other in needed if other != broker)
        if closed_route(topology, Lost(fewer, lost.links)) is not None:
            needed.remove(broker)
    origin, home = closed_route(topology, Lost(tuple(needed), lost.links)) or closed
    names = topology.brokers
    return Excess(tuple(needed), f"nothing gets from {names[origin]} to {names[home]}")


def reached_over_routes(topology: Topology, parameters: Any, outage: Outage) -> Reached:
    """Who gets whose publications over the routes that a topology's first kind gives."""
    return open_routes(topology, outage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolDefinition:
    """A delivery protocol.

    Attributes:
        name: in files, commands and logs.
        kind: of topologies that it runs on.
        parameters: their class; one with `delta` gets that of the topology.
        messages: that its brokers send each other; their numbers are its own.
        acknowledgement: what one means with these parameters.
        logs: the names of a broker's logs with these parameters.
        stream_logs: those of more of them, as many as a topology makes necessary.
        bypasses_links: whether a broken link between live brokers is gone around.
        core: the module whose `make_core` makes a broker's core of a CoreContext. Only who runs
            brokers imports it.
        pack_positions: how far a subscription has come, as the content of a resume token.
        unpack_positions: and back; raises ResumeTokenRefused when it cannot be.
        excess: what it tolerates: of some lost brokers and links, those that are too many for
            its promises to hold between all that are left; None where none are.
        topic_attribute: whose value is a publication's topic; None where there are no topics.
        check_topology: of its kind; raises ConfigError, naming where, if it cannot run on this one.
        hosts_clients: whether clients may be at a broker.
        order: in which subscribers get publications with these parameters, where they decide it;
            None: as `promises` says.
        gap_age_ns: how old what lies in a gap is with these parameters, at least, where they decide
            it; 0: of any age; None: there are no gaps.
        fault_bound: how many brokers and links may fail at once, wherever they are, where
            `excess` is not all that counts.
        reaches: who gets whose publications while something does not work. As `excess`, it is
            given the topology as its kind sees it, and means its routes unless it says otherwise.
        title: what people call it, with an article where it has one; "": its name.
        recovery: how it gets over failures, for readers of a report; whole sentences.
        wiring: what a topology says of it in a figure's caption, such as "δ = 1"; "": nothing.
        check_decommission: raises ConfigError, naming where, if the others cannot go on for good
            without a broker; None: they never can. With it, cores are DecommissioningProtocols.
        keeps_loss: why a broker that lost durable state cannot announce what it lost, so that the
            operator cannot accept the loss; "" where it can. By default no broker can.
        checks: the module with what simulations know of it beyond this; "" for none.
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
    gap_age_ns: Callable[[Any], int | None] | None = None
    hosts_clients: Callable[[Topology, BrokerNumber], bool] = lambda topology, broker: True
    excess: Callable[[Topology, Any, Lost], Excess | None] = excess_of_routes
    fault_bound: Callable[[Topology, Any], int | None] = lambda topology, parameters: None
    reaches: Callable[[Topology, Any, Outage], Reached] = reached_over_routes
    stream_logs: Callable[[Topology, Any], tuple[str, ...]] = lambda topology, parameters: ()
    title: str = ""
    recovery: str = ""
    wiring: Callable[[Topology, Any], str] = lambda topology, parameters: ""
    topic_attribute: Callable[[Any], str] | None = None
    check_decommission: Callable[[Topology, BrokerNumber, str], None] | None = None
    keeps_loss: Callable[[Topology, BrokerNumber], str] = lambda topology, broker: (
        "brokers of this protocol cannot announce what they lost"
    )
    checks: str = ""

    def make_core(self, context: CoreContext) -> DeliveryProtocol:
        """One broker's core; its first event is Started."""
        core: DeliveryProtocol = import_module(self.core).make_core(context)
        return core

    def promised(self, parameters: Any) -> Promises:
        """What holds with these parameters."""
        promises = self.promises
        if self.order is not None:
            promises = replace(promises, order=self.order(parameters))
        if self.topic_attribute is not None:
            promises = replace(promises, topic=self.topic_attribute(parameters))
        if self.gap_age_ns is not None:
            age_ns = self.gap_age_ns(parameters)
            gaps = promises.gaps if age_ns is not None else ()
            promises = replace(promises, gaps=gaps, gap_age_ns=age_ns or 0)
        return promises

    def check_decommissioned(self, topology: Topology, broker: BrokerNumber, where: str) -> None:
        """Make sure that the others can go on for good without a broker.

        Raises:
            ConfigError: they cannot; says why, in `where`.
        """
        if self.check_decommission is None:
            raise ConfigError(
                f"{where}: with {self.name} no broker is given up for good: whatever is down is "
                "waited for, or holds nobody up"
            )
        self.check_decommission(topology, broker, where)

    def all_logs(self, topology: Topology, parameters: Any) -> tuple[str, ...]:
        """The names of all of a broker's logs."""
        return (*self.logs(parameters), *self.stream_logs(topology, parameters))

    def homes(self, topology: Topology) -> tuple[str, ...]:
        """The brokers that clients may be at."""
        return tuple(
            name
            for number, name in enumerate(topology.brokers)
            if self.hosts_clients(topology, number)
        )

    def surroundings(self, topology: Topology, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Whom a broker may know, dial, and be dialled by, in ascending order."""
        return topology.overlay(self.kind).surroundings(broker)
