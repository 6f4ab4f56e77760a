"""Interface between a delivery protocol and its driver: events in, effects out.

The runtime and the simulator are two drivers of the same cores. A core does no I/O, reads no
clock, draws no random number and iterates no set, so the same events give the same effects.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from brokerd.model.client_messages import DeliveredItem
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.publication import Buffer
from brokerd.model.record import record
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.overlay.kinds import Overlay

Instant = int
"""Nanoseconds of the driver's clock; only differences have a meaning."""

LossReason = Literal["closed_by_us", "closed_by_peer", "silent", "overflow", "protocol_error"]

Broker = TypeVar("Broker", BrokerNumber, str)


LogRecord = tuple[Buffer, ...]
"""A log record of a core, in pieces. A read returns one piece; no other code decodes the record."""


@record
class LogEnds:
    """The extent of a log: records from index `first` up to, and without, `next`."""

    first: int = 1
    next: int = 1


# ---------------------------------------------------------------- events


@record
class Started:
    """First event of every core.

    Attributes:
        incarnation: of this broker; already on disk.
        recovering: True if this deployment has run on this disk before, and for a broker that
            joins. In both cases the broker may lack state that its neighbours have.
        recovered: the rows of the meta store, table → key → value, as the last durable Commit or
            a later Commit left them.
        logs: the ends of each log that the definition names. All durable records exist, and any
            number of the other Appends, from the front.
        wall_ns: the machine's clock at this event, nanoseconds since 1970. An earlier incarnation
            may have read a later time, because people and daemons correct clocks.
        lineage: time in seconds at which the operator accepted the last loss of durable state; 0
            if none was lost. After a loss, neighbours and clients may have state of this broker
            that the broker lacks.
        restores: durable state is lost, and the core restores it from other brokers before it
            serves; see ProtocolDefinition.restores. `recovered` and `logs` are of an older state.
        start: random number of this start, which no other start of this broker has, on any state
            folder; 0 if the driver has none.
    """

    incarnation: int
    recovering: bool
    recovered: Mapping[str, Mapping[str, Any]]
    logs: Mapping[str, LogEnds] = field(default_factory=dict)
    wall_ns: int = 0
    lineage: int = 0
    restores: bool = field(default=False, repr=False)
    start: int = field(default=0, repr=False)


@record
class SessionEstablished:
    """The start of a session at this end. `session` never repeats within a broker incarnation."""

    peer: Peer
    session: int
    incarnation: int


@record
class SessionLost:
    """The end of the named session: exactly one per SessionEstablished, and its last event."""

    peer: Peer
    session: int
    reason: LossReason


@record
class OpenFailed:
    """The failure of an OpenSession: refused, unreachable, or no answer in time."""

    peer: Peer
    reason: str


@record
class MessageReceived:
    """A message, in the order of its session."""

    peer: Peer
    session: int
    message: Any


@record
class Persisted:
    """The confirmation that the Commit or Append with this token survives a crash."""

    token: int


@record
class RecordsRead:
    """The answer to a Read: records from index `first` on, at least one record.

    Large records may make the answer shorter than the request; the core then reads the rest.
    """

    log: str
    first: int
    records: tuple[bytes, ...]


@record
class TopologyGrown:
    """The arrival of a broker that joined a tree as a leaf, within this broker's neighbourhood.

    The change is on disk already; the joined broker itself may not have started yet.
    """

    broker: BrokerNumber
    parent: BrokerNumber


@record
class TopologyShrunk:
    """The permanent departure of a leaf of this broker's neighbourhood, without clients.

    The change is on disk already.
    """

    broker: BrokerNumber


@record
class BrokerDecommissioned:
    """An operator's act: the named broker is removed permanently, with all state that only it had.

    The driver has verified the signature. A core stores the signature, and forwards both.

    Every other running broker receives the event, at least once. A core never receives the event if
    its definition has no `check_decommission`.
    """

    broker: BrokerNumber
    signature: bytes


@record
class SubscriptionEnded:
    """An operator's act: a subscription ends, as if its client had unsubscribed.

    A core that is no ListingProtocol never receives the event.
    """

    client: ClientId
    number: int


@record
class RetentionChanged:
    """An operator's act: a pubend of this broker has another policy of early release.

    A core that is no ListingProtocol never receives the event. The core records the policy when it
    is durable and in force, and the policies of all pubends at each restart (`RETENTION_CHANGED`).

    Attributes:
        policy: None: as the topology states it.
    """

    pubend: int
    policy: RetentionPolicy | None


@record
class OverlayChanged:
    """A change of the brokers in the overlay of the protocol's kind; on disk.

    In a hierarchy further brokers may have joined, and may not have started yet; others may have
    left permanently, without clients. Every running broker receives the event, at least once; a
    stopped broker starts with the new overlay. A core with neither of the promises
    `roles_may_change` and `members_may_change` never receives the event.
    """

    overlay: Overlay


@record
class DeadlineReached:
    """The arrival of the instant of next_deadline()."""


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
    | SubscriptionEnded
    | RetentionChanged
    | OverlayChanged
    | DeadlineReached
)


# ---------------------------------------------------------------- effects


@record
class Send:
    """Queue a message on the peer's current session; dropped without a session."""

    peer: Peer
    message: Any


@record
class Deliver:
    """Queue publications on the client's current session; dropped without a session.

    The item may instead announce silence, a gap, or withheld publications.
    """

    client: ClientId
    item: DeliveredItem


@record
class RedirectClient:
    """Ask a client to move to one of these brokers, the best first.

    Dropped if the client has no session, or if no broker in the list may be named to clients. The
    client may stay.
    """

    client: ClientId
    brokers: tuple[BrokerNumber, ...]


@record
class OpenSession:
    """Try once to open a session; answered by SessionEstablished or OpenFailed.

    Ignored while a session with the peer is established or being opened.
    """

    peer: Peer


@record
class CloseSession:
    """End the peer's current session or attempt; SessionLost or OpenFailed follows."""

    peer: Peer
    reason: str


@record
class Change:
    """One row of the meta store: set, or deleted if `value` is None.

    `value` consists of None-free lists, tuples, str, int, bool and bytes. Tuples are read back as
    lists.
    """

    table: str
    key: str
    value: Any


@record
class Commit:
    """Change rows in one transaction.

    With a token, the rows are durable before Persisted(token) is emitted. With None, the driver
    commits lazily, in groups, without an answer. A crash may lose the latter rows, but never
    reorders them behind a later commit.
    """

    changes: tuple[Change, ...]
    token: int | None


@record
class Append:
    """Append records to a log; the first record gets the index that was the log's `next`.

    With a token, the records and all earlier appends to any log are durable before Persisted(token)
    is emitted; an Append without records does only that. With None, the driver appends lazily,
    without an answer. The records of one Append survive a crash together or not at all, and never
    without earlier records.

    Effects on logs are done in order, and apart from the meta store: neither waits for the other.
    """

    log: str
    records: tuple[LogRecord, ...]
    token: int | None


@record
class Read:
    """Read the records of a log from index `first` up to, and without, `end`.

    Answered by one RecordsRead. All of the records must exist, durable or not.
    """

    log: str
    first: int
    end: int


@record
class Chop:
    """Release the records of a log below index `first`.

    Done lazily, and never before earlier appends are durable. A crash may undo the release. Space
    is freed once a whole segment is released. Commits that the release depends on must be durable
    when this effect is emitted. A lower index than the log's `first` has no effect.
    """

    log: str
    first: int


@record
class Truncate:
    """Drop the records of a log from index `next` on; the next appended record gets index `next`.

    Durable at the latest with the next append; a crash before that may undo the truncation.
    """

    log: str
    next: int


@record
class Record:
    """Write a line into this broker's event log: an event, and JSON-ready details."""

    event: str
    details: Mapping[str, Any] = field(default_factory=dict)


@record
class Shutdown:
    """End this broker, which must not continue; the last effect of all. `reason` is for people."""

    reason: str


LOSS_PROVED: Final = "loss_proved"
"""Event of a Record: a client proved a loss of durable state, which the operator may accept."""
STATE_RESTORED: Final = "state_restored"
"""Event of a Record: a core has restored lost state from other brokers, and serves from now on."""
STATE_RESTORING: Final = "state_restoring"
"""Event of a broker that started to restore lost state from other brokers."""
LOSS_ACCEPTED: Final = "loss_accepted"
"""Event of a broker that started by an operator's act although it lost durable state."""


RETENTION_CHANGED: Final = "retention_changed"
"""Event of a Record: the policy of early release that is in force at a pubend from now on."""


def retransmission_requested(
    peer: BrokerNumber, source: BrokerNumber, stream: int, ranges: int, requested_ns: int
) -> Record:
    """Return the record of a request for missing ticks of a stream; `results` adds these up.

    Args:
        peer: the broker that receives the request.
        source, stream: the broker where the stream begins, and the stream's number there.
        ranges: number of ranges in the request.
        requested_ns: total time of the stream in these ranges.
    """
    details = {"peer": peer, "source": source, "stream": stream}
    return Record(
        "retransmission_requested", {**details, "ranges": ranges, "asked_ns": requested_ns}
    )


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
"""The least number of a session that a wrapper makes for its core; a driver's numbers are lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatus(Generic[Broker]):
    """The status of a core. Brokers are numbers in its process, and names outside, in JSON.

    Attributes:
        state: `running`, or `recovering` while required state is missing.
        queued: number of publications that are not complete here.
        subscriptions: number of subscriptions that the core has.
        own_subscriptions: number of subscriptions of this broker's clients.
        wanted: brokers to which the core wants a session.
        ready: brokers to which the core has a usable session.
        idle_reasons: reasons why the core is not idle, for people; empty if it may stop.
        detail: JSON-ready, specific to the protocol; shared code only prints it.
        discrepancies: contradictions between the broker's view and its topology or log, for
            people.
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
        """Wanted brokers without a usable session."""
        return tuple(broker for broker in self.wanted if broker not in self.ready)

    def to_mapping(self, names: Mapping[Broker, str]) -> dict[str, Any]:
        """Return the status for JSON, with the names of brokers."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        for key in ("wanted", "ready"):
            found[key] = [names[broker] for broker in found[key]]
        lists = {key: list(found[key]) for key in ("idle_reasons", "discrepancies")}
        return {**found, **lists, "detail": dict(self.detail)}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> "CoreStatus[str]":
        """Return the status in a JSON object with names of brokers; ignore unknown keys."""
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
    """The share of one broker in a delivery protocol, without I/O or a clock.

    The driver calls handle() for every event, in the order the events happened, and performs
    the effects in list order without waiting for any of them. An effect that depends on a durable
    write is emitted while the core handles the write's Persisted, never earlier. The driver retries
    nothing.

    A core without the promise `members_may_change` never receives TopologyGrown or TopologyShrunk.
    """

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """Handle one event and return the effects.

        Raises:
            RemoteProtocolError: the event's peer broke the rules. Raised before any change; the
                driver closes that session (SessionLost follows).
        """
        ...

    def next_deadline(self) -> Instant | None:
        """Return the instant of the next DeadlineReached; None without a deadline."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Return counters and gauges by name; counters only grow within an incarnation."""
        ...

    def clients_behind(self) -> Collection[ClientId]:
        """Return the clients with a full window, for which other deliveries wait."""
        ...

    def aftermath(self) -> Sequence[str]:
        """Return lasting effects of failures in this broker, for people; without work in progress.

        Empty if the state is the same as without any failure.
        """
        ...

    def status(self) -> CoreStatus[BrokerNumber]:
        """Return the status of the core, without `detail`."""
        ...

    def detail(self) -> Mapping[str, Any]:
        """Return the volatile state, JSON-ready, for people; empty if there is nothing to add.

        The cost may grow with the state, so only a request for the status calls this.
        """
        ...
