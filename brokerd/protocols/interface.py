"""What every delivery protocol is to its driver: events in, effects out.

The runtime and the simulator are two drivers of the same cores. A core does no I/O, reads no
clock, draws no random number and iterates no set, so the same events give the same effects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from brokerd.model.client_messages import DeliveredItem
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.publication import Buffer
from brokerd.model.record import record
from brokerd.overlay.kinds import Overlay

Instant = int
"""Nanoseconds of the driver's clock; only differences mean anything."""

LossReason = Literal["closed_by_us", "closed_by_peer", "silent", "overflow", "protocol_error"]


Broker = TypeVar("Broker", BrokerNumber, str)

LogRecord = tuple[Buffer, ...]
"""What a core keeps in a log, in pieces; it comes back as one, and nobody else looks into it."""


@record
class LogEnds:
    """What of a log is there: records from index `first` up to, and without, `next`."""

    first: int = 1
    next: int = 1


# ---------------------------------------------------------------- events: what happened


@record
class Started:
    """First event of every core.

    Attributes:
        incarnation: of this broker; already on disk.
        recovering: True when this deployment has run on this disk before, and for a broker
            that joins: neither knows what its neighbours know.
        recovered: the meta store's rows, table → key → value, as the last Commit that was
            durable (or later) left them.
        logs: the ends of each log that the definition names. At least what was durable is
            there; of what was not, any number of Appends from the front.
        wall_ns: what the machine's clock shows as this is handled, nanoseconds since 1970. An
            earlier incarnation may have seen a later one: people and daemons put clocks right.
        lineage: time in seconds at which the operator accepted the last loss of durable state; 0
            if none was lost. Neighbours and clients may know more of this broker than it does then.
    """

    incarnation: int
    recovering: bool
    recovered: Mapping[str, Mapping[str, Any]]
    logs: Mapping[str, LogEnds] = field(default_factory=dict)
    wall_ns: int = 0
    lineage: int = 0


@record
class SessionEstablished:
    """A session is up at this end. `session` never repeats within this broker incarnation."""

    peer: Peer
    session: int
    incarnation: int


@record
class SessionLost:
    """The named session instance is over: exactly one per SessionEstablished, and last of it."""

    peer: Peer
    session: int
    reason: LossReason


@record
class OpenFailed:
    """An OpenSession came to nothing: refused, unreachable, or no answer in time."""

    peer: Peer
    reason: str


@record
class MessageReceived:
    """A message, in the order its session carried it."""

    peer: Peer
    session: int
    message: Any


@record
class Persisted:
    """The Commit or Append with this token now survives a crash."""

    token: int


@record
class RecordsRead:
    """The answer to a Read: records from index `first` on, at least one.

    Fewer than were asked for where they are large: the core reads on behind them.
    """

    log: str
    first: int
    records: tuple[bytes, ...]


@record
class TopologyGrown:
    """A broker has joined a tree as a leaf, within this broker's neighbourhood.

    That is on disk already; the broker itself may not have started yet.
    """

    broker: BrokerNumber
    parent: BrokerNumber


@record
class TopologyShrunk:
    """A leaf of this broker's neighbourhood has left for good, without clients; it is on disk."""

    broker: BrokerNumber


@record
class BrokerDecommissioned:
    """The operator has decommissioned a broker: it is gone for good, with what was only there.

    The driver has verified the signature. A core keeps it, and passes it on with the act.

    Said to every other broker that is up, once or more often. A core whose definition knows no
    `check_decommission` is never told so.
    """

    broker: BrokerNumber
    signature: bytes


@record
class OverlayChanged:
    """What brokers are in the overlay of the protocol's kind has changed; it is on disk.

    In a hierarchy brokers may have joined, too, which may not have started yet, and others have
    left for good, without clients. Said to every broker that is up, once or more often; who is down
    begins with it. A core whose definition promises neither that roles may change nor that members
    may is never told so.
    """

    overlay: Overlay


@record
class DeadlineReached:
    """The instant of next_deadline() has come."""


Event = (
    Started
    | SessionEstablished
    | SessionLost
    | OpenFailed
    | MessageReceived
    | Persisted
    | RecordsRead
    | TopologyGrown
    | TopologyShrunk
    | BrokerDecommissioned
    | OverlayChanged
    | DeadlineReached
)


# ---------------------------------------------------------------- effects: what to do


@record
class Send:
    """Queue a message on the peer's current session; dropped when there is none."""

    peer: Peer
    message: Any


@record
class Deliver:
    """Queue publications on the client's current session; dropped when there is none.

    Or what is said in their place: that there are none, that they are lost, or withheld.
    """

    client: ClientId
    item: DeliveredItem


@record
class RedirectClient:
    """Tell a client that one of these brokers, the best first, would rather have it.

    Dropped when it has no session, or where clients can be told of none of them. It may stay.
    """

    client: ClientId
    brokers: tuple[BrokerNumber, ...]


@record
class OpenSession:
    """Try once to open a session; answered by SessionEstablished or OpenFailed.

    Ignored while a session with the peer is up or being opened.
    """

    peer: Peer


@record
class CloseSession:
    """End the peer's current session or attempt; SessionLost or OpenFailed follows."""

    peer: Peer
    reason: str


@record
class Change:
    """One row of the meta store: set, or deleted where `value` is None.

    `value` is built of None-free lists, tuples, str, int, bool and bytes (tuples come back as
    lists).
    """

    table: str
    key: str
    value: Any


@record
class Commit:
    """Change rows in one transaction.

    With a token: durable before Persisted(token) is answered. With None: lazily, in groups, at
    the driver's leisure, never answered; a crash may lose it, but never reorders it behind a
    later commit.
    """

    changes: tuple[Change, ...]
    token: int | None


@record
class Append:
    """Append records to a log; the first gets the index that was its `next`.

    With a token: they, and whatever was appended to any log before, are durable before
    Persisted(token) is answered; without records that is all it does. With None: lazily, and
    never answered. The records of one Append survive a crash together or not at all, and never
    without those before.

    What is done to logs is done in order, and apart from the meta store: neither waits for the
    other.
    """

    log: str
    records: tuple[LogRecord, ...]
    token: int | None


@record
class Read:
    """Have records of a log from index `first` up to, and without, `end` read back.

    Answered by one RecordsRead. All of them must be there, durable or not.
    """

    log: str
    first: int
    end: int


@record
class Chop:
    """Records of a log below index `first` are not needed any longer.

    Done lazily, and never before what was appended before it is durable: a crash may undo it,
    and it frees space when a whole segment is chopped. What has to be committed before they may
    go must be durable when this is emitted. Nothing happens where less is left already.
    """

    log: str
    first: int


@record
class Truncate:
    """Drop the records of a log from index `next` on; the next one appended gets it again.

    Durable at the latest with what is appended then: until that, a crash may undo it.
    """

    log: str
    next: int


@record
class Record:
    """Write a line into this broker's event log: what, and JSON-ready details."""

    event: str
    details: Mapping[str, Any] = field(default_factory=dict)


@record
class Shutdown:
    """End this broker, which must not go on; the last effect of all, and `reason` is for people."""

    reason: str


LOSS_PROVED: Final = "loss_proved"
"""Event of a Record: a client proved a loss of durable state, which the operator may accept."""
LOSS_ACCEPTED: Final = "loss_accepted"
"""Event of a broker that started by an operator's act although it lost durable state."""


def retransmission_requested(
    peer: BrokerNumber, source: BrokerNumber, stream: int, ranges: int, asked_ns: int
) -> Record:
    """The line for a request for what this broker lacks of a stream; `results` adds them up.

    Args:
        peer: who is asked.
        source, stream: the broker where the stream begins, and which one there.
        ranges: how many the request names.
        asked_ns: how long a time of the stream these are together.
    """
    details = {"peer": peer, "source": source, "stream": stream}
    return Record("retransmission_requested", {**details, "ranges": ranges, "asked_ns": asked_ns})


LogEffect = Append | Read | Chop | Truncate

Effect = (
    Send
    | Deliver
    | RedirectClient
    | OpenSession
    | CloseSession
    | Commit
    | LogEffect
    | Record
    | Shutdown
)


FIRST_INNER_SESSION = 1 << 40
"""Sessions that a wrapper makes for the core in it have numbers from here on; a driver's do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatus(Generic[Broker]):
    """How a core is doing: brokers have numbers; names outside its process, where it is JSON.

    Attributes:
        state: `running`, or `recovering` while it does not know all that it has to.
        queued: publications that are not done here.
        subscriptions: that it knows of.
        own_subscriptions: those of its own clients among them.
        wanted: brokers with which it wants a session.
        ready: brokers with which it has one that can be used.
        idle_reasons: why it is not idle, in words; none: nobody would miss it.
        detail: JSON-ready, of its protocol; shared code prints it and no more.
        discrepancies: contradictions between the broker's view and its topology or log, in words.
    """

    state: str
    queued: int = 0
    subscriptions: int = 0
    own_subscriptions: int = 0
    wanted: tuple[Broker, ...] = ()
    ready: tuple[Broker, ...] = ()
    idle_reasons: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)
    discrepancies: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Broker, ...]:
        """Wanted, but without a session that can be used."""
        return tuple(broker for broker in self.wanted if broker not in self.ready)

    def to_mapping(self, names: Mapping[Broker, str]) -> dict[str, Any]:
        """As JSON, with the names of brokers."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        for key in ("wanted", "ready"):
            found[key] = [names[broker] for broker in found[key]]
        lists = {key: list(found[key]) for key in ("idle_reasons", "discrepancies")}
        return {**found, **lists, "detail": dict(self.detail)}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> "CoreStatus[str]":
        """Back from JSON, whatever else is in it; brokers are names."""
        return CoreStatus(
            state=values["state"],
            queued=values["queued"],
            subscriptions=values["subscriptions"],
            own_subscriptions=values["own_subscriptions"],
            wanted=tuple(values["wanted"]),
            ready=tuple(values["ready"]),
            idle_reasons=tuple(values["idle_reasons"]),
            detail=values["detail"],
            discrepancies=tuple(values.get("discrepancies", ())),
        )


class DeliveryProtocol(Protocol):
    """One broker's share of a delivery protocol. Does no I/O and reads no clock.

    The driver calls handle() for every event, in the order the events happened, and performs
    the effects in list order without waiting for any of them. What must not be seen before
    something is on disk is emitted while handling its Persisted, never earlier. Nothing is
    retried by the driver.

    A core whose definition promises that no brokers join and leave is never told TopologyGrown or
    TopologyShrunk.
    """

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """Take one event; return what to do about it.

        Raises:
            RemoteProtocolError: the event's peer broke the rules. Raised before anything was
                changed; the driver closes that session (SessionLost follows).
        """
        ...

    def next_deadline(self) -> Instant | None:
        """When to send the next DeadlineReached; None while nothing is timed."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges by name; counters only grow within an incarnation."""
        ...

    def clients_behind(self) -> Collection[ClientId]:
        """Clients who have as much unacknowledged as they may have, so that others wait."""
        ...

    def aftermath(self) -> Sequence[str]:
        """What failures have left behind in this broker, in words; what is under way is not that.

        Empty when it is as if nothing had ever failed.
        """
        ...

    def status(self) -> CoreStatus[BrokerNumber]:
        """How it is doing."""
        ...


@dataclass(frozen=True, slots=True)
class Farewell:
    """What one broker says of doing without another one for good.

    Attributes:
        is_known: it does, and that is on its disk.
        refusals: why it cannot, in words; none: it can.
        losses: what is lost by it that this one knows of, in words.
    """

    is_known: bool
    refusals: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


class DecommissioningProtocol(DeliveryProtocol, Protocol):
    """A DeliveryProtocol that goes on without a broker that never comes back."""

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """What this broker has to say before another one is decommissioned, and afterwards."""
        ...


class CoreWrapper(ABC):
    """A core around another one, to which it gives sessions of its own making.

    Attributes:
        core: the protocol itself.
        watch: told of each step of the core, where anybody wants to know.
    """

    core: DeliveryProtocol
    watch: Callable[[Event, list[Effect]], None] | None = None

    @abstractmethod
    def session_with(self, peer: BrokerNumber) -> int:
        """The number of the core's session with a broker; 0 when there is none."""
