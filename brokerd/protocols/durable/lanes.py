"""How far one subscription has come in one stream, and what is out to its client.

Paper: [DS03] §3 (catchup(s, p)), §4.1 (released(s, p)).
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.catchup import Catchup
from brokerd.protocols.gryphon.subend import Delivered
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscription


class Mode(Enum):
    """Who feeds a subscription's client; exactly one of them does."""

    AWAY = auto()
    """Nobody: it has not asked for the subscription on its present session, or has none."""
    CATCHING_UP = auto()
    """A stream of its own."""
    LIVE = auto()
    """The one stream for all who are as far as this broker is."""


@dataclass(slots=True, eq=False)
class Lane:
    """One subscription in one stream.

    Attributes:
        acknowledged: its client has acknowledged everything up to here, or never wanted it.
        committed: so much of that is on disk.
        given: nothing behind this was ever given to its client.
        matched_after: what is for it was written down from here on only.
        floor: what is up to here is not given to its client, who has it.
        out: what was given to it on its present session and is not acknowledged, in order.
        out_events: how many events these are.
        catchup: while it catches up.
    """

    subscription: "DurableSubscription"
    stream: StreamId
    acknowledged: int
    committed: int
    mode: Mode = Mode.AWAY
    floor: int = 0
    out: deque["Handed"] = field(default_factory=deque)
    out_events: int = 0
    catchup: Catchup | None = None
    matched_after: int = 0
    given: int = 0

    def leave(self) -> None:
        """Its client is gone: what was out comes again when it is back."""
        self.mode, self.catchup = Mode.AWAY, None
        self.out.clear()
        self.out_events = 0

    def settle(self) -> bool:
        """Whether more is acknowledged: everything up to the first that is not.

        Of a subscription that is consumed, only what is committed counts as that.
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
        identity: its number in the log of matches.
        accepted: it is on disk, and its client may be told so.
        is_attached: its client has asked for it on its present session.
        presented: how far it had come in each stream, as its client has said last.
        lanes: by stream.
        generation: of its client's stay at this broker.
        unwritten: that is on its way to disk, where an earlier one was before.
        uncommitted: how many events its application may be given before it commits, where this
            broker keeps how far that is; 0 where the client does.
    """

    identity: int = 0
    generation: int = 0
    unwritten: bool = False
    uncommitted: int = 0
    accepted: bool = False
    is_attached: bool = False
    presented: dict[StreamId, int] = field(default_factory=dict)
    lanes: dict[StreamId, Lane] = field(default_factory=dict)

    def positions(self) -> tuple[tuple[StreamId, int], ...]:
        """How far its client has acknowledged all that is for it, in each stream."""
        return tuple((each, lane.acknowledged) for each, lane in self.lanes.items())

    def lane(self, stream: StreamId) -> Lane:
        """Its lane in a stream; of one that begins now, it has acknowledged nothing."""
        found = self.lanes.get(stream)
        if found is None:
            found = self.lanes[stream] = Lane(self, stream, 0, 0)
            if self.is_attached:
                found.mode, found.floor = Mode.LIVE, self.presented.get(stream, 0)
        return found


class Handed(Delivered):
    """What was given to a client for one subscription.

    Attributes:
        lane: whose.
        last: with it, everything for it up to here was.
        events: how many.
    """

    __slots__ = ("events", "lane", "last")

    def __init__(self, lane: Lane, first: int, last: int, events: int) -> None:
        super().__init__(lane.stream, first)
        self.lane = lane
        self.last = last
        self.events = events
