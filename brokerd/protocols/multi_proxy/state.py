"""The state of a broker, on disk and in memory, and the facts that parts return.

Every broker has the rows of its own clients on disk; a server also has a log and the tables below.
A proxy has nothing on disk, so any number of proxies may fail.

Parts compute: they return messages, publications to deliver, or requests that are ready, and the
role that has the part (`access_broker.py`, `server.py`) or the core acts on them, in order. What
waits holds data only, so the state can be printed.

Paper: [MP22] §2, §4 (the state of clients, proxies and servers).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import (
    Follow,
    Wanted,
)
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscription
from brokerd.protocols.parts.records import json_value

LOG: Final = "topics"

BEGINS: Final = "begins"
"""Per started subscription, the position in each topic after which it begins."""

RESTARTED: Final = "restarted"
"""Subscriptions that started again after this broker had lost them, behind gaps."""

CHOSEN: Final = "chosen"
"""Per topic the server that an access broker uses, and any generation."""

OWNERS: Final = "owners"
"""Per topic of this arbiter: the server, the generation, and a flag for ownership.

Of a moved topic also the future server and the past servers.
"""

ASSIGNED: Final = "assigned"
"""Per topic assigned to this server, the generation."""

FOLLOWERS: Final = "followers"
"""Per access broker: incarnation and number of its Follow, its topics, and more if set.

More are: the first positions in other servers' parts, and topics to confirm here.
"""

RESTATED: Final = "restated"
"""Per access broker, the lineage in which it has stated its topics again."""

PROVED: Final = "proved"
"""The lineage in which a fetch request proved a loss of this server's state, until acceptance."""

RELEASED: Final = "released"
"""Per topic, the position through which publications may be missing in the log."""

PUT: Final = "put"
"""Per topic and source, the last number among those."""

LOST_ROWS: Final = "lost"
"""Per topic and last position of a record of the log: the sources and numbers in the record."""

MOVES: Final = "moves"
"""Per topic that moves away: the new owner, a flag for its confirmation, and any generation."""

PARTS: Final = "parts"
"""Per topic and server with positions that were transferred here: the giver, and the age."""

Heads = Mapping[StreamId, int]
"""Per topic, the position before all later publications."""


@dataclass(slots=True, eq=False)
class InFlightDelivery:
    """Publications that were delivered to clients; `open` parts are not acknowledged yet.

    Attributes:
        count: the number of publications; 1 for a gap, however many positions it has.
    """

    topic: "FollowedTopic"
    first: int
    count: int
    open: int = 1


@dataclass(slots=True, eq=False)
class FollowedTopic:
    """A topic that clients of this broker have subscribed to.

    Attributes:
        server: the server of the topic.
        stream: the server's positions.
        followers: the number of subscriptions that need it.
        is_resumed: True for a subscription since before a crash; else nothing before the head is
            needed.
        after: the position through which everything has arrived; None until the server has
            answered.
        last: the last position of another server that assigns no more.
        age: the number of later owners after the one that has assigned these positions.
        in_flight: deliveries without an acknowledgement, in order.
        outstanding: the number of publications and gaps in these deliveries.
    """

    server: BrokerNumber
    stream: StreamId
    is_resumed: bool = False
    followers: int = 0
    after: int | None = None
    last: int = 0
    age: int = 0
    in_flight: deque[InFlightDelivery] = field(default_factory=deque)
    outstanding: int = 0

    @property
    def number(self) -> int:
        return self.stream.publisher

    @property
    def done(self) -> int:
        """The position through which nothing is needed again."""
        return self.in_flight[0].first - 1 if self.in_flight else self.after or 0

    def deliver(self, first: int, count: int) -> InFlightDelivery:
        """Add a delivery, and return it."""
        delivery = InFlightDelivery(self, first, count)
        self.in_flight.append(delivery)
        self.outstanding += count
        return delivery

    def close(self) -> None:
        """Remove acknowledged deliveries."""
        while self.in_flight and not self.in_flight[0].open:
            self.outstanding -= self.in_flight.popleft().count


@dataclass(slots=True, eq=False)
class PendingSubscription:
    """A subscription that waits until all servers of its topics have confirmed."""

    local: OwnSubscription
    heads: dict[StreamId, int] = field(default_factory=dict)
    missing: int = 0


@dataclass(slots=True)
class FollowedServer:
    """A server that this access broker follows.

    Attributes:
        topics: the topics with followers, by positions.
        follow: the last Follow; None before the first.
        is_answered: True once the server has answered the last Follow.
        is_stale: True while the last Follow lacks a change.
        next: subscriptions, and their topics here, for the next Follow.
        pending: those of the present Follow.
        fetch_number: number of the last Get.
        is_fetching: True while that is not answered.
        paused: topics without a request in that, because clients are behind.
        reported: the acknowledged positions in that.
    """

    server: BrokerNumber
    topics: dict[StreamId, FollowedTopic] = field(default_factory=dict)
    follow: Follow | None = None
    is_answered: bool = True
    is_stale: bool = False
    next: list[tuple[PendingSubscription, tuple[int, ...]]] = field(default_factory=list)
    pending: list[tuple[PendingSubscription, tuple[int, ...]]] = field(default_factory=list)
    fetch_number: int = 0
    is_fetching: bool = False
    paused: tuple[StreamId, ...] = ()
    reported: dict[StreamId, int] = field(default_factory=dict)

    def parts(self, number: int) -> list[FollowedTopic]:
        """Return all followed parts of a topic, the server's own positions first."""
        return [topic for topic in self.topics.values() if topic.number == number]


@dataclass(slots=True)
class SentPublish:
    """Publications to a topic, with the time of the last request or answer.

    The answer may be that the publications wait at their server.
    """

    run: PublicationRun
    sent_ns: Instant


Chain = deque[SentPublish]
"""The publish requests of a source to a topic, in order; the first is sent first."""


@dataclass(slots=True)
class PublishAnswers:
    """The answers of a server to publish requests, in order of arrival.

    Attributes:
        unanswered: the number of requests that are not stored.
        answered_ns: the time of the last answer, stored or waiting.
        sent_ns: the time of the latest request that is stored.
    """

    unanswered: int = 0
    answered_ns: Instant = 0
    sent_ns: Instant = 0


@dataclass(slots=True)
class PendingSource:
    """A publisher of this broker.

    Attributes:
        submitted: the last number published here.
        chains: by topic; none is empty.
        is_here: True if the client has a session.
    """

    submitted: int
    chains: dict[int, Chain] = field(default_factory=dict)
    is_here: bool = True

    @property
    def done(self) -> int:
        """The number through which everything is stored."""
        firsts = [chain[0].run.first for chain in self.chains.values()]
        return min(firsts) - 1 if firsts else self.submitted


@dataclass(slots=True)
class ServerRoute:
    """The route to a server.

    Attributes:
        proxy: the proxy; None: no reachable proxy reaches the server.
        waited_ns: the length of the last wait without an answer; 0 after an answer.
        requested: the time of unanswered requests, by type; without publish requests.
    """

    server: BrokerNumber
    proxy: BrokerNumber | None = None
    waited_ns: int = 0
    requested: dict[type, Instant] = field(default_factory=dict)


class OwnerTable:
    """The server of each topic, as far as determined.

    Attributes:
        may_change: True if a topic may get another owner.
        are_in_turn: True if a topic has one owner at a time, each in a higher generation.
        generations: of the owners, in turn.
    """

    def __init__(
        self,
        known: Mapping[int, BrokerNumber],
        *,
        may_change: bool = False,
        are_in_turn: bool = False,
    ) -> None:
        self.may_change = may_change
        self.are_in_turn = are_in_turn
        self.known = dict(known)
        self.generations: dict[int, int] = {}

    def of(self, topic: int) -> BrokerNumber | None:
        """Return the owner of a topic; None without an owner, or for an unknown topic."""
        return self.known.get(topic)

    def topics_of(self, server: BrokerNumber, topics: Sequence[int]) -> tuple[int, ...]:
        return tuple(topic for topic in topics if self.known.get(topic) == server)


@dataclass(slots=True)
class Decision:
    """The owner of a topic, or a candidate.

    Attributes:
        is_owner: True once the server has confirmed the topic, durably.
        is_kept: True once this decision is durable.
        since_ns: the time of the decision; 0: before a crash.
        waiting: the access brokers with a request, in order.
        unqueried: after a loss, the servers that have not answered if the topic is theirs.
        to: the server that the topic moves to; None: it stays.
        had: the servers that have given the topic away.
    """

    server: BrokerNumber
    generation: int
    is_owner: bool = False
    is_kept: bool = False
    since_ns: Instant = 0
    waiting: dict[BrokerNumber, None] = field(default_factory=dict)
    unqueried: dict[BrokerNumber, None] = field(default_factory=dict)
    to: BrokerNumber | None = None
    had: tuple[BrokerNumber, ...] = ()


class Part(NamedTuple):
    """The positions that a server has assigned in a topic; another server may store them."""

    server: BrokerNumber
    topic: int


class Version(NamedTuple):
    """The order of an access broker's requests."""

    incarnation: int
    number: int


NEVER: Final = Version(0, 0)

COUNTERS: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "messages_ignored",
)


@dataclass(slots=True)
class Follower:
    """An access broker that follows topics here.

    Attributes:
        version: of the last Follow.
        done: per topic and part, the acknowledged position; also of parts that are not here.
        expected: topics that it has followed at a server that has given them to this server.
        got: version of the last fetch request.
        waits: the content of that request while not answered.
        over: the proxy of that request.
        answered: the content of the last answered request.
        tried: the proxies over which that was answered.
    """

    version: Version
    done: dict[Part, int] = field(default_factory=dict)
    expected: dict[int, None] = field(default_factory=dict)
    got: Version = NEVER
    waits: dict[Part, Wanted] = field(default_factory=dict)
    over: BrokerNumber | None = None
    answered: dict[Part, Wanted] = field(default_factory=dict)
    tried: dict[BrokerNumber, None] = field(default_factory=dict)


@dataclass(slots=True)
class Reader:
    """An access broker that follows a topic.

    Attributes:
        after: the position through which it has everything.
        moved_ns: the time of its last progress.
    """

    after: int
    moved_ns: Instant


# ---------------------------------------------------------------- printable state


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic, or of a part of it, at a server.

    Attributes:
        assigned: the last assigned position.
        durable: everything through this position is on disk.
        released: publications through this position are not needed.
        retained: the number of publications that may still be needed.
        lost: the number of records that a follower receives as a gap.
        is_here: False while the part is about to arrive.
        is_frozen: True while the topic moves to another server.
    """

    assigned: int
    durable: int
    released: int
    retained: int
    lost: int
    is_here: bool
    is_frozen: bool


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server.

    Attributes:
        topics: by topic, and the server that has assigned the positions.
        followers: the topics that each access broker follows here.
        waiting: the number of publications that wait for followers.
        awaited: the access brokers that have not stated their topics since a loss.
        moving: topics that move away, with their next owners.
        moved: topics that have moved away, with their owners.
        assigned: the generations of the topics of this server.
    """

    topics: Mapping[str, TopicState]
    followers: Mapping[BrokerNumber, tuple[int, ...]]
    waiting: int
    awaited: tuple[BrokerNumber, ...]
    moving: Mapping[int, BrokerNumber]
    moved: Mapping[int, BrokerNumber]
    assigned: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FollowedState:
    """The state of an access broker about a server that it follows.

    Attributes:
        proxy: the proxy on the route; None without a route.
        topics: by topic, and the server that has assigned the positions: everything through this
            position has arrived; None: the server has not answered yet.
        is_answered: True once the server has answered the last Follow.
    """

    proxy: BrokerNumber | None
    topics: Mapping[str, int | None]
    is_answered: bool


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, for people.

    Attributes:
        role: of the broker in the overlay.
        undone: the number of arrived publications that clients have not acknowledged.
        unstored: the number of publications of clients here that no server has stored.
        owners: the server of each topic, as this access broker uses it.
        doubted: topics whose owner an arbiter has to confirm.
        sought: topics whose owner is requested.
        followed: the servers that this broker follows.
        server: the state of this broker as a server; None if it is none.
    """

    role: str
    undone: int
    unstored: int
    owners: Mapping[int, BrokerNumber]
    doubted: tuple[int, ...]
    sought: tuple[int, ...]
    followed: Mapping[BrokerNumber, FollowedState]
    server: ServerState | None

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        found: dict[str, Any] = json_value(asdict(self))
        return found
