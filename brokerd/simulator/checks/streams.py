"""The streams that the oracle judges: publishers, subscriptions, and their common order."""

from collections.abc import Iterator, Mapping
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
        is_over: the client has lost its memory: nothing that the broker lacks is sent again.
        given_up: the broker, after a crash, no longer waits for the return of the client.
        kept_at: the broker that acknowledged a number.
        copied: numbers in the last copy of that broker's disk.
        lost: acknowledged numbers that their broker lost, with an accepted loss.
        in_transit: numbers whose acknowledgement from before that loss may still arrive.
        published_again: numbers without an acknowledgement at that loss; the broker gives them
            another place in a total order.
    """

    client: ClientId
    name: str
    contents: list[tuple[bytes, bytes]] = field(default_factory=list)
    published_ns: list[int] = field(default_factory=list)
    source: SourceId | None = None
    acknowledged: dict[int, None] = field(default_factory=dict)
    is_over: bool = False
    given_up: bool = False
    kept_at: dict[int, BrokerNumber] = field(default_factory=dict)
    copied: dict[int, None] = field(default_factory=dict)
    lost: dict[int, None] = field(default_factory=dict)
    in_transit: dict[int, None] = field(default_factory=dict)
    published_again: dict[int, None] = field(default_factory=dict)


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
        requested: highest number at the time when the subscriber was notified of the start.
        had: highest number that the client had before its restart, at another broker or here.
        old_until: publications up to this number may be missing: the client had them before it lost
            its memory, or a publisher without a waiting broker sent them before the start. -1 while
            this publisher is away.
        lost_until: publications up to this number need not have arrived when they are acknowledged:
            a broker had lost the subscription.
        unexplained: lost at the source's broker, and to be announced by a later gap.
        gaps: numbers in announced gaps.
        excused: in gaps that the protocol promises to announce, or lost and owed to none.
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
    requested: int = 0
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

    def add(self, sequence: int) -> None:
        """Add a publication that matches."""
        self.ranks[sequence] = len(self.matching)
        self.matching.append(sequence)

    def is_committed(self, sequence: int) -> bool:
        """Return True if the application has acknowledged a number."""
        return any(first <= sequence <= last for first, last in self.committed)

    def open(self, publisher: Publisher) -> None:
        """Open the stream: all later publications are owed."""
        self.fence = len(publisher.contents)
        if publisher.given_up:
            self.old_until = -1  # the return of the publisher shows the extent

    def restart(self) -> None:
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
        is_restarted: the broker has started the lost subscription again.
        since: the number of accepted losses before the first request.
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
    is_restarted: bool = False
    since: int = 0
    closed: frozenset[BrokerNumber] = frozenset()
    before: "Subscription | None" = None
    streams: dict[str, Stream] = field(default_factory=dict)


class StreamRegister:
    """The publishers and subscriptions of one run, with a stream for each pair of both.

    Args:
        homes: access broker by client.

    Attributes:
        publishers: all publishers by name, present and former.
        current: the present publisher of each client.
        by_source: the publishers that brokers have named.
        subscriptions: live subscriptions by client and number.
        ended: ended subscriptions by client and number.
        before: the subscriptions of clients without memory, until they request them again.
        restarted: the clients that lost their memory.
    """

    def __init__(self, homes: Mapping[ClientId, BrokerNumber]) -> None:
        self.publishers: dict[str, Publisher] = {}
        self.current: dict[ClientId, Publisher] = {}
        self.by_source: dict[SourceId, Publisher] = {}
        self.subscriptions: dict[tuple[ClientId, int], Subscription] = {}
        self.ended: dict[tuple[ClientId, int], Subscription] = {}
        self.before: dict[tuple[ClientId, int], Subscription] = {}
        self.restarted: dict[ClientId, None] = {}
        self.homes = homes

    def publisher(self, client: ClientId) -> Publisher:
        """Return the client as its present source."""
        publisher = self.current.get(client)
        if publisher is None:
            earlier = sum(each.client == client for each in self.publishers.values())
            publisher = Publisher(client, f"{client} ({earlier + 1})" if earlier else client)
            self.current[client] = self.publishers[publisher.name] = publisher
        return publisher

    def stream(self, subscription: Subscription, publisher: Publisher) -> Stream:
        """Return the stream of a subscription and a publisher; a new stream is created."""
        stream = subscription.streams.get(publisher.name)
        if stream is None:
            stream = subscription.streams[publisher.name] = Stream()
            if subscription.started and not self.is_closed(subscription, publisher):
                stream.fence = 0
        return stream

    def streams(self, subscription: Subscription) -> Iterator[tuple[Publisher, Stream]]:
        """Yield the publishers of a subscription, with their streams."""
        for name, stream in subscription.streams.items():
            yield self.publishers[name], stream

    def open_streams(self, subscription: Subscription) -> None:
        """Open all streams of a started subscription that no gate closes."""
        for publisher in self.publishers.values():
            stream = self.stream(subscription, publisher)
            if stream.fence is None and not self.is_closed(subscription, publisher):
                stream.open(publisher)

    def is_closed(self, subscription: Subscription, publisher: Publisher) -> bool:
        """Return True if the publisher is behind a closed gate of the subscription."""
        return self.homes.get(publisher.client, -1) in subscription.closed

    def has_delivered(self, subscription: Subscription, source: SourceId, sequence: int) -> bool:
        """Return True if a subscription has received a publication."""
        publisher = self.by_source.get(source)
        return publisher is not None and sequence in self.stream(subscription, publisher).got

    @property
    def live(self) -> int:
        """The number of subscriptions that have not ended."""
        return len(self.subscriptions)

    def count_live_at(self, home: BrokerNumber) -> int:
        """Return the number of live subscriptions of clients at one broker."""
        return sum(
            self.homes[subscription.client] == home for subscription in self.subscriptions.values()
        )

    @property
    def sources(self) -> int:
        """The number of all sources, present and former."""
        return len(self.publishers)

    def subscribers(self) -> list[ClientId]:
        """Return all clients with present or former subscriptions."""
        return list(dict.fromkeys(client for client, _ in [*self.subscriptions, *self.ended]))


class TotalOrder:
    """A comparison of each delivery with the deliveries of all other subscriptions."""

    def __init__(self) -> None:
        self._places: list[dict[Publication, int]] = []
        self._highest: dict[tuple[int, int], int] = {}

    def begin(self) -> int:
        """Return the number of a new subscription without deliveries."""
        self._places.append({})
        return len(self._places) - 1

    def got(self, subscription: int, publication: Publication) -> list[int]:
        """Record a first delivery; return the subscriptions with another order."""
        mine = self._places[subscription]
        mine[publication] = here = len(mine)
        differing = []
        for other, places in enumerate(self._places):
            there = places.get(publication)
            if other == subscription or there is None:
                continue
            highest = self._highest.get((subscription, other), -1)
            if there < highest:
                differing.append(other)
            self._highest[subscription, other] = max(there, highest)
            self._highest[other, subscription] = here
        return differing
