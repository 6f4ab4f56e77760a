"""Deliveries written down as stretches: who got what stays exact, in a fraction of the rows.

A stretch is a run of deliveries of one source to one subscription that are exactly the matching
publications that come next, with the content that the seed says. One row says how many and up to
which number; who reads it knows the rest from the seed. Whatever else comes is written row by
row, at once, so that nothing that could be wrong is ever folded into a stretch.

What is lost is when each delivery of a stretch came: only that it was within the time that the row
says. A sample, the same publications for all subscriptions, and the first delivery after a pause
are written row by row and keep their times. Latencies are those of the sample alone, because what
comes after a pause is not like the rest.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from brokerd.history.records import APPLICATION, DELIVERIES, STRETCH

Level = Literal["full", "sampled", "hist"]

RESOLUTION_NS: Final = 100_000_000
SAMPLED_BLOCK: Final = 16
ONE_BLOCK_IN: Final[dict[Level, int]] = {"sampled": 16, "hist": 256}
"""Of so many blocks of consecutive publications of a source, one is written row by row."""

_LONGEST_MS: Final = (1 << 16) - 1
_MOST: Final = 1 << 20


@dataclass(slots=True)
class _Stretch:
    subscription: int
    publisher: int
    incarnation: int
    count: int = 0
    last: int = 0
    first_ns: int = 0
    latest_ns: int = 0


class Stretches:
    """The stretches of one process that have not been written yet, oldest first.

    Args:
        level: "sampled" or "hist".
        record: writes rows.

    Attributes:
        written: how many deliveries all rows written so far stand for.
    """

    def __init__(self, level: Level, record: Callable[[bytes], None]) -> None:
        self._one_in = ONE_BLOCK_IN[level]
        self._record = record
        self._open: dict[tuple[int, int, int], _Stretch] = {}
        self._last_ns: dict[tuple[int, int, int], int] = {}
        self.written = 0

    def parts(self, sequences: Sequence[int]) -> Iterator[tuple[slice, bool]]:
        """Rising numbers cut where the sample begins and ends, and whether each part is in it."""
        period, at = SAMPLED_BLOCK * self._one_in, 0
        while at < len(sequences):
            beyond = sequences[at] % period
            is_sampled = beyond < SAMPLED_BLOCK
            edge = sequences[at] - beyond + (SAMPLED_BLOCK if is_sampled else period)
            end = bisect_left(sequences, edge, at)
            yield slice(at, end), is_sampled
            at = end

    @property
    def sample(self) -> dict[str, int]:
        """Which publications keep their times, for the sidecar."""
        return {"block": SAMPLED_BLOCK, "one_in": self._one_in}

    def take(
        self,
        subscription: int,
        publisher: int,
        incarnation: int,
        sequences: Sequence[int],
        received_ns: int,
    ) -> bool:
        """Whether what comes next, none of it in the sample, was taken in.

        Else it is to be written, after `end` was called.
        """
        self.settle(received_ns - RESOLUTION_NS, received_ns)
        key = subscription, publisher, incarnation
        before_ns, self._last_ns[key] = self._last_ns.get(key, 0), received_ns
        if received_ns - before_ns > RESOLUTION_NS:
            return False
        stretch = self._open.get(key)
        if stretch is None:
            stretch = self._open[key] = _Stretch(*key, first_ns=received_ns)
        stretch.count += len(sequences)
        stretch.last, stretch.latest_ns = sequences[-1], received_ns
        if stretch.count > _MOST:
            self.end(*key, received_ns)
        return True

    def end(self, subscription: int, publisher: int, incarnation: int, now_ns: int) -> None:
        """Write old stretches, then the open stretch of a source and subscription.

        So no stretch goes on for longer than the resolution while anything is received.
        """
        self.settle(now_ns - RESOLUTION_NS, now_ns)
        stretch = self._open.pop((subscription, publisher, incarnation), None)
        if stretch is not None:
            self._write(stretch, now_ns)

    def settle(self, until_ns: int, now_ns: int) -> None:
        """Write every stretch that began before an instant."""
        while self._open:
            key = next(iter(self._open))
            if self._open[key].first_ns > until_ns:
                return
            self._write(self._open.pop(key), now_ns)

    def _write(self, stretch: _Stretch, now_ns: int) -> None:
        """Rows are stamped when they are written, so that stamps of a file only go up."""
        lasted_ms = min(-(-(now_ns - stretch.first_ns) // 1_000_000), _LONGEST_MS)
        self._record(
            DELIVERIES.row.pack(
                stretch.last, now_ns, stretch.count, stretch.subscription, stretch.publisher,
                stretch.incarnation, STRETCH, APPLICATION, lasted_ms,
            )
        )  # fmt: skip
        self.written += stretch.count
