"""The streams of one broker: knowledge, curiosity and acks, and the subend of each stream.

Paper: [GD02] §2.3 (doubt horizon, delivery), §2.4, §3.1 (istream and ostreams), §3.2 (liveness of
subends). Deviates: the knowledge of a child is not stored, because it follows from the knowledge
here and the child's filter; of its ostream curiosity and acks remain.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.knowledge import TICK_LIMIT, IntervalSet, Knowledge, Range
from brokerd.protocols.gryphon.liveness import GapTable
from brokerd.protocols.gryphon.messages import EVERYWHERE
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Routes
from brokerd.protocols.interface import Instant

PartHandler = Callable[[Any, Any, Instant], list[Any]]
"""Receives the peer, the message and the time; returns effects and facts."""


@dataclass(slots=True, eq=False)
class InFlightEvents:
    """Events that were delivered to clients; `open` parts have no acknowledgement yet."""

    stream: StreamId
    first: int
    open: int = 1


class Subend:
    """The end of one stream at one broker.

    Without a subscription nothing is wanted, and everything counts as delivered; a subscription
    begins behind that.

    Attributes:
        position: all ticks through this one were delivered to clients, or are silent.
        expected: the last tick that an AckExpected has announced.
        gaps: unknown ticks behind the position, below a later event, silence or expected tick.
    """

    __slots__ = ("_doubted", "_open", "expected", "gaps", "position")

    def __init__(self, parameters: GryphonParameters) -> None:
        self.position = 0
        self.gaps = GapTable(parameters)
        self.expected = 0
        self._doubted = 0
        self._open: deque[InFlightEvents] = deque()

    @property
    def done(self) -> int:
        """The tick through which all present clients have acknowledged."""
        return self._open[0].first - 1 if self._open else self.position

    def done_with(self, knowledge: Knowledge) -> int:
        """Return the acknowledged tick and the silence behind it, even undelivered silence."""
        return self.done if self._open else self.passed(knowledge)

    def passed(self, knowledge: Knowledge) -> int:
        """Return the tick through which no event remains to be delivered."""
        position = max(self.position, knowledge.final)
        through = knowledge.horizon(position)
        event = knowledge.events.after(position)
        return through if event is None else min(through, event - 1)

    def expect(self, through: int) -> None:
        """Expect ticks through this one; unknown ticks are requested at once."""
        self.expected = max(self.expected, through)

    def doubt(self, through: int) -> bool:
        """Request ticks that delay another stream's event; return True for a new request.

        Paper: [GD02] §3.2 (DCT).
        """
        is_new = through > self._doubted
        self._doubted = max(self._doubted, through)
        return is_new

    def skip(self, knowledge: Knowledge) -> None:
        """Advance the position to the end of the stream, since no client wants its events."""
        self.position = max(self.position, knowledge.highest, self.expected)
        self._doubted = 0

    def next_run(self, knowledge: Knowledge) -> PublicationRun | None:
        """Return the events that can be delivered now, and advance the position behind them.

        These are the events up to the doubt horizon; None without an event.
        """
        position = max(self.position, knowledge.final)
        self.position = horizon = knowledge.horizon(position)
        return knowledge.events.within(position + 1, horizon + 1) if horizon > position else None

    def see_gaps(self, knowledge: Knowledge, now_ns: Instant) -> None:
        """Update the gaps up to the last tick with knowledge or expectation."""
        requested = max(self.expected, self._doubted)
        start, end = self.position + 1, max(knowledge.highest, requested) + 1
        unknown = knowledge.known.gaps(start, end) if start < end else ()
        if unknown or self.gaps.pieces:
            self.gaps.update(unknown, now_ns)
        if self.gaps.pieces:
            self.gaps.hurry(requested, now_ns)

    def on_delivered(self, entry: InFlightEvents) -> None:
        """Record delivered events, the latest ones, until clients acknowledge them."""
        self._open.append(entry)

    def drop_closed(self) -> None:
        """Remove the first entries without open parts."""
        while self._open and not self._open[0].open:
            self._open.popleft()


class Stream:
    """One stream at one broker.

    Attributes:
        upstream: the cell that the stream arrives from; None at its pubend.
        children: the cells that the stream goes to.
        dropped: the cells that it went to before they were decommissioned.
        via: the upstream broker that last sent events, on a session that is still established.
        requested: ticks that were recently requested upstream.
        curious: per broker, requested ticks that are unknown here.
        held: no tick behind this one becomes final, whatever the acks; None: no such bound.
        sent_through: per broker, the end of the events sent on its present session.
        waits_for: per cell, a wanted event, and the filters' version; see FilterTable.changes.
        is_expected: an AckExpected has arrived from above since the last call of `overdue`.
    """

    __slots__ = (
        "_done",
        "_has_subend",
        "_kept",
        "_requested_until",
        "children",
        "curious",
        "dropped",
        "held",
        "identity",
        "is_expected",
        "knowledge",
        "requested",
        "sent_through",
        "subend",
        "upstream",
        "via",
        "waits_for",
    )

    def __init__(
        self,
        identity: StreamId,
        upstream: Cell | None,
        children: tuple[Cell, ...],
        parameters: GryphonParameters,
        *,
        has_subend: bool = True,
    ) -> None:
        self.identity = identity
        self.upstream = upstream
        self.children = children
        self.dropped: tuple[Cell, ...] = ()
        self.via: BrokerNumber | None = None
        self.held: int | None = None
        self.knowledge = Knowledge()
        self._has_subend = has_subend
        self._kept = 0
        self.waits_for: dict[Cell, tuple[int, int]] = {}
        self.is_expected = False
        self.subend = Subend(parameters)
        self._done = dict.fromkeys(children, 0)
        self.curious: dict[BrokerNumber, IntervalSet] = {}
        self.sent_through: dict[BrokerNumber, int] = {}
        self.requested = IntervalSet()
        self._requested_until: deque[tuple[int, int, Instant]] = deque()

    # ------------------------------------------------------------ acks

    def acknowledged_by(self, child: Cell) -> int:
        """Return the tick through which a cell and all cells below have acknowledged."""
        return max(self._done[child], self.knowledge.final)

    def acknowledged_here(self) -> int:
        """Return the tick through which clients here have acknowledged, within `held`."""
        done = self.subend.done
        return done if self.held is None else min(done, self.held)

    def note_done(self, child: Cell, through: int) -> bool:
        """Record an ack of a cell; return True if the ack is new.

        A member of this cell may repeat acks of a cell that is decommissioned here already.
        """
        if through <= self._done.get(child, through):
            return False
        self._done[child] = through
        return True

    def drop(self, child: Cell) -> None:
        """Remove a decommissioned cell below; no stream waits for its acks."""
        if child in self.children:
            self.dropped = (*self.dropped, child)
        self.children = tuple(each for each in self.children if each != child)
        self._done.pop(child, None)

    def settle(self, *, skips_silence: bool = False) -> bool:
        """Advance the final tick to the least ack, here and below; return True if it advanced.

        Events that clients here have not acknowledged stay as delivered: a copy would cost memory.

        Args:
            skips_silence: whether silence counts as acknowledged without a transmission.
        """
        self.knowledge.condense(self.subend.done)
        done = [*map(self.acknowledged_by, self.children)]
        if self._has_subend:
            is_skipping = skips_silence and self.held is None
            subend, knowledge = self.subend, self.knowledge
            done.append(subend.done_with(knowledge) if is_skipping else subend.done)
        if self.held is not None:
            done.append(self.held)
        # Without any, all cells below are decommissioned: no tick is needed or requested here.
        return self.finish(min(done, default=self.subend.done))

    def finish(self, through: int) -> bool:
        """Make everything through a tick final; return True if the final tick advanced."""
        if not self.knowledge.finish(through):
            return False
        self.on_answer(0, through + 1)
        for peer in list(self.curious):
            self.satisfy(peer, 0, through + 1)
        return True

    @property
    def is_held_up(self) -> bool:
        """True if events lie behind an unknown tick, and cannot be acknowledged without it."""
        knowledge = self.knowledge
        return knowledge.events.last > knowledge.horizon(knowledge.final)

    def overdue(self) -> int | None:
        """Return the last event that was already here at the previous call.

        None without such an event, or if a broker above has requested acks meanwhile.
        """
        events, was_expected = self.knowledge.events, self.is_expected
        last = events.last_up_to(self._kept)
        self._kept, self.is_expected = events.last, False
        return None if was_expected else last

    # ------------------------------------------------------------ curiosity

    def want(self, peer: BrokerNumber, ranges: Sequence[Range]) -> None:
        """Record a broker's request for ticks that are unknown here."""
        curious = self.curious.setdefault(peer, IntervalSet())
        for start, end in ranges:
            curious.add(start, end)

    def wanted(self, peer: BrokerNumber, start: int, end: int) -> list[Range]:
        """Return the ticks of [start, end) that a broker has requested."""
        curious = self.curious.get(peer)
        return curious.within(start, end) if curious is not None else []

    def satisfy(self, peer: BrokerNumber, start: int, end: int) -> None:
        """Remove [start, end) from a broker's requests, after an answer or an ack."""
        curious = self.curious.get(peer)
        if curious is not None:
            curious.remove(start, end)
            if not curious:
                del self.curious[peer]

    def forget(self, peer: BrokerNumber) -> None:
        """Remove all requests of a broker."""
        self.curious.pop(peer, None)

    def request(self, ranges: Sequence[Range], now_ns: Instant, until_ns: Instant) -> list[Range]:
        """Return the ticks of the ranges without a recent request, and record their request.

        No tick is returned twice.

        Paper: [GD02] §3.1 (consolidation and forgetting of curiosity).
        """
        self.forget_requested(now_ns)
        fresh: list[Range] = []
        for start, end in ranges:
            for gap in self.requested.gaps(start, end):
                self.requested.add(*gap)
                self._requested_until.append((*gap, until_ns))
                fresh.append(gap)
        return fresh

    def forget_requested(self, now_ns: Instant) -> Instant | None:
        """Remove expired requests; return the next instant of expiry, None without requests."""
        while self._requested_until and self._requested_until[0][2] <= now_ns:
            start, end, _ = self._requested_until.popleft()
            self.requested.remove(start, end)
        if not self.requested:
            self._requested_until.clear()
        return self._requested_until[0][2] if self._requested_until else None

    def on_answer(self, start: int, end: int) -> None:
        """Remove [start, end) from the requests upstream, since its ticks have arrived."""
        if self.requested:
            self.requested.remove(start, end)
            if not self.requested:
                self._requested_until.clear()


class Streams:
    """The streams of one broker, created when they are first named.

    Attributes:
        pubends: the number of pubends of each broker.
        has_lost: this broker has lost state, so neighbours may have more of its streams.
    """

    def __init__(self, broker: BrokerNumber, routes: Routes, parameters: GryphonParameters) -> None:
        self.has_lost = False
        self.pubends = parameters.pubends
        self._routes = routes
        self._parameters = parameters
        self._own = [StreamId(broker, pubend, 0) for pubend in range(parameters.pubends)]
        self._streams: dict[StreamId, Stream] = {}
        self._dropped: dict[Cell, None] = {}

    def __iter__(self) -> Iterator[Stream]:
        """Yield all streams with knowledge or requests at this broker."""
        return iter(self._streams.values())

    def get(self, identity: StreamId) -> Stream:
        """Return the stream; create it if it is new here."""
        found = self._streams.get(identity)
        if found is None:
            upstream, children = self._routes.of(identity)
            is_host = self._routes.is_host
            found = Stream(identity, upstream, children, self._parameters, has_subend=is_host)
            for cell in self._dropped:
                found.drop(cell)
            self._streams[identity] = found
        return found

    def drop(self, cell: Cell) -> None:
        """Remove a decommissioned cell below from all streams, also from those created later."""
        self._dropped[cell] = None
        for stream in self:
            stream.drop(cell)

    def on_session(self, peer: BrokerNumber, *, is_new: bool) -> None:
        """Forget the messages to a neighbour on its last session, and a new neighbour's nacks."""
        for stream in self:
            stream.sent_through.pop(peer, None)
            if is_new:
                stream.forget(peer)

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Forget the neighbour as the last sender of streams."""
        for stream in self:
            if stream.via == peer:
                stream.via = None

    def count_retained(self) -> int:
        """Return the number of retained publications."""
        return sum(stream.knowledge.events.events for stream in self)

    def is_own(self, identity: StreamId) -> bool:
        """Return True for the stream of a pubend of this broker."""
        return identity in self._own

    def own(self) -> list[Stream]:
        """Return the streams of this broker's pubends."""
        return [self.get(identity) for identity in self._own]

    def published_ticks(self) -> list[int]:
        """Return the last tick of each pubend of this broker that other brokers may have."""
        return [stream.knowledge.highest for stream in self.own()]

    def position(self, identity: StreamId) -> int:
        """Return the tick through which a stream was delivered here."""
        found = self._streams.get(identity)
        return found.subend.position if found is not None else 0

    # ------------------------------------------------------------ streams of messages

    def from_upstream(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        """Return the stream of a message from its upstream cell, or from this cell.

        Raises:
            RemoteProtocolError: the stream does not exist, or does not arrive from this peer.
        """
        found = self._streams.get(identity)
        upstream = found.upstream if found is not None else None
        if upstream is None:
            upstream = self._routes.upstream(peer, identity)
        cell = self._routes.cell_by_broker[peer]
        if upstream is None or cell not in (upstream, self._routes.cell):
            raise RemoteProtocolError(peer, f"{identity} does not arrive from this peer")
        return found or self.get(identity)

    def from_downstream(self, peer: BrokerNumber, identity: StreamId, cell: Cell) -> Stream:
        """Return the stream of a message about a cell, which is not upstream.

        Raises:
            RemoteProtocolError: the stream does not exist, or arrives from that cell.
        """
        found = self._streams.get(identity)
        upstream = found.upstream if found is not None else self._routes.upstream(peer, identity)
        if upstream == cell:
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return found or self.get(identity)

    def has_target(self, peer: BrokerNumber, stream: Stream, onto: Cell) -> bool:
        """Return True if a message is for cells here; False for a decommissioned cell.

        Only members of this cell name one of its cells below. A member that is not notified of the
        decommission yet may name the decommissioned cell.

        Raises:
            RemoteProtocolError: the target is not a cell below, or the peer may not name one.
        """
        is_sideways = self._routes.cell_by_broker[peer] == self._routes.cell
        if is_sideways and onto in stream.dropped:
            return False
        if onto not in (stream.children if is_sideways else (EVERYWHERE,)):
            raise RemoteProtocolError(peer, f"{stream.identity} is for cell {onto}")
        return True


def check_ranges(peer: BrokerNumber, ranges: Sequence[Range]) -> None:
    """Check that the ranges of a message are neither missing nor empty, and within the ticks.

    Raises:
        RemoteProtocolError: the peer sent no range, or an empty range, or an impossible tick.
    """
    if not ranges or any(not start < end <= TICK_LIMIT for start, end in ranges):
        raise RemoteProtocolError(peer, f"ranges {ranges}"[:300])


def check_ticks(peer: BrokerNumber, ticks: Iterable[int]) -> None:
    """Check that ticks in a message are possible.

    Raises:
        RemoteProtocolError: a tick has no later tick with an encoding.
    """
    highest = max(ticks, default=0)
    if highest >= TICK_LIMIT:
        raise RemoteProtocolError(peer, f"tick {highest}")
