"""State of a volume in memory: its logs and segments."""

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

_PLACE_EVERY_BYTES: Final = 64 << 10


@dataclass(slots=True)
class LogState:
    """The state of one log.

    Attributes:
        places: (index, segment, byte) of groups, far apart, and the index of their first record; a
            search for a record starts at the last place that is not behind the record.
        stale: (group, first, end) of truncated records in groups before that group.
    """

    first: int = 1
    next: int = 1
    places: list[tuple[int, int, int]] = field(default_factory=list)
    stale: list[tuple[int, int, int]] = field(default_factory=list)

    def add_place(self, index: int, segment: int, byte: int) -> None:
        if self.places:
            _, last_segment, last_byte = self.places[-1]
            if last_segment == segment and byte - last_byte < _PLACE_EVERY_BYTES:
                return
        self.places.append((index, segment, byte))

    def chop(self, first: int) -> None:
        self.first = first
        del self.places[: max(0, bisect_right(self.places, first, key=itemgetter(0)) - 1)]
        self.stale = [row for row in self.stale if row[2] > first]

    def truncate(self, group: int, next_index: int) -> None:
        self.stale.append((group, next_index, self.next))
        self.next = next_index
        while self.places and self.places[-1][0] >= next_index:
            self.places.pop()

    def is_stale(self, group: int, index: int) -> bool:
        return any(group < before and first <= index < end for before, first, end in self.stale)


@dataclass(slots=True)
class SegmentState:
    """A segment: its salt, and the highest index of each log with records in the segment."""

    salt: bytes
    highest: dict[str, int] = field(default_factory=dict)
