"""What the oracle remembers: publishers, subscriptions, and a stream for each pair of them."""

from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.predicate import Predicate

Publication = tuple[str, int]
"""The name of a publisher, and a sequence number."""


@dataclass(slots=True, eq=False)
class Publisher:
    """What one client has published: (blob, payload) per sequence number, from 1, and when.

    Attributes:
        name: of the client; with a number behind it when it has lost its memory before.
        over: its client has lost its memory: nobody sends again what its broker has not got.
        given_up: its broker, having crashed, no longer waits for it to come back.
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
        got: what was delivered.
        at: place in `matching` of the last delivery; None before the first.
        fence: all matching publications above this sequence number are owed; None as long as
            the subscription has not started, or the gate is closed.
        withheld: highest number that the subscriber was told it does not get.
        asked: highest number when the subscriber learnt that its subscription had started.
        had: highest number that the client had before it began anew, at another broker or here.
        old_until: up to here publications may be missing: the client had them before it lost
            its memory, or they were handed out before the start, by a publisher for whom nobody
            waited any more. -1 while that publisher is away.
        gaps: what was announced as a gap.
        excused: of that, what the protocol promises to announce.
        committed: first and last numbers of what the application is done with.
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
    gaps: set[int] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)
    committed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The highest number that the subscriber has or knows that it does not get."""
        delivered = self.matching[self.at] if self.at is not None else 0
        return max(delivered, self.withheld, self.had)

    def is_committed(self, sequence: int) -> bool:
        """Whether the application is done with it."""
        return any(first <= sequence <= last for first, last in self.committed)

    def begin_anew(self) -> None:
        """The subscription is another one from now on; nothing that it had may come again."""
        self.had = self.last
        self.at = self.fence = None
        self.withheld = 0


@dataclass(slots=True)
class Subscription:
    """What one client has asked for.

    Attributes:
        draining: its client has asked for the rest; nothing beside that is owed at this broker.
        given_up: its client was away for too long, so its broker has ended it; it begins anew
            when the client is told that it has started, again.
        closed: source brokers that it does not hear.
        before: what the client had of it when it lost its memory.
        streams: by publisher.
        log: its number among all that there have been.
    """

    client: ClientId
    number: int
    predicate: Predicate
    log: int
    started: bool = False
    draining: bool = False
    given_up: bool = False
    closed: frozenset[BrokerNumber] = frozenset()
    before: "Subscription | None" = None
    streams: dict[str, Stream] = field(default_factory=dict)
