"""What goes down and up between brokers: knowledge and what is expected, curiosity and acks.

Paper: [GD02] §2.4, §3.1, §3.2.
"""

from collections.abc import Callable, Iterator, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.gryphon.knowledge import Contradiction
from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, Nack, Silent
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.gryphon.ticks import TICK_NS
from brokerd.protocols.interface import retransmission_requested
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

ACKS = "acks"
FORGETTING = "forgetting"


class Relay:
    """All streams at one broker, and what neighbours say of them.

    Args:
        has_session: whether anything can be said to a neighbour now.
        on_news: more is known of a stream, or expected: its clients' end looks at it.
        on_final: everybody is done with more of a stream of a pubend of this broker.
        check_run: raises RemoteProtocolError where attributes that a peer has sent are malformed.
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
        check_run: Callable[[PublicationRun, BrokerNumber], object],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._parameters = parameters
        self._deadlines = deadlines
        self._counters = counters
        self._has_session = has_session
        self._on_news = on_news
        self._on_final = on_final
        self._check_run = check_run
        self._streams: dict[StreamId, Stream] = {}
        self._to_ack: dict[StreamId, None] = {}

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
        }

    def stream(self, identity: StreamId) -> Stream:
        """The stream, which is new where nothing was said of it."""
        found = self._streams.get(identity)
        if found is None:
            upstream, children = self._routes.of(identity)
            found = Stream(identity, upstream, children, self._parameters)
            self._streams[identity] = found
        return found

    # ------------------------------------------------------------ down

    def publish(self, stream: Stream, run: PublicationRun) -> None:
        """Events of a pubend of this broker are on disk: everybody may hear of them."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, run.last + 1, run)
        self._forward(stream, run, run.last + 1)
        self._on_news(stream)

    def restore(self, stream: Stream, run: PublicationRun) -> None:
        """Events that an earlier incarnation has published; whoever lacks them will ask."""
        start = stream.knowledge.highest + 1
        stream.knowledge.accumulate(start, run.last + 1, run)

    def expect_acks(self, stream: Stream, through: int) -> None:
        """Ask those who are not done with what they should be done with.

        Paper: [GD02] §3.2 (AckExpected).
        """
        for child in stream.children:
            if stream.done_by(child) < through and self._has_session(child):
                self._counters["acks_expected"] += 1
                self._machine.send(child, AckExpected(stream.identity, through))

    def _on_events(self, peer: BrokerNumber, message: Events) -> None:
        run = message.run
        stream = self._from_above(peer, run.source)
        if not (0 < message.start <= run.first and run.last < message.end and run.origins):
            raise RemoteProtocolError(peer, f"[{message.start}, {message.end}) around {run}"[:300])
        try:
            stream.knowledge.check(max(message.start, message.final + 1), message.end, run)
        except Contradiction as error:
            raise RemoteProtocolError(peer, f"{run.source}: {error}") from None
        self._check_run(run, peer)
        stream.finish(message.final)
        fresh = stream.knowledge.accumulate(message.start, message.end, run)
        if not fresh:
            self._counters["duplicates_received"] += len(run)
        self._learn(stream, fresh, message.start, message.end)
        if message.again:
            self._answer_wanted(stream, message.start, message.end)
        else:
            self._forward(stream, run, message.end)
        self._on_news(stream)

    def _on_silent(self, peer: BrokerNumber, message: Silent) -> None:
        stream = self._from_above(peer, message.stream)
        _check_ranges(peer, message.ranges)
        try:
            for start, end in message.ranges:
                stream.knowledge.check(max(start, message.final + 1), end, None)
        except Contradiction as error:
            raise RemoteProtocolError(peer, f"{message.stream}: {error}") from None
        stream.finish(message.final)
        for start, end in message.ranges:
            fresh = stream.knowledge.accumulate(start, end, None)
            self._learn(stream, fresh, start, end)
            self._answer_wanted(stream, start, end)
        self._on_news(stream)

    def _on_ack_expected(self, peer: BrokerNumber, message: AckExpected) -> None:
        stream = self._from_above(peer, message.stream)
        self.expect_acks(stream, message.through)
        stream.subend.expect(message.through)
        self._on_news(stream)
        if stream.knowledge.final >= message.through:
            self._machine.send(peer, Done(((stream.identity, stream.knowledge.final),)))

    def _learn(self, stream: Stream, fresh: Sequence[Range], start: int, end: int) -> None:
        if fresh:
            stream.subend.gaps.heard(self._machine.now_ns)
            stream.answered(start, end)

    def _forward(self, stream: Stream, run: PublicationRun, end: int) -> None:
        """Tell all children of events for the first time, with the silence around them."""
        for child in stream.children:
            final = stream.done_by(child)
            rest = run.after(final)
            if rest is None:
                continue
            start = stream.knowledge.bracket(rest.first)
            if self._has_session(child):
                self._counters["publications_forwarded"] += len(rest)
                self._machine.send(child, Events(final, start, end, False, rest))
                stream.satisfy(child, start, end)

    def _answer_wanted(self, stream: Stream, start: int, end: int) -> None:
        """Tell those children who have asked."""
        for child in stream.children:
            wanted = stream.wanted(child, start, end)
            if wanted:
                self._answer(stream, child, wanted)

    def _answer(self, stream: Stream, child: BrokerNumber, known: Sequence[Range]) -> None:
        """Tell a child what is in ranges that are known here."""
        final, silent = stream.done_by(child), []
        for start, end in known:
            stream.satisfy(child, start, end)
            run = stream.knowledge.events.within(start, end)
            if run is None:
                silent.append((start, end))
            else:
                self._counters["resent_publications"] += len(run)
                self._machine.send(child, Events(final, start, end, True, run))
        if silent:
            self._machine.send(child, Silent(stream.identity, final, tuple(silent)))

    # ------------------------------------------------------------ up

    def ask(self, stream: Stream, ranges: Sequence[Range]) -> None:
        """Ask upstream for what is unknown, unless somebody here has just done so."""
        upstream = stream.upstream
        assert upstream is not None, f"{stream.identity} has its pubend here and lacks {ranges}"
        if not ranges or not self._has_session(upstream):
            return
        now_ns = self._machine.now_ns
        fresh = stream.ask(ranges, now_ns, now_ns + self._parameters.curiosity_forgotten_ns)
        self._counters["nacks_sent" if fresh else "nacks_consolidated"] += 1
        if fresh:
            self._machine.send(upstream, Nack(stream.identity, tuple(fresh)))
            source, publisher, _ = stream.identity
            asked_ns = TICK_NS * sum(end - start for start, end in fresh)
            self._machine.emit(
                retransmission_requested(upstream, source, publisher, len(fresh), asked_ns)
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
            self._tell_final(stream)

    def offer_acks(self, upstream: BrokerNumber) -> None:
        """Tell a neighbour that has just come what was said to it before, perhaps in vain."""
        through = [
            (stream.identity, stream.knowledge.final)
            for stream in self
            if stream.upstream == upstream and stream.knowledge.final
        ]
        if through:
            self._machine.send(upstream, Done(tuple(through)))

    def acks_due(self) -> None:
        """Tell those above what everybody here and below is done with."""
        by_peer: dict[BrokerNumber, list[tuple[StreamId, int]]] = {}
        for identity in self._to_ack:
            stream = self._streams[identity]
            assert stream.upstream is not None, f"{identity} is acked at its pubend"
            by_peer.setdefault(stream.upstream, []).append((identity, stream.knowledge.final))
        self._to_ack.clear()
        for peer, through in by_peer.items():
            if self._has_session(peer):
                self._machine.send(peer, Done(tuple(through)))

    def forget(self, child: BrokerNumber) -> None:
        """A neighbour has lost its memory, and with it what it asked for."""
        for stream in self:
            stream.forget(child)

    def _on_nack(self, peer: BrokerNumber, message: Nack) -> None:
        stream = self._from_below(peer, message.stream)
        _check_ranges(peer, message.ranges)
        knowledge = stream.knowledge
        highest = max(end for _, end in message.ranges) - 1
        if stream.upstream is None and highest > knowledge.highest:
            what = f"asks for {highest} of {message.stream}, which ends at {knowledge.highest}"
            raise RemoteProtocolError(peer, what)
        known, unknown = [], []
        for start, end in message.ranges:
            known += knowledge.known.within(start, end)
            unknown += knowledge.known.gaps(start, end)
        self._counters["nacks_received"] += 1
        self._answer(stream, peer, known)
        stream.want(peer, unknown)
        if unknown:
            self.ask(stream, unknown)

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        streams = [(self._from_below(peer, identity), last) for identity, last in message.through]
        for stream, through in streams:
            if stream.upstream is None and through > stream.knowledge.highest:
                raise RemoteProtocolError(
                    peer, f"is done with {through} of {stream.identity}, which is not that far"
                )
        for stream, through in streams:
            stream.note_done(peer, through)
            self.settle(stream)

    def _tell_final(self, stream: Stream) -> None:
        if stream.upstream is None:
            self._on_final(stream)
            return
        self._to_ack[stream.identity] = None
        if (ACKS, None) not in self._deadlines:
            due_ns = self._machine.now_ns + self._parameters.ack_interval_ns
            self._deadlines.set((ACKS, None), due_ns)

    # ------------------------------------------------------------ who may say what

    def _from_above(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        if self._routes.upstream(peer, identity) != peer:
            raise RemoteProtocolError(peer, f"{identity} does not come from there")
        return self.stream(identity)

    def _from_below(self, peer: BrokerNumber, identity: StreamId) -> Stream:
        if self._routes.upstream(peer, identity) == peer:
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        return self.stream(identity)


def _check_ranges(peer: BrokerNumber, ranges: Sequence[Range]) -> None:
    """Ranges that are said of a stream must be some, and none of them empty.

    Raises:
        RemoteProtocolError: they are not.
    """
    if not ranges or any(start >= end for start, end in ranges):
        raise RemoteProtocolError(peer, f"ranges {ranges}"[:300])
