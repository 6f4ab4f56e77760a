"""Exchange of knowledge, expected acks and curiosity between brokers.

Paper: [GD02] §2.4, §3.1, §3.2.
"""

from collections.abc import Callable, Iterator, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.acknowledgements import Acks
from brokerd.protocols.gryphon.filters import FilterTable
from brokerd.protocols.gryphon.flow_control import FlowControl
from brokerd.protocols.gryphon.forwarding import Ostreams
from brokerd.protocols.gryphon.knowledge import LAST_TICK, TICK_NS, Range
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Done,
    Events,
    LinkStatus,
    Nack,
    Silent,
)
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.state import Stream
from brokerd.protocols.interface import retransmission_requested
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

FORGETTING = "forgetting"
UNWANTED = "unwanted"


class Relay:
    """All streams at one broker, and the messages of neighbours about them.

    Args:
        has_session: returns whether a message can be sent to a neighbour now.
        on_news: called with a stream after new knowledge or a request for acks, for its subend.
        on_final: called when the final tick of a stream of this broker's pubend has advanced.
        on_doubt: called for a nack with future ticks of a stream of this broker.
        on_links: called when the reachable cells may have changed.
        on_beyond: called for an ack beyond the knowledge that this broker has left of its own
            stream.
        check_run: raises RemoteProtocolError if attributes from a peer are malformed.

    Attributes:
        has_lost: this broker has lost state, so neighbours may have more of its streams.
        contradicted: number of messages that contradicted the knowledge here.
        acks: acks to brokers above.
        links: receivers of messages and nacks.
        below: transmission to cells below.
    """

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        parameters: GryphonParameters,
        filters: FilterTable,
        deadlines: DeadlineQueue[tuple[str, object]],
        counters: dict[str, int],
        flow: FlowControl,
        *,
        has_session: Callable[[BrokerNumber], bool],
        on_news: Callable[[Stream], None],
        on_final: Callable[[Stream], None],
        on_links: Callable[[], None],
        on_beyond: Callable[[Stream, int], None],
        on_doubt: Callable[[Stream, int], None],
        check_run: Callable[[PublicationRun, BrokerNumber], object],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._parameters = parameters
        self._filters = filters
        self._deadlines = deadlines
        self._counters = counters
        self._on_news = on_news
        self._on_links = on_links
        self._on_doubt = on_doubt
        self._on_beyond = on_beyond
        self.has_lost = False
        self.contradicted = 0
        self._check_run = check_run
        self._streams: dict[StreamId, Stream] = {}
        self.links = Links(routes, has_session)
        interval_ns = parameters.ack_interval_ns
        self.below = Ostreams(machine, routes, parameters, filters, self.links, flow, counters)
        self.acks = Acks(machine, routes, self.links, deadlines, interval_ns, on_final)

    def __iter__(self) -> Iterator[Stream]:
        """Yield all streams with knowledge or requests at this broker."""
        return iter(self._streams.values())

    def discrepancies(self) -> tuple[str, ...]:
        """Return the statements that contradict events or silence here, for people."""
        if not self.contradicted:
            return ()
        return (
            f"{self.contradicted} messages of neighbours state events as silent, or silence as "
            "events: a broker has lost state, or is faulty",
        )

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of neighbours' messages by type."""
        return {
            Events: self._on_events,
            Silent: self._on_silent,
            Nack: self._on_nack,
            Done: self._on_done,
            AckExpected: self._on_ack_expected,
            LinkStatus: self._on_link_status,
        }

    def stream(self, identity: StreamId) -> Stream:
        """Return the stream; create it if it is new here."""
        found = self._streams.get(identity)
        if found is None:
            upstream, children = self._routes.of(identity)
            is_host = self._routes.is_host
            found = Stream(identity, upstream, children, self._parameters, has_subend=is_host)
            self._streams[identity] = found
        return found

    def position(self, identity: StreamId) -> int:
        """Return the tick through which a stream was delivered here."""
        found = self._streams.get(identity)
        return found.subend.position if found is not None else 0

    def can_ask(self, stream: Stream) -> bool:
        """Return True if a broker can be asked for a stream."""
        return stream.upstream is not None and bool(self.links.up(stream.identity, stream.via))

    # ------------------------------------------------------------ windows

    def answer_more(self, peer: BrokerNumber) -> None:
        """Continue answers to a neighbour after its window was full."""
        for stream in self:
            self.below.answer_more(stream, peer)

    def expect_missed(self, peer: BrokerNumber, missed: dict[tuple[StreamId, Cell], None]) -> None:
        """Send AckExpected for missed events, so that a neighbour requests them at once."""
        for identity, onto in missed:
            through = self.stream(identity).knowledge.highest
            self._machine.send(peer, AckExpected(identity, through, onto))

    # ------------------------------------------------------------ sessions

    def on_session(self, peer: BrokerNumber, *, is_new: bool) -> None:
        """Handle a neighbour's new session; `is_new`: without memory of an earlier one."""
        for stream in self:
            stream.told.pop(peer, None)
            if is_new:
                stream.forget(peer)
        self.links.on_session_change(peer)
        self._send_links()
        self.acks.offer(self, peer)

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Handle the end of a neighbour's session."""
        for stream in self:
            if stream.via == peer:
                stream.via = None
        self.links.on_session_change(peer)
        self._send_links()

    def _on_link_status(self, peer: BrokerNumber, message: LinkStatus) -> None:
        self.links.record_cells(peer, message)
        self._send_links()
        self._on_links()

    def _send_links(self) -> None:
        for peer, message in self.links.news():
            self._machine.send(peer, message)

    # ------------------------------------------------------------ down

    def publish(self, stream: Stream, run: PublicationRun, silent: int) -> None:
        """Publish durable events of a pubend here, with silence behind them up to a tick."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, silent + 1, run)
        self.below.forward(stream, run, silent + 1)
        self.below.answer_wanted(stream, start, silent + 1)
        self._on_news(stream)

    def publish_silence(self, stream: Stream, through: int) -> None:
        """Publish that a stream of this broker is silent through a tick, as an answer to nacks."""
        start = stream.knowledge.highest + 1
        if start <= through:
            stream.knowledge.accumulate(start, through + 1, None)
            self.below.answer_wanted(stream, start, through + 1)
            self._on_news(stream)

    def restore(self, stream: Stream, run: PublicationRun) -> None:
        """Restore events of an earlier incarnation; brokers that lack them send nacks."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, run.last + 1, run)

    def expect_acks(self, stream: Stream, through: int, onto: Cell = EVERYWHERE) -> None:
        """Request acks through a tick from cells that have not acknowledged so far.

        Paper: [GD02] §3.2 (AckExpected).
        """
        for cell, ways in self.below.ways(stream, onto):
            if stream.acknowledged_by(cell) < through:
                for peer, further in ways:
                    self._counters["acks_expected"] += 1
                    self._machine.send(peer, AckExpected(stream.identity, through, further))

    def _on_events(self, peer: BrokerNumber, message: Events) -> None:
        run = message.run
        stream = self._from_above(peer, run.source)
        if not (0 < message.start <= run.first and run.last < message.end and run.origins):
            raise RemoteProtocolError(peer, f"[{message.start}, {message.end}) around {run}"[:300])
        if not message.again:
            self._check_onto(peer, stream, message.onto)
        self._check_run(run, peer)
        self._compare(stream, message.final, message.start, message.end, run)
        self._note_via(stream, peer)
        self._finish(stream, message.final)
        fresh = stream.knowledge.accumulate(message.start, message.end, run)
        if not fresh:
            self._counters["duplicates_received"] += len(run)
        self._learn(stream, fresh, message.start, message.end)
        if not message.again:
            self.below.forward(stream, run, message.end, message.onto)
        self.below.answer_wanted(stream, message.start, message.end)
        self._on_news(stream)

    def _on_silent(self, peer: BrokerNumber, message: Silent) -> None:
        stream = self._from_above(peer, message.stream)
        _check_ranges(peer, message.ranges)
        for start, end in message.ranges:
            self._compare(stream, message.final, start, end, None)
        self._note_via(stream, peer)
        self._finish(stream, message.final)
        for start, end in message.ranges:
            fresh = stream.knowledge.accumulate(start, end, None)
            self._learn(stream, fresh, start, end)
            self.below.answer_wanted(stream, start, end)
            if not message.again and fresh:
                self.below.forward_silence(stream, end)
        self._on_news(stream)

    def _on_ack_expected(self, peer: BrokerNumber, message: AckExpected) -> None:
        stream = self._from_above(peer, message.stream)
        self._check_onto(peer, stream, message.onto)
        self._note_via(stream, peer)
        stream.is_expected = True
        self.expect_acks(stream, message.through, message.onto)
        if message.onto != EVERYWHERE:
            through = (stream.identity, stream.acknowledged_by(message.onto))
            if through[1] >= message.through:
                self._machine.send(peer, Done(message.onto, (through,)))
            return
        stream.subend.expect(message.through)
        self._on_news(stream)
        if stream.knowledge.final >= message.through:
            through = (stream.identity, stream.knowledge.final)
            self._machine.send(peer, Done(self._routes.cell, (through,)))

    def _finish(self, stream: Stream, through: int) -> None:
        """Make a stream final through a tick, and answer requests for these ticks as silence.

        With filters a tick may be final before the cells below have received it.
        """
        asked = [*stream.curious] if self._filters.is_on else ()
        wanted = [(peer, stream.wanted(peer, 0, through + 1)) for peer in asked]
        if stream.finish(through):
            for peer, ranges in wanted:
                if ranges:
                    self.below.answer(stream, peer, ranges)

    def _note_via(self, stream: Stream, peer: BrokerNumber) -> None:
        if self._routes.cell_of(peer) == stream.upstream:
            stream.via = peer

    def _learn(self, stream: Stream, fresh: Sequence[Range], start: int, end: int) -> None:
        if fresh:
            stream.subend.gaps.on_knowledge(self._machine.now_ns)
            stream.on_answer(start, end)

    # ------------------------------------------------------------ up

    def ask(
        self, stream: Stream, pieces: Sequence[Sequence[Range]], *, sideways: bool = True
    ) -> None:
        """Request unknown ticks upstream, unless this broker has just requested them.

        Each piece is one `Nack`, so a lost message delays the answer to its own piece only.

        Paper: [GD02] §4.2.
        """
        assert stream.upstream is not None, f"{stream.identity} is of this broker, lacks {pieces}"
        whom = self.links.up(stream.identity, stream.via, sideways=sideways) if pieces else ()
        if not whom:
            return
        now_ns = self._machine.now_ns
        until_ns = now_ns + self._parameters.curiosity_forgotten_ns
        source, publisher, _ = stream.identity
        for piece in pieces:
            fresh = stream.ask(piece, now_ns, until_ns)
            self._counters["nacks_sent" if fresh else "nacks_consolidated"] += 1
            if not fresh:
                continue
            asked_ns = TICK_NS * sum(end - start for start, end in fresh)
            for peer in whom:
                self._machine.send(peer, Nack(stream.identity, tuple(fresh)))
                self._machine.emit(
                    retransmission_requested(peer, source, publisher, len(fresh), asked_ns)
                )
        self.forget_asked()

    def forget_asked(self) -> None:
        """Expire old requests upstream, so that repeated nacks are forwarded again.

        Sets a deadline, because time passes for a core with its deadlines only.
        """
        now_ns = self._machine.now_ns
        instants = [due for stream in self if (due := stream.forget_asked(now_ns)) is not None]
        if instants:
            self._deadlines.set((FORGETTING, None), min(instants))

    def settle(self, stream: Stream) -> None:
        """Advance the final tick of a stream after new acks."""
        for cell in self.below.skip_unwanted(stream):
            self.acks.pass_on(stream, cell)
        if stream.settle(skips_silence=self._filters.is_on):
            self.acks.on_final_advanced(stream)
        if (UNWANTED, None) not in self._deadlines and self._has_unwanted(stream):
            due_ns = self._machine.now_ns + self._parameters.ack_expected_ns
            self._deadlines.set((UNWANTED, None), due_ns)

    def _has_unwanted(self, stream: Stream) -> bool:
        """Return True if events are kept here that brokers above may have released."""
        is_between = stream.upstream is not None and bool(stream.children)
        is_kept = is_between and self._filters.is_on and bool(stream.knowledge.events.events)
        return is_kept or stream.is_held_up

    def settle_all(self) -> None:
        """Advance the final ticks of all streams, since filters below may want less."""
        for stream in self:
            self.settle(stream)

    def let_go(self) -> None:
        """See Ostreams; requests acks for the remaining events, unless brokers above do.

        Filters differ between brokers: the pubend may have released events that are wanted here.
        """
        for stream in self:
            if stream.is_held_up:
                self.below.let_go(stream)
            overdue = stream.overdue()
            if overdue is not None and stream.upstream is not None:
                self.expect_acks(stream, overdue)
            self.settle(stream)

    def _on_nack(self, peer: BrokerNumber, message: Nack) -> None:
        stream = self._from_below(peer, message.stream)
        _check_ranges(peer, message.ranges)
        knowledge = stream.knowledge
        highest = max(end for _, end in message.ranges) - 1
        is_ahead = stream.upstream is None and highest > knowledge.highest
        if is_ahead and not self._can_nack_future(highest):
            what = f"asks for {highest} of {message.stream}, which ends at {knowledge.highest}"
            raise RemoteProtocolError(peer, what)
        known, unknown = [], []
        for start, end in message.ranges:
            known += knowledge.known.within(start, end)
            unknown += knowledge.known.gaps(start, end)
        self._counters["nacks_received"] += 1
        self.below.answer(stream, peer, known)
        if unknown:
            stream.want(peer, unknown)
            if stream.upstream is None:
                self._on_doubt(stream, highest)
            else:
                self.ask(stream, [unknown], sideways=peer not in self._routes.peers)

    def _can_nack_future(self, tick: int) -> bool:
        """Return True if a nack for a future tick is permitted: clocks differ by any amount."""
        return (self._parameters.is_total or self.has_lost) and tick < LAST_TICK

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        cell, theirs = message.cell, self._routes.cell_of(peer)
        if cell not in self._routes.cells or theirs not in (cell, self._routes.cell):
            raise RemoteProtocolError(peer, f"acknowledges for cell {cell}")
        streams = [
            (self._messages_for_cell(peer, identity, cell), n) for identity, n in message.through
        ]
        beyond = [
            (stream, through)
            for stream, through in streams
            if stream.upstream is None and through > stream.knowledge.highest
        ]
        for stream, through in beyond:
            if not self.has_lost or through >= LAST_TICK:
                raise RemoteProtocolError(
                    peer, f"acknowledges {through} of {stream.identity}, which has fewer ticks"
                )
        for stream, through in beyond:
            self._on_beyond(stream, through)
        for stream, through in streams:
            if stream.upstream is None:
                through = min(through, stream.knowledge.highest)
            stream.satisfy(peer, 0, through + 1 if cell == theirs else 0)
            if stream.note_done(cell, through):
                if cell == theirs:
                    self.acks.pass_on(stream, cell)
                self.settle(stream)

    # ------------------------------------------------------------ checks of messages

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

    def _from_above(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        """Return the stream of a message from its upstream cell, or from this cell."""
        upstream = self._routes.upstream(peer, identity)
        if upstream is None or self._routes.cell_of(peer) not in (upstream, self._routes.cell):
            raise RemoteProtocolError(peer, f"{identity} does not arrive from this peer")
        return self.stream(identity)

    def _from_below(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        if self._routes.upstream(peer, identity) == self._routes.cell_of(peer):
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return self.stream(identity)

    def _messages_for_cell(self, peer: BrokerNumber, identity: StreamId, cell: Cell) -> Stream:
        if self._routes.upstream(peer, identity) == cell:
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return self.stream(identity)

    def _check_onto(self, peer: BrokerNumber, stream: Stream, onto: Cell) -> None:
        """Check the target cell: only members of this cell name one of its cells below."""
        is_sideways = self._routes.cell_of(peer) == self._routes.cell
        if onto not in (stream.children if is_sideways else (EVERYWHERE,)):
            raise RemoteProtocolError(peer, f"{stream.identity} is for cell {onto}")


def _check_ranges(peer: BrokerNumber, ranges: Sequence[Range]) -> None:
    """Check that the ranges of a message are neither missing nor empty.

    Raises:
        RemoteProtocolError: the peer sent no range, or an empty range.
    """
    if not ranges or any(start >= end for start, end in ranges):
        raise RemoteProtocolError(peer, f"ranges {ranges}"[:300])
