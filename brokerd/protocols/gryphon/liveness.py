"""The liveness of subends: gaps in a broker's knowledge, and the times of their nacks.

Paper: [GD02] §3.2 (GCT, NRT), §4.2 (nacks of long ranges are cut).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brokerd.protocols.gryphon.knowledge import Range
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import Instant


class RoundTrip:
    """An estimate of the wait for an answer, from the times of earlier answers.

    Paper: [GD02] §3.2 ("estimated like TCP's"); as RFC 6298 has it.
    """

    __slots__ = ("_limits", "_smoothed_ns", "_variation_ns")

    def __init__(self, limits: GryphonParameters) -> None:
        self._limits = limits
        self._smoothed_ns: int | None = None
        self._variation_ns = 0

    def sample(self, took_ns: int) -> None:
        """Record the time of an answer to a single request."""
        if self._smoothed_ns is None:
            self._smoothed_ns, self._variation_ns = took_ns, took_ns // 2
            return
        off_ns = abs(self._smoothed_ns - took_ns)
        self._variation_ns = (3 * self._variation_ns + off_ns) // 4
        self._smoothed_ns = (7 * self._smoothed_ns + took_ns) // 8

    def patience_ns(self, doublings: int) -> int:
        """Return the wait for an answer, after a number of doublings."""
        estimate_ns = 0
        if self._smoothed_ns is not None:
            estimate_ns = self._smoothed_ns + 4 * self._variation_ns
        limits = self._limits
        waited_ns = max(estimate_ns, limits.nack_repetition_ns) << min(doublings, 32)
        return min(waited_ns, limits.nack_repetition_limit_ns)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a gap with one timer.

    Attributes:
        requests: number of requests.
        requested_ns: instant of the last request.
        doublings: number of doublings of the wait.
    """

    start: int
    end: int
    due_ns: Instant
    requests: int = 0
    requested_ns: Instant = 0
    doublings: int = 0


def _cut(piece: Piece, start: int, end: int) -> Piece:
    if start == piece.start and end == piece.end:
        return piece
    return replace(piece, start=start, end=end)


def _wait(pieces: list[Piece], piece: Piece, now_ns: Instant) -> None:
    """Append a piece that waits for its request; merge it with a waiting piece right before."""
    before = pieces[-1] if pieces else None
    if before and not before.requests and before.due_ns <= now_ns and before.end == piece.start:
        pieces[-1] = replace(before, end=piece.end)
    else:
        pieces.append(piece)


class GapTable:
    """The gaps of one stream at one broker, lowest first.

    Attributes:
        pieces: the gaps with their timers.
        knowledge_ns: the last arrival of new knowledge, after which the pubend is not down.
    """

    __slots__ = ("_limits", "_round_trip", "_unknown", "knowledge_ns", "pieces")

    def __init__(self, limits: GryphonParameters) -> None:
        self._limits = limits
        self.pieces: list[Piece] = []
        self._unknown: tuple[Range, ...] = ()
        self._round_trip = RoundTrip(limits)
        self.knowledge_ns: Instant = -1

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def update(self, unknown: Sequence[Range], now_ns: Instant) -> None:
        """Set the unknown ticks; the rest of a piece keeps its timer."""
        unknown = tuple(unknown)
        if unknown == self._unknown:
            return
        self._unknown = unknown
        pieces: list[Piece] = []
        old = iter(self.pieces)
        piece = next(old, None)
        left = 0  # ticks of `piece` that are still unknown
        for start, end in unknown:
            while start < end:
                while piece is not None and piece.end <= start:
                    self._count_answer(piece, left, now_ns)
                    piece, left = next(old, None), 0
                if piece is None or piece.start >= end:
                    pieces.append(Piece(start, end, now_ns + self._limits.gap_curiosity_ns))
                    break
                if start < piece.start:
                    due_ns = now_ns + self._limits.gap_curiosity_ns
                    pieces.append(Piece(start, piece.start, due_ns))
                    start = piece.start
                cut = min(end, piece.end)
                pieces.append(_cut(piece, start, cut))
                left += cut - start
                start = cut
        while piece is not None:
            self._count_answer(piece, left, now_ns)
            piece, left = next(old, None), 0
        self.pieces = pieces

    def hurry(self, through: int, now_ns: Instant) -> None:
        """Make pieces through a tick due at once, unless they were requested before."""
        pieces: list[Piece] = []
        for piece in self.pieces:
            if not piece.requests and piece.start <= through and piece.due_ns > now_ns:
                cut = min(piece.end, through + 1)
                pieces.append(replace(piece, end=cut, due_ns=now_ns))
                if cut == piece.end:
                    continue
                piece = replace(piece, start=cut)
            pieces.append(piece)
        self.pieces = pieces

    def earliest(self) -> Instant | None:
        """Return the instant of the next request; None without one."""
        free = self._unanswered() < self._limits.nack_window
        return min((piece.due_ns for piece in self.pieces if piece.requests or free), default=None)

    def due(self, now_ns: Instant) -> list[Range]:
        """Return the ranges to request now, and start their timers.

        Gaps of any length are cut into no more pieces than may be unanswered at once. Otherwise a
        clock that was put forward by an hour would make thousands of pieces.
        """
        limits = self._limits
        free = limits.nack_window - self._unanswered()
        fresh = sum(
            piece.end - piece.start
            for piece in self.pieces
            if not piece.requests and piece.due_ns <= now_ns
        )
        chunk = max(limits.nack_chunk_ticks, -(-fresh // limits.nack_window))
        requested: list[Range] = []
        pieces: list[Piece] = []
        for piece in self.pieces:
            if piece.due_ns > now_ns:
                pieces.append(piece)
            elif piece.requests:
                requested.append((piece.start, piece.end))
                pieces.append(self._request_again(piece, now_ns))
            else:
                start = piece.start
                while start < piece.end and free > 0:
                    cut = min(piece.end, start + chunk)
                    requested.append((start, cut))
                    due_ns = now_ns + self._round_trip.patience_ns(0)
                    pieces.append(Piece(start, cut, due_ns, requests=1, requested_ns=now_ns))
                    start, free = cut, free - 1
                if start < piece.end:
                    _wait(pieces, replace(piece, start=start), now_ns)
        self.pieces = pieces
        return requested

    def _request_again(self, piece: Piece, now_ns: Instant) -> Piece:
        doublings = 0 if self.knowledge_ns >= piece.requested_ns else piece.doublings + 1
        return replace(
            piece,
            requests=piece.requests + 1,
            requested_ns=now_ns,
            doublings=doublings,
            due_ns=now_ns + self._round_trip.patience_ns(doublings),
        )

    def _unanswered(self) -> int:
        return sum(1 for piece in self.pieces if piece.requests)

    def _count_answer(self, piece: Piece, left: int, now_ns: Instant) -> None:
        """Sample the answer to a single request; after a repetition the answer is ambiguous."""
        if piece.requests == 1 and left < piece.end - piece.start:
            self._round_trip.sample(now_ns - piece.requested_ns)
