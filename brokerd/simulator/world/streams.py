"""The state of the oracle: publishers, subscriptions, and a stream for each pair of both."""

from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.predicate import Predicate

Publication = tuple[str, int]
"""The name of a publisher, and a sequence number."""


@dataclass(slots=True, eq=False)
class Publisher:
    """The publications of one client: (blob, payload) and time by sequence number, from 1.

    Attributes:
        name: name of the client; with a number after an earlier loss of its memory.
        over: the client has lost its memory: nothing that the broker lacks is sent again.
        given_up: the broker, after a crash, no longer waits for the return of the client.
    """

    client: ClientId
    name: str
    contents: list[tuple[bytes, bytes]] = field(default_factory=list)
    published_ns: list[int] = field(default_factory=list)
    source: SourceId | None = None
    acknowledged: dict[int, None] = field(default_factory=dict)
    over: bool = False
    given_up: bool = False


@dataclass(slots=True)
class Stream:
    """One subscription and one publisher.

    Attributes:
        matching: sequence numbers that match, in order.
        ranks: place in `matching` by sequence number.
        got: delivered sequence numbers.
        at: place in `matching` of the last delivery; None before the first delivery.
        fence: all matching publications above this sequence number are owed; None as long as the
            subscription has not started, or the gate is closed.
        withheld: highest number that was announced as withheld.
        asked: highest number at the time when the subscriber was notified of the start.
        had: highest number that the client had before its restart, at another broker or here.
        old_until: publications up to this number may be missing: the client had them before it lost
            its memory, or a publisher without a waiting broker sent them before the start. -1 while
            this publisher is away.
        lost_until: publications up to this number need not have arrived when they are acknowledged:
            a broker had lost the subscription.
        unexplained: lost at the source's broker, and to be announced by a later gap.
        gaps: numbers in announced gaps.
        excused: the gaps that the protocol promises to announce.
        absent: publications up to this number may be in a gap of any age: the client was away for
            too long.
        committed: first and last numbers that the application has acknowledged.
    """

    matching: list[int] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    got: set[int] = field(default_factory=set)
    at: int | None = None
    fence: int | None = None
    withheld: int = 0
    asked: int = 0
    had: int = 0
    old_until: int = 0
    lost_until: int = 0
    unexplained: set[int] = field(default_factory=set)
    gaps: set[int] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)
    absent: int = 0
    committed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The highest number that the subscriber has received or seen announced as withheld."""
        delivered = self.matching[self.at] if self.at is not None else 0
        return max(delivered, self.withheld, self.had)

    def is_committed(self, sequence: int) -> bool:
        """Return True if the application has acknowledged a number."""
        return any(first <= sequence <= last for first, last in self.committed)

    def begin_anew(self) -> None:
        """Restart the subscription as a new one; earlier deliveries must not repeat."""
        self.had = self.last
        self.at = self.fence = None
        self.withheld = 0


@dataclass(slots=True)
class Subscription:
    """A subscription of one client.

    Attributes:
        draining: the client has requested the remaining publications; only they are owed at this
            broker.
        given_up: the client was away for too long, so its broker has ended the subscription; it
            restarts when the client is notified of a start again.
        lost: the broker has lost state, and the client has not requested the subscription again.
        closed: source brokers behind a closed gate.
        before: the client's earlier subscription at its loss of memory.
        streams: streams by publisher.
        log: its number among all subscriptions.
    """

    client: ClientId
    number: int
    predicate: Predicate
    log: int
    started: bool = False
    draining: bool = False
    given_up: bool = False
    lost: bool = False
    closed: frozenset[BrokerNumber] = frozenset()
    before: "Subscription | None" = None
    streams: dict[str, Stream] = field(default_factory=dict)
