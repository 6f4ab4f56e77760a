"""Progress of one subscription with one source, in constant memory.

The state is the highest number, and the gaps below, in 16 bytes per gap. A protocol that keeps
publisher order leaves no gaps. If publications may overtake each other, gaps are many, and are
filled later. Beyond the greatest number of gaps, counts are lower bounds.

Every number counts as published until the publisher announces its last fence. Higher numbers were
then never sent, and publications that only such a number seemed to skip are not missing.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from bench.load.expected_content import MatchingSequences, RunContent


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


OPENING_FENCE = 1
"""Sequence number of the opening fence, the first publication of every publisher of a run."""

HOLES_KEPT = 1 << 16
"""Greatest number of gaps per subscription and source: a megabyte."""

_LEAPS_KEPT = 64
_FARTHEST_JUMP = 1 << 26  # no publisher is this far ahead of its deliveries


@dataclass(slots=True)
class StreamCounts:
    """The counts of one subscription and one source, by the checker's names of errors.

    Always owed = delivered + missing; without a closing fence, for publications between the opening
    fence and the highest delivered number.

    Attributes:
        deliveries: delivered data publications, with repetitions and wrong deliveries, without
            fences.
        fences: delivered fences.
        duplicate: publications that were delivered before.
        unsure: publications delivered behind forgotten gaps, so that a repetition is possible;
            counted as first deliveries while this is possible.
        reordered: publications first delivered after a later publication of the source.
        wrong_match: publications that do not match the subscription.
        corrupted: publications with a content other than the content from the seed.
        withheld_delivered: publications delivered although they, or later publications, had been
            announced as withheld.
        owed: data publications between the fences that were not withheld; computed for a report
            only, as are all counts below.
        delivered: owed publications that arrived at least once.
        missing: owed publications that were skipped and neither delivered since nor announced.
        fence_missing: fences that were skipped and neither delivered since nor announced.
        phantom: deliveries of numbers that were never published.
        withheld_late: publications announced as withheld after a delivery of the source.
        withheld: data publications between the fences, announced and not delivered.
        low, high: the lowest and highest matching sequence number delivered; 0 before any.
    """

    deliveries: int = 0
    fences: int = 0
    duplicate: int = 0
    unsure: int = 0
    reordered: int = 0
    wrong_match: int = 0
    corrupted: int = 0
    withheld_delivered: int = 0
    owed: int = 0
    delivered: int = 0
    missing: int = 0
    fence_missing: int = 0
    phantom: int = 0
    withheld_late: int = 0
    withheld: int = 0
    low: int = 0
    high: int = 0

    def as_mapping(self) -> dict[str, int]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class AnnouncedStretch:
    """Consecutive sequence numbers that were announced as not delivered.

    Attributes:
        partition: the partition that withholds the numbers, or "gap: " and the reason of a gap.
        announced_ns: time of the first announcement.
        late: True if a publication of the source had been delivered before.
    """

    first: int
    last: int
    partition: str
    announced_ns: int
    late: bool


@dataclass(frozen=True, slots=True)
class _Return:
    """A step back to a number below the target of an earlier leap over a gap.

    Attributes:
        leap: the target of the leap.
        is_back: True if the step also led back from the origin of the leap.
    """

    leap: int
    is_back: bool


class StreamProgress:
    """One subscription's deliveries of one source, in order of arrival.

    Attributes:
        counts: all counts so far, without the counts for a report.
        announced: announced numbers, without duplicates, in the order of announcements.
        exact: False once the oldest gap was forgotten for want of room; missing and duplicate are
            then lower bounds.
    """

    def __init__(self, matching: MatchingSequences, holes_kept: int = HOLES_KEPT) -> None:
        self.counts = StreamCounts()
        self.exact = True
        self._matching = matching
        self._previous = 0
        self._fences = [OPENING_FENCE]
        self._holes = Holes()
        self._holes_kept = holes_kept
        self._given_up = 0
        self._given_up_to = 0
        self._leap: tuple[int, int] | None = None
        self._returns: list[_Return] = []
        self._arrived = 0
        self.announced: list[AnnouncedStretch] = []
        self._announced_through = 0

    def add_fence(self, sequence: int) -> None:
        """Record sequence number `sequence` as a fence, which every subscription matches."""
        if sequence not in self._fences:
            insort(self._fences, sequence)

    def withhold(self, first: int, last: int, partition: str, announced_ns: int) -> None:
        """Record the announcement that the numbers from `first` to `last` are withheld."""
        self._notify(first, last, partition, announced_ns, self.counts.high > 0)

    def announce_gap(self, first: int, last: int, reason: str, announced_ns: int) -> None:
        """Record the announcement of a gap, at any progress of the stream."""
        self._notify(first, last, f"gap: {reason}", announced_ns, late=False)

    def _notify(self, first: int, last: int, partition: str, announced_ns: int, late: bool) -> None:
        last = min(last, self.counts.high + _FARTHEST_JUMP)
        for low, high in _subtract_announced(first, last, self.announced):
            before = self.announced[-1] if self.announced else None
            if before is not None and (before.last + 1, before.partition, before.late) == (
                low,
                partition,
                late,
            ):
                self.announced[-1] = replace(before, last=high)
            else:
                self.announced.append(AnnouncedStretch(low, high, partition, announced_ns, late))
        self._announced_through = max(self._announced_through, last)

    def last_accounted(self) -> int:
        """Return the highest sequence number that was delivered or announced as withheld."""
        return max(self.counts.high, self._announced_through)

    def has_hole_below(self, sequence: int) -> bool:
        """Return True if an owed number below this number was neither delivered nor announced."""
        holes = self._holes.within(1, sequence - 1)
        if self._given_up or not self.announced:
            return self._given_up > 0 or any(self._data_in(hole) for hole in holes)
        announced_count = sum(
            self._data_in(hole)
            for part in self.announced
            for hole in self._holes.within(part.first, min(part.last, sequence - 1))
        )
        return sum(map(self._data_in, holes)) > announced_count

    def take(self, sequences: Sequence[int], content: RunContent) -> bool:
        """Judge a delivered run. Return True if the run is exactly the next expected data."""
        counts = self.counts
        high = counts.high
        if (
            high >= OPENING_FENCE
            and sequences[0] > self._announced_through
            and not content.fences
            and not content.corrupted
            and not self._fences_between(high, sequences[-1])
            and self._matching.is_next(high, sequences)
        ):
            counts.deliveries += len(sequences)
            self._arrived += len(sequences)
            counts.high = self._previous = sequences[-1]
            return True
        for position in content.fences:
            self.add_fence(sequences[position])
        for position, sequence in enumerate(sequences):
            self._step(sequence, position in content.fences, position in content.corrupted)
        return False

    def take_marked(self, sequences: Sequence[int], content: RunContent) -> None:
        """Judge a run marked as a possible redelivery: a repetition is counted, and no duplicate.

        A publication that did not arrive before is a first delivery.
        """
        for position, sequence in enumerate(sequences):
            is_fence = position in content.fences
            if is_fence:
                self.add_fence(sequence)
            if sequence > self.counts.high or self._holes.place_of(sequence) is not None:
                self._step(sequence, is_fence, position in content.corrupted)
                continue
            self.counts.fences += is_fence
            self.counts.deliveries += not is_fence
            self.counts.corrupted += position in content.corrupted

    def _step(self, sequence: int, is_fence: bool, is_corrupted: bool) -> None:
        counts = self.counts
        counts.fences += is_fence
        counts.deliveries += not is_fence
        if sequence - counts.high > _FARTHEST_JUMP or not self._is_owed(sequence):
            counts.wrong_match += 1
            return
        counts.corrupted += is_corrupted
        if sequence > counts.high:
            if self._count_owed(counts.high, sequence - 1):
                self._leave_hole(counts.high + 1, sequence - 1)
                self._leap = sequence, self._previous
            counts.high = sequence
        elif not self._fill(sequence):
            if not self._can_fill_forgotten(sequence, is_fence):
                counts.duplicate += 1
                return
            counts.unsure += 1
        self._arrived += not is_fence
        counts.withheld_delivered += sequence <= self._announced_through
        counts.low = min(counts.low or sequence, sequence)
        if sequence < self._previous:
            counts.reordered += 1
            self._note_return(sequence)
        self._previous = sequence

    def _note_return(self, sequence: int) -> None:
        """Record the reason of this step back, in case the number before is unpublished."""
        if self._leap is None or sequence > self._leap[0]:
            return
        leap, began = self._leap
        self._leap = None
        self._returns.append(_Return(leap, sequence < began))
        if len(self._returns) > _LEAPS_KEPT:
            self._returns.remove(min(self._returns, key=lambda one: one.leap))

    def _is_owed(self, sequence: int) -> bool:
        return sequence in self._fences or self._matching.matches(sequence)

    def _count_owed(self, after: int, up_to: int) -> int:
        """Return the number of owed sequence numbers above `after`, to `up_to` included."""
        fences = self._fences_between(after, up_to)
        count = self._matching.count_between(after, up_to) if up_to > after else 0
        return count + sum(not self._matching.matches(fence) for fence in fences)

    def _fences_between(self, after: int, up_to: int) -> list[int]:
        if self._fences[-1] <= after:
            return []
        return [fence for fence in self._fences if after < fence <= up_to]

    def _leave_hole(self, first: int, last: int) -> None:
        self._holes.append(first, last)
        self._keep_no_more()

    def _keep_no_more(self) -> None:
        """Forget the lowest gap if there are too many."""
        if len(self._holes) > self._holes_kept:
            first, last = self._holes.pop_lowest()
            self._given_up += self._silent_data_between(first - 1, last)
            self._given_up_to = last
            self.exact = False

    def _fill(self, sequence: int) -> bool:
        """Remove `sequence` from the gaps. Return False if the number was in no gap."""
        place = self._holes.place_of(sequence)
        if place is None:
            return False
        first, last = self._holes.at(place)
        rest = [(first, sequence - 1), (sequence + 1, last)]
        self._holes.replace(
            place, [hole for hole in rest if self._count_owed(hole[0] - 1, hole[1])]
        )
        self._keep_no_more()
        return True

    def _can_fill_forgotten(self, sequence: int, is_fence: bool) -> bool:
        """Return True if `sequence` may have been in a forgotten gap.

        Each forgotten number can arrive only once, which bounds the count.
        """
        if sequence > self._given_up_to:
            return False
        if is_fence:
            return True
        if not self._given_up:
            return False
        self._given_up -= 1
        return True

    # --- Report -----------------------------------------------------------------------------

    def compute_counts(self) -> StreamCounts:
        """Return all counts, by the fences announced so far."""
        unreal = [one for one in self._returns if one.leap > self._last() and not one.is_back]
        withheld = sum(self.withheld().values())
        absent = sum(map(self._data_in, self._find_absent()))
        phantom = self._count_unpublished()
        return replace(
            self.counts,
            reordered=self.counts.reordered - len(unreal),
            owed=self._data_between(*self._window()) - withheld,
            delivered=self._arrived - phantom,
            missing=self._given_up + absent - withheld,
            fence_missing=sum(map(self._is_lost_fence, self._fences)),
            phantom=phantom,
            withheld_late=self._count_late(),
            withheld=withheld,
            low=min(self.counts.low, self._last()),
            high=min(self.counts.high, self._last()),
        )

    def withheld(self) -> dict[str, int]:
        """Return by partition the data publications between the fences that never arrived."""
        found: dict[str, int] = {}
        for part in self.announced:
            absent = self._find_absent(part.first, part.last)
            found[part.partition] = found.get(part.partition, 0) + sum(map(self._data_in, absent))
        return {partition: n for partition, n in found.items() if n}

    def announcements(self) -> list[dict[str, Any]]:
        """Return the announcements, with the number of matching publications of each stretch."""
        return [
            {**asdict(part), "publications": self._count_owed(part.first - 1, part.last)}
            for part in self.announced
        ]

    def _count_late(self) -> int:
        """Return the number of publications announced after a delivery of the source."""
        return sum(
            self._count_owed(part.first - 1, part.last) for part in self.announced if part.late
        )

    def _window(self) -> tuple[int, int]:
        """Return the opening fence, and the last number that was announced as sent."""
        return self._fences[0], self._last()

    def _last(self) -> int:
        """Return the highest published number, by the announcements so far."""
        return self._fences[-1] if len(self._fences) > 1 else max(self.counts.high, OPENING_FENCE)

    def _find_absent(self, after: int = 1, up_to: int | None = None) -> list[tuple[int, int]]:
        """Return published ranges that did not arrive, between two numbers, both included."""
        last = self._last() if up_to is None else min(self._last(), up_to)
        unheard = (max(after, self.counts.high + 1), last)
        return [*self._holes.within(after, last), unheard]

    def _count_unpublished(self) -> int:
        """Return the number of arrived publications that were never published."""
        last, high = self._last(), self.counts.high
        if high <= last:
            return 0
        holes = sum(
            self._count_owed(max(last, first - 1), end) for first, end in self._holes if end > last
        )
        return self._count_owed(last, high) - holes

    def _is_lost_fence(self, fence: int) -> bool:
        is_absent = fence > self.counts.high or self._holes.place_of(fence) is not None
        return is_absent and not any(part.first <= fence <= part.last for part in self.announced)

    def _silent_data_between(self, after: int, up_to: int) -> int:
        """Return the number of data publications that were not announced."""
        announced_count = sum(
            self._data_between(max(after, part.first - 1), min(up_to, part.last))
            for part in self.announced
        )
        return self._data_between(after, up_to) - announced_count

    def _data_in(self, hole: tuple[int, int]) -> int:
        return self._data_between(hole[0] - 1, hole[1])

    def _data_between(self, after: int, up_to: int) -> int:
        inner = self._fences_between(after, up_to)
        return self._count_owed(after, up_to) - len(inner)


def _subtract_announced(
    first: int, last: int, announced: Iterable[AnnouncedStretch]
) -> list[tuple[int, int]]:
    """Return the parts of [first, last] without an announcement."""
    parts = [(first, last)]
    for known in announced:
        parts = [
            part
            for low, high in parts
            for part in ((low, min(high, known.first - 1)), (max(low, known.last + 1), high))
            if part[0] <= part[1]
        ]
    return parts
