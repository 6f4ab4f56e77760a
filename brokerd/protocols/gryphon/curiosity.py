"""Curiosity: nacks of neighbours, and nacks upstream.

A broker answers a nack from local knowledge, and forwards the unknown rest once. Requests of
several brokers are consolidated, and expire, so that repeated nacks are forwarded again.

Neighbours repeat nacks until an answer arrives, and a broker sends none while reading the log.
Every repetition would be answered with the same events, in the window of answers for other nacks;
`drop_repeated` consolidates these nacks.

Paper: [GD02] §3.1 (consolidation and expiry of curiosity), §4.2 (nacks of long ranges are cut).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.knowledge import LAST_TICK, TICK_NS, IntervalSet, Range
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Doubt, Nack
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Links, Routes
from brokerd.protocols.gryphon.stream import PartHandler, Stream, Streams, check_ranges, check_ticks
from brokerd.protocols.interface import (
    Effect,
    Instant,
    MessageReceived,
    Send,
    retransmission_requested,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue

FORGETTING: Final = "forgetting"
GAPS: Final = "gaps"
DELAYS: Final = "delays"


class Curiosity:
    """The requests for unknown ticks at a broker."""

    def __init__(
        self,
        parameters: GryphonParameters,
        streams: Streams,
        links: Links,
        deadlines: DeadlineQueue[tuple[str, Any]],
        counters: dict[str, int],
    ) -> None:
        self._parameters = parameters
        self._streams = streams
        self._links = links
        self._deadlines = deadlines
        self._counters = counters

    def can_request(self, stream: Stream) -> bool:
        """Return True if a broker can receive nacks of a stream."""
        return stream.upstream is not None and bool(self._links.up(stream.identity, stream.via))

    def request(
        self,
        stream: Stream,
        pieces: Sequence[Sequence[Range]],
        now_ns: Instant,
        *,
        sideways: bool = True,
    ) -> list[Effect]:
        """Return nacks upstream for unknown ticks, except ticks with a recent nack.

        A piece is a `Nack`, so a lost message delays the answer to that piece only.

        Paper: [GD02] §4.2.
        """
        assert stream.upstream is not None, f"{stream.identity} is of this broker, lacks {pieces}"
        receivers = self._links.up(stream.identity, stream.via, sideways=sideways) if pieces else ()
        effects: list[Effect] = []
        if not receivers:
            return effects
        until_ns = now_ns + self._parameters.curiosity_forgotten_ns
        source, publisher, _ = stream.identity
        for piece in pieces:
            fresh = stream.request(piece, now_ns, until_ns)
            if not fresh:
                self._counters["nacks_consolidated"] += 1
                continue
            self._counters["nacks_sent"] += len(receivers)
            requested_ns = TICK_NS * sum(end - start for start, end in fresh)
            for peer in receivers:
                effects.append(Send(peer, Nack(stream.identity, tuple(fresh))))
                effects.append(
                    retransmission_requested(peer, source, publisher, len(fresh), requested_ns)
                )
        self.expire(now_ns)
        return effects

    def expire(self, now_ns: Instant) -> None:
        """Expire old requests upstream, so that repeated nacks are forwarded again.

        Sets a deadline, because time passes for a core with its deadlines only.
        """
        streams = self._streams
        instants = [due for each in streams if (due := each.forget_requested(now_ns)) is not None]
        if instants:
            self._deadlines.set((FORGETTING, None), min(instants))

    def on_nack(
        self, peer: BrokerNumber, stream: Stream, message: Nack
    ) -> tuple[list[Range], list[Range]]:
        """Return the known and the unknown ranges of a neighbour's nack.

        Raises:
            RemoteProtocolError: the ranges are malformed, or in the future of a stream of this
                broker.
        """
        check_ranges(peer, message.ranges)
        knowledge = stream.knowledge
        highest = max(end for _, end in message.ranges) - 1
        is_ahead = stream.upstream is None and highest > knowledge.highest
        if is_ahead and not self._can_nack_future(highest):
            subject = f"asks for {highest} of {message.stream}, which ends at {knowledge.highest}"
            raise RemoteProtocolError(peer, subject)
        known, unknown = [], []
        for start, end in message.ranges:
            known += knowledge.known.within(start, end)
            unknown += knowledge.known.gaps(start, end)
        self._counters["nacks_received"] += 1
        return known, unknown

    def _can_nack_future(self, tick: int) -> bool:
        """Return True if a nack for a future tick is permitted: clocks differ by any amount."""
        return (self._parameters.is_total or self._streams.has_lost) and tick < LAST_TICK


class GapCuriosity:
    """The nacks of this broker's subends for their gaps, at the gaps' own times."""

    def __init__(
        self,
        streams: Streams,
        curiosity: Curiosity,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._streams = streams
        self._curiosity = curiosity
        self._deadlines = deadlines

    def request(self, identity: StreamId, now_ns: Instant) -> list[Effect]:
        """Return nacks for the gaps of a stream that are due."""
        stream = self._streams.get(identity)
        pieces = [(piece,) for piece in stream.subend.gaps.due(now_ns)]
        effects = self._curiosity.request(stream, pieces, now_ns)
        self.schedule(stream)
        return effects

    def update(self, stream: Stream, now_ns: Instant) -> None:
        """Record the gaps of a stream, and the time of their nacks."""
        stream.subend.see_gaps(stream.knowledge, now_ns)
        self.schedule(stream)

    def schedule(self, stream: Stream) -> None:
        """Set the deadline for nacks of gaps, but not without a receiver."""
        gaps = stream.subend.gaps
        due_ns = gaps.earliest() if gaps.pieces else None
        if due_ns is None or not self._curiosity.can_request(stream):
            self._deadlines.cancel((GAPS, stream.identity))
        elif self._deadlines.instant((GAPS, stream.identity)) != due_ns:
            self._deadlines.set((GAPS, stream.identity), due_ns)


class DelayCuriosity:
    """Doubts about the ends of streams that bring no news: the delay curiosity threshold (DCT).

    A subend cannot detect the loss of the last event of a stream. When a stream has brought nothing
    for as long as DCT, the broker sends a Doubt upstream. A broker with more of the stream answers
    with an AckExpected, and the ticks up to that are requested as any gap. So a stream is complete
    without requests of the pubend for acks.

    Without such requests and without filters, a broker without subscriptions doubts its streams,
    too: otherwise a lost event would lack its ack for ever.

    Paper: [GD02] §3.2 (DCT). Deviates: the paper's nack covers all ticks up to the present, which
    the pubend would have to assign to silence, and to reserve on disk, in each idle stream. Nothing
    depends on the clocks of two machines.
    """

    def __init__(
        self,
        routes: Routes,
        parameters: GryphonParameters,
        streams: Streams,
        links: Links,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._routes = routes
        self._limit_ns = parameters.delay_curiosity_ns
        self._is_alone = not parameters.ack_expected_ns and not parameters.filters
        self._streams = streams
        self._links = links
        self._deadlines = deadlines
        self._identities = [
            each for each in routes.pubend_streams() if routes.of(each)[0] is not None
        ]
        self._received: dict[StreamId, tuple[int, Instant]] = {}
        self._sent_ns: dict[StreamId, Instant] = {}

    @property
    def is_on(self) -> bool:
        """True if this broker has streams that it doubts at times."""
        return bool(self._limit_ns) and self._routes.is_host and bool(self._identities)

    def begin(self, now_ns: Instant) -> None:
        """Begin to wait for news of all streams."""
        if self.is_on:
            self._received = dict.fromkeys(self._identities, (0, now_ns))
            self._deadlines.set((DELAYS, None), now_ns + self._limit_ns)

    def receive(self, stream: Stream, now_ns: Instant) -> None:
        """Record news of a stream."""
        known = self._received.get(stream.identity)
        if known is not None and known[0] < stream.knowledge.highest:
            self._received[stream.identity] = stream.knowledge.highest, now_ns

    def request_end(self, stream: Stream, now_ns: Instant) -> list[Effect]:
        """Return a doubt about the end of a stream, unless a gap is requested at present."""
        return [] if stream.subend.gaps else self._send(stream, now_ns, sideways=True)

    def due(self, now_ns: Instant, *, is_wanted: bool) -> list[Effect]:
        """Return doubts about the streams without news, and wait for the next stream.

        Args:
            is_wanted: whether clients here need the streams now.
        """
        is_wanted = is_wanted or self._is_alone
        effects: list[Effect] = []
        due_ns = now_ns + self._limit_ns
        for identity in self._identities:
            stream = self._streams.get(identity)
            since_ns = max(self._received[identity][1], self._sent_ns.get(identity, 0))
            if now_ns - since_ns < self._limit_ns:
                due_ns = min(due_ns, since_ns + self._limit_ns)
            elif is_wanted and not stream.subend.gaps:
                effects += self._send(stream, now_ns, sideways=True)
        self._deadlines.set((DELAYS, None), due_ns)
        return effects

    def handlers(self) -> dict[type, PartHandler]:
        """Return the handlers of neighbours' messages by type."""
        return {Doubt: self._on_doubt}

    def _on_doubt(self, peer: BrokerNumber, message: Doubt, now_ns: Instant) -> list[Any]:
        """Answer the doubt of a neighbour, and doubt the stream upstream, too.

        An ack that is missing for the last event was lost with a broker, and is requested, too.
        """
        cell, effects = self._routes.cell_of(peer), list[Any]()
        stream = self._streams.from_downstream(peer, message.stream, cell)
        check_ticks(peer, (message.after,))
        identity, knowledge = stream.identity, stream.knowledge
        is_beside = cell == self._routes.cell
        lacks = not is_beside and stream.acknowledged_by(cell) < knowledge.events.last
        if knowledge.highest > message.after or lacks:
            targets = stream.children if is_beside else (EVERYWHERE,)
            effects += [
                Send(peer, AckExpected(identity, knowledge.highest, onto)) for onto in targets
            ]
        sent_ns = self._sent_ns.get(identity)
        is_recent = sent_ns is not None and now_ns - sent_ns < self._limit_ns // 2
        if stream.upstream is not None and not is_recent:
            effects += self._send(stream, now_ns, sideways=not is_beside)
        return effects

    def _send(self, stream: Stream, now_ns: Instant, *, sideways: bool) -> list[Effect]:
        """Return a doubt for the last sender of a stream, or for one broker upstream."""
        identity = stream.identity
        near = self._links.up(identity, stream.via, sideways=sideways)
        if not near:
            return []
        self._sent_ns[identity] = now_ns
        return [
            Send(near[identity.publisher % len(near)], Doubt(identity, stream.knowledge.highest))
        ]


def drop_repeated(early: Iterable[Any]) -> Iterator[Any]:
    """Yield the events that wait for a log, without repeated requests on the same session."""
    requested: dict[tuple[object, int, StreamId], IntervalSet] = {}
    for event in early:
        if type(event) is not MessageReceived or type(event.message) is not Nack:
            yield event
            continue
        nack = event.message
        before = requested.setdefault((event.peer, event.session, nack.stream), IntervalSet())
        if not nack.ranges or any(start >= end for start, end in nack.ranges):
            yield event  # malformed: it ends the session
            continue
        fresh = tuple(gap for start, end in nack.ranges for gap in before.gaps(start, end))
        for start, end in fresh:
            before.add(start, end)
        if fresh:
            yield MessageReceived(event.peer, event.session, Nack(nack.stream, fresh))
