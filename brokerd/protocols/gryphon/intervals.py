"""Sets of ticks as sorted half-open ranges.

Paper: [GD02] §4.1 (streams are kept as ranges of ticks).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""Ticks from the first one up to, and without, the second one."""


class IntervalSet:
    """A set of ticks as sorted, disjoint, non-adjacent and non-empty ranges.

    An addition at the end takes constant time; other operations take a binary search, and the time
    to move the rest of a list.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __bool__(self) -> bool:
        """Return True if the set is not empty."""
        return bool(self._starts)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges, lowest first."""
        return iter(zip(self._starts, self._ends, strict=True))

    def __contains__(self, tick: int) -> bool:
        """Return True if the set contains a tick."""
        place = bisect_right(self._starts, tick) - 1
        return place >= 0 and tick < self._ends[place]

    @property
    def last(self) -> int:
        """The highest tick."""
        return self._ends[-1] - 1

    def size(self) -> int:
        """Return the number of ticks."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Add a range, which may be empty."""
        assert start <= end, f"[{start}, {end})"
        starts, ends = self._starts, self._ends
        if start == end:
            return
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return
        if start >= starts[-1]:
            ends[-1] = max(ends[-1], end)
            return
        first = bisect_left(ends, start)  # the first range that ends at `start` or behind it
        after = bisect_right(starts, end)  # the first one that begins behind `end`
        if first < after:
            start, end = min(start, starts[first]), max(end, ends[after - 1])
        starts[first:after] = [start]
        ends[first:after] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove a range, which may be empty."""
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, start)
        after = bisect_left(starts, end)
        if start >= end or first >= after:
            return
        kept = [
            (low, high)
            for low, high in ((starts[first], start), (end, ends[after - 1]))
            if low < high
        ]
        starts[first:after] = [low for low, _ in kept]
        ends[first:after] = [high for _, high in kept]

    def within(self, start: int, end: int) -> list[Range]:
        """Return the ranges inside [start, end), cut at these ticks."""
        starts, ends = self._starts, self._ends
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        return [(max(start, starts[place]), min(end, ends[place])) for place in range(first, after)]

    def gaps(self, start: int, end: int) -> list[Range]:
        """Return the ticks of [start, end) outside the set, as ranges."""
        found: list[Range] = []
        for low, high in self.within(start, end):
            if start < low:
                found.append((start, low))
            start = high
        if start < end:
            found.append((start, end))
        return found

    def run(self, tick: int) -> Range | None:
        """Return the range that contains a tick; None if no range does."""
        place = bisect_right(self._starts, tick) - 1
        if place < 0 or tick >= self._ends[place]:
            return None
        return self._starts[place], self._ends[place]

    def clear(self) -> None:
        """Remove all ticks."""
        self._starts.clear()
        self._ends.clear()
