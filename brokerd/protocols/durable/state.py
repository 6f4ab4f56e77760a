"""The state of a broker: its tables, its subscriptions with their lanes, and what people see.

The lane of a subscription in a stream has the subscription's position, and deliveries under way.

Paper: [DS03] §3 (catchup(s, p)), §4.1 (released(s, p)).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.catchup import Catchup
from brokerd.protocols.durable.definition import key_of
from brokerd.protocols.gryphon import InFlightEvents, IntervalSet, Stream
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.parts.clients.own_subscriptions import (
    SUBSCRIPTIONS,
    OwnClient,
    OwnSubscription,
)
from brokerd.protocols.parts.decommissioning import DECOMMISSIONED
from brokerd.protocols.parts.records import predicate_row, read_predicate

# ---------------------------------------------------------------- tables

DELIVERED: Final = "delivered"
"""Per stream, the tick through which matches are durable and were given to live clients."""
WRITTEN: Final = "written"
"""Per stream, the index after the last record of its matches, at that tick."""
ACKNOWLEDGED: Final = "acknowledged"
"""Per subscription and stream, the tick through which the client has acknowledged."""
ARRIVING: Final = "arriving"
"""Per subscription that other brokers may have, or with holds: the generation."""
HOLDS: Final = "holds"
"""Per subscription and its new broker, the streams that are held, and from which ticks."""
RETENTION: Final = "retention"
"""Per pubend, the changed policy of early release."""

TABLES: Final = (DELIVERED, WRITTEN, ACKNOWLEDGED, ARRIVING, HOLDS, DECOMMISSIONED, RETENTION)
"""The tables on disk, in addition to those of gryphon."""

COUNTERS: Final = (
    "fetched_from_pubends",
    "fetched_from_store",
    "fetched_from_memory",
    "catchups_diverging",
    "tokens_committed",
    "token_transactions",
)
"""The counters of a broker, in addition to those of gryphon.

Events for catch-up are read from the log of a pubend here, or are events of another pubend: these
have passed this broker (store), are not acknowledged here, or were fetched recently (memory).
"""

# ---------------------------------------------------------------- subscriptions


class Mode(Enum):
    """The stream that feeds a subscription's client; exactly one at a time."""

    AWAY = auto()
    """None: the client has no session, or has not requested the subscription on it."""
    CATCHING_UP = auto()
    """A catch-up stream."""
    LIVE = auto()
    """The consolidated stream of all live subscriptions."""


@dataclass(slots=True, eq=False)
class Lane:
    """A subscription in a stream.

    Attributes:
        acknowledged: the tick through which the client has acknowledged, or is owed nothing.
        committed: the durable part of that.
        given: nothing later was ever given to the client.
        matched_after: matches were logged after this tick only.
        lost_through: this broker has lost its matches through this tick, with an accepted loss.
        floor: ticks through this one are not given to the client, which has them.
        out: unacknowledged deliveries on the present session, in order.
        out_events: the number of their events.
        catchup: the catch-up under way.
    """

    subscription: "DurableSubscription"
    stream: StreamId
    acknowledged: int
    committed: int
    mode: Mode = Mode.AWAY
    floor: int = 0
    out: deque["InFlightDelivery"] = field(default_factory=deque)
    out_events: int = 0
    catchup: Catchup | None = None
    matched_after: int = 0
    lost_through: int = 0
    given: int = 0

    def leave(self) -> None:
        """Stop the lane of a disconnected client; unacknowledged events are repeated later."""
        self.mode, self.catchup = Mode.AWAY, None
        self.out.clear()
        self.out_events = 0

    def has_given(self, through: int) -> bool:
        """Return True unless the lane has yet to deliver ticks up to `through`."""
        return self.catchup is None or self.catchup.given >= through

    def settle(self) -> bool:
        """Acknowledge everything before the first open delivery; return True if that is more.

        For a subscription with a token at the broker, only commits count.
        """
        before = self.acknowledged
        while self.out and not self.out[0].open:
            done = self.out.popleft()
            self.out_events -= done.events
            if not self.subscription.uncommitted:
                self.acknowledged = max(self.acknowledged, done.last)
        return self.acknowledged > before


@dataclass(slots=True, eq=False)
class DurableSubscription(OwnSubscription):
    """A subscription that stays while its client is away.

    Attributes:
        identity: the number in the log of matches.
        accepted: True once durable, so that the client may be notified.
        is_attached: True if the client has requested the subscription on its present session.
        presented: the positions that the client has reported last, per stream.
        lanes: by stream.
        generation: of the client's attachment to this broker.
        unwritten: True while the row of a later generation is under way.
        uncommitted: the most events that the application may receive before a commit, if this
            broker stores the token; 0 if the client does.
        confirmed: the lineage of this broker in which a client has requested the subscription; see
            Started. Else it is of an older copy of the state, and may have ended since.
    """

    identity: int = 0
    generation: int = 0
    unwritten: bool = False
    uncommitted: int = 0
    confirmed: int = 0
    accepted: bool = False
    is_attached: bool = False
    presented: dict[StreamId, int] = field(default_factory=dict)
    lanes: dict[StreamId, Lane] = field(default_factory=dict)

    def positions(self) -> tuple[tuple[StreamId, int], ...]:
        """Return the acknowledged position in each stream."""
        return tuple((each, lane.acknowledged) for each, lane in self.lanes.items())

    def lane(self, stream: StreamId) -> Lane:
        """Return the lane in a stream; a new lane has acknowledged nothing."""
        found = self.lanes.get(stream)
        if found is None:
            found = self.lanes[stream] = Lane(self, stream, 0, 0)
            if self.is_attached:
                found.mode, found.floor = Mode.LIVE, self.presented.get(stream, 0)
        return found


@dataclass(slots=True, eq=False)
class DurableClient(OwnClient[DurableSubscription]):
    """A client that may have been at another broker.

    Attributes:
        generation: of the attachment to this broker; increases with every move to another broker.
        brought: the positions that the client reports, by subscription number. Even a subscription
            of this broker may have to be released before the client requests it.
        uncommitted: the most uncommitted events in the present request; 0: the client keeps its
            token.
        later: the generation of its attachment to another broker, for which its session was closed.
        was_cut: True once its session was closed for such an attachment.
    """

    generation: int = 0
    later: int | None = None
    was_cut: bool = False
    brought: dict[int, dict[StreamId, int]] = field(default_factory=dict)
    uncommitted: int = 0


class InFlightDelivery(InFlightEvents):
    """A delivery to a client for a subscription.

    Attributes:
        lane: the lane of the subscription.
        last: the tick through which deliveries are complete with this one.
        events: the number of events.
    """

    __slots__ = ("events", "lane", "last")

    def __init__(self, lane: Lane, first: int, last: int, events: int) -> None:
        super().__init__(lane.stream, first)
        self.lane = lane
        self.last = last
        self.events = events


# ---------------------------------------------------------------- requests


class Questions(Stream):
    """See Stream; answers are forwarded and not stored, so the same may be requested again.

    The wait counts from the last request.
    """

    __slots__ = ()

    def forget_requested(self, now_ns: Instant) -> Instant | None:
        waiting = self._requested_until
        if waiting and waiting[0][2] <= now_ns:
            while waiting and waiting[0][2] <= now_ns:
                waiting.popleft()
            later = IntervalSet((start, end) for start, end, _ in waiting)
            self.requested = IntervalSet(
                each for requested in self.requested for each in later.within(*requested)
            )
        return super().forget_requested(now_ns)


# ---------------------------------------------------------------- rows


def lane_key(lane: Lane) -> str:
    return f"{lane.subscription.identity}/{key_of(lane.stream)}"


def ticks_of(recovered: Mapping[str, Mapping[str, int]], table: str) -> Mapping[str, int]:
    """Return a table of ticks of an earlier incarnation."""
    return recovered.get(table, {})


def subscription_row(local: DurableSubscription) -> Change:
    """Return the row of a subscription, without its positions."""
    unmatched = [
        [key_of(lane.stream), lane.matched_after, *([lane.lost_through] * bool(lane.lost_through))]
        for lane in local.lanes.values()
        if lane.matched_after
    ]
    row = [local.identity, predicate_row(local.predicate), local.generation, unmatched]
    row += [local.uncommitted] if local.uncommitted or local.confirmed else []
    row += [local.confirmed] if local.confirmed else []
    return Change(SUBSCRIPTIONS, f"{local.client}/{local.number}", row)


def read_subscription(key: str, row: Any, streams: Mapping[str, StreamId]) -> DurableSubscription:
    """Return a subscription from its row.

    Args:
        streams: by their keys.
    """
    name, _, number = key.rpartition("/")
    identity, predicate, generation, unmatched, *rest = row
    local = DurableSubscription(name, int(number), read_predicate(predicate))
    local.identity, local.accepted, local.generation = identity, True, generation
    local.uncommitted, local.confirmed = [*rest, 0, 0][:2]
    for stream, tick, *lost in unmatched:
        lane = local.lane(streams[stream])
        lane.matched_after, (lane.lost_through,) = tick, lost or (0,)
    return local


# ---------------------------------------------------------------- printable state


@dataclass(frozen=True, slots=True)
class HostedState:
    """The state of a stream at a broker of durable subscribers.

    Attributes:
        position: the tick through which everything was given to live clients.
        delivered: the durable part of that, from which a restart continues.
        released: the tick through which all subscriptions here have durably acknowledged.
        held: no tick after this one becomes final here; None: no such bound.
        matches: the number of records in the log of matches.
        live, catching_up, away: the number of subscriptions in each mode.
    """

    position: int
    delivered: int
    released: int
    held: int | None
    matches: int
    live: int
    catching_up: int
    away: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        return {
            "position": self.position,
            "delivered": self.delivered,
            "released": self.released,
            "held": self.held,
            "matches": self.matches,
            "live": self.live,
            "catching_up": self.catching_up,
            "away": self.away,
        }


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, beyond that of the gryphon core, for people.

    Attributes:
        hosted: the streams, by broker and pubend.
        arrivals: the subscriptions from other brokers with unanswered requests or holds.
        holds: the number of moved subscriptions for which pubends here retain events.
        retired: the decommissioned brokers.
        retention: the changed policies of pubends, by pubend.
    """

    hosted: Mapping[str, HostedState]
    arrivals: int
    holds: int
    retired: tuple[BrokerNumber, ...]
    retention: Mapping[str, str] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        return {
            "hosted": {name: each.to_mapping() for name, each in self.hosted.items()},
            "arrivals": self.arrivals,
            "holds": self.holds,
            "retired": [*self.retired],
            "retention": {**self.retention},
        }
