"""Acknowledgements: the final ticks of streams, here and between brokers.

A tick is final at a broker once every local client and every cell below has acknowledged the tick.
The broker then acknowledges the tick upstream, in batches. Events that a cell does not want count
as acknowledged by the cell. The pubend requests missing acks of old events, and so do brokers on
the route that still have events.

Paper: [GD02] §3.1 (acks), §3.2 (AckExpected). Deviates: members of a cell forward acks from below
within the cell, because a broker below sends an ack to a single member.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.knowledge import LAST_TICK, ticks_in
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Done
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.stream import Stream, Streams, check_ticks
from brokerd.protocols.interface import Effect, Instant, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

ACKS: Final = "acks"
UNWANTED: Final = "unwanted"
EXPECTED: Final = "expected"


class Acknowledgements:
    """A batch of acks for neighbours, and the final ticks of streams."""

    def __init__(
        self,
        routes: Routes,
        parameters: GryphonParameters,
        streams: Streams,
        filters: FilterTable,
        links: Links,
        deadlines: DeadlineQueue[tuple[str, Any]],
        counters: dict[str, int],
    ) -> None:
        self._routes = routes
        self._parameters = parameters
        self._streams = streams
        self._filters = filters
        self._links = links
        self._deadlines = deadlines
        self._counters = counters
        self._up: dict[StreamId, Stream] = {}
        self._beside: dict[tuple[Cell, StreamId], Stream] = {}

    # ------------------------------------------------------------ final ticks

    def settle(self, stream: Stream, now_ns: Instant) -> bool:
        """Advance the final tick of a stream after new acks.

        Returns True if the final tick of a pubend here has advanced, so that its log may be
        released.
        """
        if stream.children and self._filters.is_on:
            for cell in self._skip_unwanted(stream):
                self.add_done(stream, cell, now_ns)
        has_advanced = stream.settle(skips_silence=self._filters.is_on)
        if has_advanced and stream.upstream is not None:
            self.add_final(stream, now_ns)
        if self._has_unwanted(stream) and (UNWANTED, None) not in self._deadlines:
            self._deadlines.set((UNWANTED, None), now_ns + self._parameters.unwanted_ns)
        return has_advanced and stream.upstream is None

    def _skip_unwanted(self, stream: Stream) -> Iterator[Cell]:
        """Advance the acks of cells below over events that they do not want.

        Yields the cells with an event that is acknowledged in this way.

        Paper: [GD02] §3.1 ("D ticks filtered can be immediately acked").
        """
        events = stream.knowledge.events
        for cell in stream.children:
            done = stream.acknowledged_by(cell)
            first = events.after(done)
            # Otherwise every later event would match the same event again.
            if first == done + 1 and stream.waits_for.get(cell) == (first, self._filters.changes):
                continue
            through = stream.knowledge.horizon(done)
            if through > done:
                wanted = self._filters.first_wanted(events, cell, done)
                through = through if wanted is None else min(through, wanted - 1)
                stream.note_done(cell, through)
                if wanted is not None:
                    stream.waits_for[cell] = wanted, self._filters.changes
                if first is not None and first <= through:
                    yield cell

    def _has_unwanted(self, stream: Stream) -> bool:
        """Return True if events are kept here that brokers above may have released."""
        if not stream.knowledge.events.events:
            return False
        is_between = stream.upstream is not None and bool(stream.children)
        return (is_between and self._filters.is_on) or stream.is_held_up

    def release_unwanted(self, stream: Stream) -> list[Effect]:
        """Release unwanted events; request acks for the rest, unless upstream does.

        Filters differ between brokers: the pubend may have released events that are wanted here.
        """
        if stream.is_held_up:
            self._drop_unwanted(stream)
        overdue = stream.overdue()
        if overdue is None or stream.upstream is None:
            return []
        return self.expect(stream, overdue)

    def _drop_unwanted(self, stream: Stream) -> None:
        """Release unwanted events that no cell will acknowledge.

        Such events lie behind an unknown tick that no broker requests, because all ticks there are
        unwanted.
        """
        events = stream.knowledge.events
        wanted = {*events.ticks(stream.acknowledged_here() + 1, events.last + 1)}
        for cell in stream.children:
            done = stream.acknowledged_by(cell)
            for run in events.runs_after(done):
                part = self._filters.select(run).wanted(cell)
                rest = part.after(done) if part is not None else None
                wanted.update(rest.sequences if rest is not None else ())
        events.keep_only(wanted)

    # ------------------------------------------------------------ batches

    def add_final(self, stream: Stream, now_ns: Instant) -> None:
        """Add a stream with a new final tick to the batch."""
        self._up[stream.identity] = stream
        self._schedule(now_ns)

    def add_done(self, stream: Stream, cell: Cell, now_ns: Instant) -> None:
        """Add an ack of a cell below to the batch, for the other members of this cell.

        The ack has arrived here, or follows from the cell's filter.
        """
        if self._routes.peers:
            self._beside[cell, stream.identity] = stream
            self._schedule(now_ns)

    def flush(self) -> list[Effect]:
        """Return the messages of the batch, and clear the batch."""
        up: dict[BrokerNumber, list[Stream]] = {}
        for stream in self._up.values():
            near = self._links.senders.get(stream.identity.broker)
            if near is None:
                near = self._links.up(stream.identity, None, sideways=False)
            via = stream.via
            for peer in (via,) if via is not None and via in near else near:
                up.setdefault(peer, []).append(stream)
        beside: dict[Cell, list[Stream]] = {}
        for (cell, _), stream in self._beside.items():
            if cell in stream.children:  # not decommissioned since
                beside.setdefault(cell, []).append(stream)
        self._up.clear()
        self._beside.clear()
        effects: list[Effect] = []
        for peer, streams in up.items():
            effects += self._final(peer, streams)
        for peer in self._routes.peers:
            for cell, streams in beside.items():
                effects += self._done(peer, cell, streams)
        return effects

    def resend(self, peer: BrokerNumber) -> list[Effect]:
        """Return all acks for a neighbour with a new session; earlier acks may be lost."""
        theirs = self._routes.cell_of(peer)
        if theirs != self._routes.cell:
            return self._final(peer, [each for each in self._streams if each.upstream == theirs])
        effects: list[Effect] = []
        for cell in self._routes.cells:
            streams = [each for each in self._streams if cell in each.children]
            effects += self._done(peer, cell, streams)
        return effects

    def _final(self, peer: BrokerNumber, streams: Iterable[Stream]) -> list[Effect]:
        through = [(each.identity, each.knowledge.final) for each in streams]
        return _acks(peer, self._routes.cell, through)

    def _done(self, peer: BrokerNumber, cell: Cell, streams: Iterable[Stream]) -> list[Effect]:
        through = [(each.identity, each.acknowledged_by(cell)) for each in streams]
        return _acks(peer, cell, through)

    def _schedule(self, now_ns: Instant) -> None:
        if (ACKS, None) not in self._deadlines:
            self._deadlines.set((ACKS, None), now_ns + self._parameters.ack_interval_ns)

    # ------------------------------------------------------------ messages of neighbours

    def check(self, peer: BrokerNumber, message: Done) -> list[tuple[Stream, int]]:
        """Check an ack; return acks beyond the knowledge that this broker has of its own streams.

        Raises:
            RemoteProtocolError: the peer may not acknowledge for the cell, or as much.
        """
        cell, theirs = message.cell, self._routes.cell_by_broker[peer]
        if cell not in self._routes.cells or theirs not in (cell, self._routes.cell):
            raise RemoteProtocolError(peer, f"acknowledges for cell {cell}")
        check_ticks(peer, (through for _, through in message.through))
        streams = [
            (self._streams.from_downstream(peer, identity, cell), through)
            for identity, through in message.through
        ]
        beyond = [
            (stream, through)
            for stream, through in streams
            if stream.upstream is None and through > stream.knowledge.highest
        ]
        for stream, through in beyond:
            if not self._streams.has_lost or through >= LAST_TICK:
                raise RemoteProtocolError(
                    peer, f"acknowledges {through} of {stream.identity}, which has fewer ticks"
                )
        return beyond

    def on_done(self, peer: BrokerNumber, message: Done, now_ns: Instant) -> Iterator[Stream]:
        """Record a checked ack; yield streams of pubends here with a new final tick."""
        cell, theirs = message.cell, self._routes.cell_by_broker[peer]
        for identity, through in message.through:
            stream = self._streams.get(identity)
            if stream.upstream is None:
                through = min(through, stream.knowledge.highest)
            stream.satisfy(peer, 0, through + 1 if cell == theirs else 0)
            if stream.note_done(cell, through):
                if cell == theirs:
                    self.add_done(stream, cell, now_ns)
                if self.settle(stream, now_ns):
                    yield stream

    def expect(self, stream: Stream, through: int, onto: Cell = EVERYWHERE) -> list[Effect]:
        """Request acks through a tick from cells that have not acknowledged so far.

        Paper: [GD02] §3.2 (AckExpected).
        """
        effects: list[Effect] = []
        for cell, receivers in self._links.targets(stream.identity, stream.children, onto):
            if stream.acknowledged_by(cell) < through:
                for peer, further in receivers:
                    self._counters["acks_expected"] += 1
                    effects.append(Send(peer, AckExpected(stream.identity, through, further)))
        return effects

    def on_ack_expected(
        self, peer: BrokerNumber, stream: Stream, message: AckExpected
    ) -> list[Effect]:
        """Request acks below, and confirm an ack of a single cell that has arrived before."""
        if self._routes.cell_by_broker[peer] == stream.upstream:
            stream.via = peer
        stream.is_expected = True
        effects = self.expect(stream, message.through, message.onto)
        if message.onto == EVERYWHERE:
            stream.subend.expect(message.through)
        elif (done := stream.acknowledged_by(message.onto)) >= message.through:
            effects.append(Send(peer, Done(message.onto, ((stream.identity, done),))))
        return effects

    def confirm(self, peer: BrokerNumber, stream: Stream, through: int) -> list[Effect]:
        """Return an ack through a tick that a neighbour has requested, if the tick is final."""
        if stream.knowledge.final < through:
            return []
        return [Send(peer, Done(self._routes.cell, ((stream.identity, stream.knowledge.final),)))]


class OverdueAcks:
    """The requests of this broker's pubends for acks of old events.

    Paper: [GD02] §3.2 (AET).
    """

    def __init__(
        self,
        parameters: GryphonParameters,
        streams: Streams,
        pubends: Pubends,
        acknowledgements: Acknowledgements,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._parameters = parameters
        self._streams = streams
        self._pubends = pubends
        self._acknowledgements = acknowledgements
        self._deadlines = deadlines

    def schedule(self, now_ns: Instant) -> None:
        """Set the deadline of the next check, unless it is set."""
        check_ns = self._parameters.ack_expected_check_ns
        if self._parameters.ack_expected_ns and (EXPECTED, None) not in self._deadlines:
            self._deadlines.set((EXPECTED, None), now_ns + check_ns)

    def check(self, now_ns: Instant) -> list[Effect]:
        """Request missing acks of old events, and check again as long as events remain.

        Events of an earlier incarnation count as old.
        """
        effects: list[Effect] = []
        if not self._parameters.ack_expected_ns:
            return effects
        old = self._pubends.tick(now_ns) - ticks_in(self._parameters.ack_expected_ns)
        waits = False
        for stream in self._streams.own():
            waits = waits or bool(stream.knowledge.events.events)
            restored = self._pubends.restored_tick(stream.identity.publisher)
            last = stream.knowledge.events.last_up_to(max(old, restored))
            if last is not None:
                effects += self._acknowledgements.expect(stream, last)
        if waits:
            check_ns = self._parameters.ack_expected_check_ns
            self._deadlines.set((EXPECTED, None), now_ns + check_ns)
        return effects


def _acks(peer: BrokerNumber, cell: Cell, through: list[tuple[StreamId, int]]) -> list[Effect]:
    found = tuple((identity, last) for identity, last in through if last)
    return [Send(peer, Done(cell, found))] if found else []
