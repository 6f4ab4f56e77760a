"""What goes down and up between brokers: knowledge and what is expected, and curiosity.

Paper: [GD02] §2.4, §3.1, §3.2.
"""

from collections.abc import Callable, Iterator, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.acks import Acks
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.gryphon.knowledge import Contradiction
from brokerd.protocols.gryphon.links import Links
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Done,
    Events,
    LinkStatus,
    Nack,
    Silent,
    in_messages_of,
)
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Routes
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.gryphon.ticks import TICK_NS
from brokerd.protocols.interface import retransmission_requested
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

FORGETTING = "forgetting"

_LAST_TICK = 1 << 54
"""No machine's clock shows this in the next five hundred years."""


class Relay:
    """All streams at one broker, and what neighbours say of them.

    Args:
        has_session: whether anything can be said to a neighbour now.
        on_news: more is known of a stream, or expected: its clients' end looks at it.
        on_final: everybody is done with more of a stream of a pubend of this broker.
        on_doubt: somebody asks for ticks of a stream of this broker that have not come yet.
        on_links: neighbours may get somewhere else than before.
        check_run: raises RemoteProtocolError where attributes that a peer has sent are malformed.

    Attributes:
        acks: what those above are told.
        links: whom to tell and whom to ask.
    """

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        parameters: GryphonParameters,
        deadlines: DeadlineQueue[tuple[str, object]],
        counters: dict[str, int],
        *,
        has_session: Callable[[BrokerNumber], bool],
        on_news: Callable[[Stream], None],
        on_final: Callable[[Stream], None],
        on_links: Callable[[], None],
        on_doubt: Callable[[Stream, int], None],
        check_run: Callable[[PublicationRun, BrokerNumber], object],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._parameters = parameters
        self._deadlines = deadlines
        self._counters = counters
        self._any = not parameters.events_per_message
        self._on_news = on_news
        self._on_links = on_links
        self._on_doubt = on_doubt
        self._check_run = check_run
        self._streams: dict[StreamId, Stream] = {}
        self.links = Links(routes, has_session)
        interval_ns = parameters.ack_interval_ns
        self.acks = Acks(machine, routes, self.links, deadlines, interval_ns, on_final)

    def __iter__(self) -> Iterator[Stream]:
        """All streams of which anything was ever said here."""
        return iter(self._streams.values())

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which message of a neighbour."""
        return {
            Events: self._on_events,
            Silent: self._on_silent,
            Nack: self._on_nack,
            Done: self._on_done,
            AckExpected: self._on_ack_expected,
            LinkStatus: self._on_link_status,
        }

    def stream(self, identity: StreamId) -> Stream:
        """The stream, which is new where nothing was said of it."""
        found = self._streams.get(identity)
        if found is None:
            upstream, children = self._routes.of(identity)
            is_host = self._routes.is_host
            found = Stream(identity, upstream, children, self._parameters, has_subend=is_host)
            self._streams[identity] = found
        return found

    def can_ask(self, stream: Stream) -> bool:
        """Whether there is anybody to ask of a stream."""
        return stream.upstream is not None and bool(self.links.up(stream.identity, stream.via))

    # ------------------------------------------------------------ sessions

    def met(self, peer: BrokerNumber, *, is_new: bool) -> None:
        """A neighbour has a session; `is_new`: and no memory of an earlier one."""
        if is_new:
            for stream in self:
                stream.forget(peer)
        self.links.changed(peer)
        self._tell_links()
        self.acks.offer(self, peer)

    def lost(self, peer: BrokerNumber) -> None:
        """A neighbour's session is over."""
        for stream in self:
            if stream.via == peer:
                stream.via = None
        self.links.changed(peer)
        self._tell_links()

    def _on_link_status(self, peer: BrokerNumber, message: LinkStatus) -> None:
        self.links.hear(peer, message)
        self._tell_links()
        self._on_links()

    def _tell_links(self) -> None:
        for peer, message in self.links.news():
            self._machine.send(peer, message)

    # ------------------------------------------------------------ down

    def publish(self, stream: Stream, run: PublicationRun, silent: int) -> None:
        """Events of a pubend of this broker are on disk, and silence follows them up to a tick.

        Everybody may hear of both.
        """
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, silent + 1, run)
        self._forward(stream, run, silent + 1)
        self._on_news(stream)

    def publish_silence(self, stream: Stream, through: int) -> None:
        """A stream of this broker has no other events up to a tick; who has asked is told."""
        start = stream.knowledge.highest + 1
        if start <= through:
            stream.knowledge.accumulate(start, through + 1, None)
            self._answer_wanted(stream, start, through + 1)
            self._on_news(stream)

    def restore(self, stream: Stream, run: PublicationRun) -> None:
        """Events that an earlier incarnation has published; whoever lacks them will ask."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, run.last + 1, run)

    def expect_acks(self, stream: Stream, through: int, onto: Cell = EVERYWHERE) -> None:
        """Ask those who are not done with what they should be done with.

        Paper: [GD02] §3.2 (AckExpected).
        """
        for cell, ways in self._ways(stream, onto):
            if stream.done_by(cell) < through:
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
        try:
            stream.knowledge.check(max(message.start, message.final + 1), message.end, run)
        except Contradiction as error:
            raise RemoteProtocolError(peer, f"{run.source}: {error}") from None
        self._check_run(run, peer)
        self._note_via(stream, peer)
        stream.finish(message.final)
        fresh = stream.knowledge.accumulate(message.start, message.end, run)
        if not fresh:
            self._counters["duplicates_received"] += len(run)
        self._learn(stream, fresh, message.start, message.end)
        if not message.again:
            self._forward(stream, run, message.end, message.onto)
        self._answer_wanted(stream, message.start, message.end)
        self._on_news(stream)

    def _on_silent(self, peer: BrokerNumber, message: Silent) -> None:
        stream = self._from_above(peer, message.stream)
        _check_ranges(peer, message.ranges)
        try:
            for start, end in message.ranges:
                stream.knowledge.check(max(start, message.final + 1), end, None)
        except Contradiction as error:
            raise RemoteProtocolError(peer, f"{message.stream}: {error}") from None
        self._note_via(stream, peer)
        stream.finish(message.final)
        for start, end in message.ranges:
            fresh = stream.knowledge.accumulate(start, end, None)
            self._learn(stream, fresh, start, end)
            self._answer_wanted(stream, start, end)
        self._on_news(stream)

    def _on_ack_expected(self, peer: BrokerNumber, message: AckExpected) -> None:
        stream = self._from_above(peer, message.stream)
        self._check_onto(peer, stream, message.onto)
        self._note_via(stream, peer)
        self.expect_acks(stream, message.through, message.onto)
        if message.onto != EVERYWHERE:
            return
        stream.subend.expect(message.through)
        self._on_news(stream)
        if stream.knowledge.final >= message.through:
            through = (stream.identity, stream.knowledge.final)
            self._machine.send(peer, Done(self._routes.cell, (through,)))

    def _note_via(self, stream: Stream, peer: BrokerNumber) -> None:
        if self._routes.cell_of(peer) == stream.upstream:
            stream.via = peer

    def _learn(self, stream: Stream, fresh: Sequence[Range], start: int, end: int) -> None:
        if fresh:
            stream.subend.gaps.heard(self._machine.now_ns)
            stream.answered(start, end)

    def _ways(
        self, stream: Stream, onto: Cell
    ) -> Iterator[tuple[Cell, Sequence[tuple[BrokerNumber, Cell]]]]:
        """Whom to tell what is for all cells below, or for one of them and not sideways."""
        down = self.links.down
        if onto != EVERYWHERE:
            yield onto, down(stream.identity, onto, sideways=False)
            return
        for cell in stream.children:
            yield cell, down(stream.identity, cell)

    def _forward(
        self, stream: Stream, run: PublicationRun, end: int, onto: Cell = EVERYWHERE
    ) -> None:
        """Tell all below of events for the first time, with the silence around them."""
        for cell, ways in self._ways(stream, onto):
            final = stream.done_by(cell)
            rest = run.after(final)
            if rest is None:
                continue
            start = stream.knowledge.bracket(rest.first)
            for peer, further in ways:
                if further != EVERYWHERE:  # another cell may lack what this one is done with
                    final = stream.knowledge.final
                self._counters["publications_forwarded"] += len(rest)
                self._tell(peer, Events(final, start, end, False, self._any, further, rest))
                stream.satisfy(peer, start, end)

    def _answer_wanted(self, stream: Stream, start: int, end: int) -> None:
        """Tell those who have asked."""
        for peer in list(stream.curious):
            wanted = stream.wanted(peer, start, end)
            if wanted:
                self._answer(stream, peer, wanted)

    def _answer(self, stream: Stream, peer: BrokerNumber, known: Sequence[Range]) -> None:
        """Tell a broker what is in ranges that are known here."""
        cell, silent = self._routes.cell_of(peer), []
        final = stream.knowledge.final if cell == self._routes.cell else stream.done_by(cell)
        for start, end in known:
            stream.satisfy(peer, start, end)
            run = stream.knowledge.events.within(start, end)
            if run is None:
                silent.append((start, end))
            else:
                self._counters["resent_publications"] += len(run)
                self._tell(peer, Events(final, start, end, True, self._any, EVERYWHERE, run))
        if silent:
            self._machine.send(peer, Silent(stream.identity, final, tuple(silent)))

    def _tell(self, peer: BrokerNumber, message: Events) -> None:
        """Send a message, as so many as have no more events each than they may."""
        most = self._parameters.events_per_message
        for each in [message] if self._any else in_messages_of(message, most):
            self._machine.send(peer, each)

    # ------------------------------------------------------------ up

    def ask(self, stream: Stream, ranges: Sequence[Range], *, sideways: bool = True) -> None:
        """Ask upstream for what is unknown, unless somebody here has just done so."""
        assert stream.upstream is not None, f"{stream.identity} is of this broker, lacks {ranges}"
        whom = self.links.up(stream.identity, stream.via, sideways=sideways) if ranges else ()
        if not whom:
            return
        now_ns = self._machine.now_ns
        fresh = stream.ask(ranges, now_ns, now_ns + self._parameters.curiosity_forgotten_ns)
        self._counters["nacks_sent" if fresh else "nacks_consolidated"] += 1
        if fresh:
            source, publisher, _ = stream.identity
            asked_ns = TICK_NS * sum(end - start for start, end in fresh)
            for peer in whom:
                self._machine.send(peer, Nack(stream.identity, tuple(fresh)))
                self._machine.emit(
                    retransmission_requested(peer, source, publisher, len(fresh), asked_ns)
                )
            self.forget_asked()

    def forget_asked(self) -> None:
        """Whoever asks again is heard again, after a while.

        A deadline, because time passes for a core with its deadlines only.
        """
        now_ns = self._machine.now_ns
        instants = [due for stream in self if (due := stream.forget_asked(now_ns)) is not None]
        if instants:
            self._deadlines.set((FORGETTING, None), min(instants))

    def settle(self, stream: Stream) -> None:
        """Somebody is done with more: so may be all."""
        if stream.settle():
            self.acks.grown(stream)

    def _on_nack(self, peer: BrokerNumber, message: Nack) -> None:
        stream = self._from_below(peer, message.stream)
        _check_ranges(peer, message.ranges)
        knowledge = stream.knowledge
        highest = max(end for _, end in message.ranges) - 1
        is_ahead = stream.upstream is None and highest > knowledge.highest
        if is_ahead and not self._may_doubt(highest):
            what = f"asks for {highest} of {message.stream}, which ends at {knowledge.highest}"
            raise RemoteProtocolError(peer, what)
        known, unknown = [], []
        for start, end in message.ranges:
            known += knowledge.known.within(start, end)
            unknown += knowledge.known.gaps(start, end)
        self._counters["nacks_received"] += 1
        self._answer(stream, peer, known)
        if unknown:
            stream.want(peer, unknown)
            if stream.upstream is None:
                self._on_doubt(stream, highest)
            else:
                self.ask(stream, unknown, sideways=peer not in self._routes.peers)

    def _may_doubt(self, tick: int) -> bool:
        """Whether somebody may ask for a tick that has not come: clocks differ by any amount."""
        return self._parameters.is_total and tick < _LAST_TICK

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        cell, theirs = message.cell, self._routes.cell_of(peer)
        if cell != theirs and (theirs != self._routes.cell or cell not in self._routes.cells):
            raise RemoteProtocolError(peer, f"says that cell {cell} is done")
        streams = [(self._for_cell(peer, identity, cell), n) for identity, n in message.through]
        for stream, through in streams:
            if stream.upstream is None and through > stream.knowledge.highest:
                raise RemoteProtocolError(
                    peer, f"is done with {through} of {stream.identity}, which is not that far"
                )
        for stream, through in streams:
            stream.satisfy(peer, 0, through + 1 if cell == theirs else 0)
            if stream.note_done(cell, through):
                if cell == theirs:
                    self.acks.pass_on(stream, cell)
                self.settle(stream)

    # ------------------------------------------------------------ who may say what

    def _from_above(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        """The stream, of which members of the upstream cell tell, and of the same one."""
        upstream = self._routes.upstream(peer, identity)
        if upstream is None or self._routes.cell_of(peer) not in (upstream, self._routes.cell):
            raise RemoteProtocolError(peer, f"{identity} does not come from there")
        return self.stream(identity)

    def _from_below(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        if self._routes.upstream(peer, identity) == self._routes.cell_of(peer):
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return self.stream(identity)

    def _for_cell(self, peer: BrokerNumber, identity: StreamId, cell: Cell) -> Stream:
        if self._routes.upstream(peer, identity) == cell:
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return self.stream(identity)

    def _check_onto(self, peer: BrokerNumber, stream: Stream, onto: Cell) -> None:
        """Members of a cell say for which one below it something is; others do not."""
        is_sideways = self._routes.cell_of(peer) == self._routes.cell
        if onto not in (stream.children if is_sideways else (EVERYWHERE,)):
            raise RemoteProtocolError(peer, f"{stream.identity} is for cell {onto}")


def _check_ranges(peer: BrokerNumber, ranges: Sequence[Range]) -> None:
    """Ranges that are said of a stream must be some, and none of them empty.

    Raises:
        RemoteProtocolError: they are not.
    """
    if not ranges or any(start >= end for start, end in ranges):
        raise RemoteProtocolError(peer, f"ranges {ranges}"[:300])
