"""What a stream has skipped so far, in 16 bytes a hole."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


class Holes:
    """Stretches of numbers, rising and apart from each other; all ends are included."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def append(self, first: int, last: int) -> None:
        """One more, above all others."""
        self._firsts.append(first)
        self._lasts.append(last)

    def pop_lowest(self) -> tuple[int, int]:
        """Forget the lowest one, and return it."""
        return self._firsts.pop(0), self._lasts.pop(0)

    def place_of(self, number: int) -> int | None:
        """Which hole a number is in, None: in none."""
        place = bisect_right(self._firsts, number) - 1
        return None if place < 0 or self._lasts[place] < number else place

    def at(self, place: int) -> tuple[int, int]:
        """The hole at a place."""
        return self._firsts[place], self._lasts[place]

    def replace(self, place: int, rest: Sequence[tuple[int, int]]) -> None:
        """Leave of a hole what is in `rest`."""
        self._firsts[place : place + 1] = array("q", [first for first, _ in rest])
        self._lasts[place : place + 1] = array("q", [last for _, last in rest])

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """What of the numbers from `first` to `last` lies in holes."""
        places = range(bisect_left(self._lasts, first), bisect_right(self._firsts, last))
        return [(max(self._firsts[at], first), min(self._lasts[at], last)) for at in places]
