"""Samples of recent publications, for latencies during a run.

Publishers and subscribers are different processes, and a publication does not contain its intended
time. Both sides record the stamps of publications with a sequence number that is a multiple of a
power of two; the power grows with the rate. The multiples of the larger power are in both samples,
so the sides need no agreement. Verdicts use the logs, never these samples.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from brokerd.units import SECOND_NS

PER_SECOND = 256
KEPT_NS = 5_000_000_000
MOST_ROWS = 4096


class LatencySamples:
    """Stamps of a sample of publications of the last few seconds.

    Attributes:
        stride: multiples of this sequence number are recorded.
    """

    def __init__(self) -> None:
        self.stride = 1
        self._rows: deque[tuple[int, int, int, int]] = deque(maxlen=MOST_ROWS)
        self._sources: dict[str, int] = {}
        self._second = 0
        self._in_second = 0

    def note(
        self, source: str, sequences: Sequence[int], stamps_ns: Sequence[int] | int, now_ns: int
    ) -> None:
        """Record a run of `source` that passed now.

        Args:
            stamps_ns: a stamp per publication, or the same stamp for all publications.
        """
        first, last = sequences[0], sequences[-1]
        self._adapt(last // self.stride - (first - 1) // self.stride, now_ns)
        start = -(-first // self.stride) * self.stride
        if start > last:
            return
        number = self._sources.setdefault(source, len(self._sources))
        for sequence in range(start, last + 1, self.stride):
            if sequence not in sequences:
                continue
            stamp_ns = (
                stamps_ns if isinstance(stamps_ns, int) else stamps_ns[sequences.index(sequence)]
            )
            self._rows.append((now_ns, number, sequence, stamp_ns))

    def since(self, after_ns: int) -> dict[str, Any]:
        """Return the records after an instant, for a control answer.

        Returns:
            sources: names; rows: [place in `sources`, sequence, stamp_ns].
        """
        oldest_ns = self._rows[-1][0] - KEPT_NS if self._rows else 0
        while self._rows and self._rows[0][0] < oldest_ns:
            self._rows.popleft()
        return {
            "sources": list(self._sources),
            "rows": [
                [number, sequence, stamp_ns]
                for noted_ns, number, sequence, stamp_ns in self._rows
                if noted_ns > after_ns
            ],
        }

    def _adapt(self, would_note: int, now_ns: int) -> None:
        """Adapt the stride so that the number of records per second depends little on the rate."""
        second = now_ns // SECOND_NS
        if second != self._second:
            if self._in_second < PER_SECOND // 4 and self.stride > 1:
                self.stride //= 2
            self._second, self._in_second = second, 0
        self._in_second += would_note
        while self._in_second > PER_SECOND:
            self.stride *= 2
            self._in_second //= 2
