"""Forwarding of knowledge downstream: events, with the silence around them, and silence.

Events that arrive for the first time are forwarded to every child cell with a matching filter,
with all silence below. Repeated events are sent to brokers with a nack only. The knowledge of
a child cell is not stored, but follows from the knowledge here and the cell's filter: an unwanted
event is silence for the cell, and counts as acknowledged.

Paper: [GD02] §2.4, §3.1 (istreams and ostreams).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber
from brokerd.model.message_kind import JOINED_BYTES
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FlowControl
from brokerd.protocols.gryphon.knowledge import TICK_LIMIT, Range
from brokerd.protocols.gryphon.messages import EVERYWHERE, Events, Silent, split_by_events
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.stream import Stream, Streams, check_ranges, check_ticks
from brokerd.protocols.interface import Effect, Instant, Send
from brokerd.protocols.parts.selection import match_run


class Forwarding:
    """The transmission of a broker's streams to the cells below.

    Args:
        memo: the attributes of known events, with which received attributes are checked.

    Attributes:
        contradicted: number of messages that contradicted the knowledge here.
    """

    def __init__(
        self,
        routes: Routes,
        parameters: GryphonParameters,
        streams: Streams,
        filters: FilterTable,
        links: Links,
        flow: FlowControl,
        memo: MatchMemo[Any, Any],
        counters: dict[str, int],
    ) -> None:
        self.contradicted = 0
        self._routes = routes
        self._streams = streams
        self._is_total = parameters.is_total
        self._most = parameters.events_per_message
        self._filters = filters
        self._links = links
        self._flow = flow
        self._memo = memo
        self._counters = counters
        self._any = not parameters.events_per_message

    def discrepancies(self) -> tuple[str, ...]:
        """Return the statements that contradict events or silence here, for people."""
        if not self.contradicted:
            return ()
        return (
            f"{self.contradicted} messages of neighbours state events as silent, or silence as "
            "events: a broker has lost state, or is faulty",
        )

    # ------------------------------------------------------------ own pubends

    def publish(
        self, stream: Stream, run: PublicationRun, silent: int, now_ns: Instant
    ) -> list[Effect]:
        """Publish durable events of a pubend here, with silence behind them up to a tick."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, silent + 1, run)
        effects = self.forward(stream, run, silent + 1, EVERYWHERE, now_ns)
        if stream.curious:
            effects += self._answer_all(stream, start, silent + 1, now_ns)
        return effects

    def publish_silence(self, stream: Stream, through: int, now_ns: Instant) -> list[Effect]:
        """Publish that a stream of this broker is silent through a tick, as an answer to nacks."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, through + 1, None)
        return self._answer_all(stream, start, through + 1, now_ns)

    # ------------------------------------------------------------ messages from upstream

    def on_events(
        self, peer: BrokerNumber, stream: Stream, message: Events, now_ns: Instant
    ) -> list[Effect]:
        """Record and forward events.

        Raises:
            RemoteProtocolError: the message is malformed.
        """
        run, start, end = message.run, message.start, message.end
        if not (0 < start <= run.first and run.last < end <= TICK_LIMIT and run.origins):
            raise RemoteProtocolError(peer, f"[{start}, {end}) around {run}"[:300])
        if message.final >= TICK_LIMIT:
            raise RemoteProtocolError(peer, f"final tick {message.final}")
        has_target = not message.again and self._streams.has_target(peer, stream, message.onto)
        match_run(self._memo, run, peer)
        self._compare(stream, message.final, start, end, run)
        effects = self._record_upstream(peer, stream, message.final, now_ns)
        fresh = stream.knowledge.accumulate(start, end, run)
        if fresh:
            stream.subend.gaps.knowledge_ns = now_ns
            stream.on_answer(start, end)
        else:
            self._counters["duplicates_received"] += len(run)
        if has_target:
            effects += self.forward(stream, run, end, message.onto, now_ns)
        if stream.curious:
            effects += self._answer_all(stream, start, end, now_ns)
        return effects

    def on_silent(
        self, peer: BrokerNumber, stream: Stream, message: Silent, now_ns: Instant
    ) -> list[Effect]:
        """Record silence; forward silence where cells wait for silence.

        Raises:
            RemoteProtocolError: the ranges are malformed.
        """
        check_ranges(peer, message.ranges)
        check_ticks(peer, (message.final,))
        for start, end in message.ranges:
            self._compare(stream, message.final, start, end, None)
        effects = self._record_upstream(peer, stream, message.final, now_ns)
        for start, end in message.ranges:
            fresh = stream.knowledge.accumulate(start, end, None)
            if fresh:
                stream.subend.gaps.knowledge_ns = now_ns
                stream.on_answer(start, end)
            effects += self._answer_all(stream, start, end, now_ns)
            if not message.again and fresh:
                for cell, receivers in self._links.targets(
                    stream.identity, stream.children, EVERYWHERE
                ):
                    for each, _ in receivers:
                        effects += self._silence(stream, cell, each, end)
        return effects

    def _compare(
        self, stream: Stream, final: int, start: int, end: int, run: PublicationRun | None
    ) -> None:
        """Count a message that contradicts the knowledge here, which stays as it is.

        An access broker that lost events, with an accepted loss, states their ticks as silent. Not
        compared with filters: an event unwanted here may arrive for another cell.
        """
        if self._filters.is_on:
            return
        if stream.knowledge.contradiction(max(start, final + 1), end, run) is not None:
            self.contradicted += 1

    def _record_upstream(
        self, peer: BrokerNumber, stream: Stream, final: int, now_ns: Instant
    ) -> list[Effect]:
        """Record the sender and the final tick; answer nacks for final ticks with silence.

        With filters a tick may be final before the cells below have received it.
        """
        if self._routes.cell_by_broker[peer] == stream.upstream:
            stream.via = peer
        if final <= stream.knowledge.final:
            return []
        requested = [*stream.curious] if self._filters.is_on else ()
        wanted = [(each, stream.wanted(each, 0, final + 1)) for each in requested]
        stream.finish(final)
        return [
            effect
            for each, ranges in wanted
            if ranges
            for effect in self.answer(stream, each, ranges, now_ns)
        ]

    # ------------------------------------------------------------ first transmissions

    def forward(
        self, stream: Stream, run: PublicationRun, end: int, onto: Cell, now_ns: Instant
    ) -> list[Effect]:
        """Return the messages of events for the first time, with the silence around them.

        A sideways message has all events of this broker, since cells behind the receiver may want
        them.
        """
        effects: list[Effect] = []
        cells = stream.children if onto == EVERYWHERE else (onto,)
        if not cells:
            return effects
        identity, sideways = stream.identity, onto == EVERYWHERE
        selection = self._filters.select(run)
        for cell in cells:
            found = self._links.receivers.get((identity.publisher, cell))
            if found is None:
                receivers = self._links.down(identity, cell, sideways=sideways)
            else:
                receivers = found[sideways]
            final = stream.acknowledged_by(cell)
            wanted = selection.wanted(cell)
            part = wanted.after(final) if wanted is not None else None
            for peer, further in receivers:
                filter_cell = cell
                if further != EVERYWHERE:  # other cells may lack acknowledged events
                    part, filter_cell = run.after(final), EVERYWHERE
                    final = stream.knowledge.final
                if part is None:
                    if wanted is None:
                        effects += self._silence(stream, cell, peer, end)
                    continue
                # A neighbour without room detects the gap, and sends a nack.
                if self._flow.full and not self._flow.can_send(peer, identity):
                    self._flow.missed(peer, identity, further)
                    continue
                start = self._bracket(stream, filter_cell, peer, part.first, part.first)
                self._counters["publications_forwarded"] += len(part)
                message = Events(final, start, end, False, self._any, further, part)
                effects += self._send(peer, message, now_ns)
                stream.sent_through[peer] = max(end, stream.sent_through.get(peer, 0))
                if stream.curious:
                    stream.satisfy(peer, start, end)
        return effects

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
        announced = stream.sent_through.get(peer, 0)
        lowest = max(run[0], stream.knowledge.final + 1, announced if announced <= tick else 0)
        if lowest >= end:
            return lowest
        events = stream.knowledge.events
        before = self._filters.last_wanted(events, cell, lowest, end)
        return lowest if before is None else before + 1

    def _silence(self, stream: Stream, cell: Cell, peer: BrokerNumber, end: int) -> list[Effect]:
        """Return unwanted ticks as silence in total order, where other streams wait for them."""
        is_beside = self._routes.cell_by_broker[peer] != cell
        if not self._is_total or is_beside or not self._filters.wants_any(cell):
            return []
        final = stream.acknowledged_by(cell)
        start = self._bracket(stream, cell, peer, end - 1, end) if final < end - 1 else end
        if start >= end:
            return []
        stream.sent_through[peer] = max(end, stream.sent_through.get(peer, 0))
        stream.satisfy(peer, start, end)
        return [Send(peer, Silent(stream.identity, final, ((start, end),), again=False))]

    # ------------------------------------------------------------ answers

    def _answer_all(self, stream: Stream, start: int, end: int, now_ns: Instant) -> list[Effect]:
        """Answer the nacks of all brokers for [start, end)."""
        effects: list[Effect] = []
        for peer in list(stream.curious):
            wanted = stream.wanted(peer, start, end)
            if wanted:
                effects += self.answer(stream, peer, wanted, now_ns)
        return effects

    def resume_answer(self, stream: Stream, peer: BrokerNumber, now_ns: Instant) -> list[Effect]:
        """Resume the answer to a broker's nacks, after its window was full."""
        curious = stream.curious.get(peer)
        if curious is None:
            return []
        known = stream.knowledge.known
        parts = [part for each in curious for part in known.within(*each)]
        return self.answer(stream, peer, parts, now_ns)

    def answer(
        self, stream: Stream, peer: BrokerNumber, known: Sequence[Range], now_ns: Instant
    ) -> list[Effect]:
        """Answer a broker with ranges of knowledge, within the room of its window.

        The other ranges stay requested.
        """
        effects: list[Effect] = []
        cell, silent = self._routes.cell_by_broker[peer], []
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
                message = Events(final, start, end, True, self._any, EVERYWHERE, run)
                effects += self._send(peer, message, now_ns)
        if silent:
            effects.append(Send(peer, Silent(stream.identity, final, tuple(silent))))
        return effects

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

    def _send(self, peer: BrokerNumber, message: Events, now_ns: Instant) -> list[Effect]:
        """Return a message, split at the limit of events per message, and a probe that is due."""
        parts = [message] if self._any else split_by_events(message, self._most)
        effects: list[Effect] = [Send(peer, each) for each in parts]
        probe = self._flow.charge(peer, message.run, now_ns, again=message.again)
        if probe is not None:
            effects.append(Send(peer, probe))
        return effects
