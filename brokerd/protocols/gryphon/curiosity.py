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
from brokerd.protocols.gryphon.messages import Nack
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Links
from brokerd.protocols.gryphon.state import Stream, Streams, check_ranges
from brokerd.protocols.interface import (
    Effect,
    Instant,
    MessageReceived,
    Send,
    retransmission_requested,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue

FORGETTING: Final = "forgetting"


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

    def can_ask(self, stream: Stream) -> bool:
        """Return True if a broker can be asked for a stream."""
        return stream.upstream is not None and bool(self._links.up(stream.identity, stream.via))

    def ask(
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
        whom = self._links.up(stream.identity, stream.via, sideways=sideways) if pieces else ()
        effects: list[Effect] = []
        if not whom:
            return effects
        until_ns = now_ns + self._parameters.curiosity_forgotten_ns
        source, publisher, _ = stream.identity
        for piece in pieces:
            fresh = stream.ask(piece, now_ns, until_ns)
            self._counters["nacks_sent" if fresh else "nacks_consolidated"] += 1
            if not fresh:
                continue
            asked_ns = TICK_NS * sum(end - start for start, end in fresh)
            for peer in whom:
                effects.append(Send(peer, Nack(stream.identity, tuple(fresh))))
                effects.append(
                    retransmission_requested(peer, source, publisher, len(fresh), asked_ns)
                )
        self.expire(now_ns)
        return effects

    def expire(self, now_ns: Instant) -> None:
        """Expire old requests upstream, so that repeated nacks are forwarded again.

        Sets a deadline, because time passes for a core with its deadlines only.
        """
        streams = self._streams
        instants = [due for each in streams if (due := each.forget_asked(now_ns)) is not None]
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
            what = f"asks for {highest} of {message.stream}, which ends at {knowledge.highest}"
            raise RemoteProtocolError(peer, what)
        known, unknown = [], []
        for start, end in message.ranges:
            known += knowledge.known.within(start, end)
            unknown += knowledge.known.gaps(start, end)
        self._counters["nacks_received"] += 1
        return known, unknown

    def _can_nack_future(self, tick: int) -> bool:
        """Return True if a nack for a future tick is permitted: clocks differ by any amount."""
        return (self._parameters.is_total or self._streams.has_lost) and tick < LAST_TICK


def drop_repeated(early: Iterable[Any]) -> Iterator[Any]:
    """Yield the events that wait for a log, without repeated requests on the same session."""
    asked: dict[tuple[object, int, StreamId], IntervalSet] = {}
    for event in early:
        if type(event) is not MessageReceived or type(event.message) is not Nack:
            yield event
            continue
        nack = event.message
        before = asked.setdefault((event.peer, event.session, nack.stream), IntervalSet())
        if not nack.ranges or any(start >= end for start, end in nack.ranges):
            yield event  # malformed: it ends the session
            continue
        fresh = tuple(gap for start, end in nack.ranges for gap in before.gaps(start, end))
        for start, end in fresh:
            before.add(start, end)
        if fresh:
            yield MessageReceived(event.peer, event.session, Nack(nack.stream, fresh))
