"""Gaps in the received numbers of a stream, in 16 bytes per gap."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


class Holes:
    """Ascending ranges of numbers, disjoint and not adjacent; both ends are included."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def append(self, first: int, last: int) -> None:
        """Add a range above all others."""
        self._firsts.append(first)
        self._lasts.append(last)

    def pop_lowest(self) -> tuple[int, int]:
        """Remove and return the lowest range."""
        return self._firsts.pop(0), self._lasts.pop(0)

    def place_of(self, number: int) -> int | None:
        """Return the place of the range with a number, or None."""
        place = bisect_right(self._firsts, number) - 1
        return None if place < 0 or self._lasts[place] < number else place

    def at(self, place: int) -> tuple[int, int]:
        """Return the range at a place."""
        return self._firsts[place], self._lasts[place]

    def replace(self, place: int, rest: Sequence[tuple[int, int]]) -> None:
        """Replace a range by the ranges in `rest`."""
        self._firsts[place : place + 1] = array("q", [first for first, _ in rest])
        self._lasts[place : place + 1] = array("q", [last for _, last in rest])

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of the ranges between `first` and `last`."""
        places = range(bisect_left(self._lasts, first), bisect_right(self._firsts, last))
        return [(max(self._firsts[at], first), min(self._lasts[at], last)) for at in places]
