"""Stretches: exact records of deliveries in a fraction of the rows.

A stretch is a run of deliveries of one source to one subscription that are exactly the next
matching publications, with the content from the seed. One row contains the number of deliveries and
the last sequence number; readers derive the rest from the seed. Any other delivery is written at
once in a row of its own, so that no possible error is ever part of a stretch.

The time of each delivery of a stretch is lost, except that it lies within the duration in the row.
A sample, the same publications for all subscriptions, and the first delivery after a pause are
written row by row with their times. Latencies use the sample alone, because deliveries after a
pause are not typical.
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
"""Number of blocks of consecutive publications of a source per block that is written row by row."""

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
    """The unwritten stretches of one process, oldest first.

    Args:
        level: "sampled" or "hist".
        record: writes rows.

    Attributes:
        written: number of deliveries in all rows written so far.
    """

    def __init__(self, level: Level, record: Callable[[bytes], None]) -> None:
        self._one_in = ONE_BLOCK_IN[level]
        self._record = record
        self._open: dict[tuple[int, int, int], _Stretch] = {}
        self._last_ns: dict[tuple[int, int, int], int] = {}
        self.written = 0

    def parts(self, sequences: Sequence[int]) -> Iterator[tuple[slice, bool]]:
        """Yield parts of ascending numbers inside or outside the sample, and True for inside."""
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
        """The publications with times, for the sidecar."""
        return {"block": SAMPLED_BLOCK, "one_in": self._one_in}

    def take(
        self,
        subscription: int,
        publisher: int,
        incarnation: int,
        sequences: Sequence[int],
        received_ns: int,
    ) -> bool:
        """Add expected publications outside the sample to a stretch, if possible.

        Returns:
            True on success. Otherwise the caller calls `end` and writes rows.
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

        So no stretch lasts longer than the resolution while any delivery arrives.
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
        """Write the row of a stretch, stamped now, so that stamps of a file ascend."""
        lasted_ms = min(-(-(now_ns - stretch.first_ns) // 1_000_000), _LONGEST_MS)
        self._record(
            DELIVERIES.row.pack(
                stretch.last, now_ns, stretch.count, stretch.subscription, stretch.publisher,
                stretch.incarnation, STRETCH, APPLICATION, lasted_ms,
            )
        )  # fmt: skip
        self.written += stretch.count
