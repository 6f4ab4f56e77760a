"""Transmission downstream: events, with the silence around them, and silence.

The knowledge of a child cell is not stored. It is the knowledge here, seen through the cell's
filter: an unwanted event is silence for the cell, and counts as acknowledged.

Paper: [GD02] §2.4, §3.1 (ostreams).
"""

from collections.abc import Iterator, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.model.message_kind import JOINED_BYTES
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.filters import FilterTable
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FlowControl
from brokerd.protocols.gryphon.knowledge import Range
from brokerd.protocols.gryphon.messages import EVERYWHERE, Events, Silent, split_by_events
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.state import Stream
from brokerd.protocols.parts.event_machine import EventMachine


class Ostreams:
    """All streams of one broker, as cells below see them."""

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        parameters: GryphonParameters,
        filters: FilterTable,
        links: Links,
        flow: FlowControl,
        counters: dict[str, int],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._is_total = parameters.is_total
        self._most = parameters.events_per_message
        self._filters = filters
        self._links = links
        self._flow = flow
        self._counters = counters
        self._any = not parameters.events_per_message

    def ways(
        self, stream: Stream, onto: Cell
    ) -> Iterator[tuple[Cell, Sequence[tuple[BrokerNumber, Cell]]]]:
        """Yield the receivers of each cell below, or of `onto` alone without sideways receivers."""
        down = self._links.down
        if onto != EVERYWHERE:
            yield onto, down(stream.identity, onto, sideways=False)
            return
        for cell in stream.children:
            yield cell, down(stream.identity, cell)

    def forward(
        self, stream: Stream, run: PublicationRun, end: int, onto: Cell = EVERYWHERE
    ) -> None:
        """Send events downstream for the first time, with the silence around them.

        A sideways message has all events of this broker, since cells behind the receiver may want
        them.
        """
        selection = self._filters.select(run)
        for cell, ways in self.ways(stream, onto):
            final = stream.acknowledged_by(cell)
            wanted = selection.wanted(cell)
            part = wanted.after(final) if wanted is not None else None
            for peer, further in ways:
                whose = cell
                if further != EVERYWHERE:  # other cells may lack acknowledged events
                    part, whose = run.after(final), EVERYWHERE
                    final = stream.knowledge.final
                if part is None:
                    if wanted is None:
                        self._send_silence(stream, cell, peer, end)
                    continue
                if not self._flow.can_send(peer, stream.identity):  # it detects the gap, and asks
                    self._flow.missed(peer, stream.identity, further)
                    continue
                start = self._bracket(stream, whose, peer, part.first, part.first)
                self._counters["publications_forwarded"] += len(part)
                self._send(peer, Events(final, start, end, False, self._any, further, part))
                stream.told[peer] = max(end, stream.told.get(peer, 0))
                stream.satisfy(peer, start, end)

    def _bracket(self, stream: Stream, cell: Cell, peer: BrokerNumber, tick: int, end: int) -> int:
        """Return the start of the silence before `end` for a cell, behind earlier messages.

        Args:
            cell: EVERYWHERE: every event interrupts the silence.
            peer: the receiver of the earlier messages.
            tick: a tick with knowledge in the range, or right behind the range.

        Paper: [GD02] §3.1 ("a D tick bracketed by silence").
        """
        run = stream.knowledge.known.run(tick)
        assert run is not None, f"{tick} is unknown"
        told = stream.told.get(peer, 0)
        lowest = max(run[0], stream.knowledge.final + 1, told if told <= tick else 0)
        events = stream.knowledge.events
        before = self._filters.last_wanted(events, cell, lowest, end)
        return lowest if before is None else before + 1

    def forward_silence(self, stream: Stream, end: int) -> None:
        """Send silence up to `end` downstream for the first time, if cells wait for silence."""
        for cell, ways in self.ways(stream, EVERYWHERE):
            for peer, _ in ways:
                self._send_silence(stream, cell, peer, end)

    def _send_silence(self, stream: Stream, cell: Cell, peer: BrokerNumber, end: int) -> None:
        """Send unwanted ticks as silence in total order, where other streams wait for them."""
        is_beside = self._routes.cell_of(peer) != cell
        if not self._is_total or is_beside or not self._filters.wants_any(cell):
            return
        final = stream.acknowledged_by(cell)
        start = self._bracket(stream, cell, peer, end - 1, end) if final < end - 1 else end
        if start < end:
            self._machine.send(peer, Silent(stream.identity, final, ((start, end),), again=False))
            stream.told[peer] = max(end, stream.told.get(peer, 0))
            stream.satisfy(peer, start, end)

    def skip_unwanted(self, stream: Stream) -> Iterator[Cell]:
        """Advance the acks of cells below over events that they do not want.

        Yields the cells with an event that is acknowledged in this way.

        Paper: [GD02] §3.1 ("D ticks filtered can be immediately acked").
        """
        events = stream.knowledge.events
        for cell in stream.children if self._filters.is_on else ():
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

    def answer_wanted(self, stream: Stream, start: int, end: int) -> None:
        """Answer the nacks of all brokers for [start, end)."""
        for peer in list(stream.curious):
            wanted = stream.wanted(peer, start, end)
            if wanted:
                self.answer(stream, peer, wanted)

    def answer_more(self, stream: Stream, peer: BrokerNumber) -> None:
        """Continue the answer to a broker's nacks, after its window was full."""
        curious = stream.curious.get(peer)
        if curious is not None:
            known = stream.knowledge.known
            self.answer(stream, peer, [part for each in curious for part in known.within(*each)])

    def answer(self, stream: Stream, peer: BrokerNumber, known: Sequence[Range]) -> None:
        """Answer a broker with ranges of knowledge, within the room of its window.

        The other ranges stay requested.
        """
        cell, silent = self._routes.cell_of(peer), []
        final = (
            stream.knowledge.final if cell == self._routes.cell else stream.acknowledged_by(cell)
        )
        for start, end, run in self._pieces(stream, peer, known):
            stream.satisfy(peer, start, end)
            if run is not None and cell != self._routes.cell:
                run = self._filters.select(run).wanted(cell)
            if run is None:
                silent.append((start, end))
            else:
                self._counters["resent_publications"] += len(run)
                self._send(peer, Events(final, start, end, True, self._any, EVERYWHERE, run))
        if silent:
            self._machine.send(peer, Silent(stream.identity, final, tuple(silent)))

    def _pieces(
        self, stream: Stream, peer: BrokerNumber, known: Sequence[Range]
    ) -> Iterator[tuple[int, int, PublicationRun | None]]:
        """Yield ranges of knowledge with their events, one by one, until the window is full."""
        events = stream.knowledge.events
        for place, (start, end) in enumerate(known):
            while start < end:
                room_bytes = min(self._flow.answer_room_bytes(peer, stream.identity), JOINED_BYTES)
                if room_bytes <= 0:
                    stream.want(peer, [(start, end), *known[place + 1 :]])
                    return
                cut, _ = events.cut(start, end, room_bytes, EVENT_BYTES)
                yield start, cut, events.within(start, cut)
                start = cut

    def _send(self, peer: BrokerNumber, message: Events) -> None:
        """Send a message, split at the limit of events per message."""
        for each in [message] if self._any else split_by_events(message, self._most):
            self._machine.send(peer, each)
        self._flow.sent(peer, message.run, again=message.again)

    # ------------------------------------------------------------ unwanted events

    def let_go(self, stream: Stream) -> None:
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
