"""How far one subscription has come with one source, in constant memory.

What is kept is the highest number, and the holes below it. A protocol that keeps a publisher's
order leaves none; where publications may overtake each other they are many, and filled later.
Where they are more than are kept, what is certain is said: at least so many are missing.

Every number is taken for published until the publisher says which fence was its last: what came
of higher numbers was never sent, and whatever such a number seemed to skip is not missing.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from bench.load.content_check import RunContent
from bench.load.holes import Holes
from bench.load.matching_sequences import MatchingSequences

OPENING_FENCE = 1
"""The first publication of every publisher of a run is its opening fence."""

HOLES_KEPT = 1 << 16
"""Of one subscription and source, at most: a megabyte."""

_LEAPS_KEPT = 64
_FARTHEST_JUMP = 1 << 26  # no publisher is that far ahead of what was delivered of it


@dataclass(slots=True)
class StreamCounts:
    """What one subscription saw of one source, by the checker's names for what is wrong.

    Always owed = delivered + missing; while the closing fence is not known, of what lies between
    the opening one and the highest number delivered.

    Attributes:
        deliveries: data publications delivered, repeated ones and wrong ones too, fences not.
        fences: fences delivered.
        duplicate: delivered before.
        unsure: delivered behind more holes than are kept, so that it may have come before or not;
            taken for a first delivery as long as that can be.
        reordered: first delivered after a later one of the source.
        wrong_match: the subscription does not match it.
        corrupted: the content is not what the seed says.
        withheld_delivered: delivered though it, or a later one, had been announced as withheld.
        owed: data publications between the fences that were not withheld; counted for a report
            only, as all that follow.
        delivered: of those owed, how many arrived at least once.
        missing: of those owed, how many were skipped and neither delivered since nor announced.
        fence_missing: the same of fences.
        phantom: delivered though it was never published.
        withheld_late: announced as withheld after the source had been heard.
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
        """By name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class ToldStretch:
    """Consecutive sequence numbers that a subscriber was told it does not get.

    Attributes:
        partition: which withholds them, or "gap: " and the reason of a gap.
        told_ns: when the first of them was announced.
        late: whether something of the source had been delivered before.
    """

    first: int
    last: int
    partition: str
    told_ns: int
    late: bool


@dataclass(frozen=True, slots=True)
class _Return:
    """A step back to below where a leap over a hole had led.

    Attributes:
        leap: the number it had led to.
        is_back: whether it was also a step back from where the leap began.
    """

    leap: int
    is_back: bool


class StreamProgress:
    """One subscription's deliveries of one source, in the order they came.

    Attributes:
        counts: of everything so far, but for those that are counted for a report.
        told: what was announced as withheld, each number once, in the order it was.
        exact: False once there were so many holes that the oldest was given up; from then on
            missing and duplicate are the least that they can be.
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
        self.told: list[ToldStretch] = []
        self._told_to = 0

    def know_fence(self, sequence: int) -> None:
        """Sequence number `sequence` is a fence, which every subscription matches."""
        if sequence not in self._fences:
            insort(self._fences, sequence)

    def withhold(self, first: int, last: int, partition: str, told_ns: int) -> None:
        """The subscriber was told that it does not get the numbers from `first` to `last`."""
        self._tell(first, last, partition, told_ns, self.counts.high > 0)

    def announce_gap(self, first: int, last: int, reason: str, told_ns: int) -> None:
        """The same, wherever the stream has come to."""
        self._tell(first, last, f"gap: {reason}", told_ns, late=False)

    def _tell(self, first: int, last: int, partition: str, told_ns: int, late: bool) -> None:
        last = min(last, self.counts.high + _FARTHEST_JUMP)
        for low, high in _left_of(first, last, self.told):
            before = self.told[-1] if self.told else None
            if before is not None and (before.last + 1, before.partition, before.late) == (
                low,
                partition,
                late,
            ):
                self.told[-1] = replace(before, last=high)
            else:
                self.told.append(ToldStretch(low, high, partition, told_ns, late))
        self._told_to = max(self._told_to, last)

    def accounted_to(self) -> int:
        """The highest sequence number that was delivered or announced as withheld."""
        return max(self.counts.high, self._told_to)

    def has_hole_below(self, sequence: int) -> bool:
        """Whether something owed before this number has neither come nor been announced."""
        holes = self._holes.within(1, sequence - 1)
        if self._given_up or not self.told:
            return self._given_up > 0 or any(self._data_in(hole) for hole in holes)
        told = sum(
            self._data_in(hole)
            for part in self.told
            for hole in self._holes.within(part.first, min(part.last, sequence - 1))
        )
        return sum(map(self._data_in, holes)) > told

    def take(self, sequences: Sequence[int], content: RunContent) -> bool:
        """Judge a delivered run; whether it is exactly the data that was to come next."""
        counts = self.counts
        high = counts.high
        if (
            high >= OPENING_FENCE
            and sequences[0] > self._told_to
            and not content.fences
            and not content.corrupted
            and not self._fences_between(high, sequences[-1])
            and self._matching.are_next(high, sequences)
        ):
            counts.deliveries += len(sequences)
            self._arrived += len(sequences)
            counts.high = self._previous = sequences[-1]
            return True
        for position in content.fences:
            self.know_fence(sequences[position])
        for position, sequence in enumerate(sequences):
            self._step(sequence, position in content.fences, position in content.corrupted)
        return False

    def _step(self, sequence: int, is_fence: bool, is_corrupted: bool) -> None:
        counts = self.counts
        counts.fences += is_fence
        counts.deliveries += not is_fence
        if sequence - counts.high > _FARTHEST_JUMP or not self._is_owed(sequence):
            counts.wrong_match += 1
            return
        counts.corrupted += is_corrupted
        if sequence > counts.high:
            if self._owed_between(counts.high, sequence - 1):
                self._leave_hole(counts.high + 1, sequence - 1)
                self._leap = sequence, self._previous
            counts.high = sequence
        elif not self._fill(sequence):
            if not self._may_fill_what_was_given_up(sequence, is_fence):
                counts.duplicate += 1
                return
            counts.unsure += 1
        self._arrived += not is_fence
        counts.withheld_delivered += sequence <= self._told_to
        counts.low = min(counts.low or sequence, sequence)
        if sequence < self._previous:
            counts.reordered += 1
            self._note_return(sequence)
        self._previous = sequence

    def _note_return(self, sequence: int) -> None:
        """Remember why this step back was one, should what it comes back from prove unreal."""
        if self._leap is None or sequence > self._leap[0]:
            return
        leap, began = self._leap
        self._leap = None
        self._returns.append(_Return(leap, sequence < began))
        if len(self._returns) > _LEAPS_KEPT:
            self._returns.remove(min(self._returns, key=lambda one: one.leap))

    def _is_owed(self, sequence: int) -> bool:
        return sequence in self._fences or self._matching.matches(sequence)

    def _owed_between(self, after: int, up_to: int) -> int:
        """How many of the sequence numbers above `after`, to `up_to` included, are owed."""
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
        """Give up the lowest hole where there are too many."""
        if len(self._holes) > self._holes_kept:
            first, last = self._holes.pop_lowest()
            self._given_up += self._silent_data_between(first - 1, last)
            self._given_up_to = last
            self.exact = False

    def _fill(self, sequence: int) -> bool:
        """Whether `sequence` was still to come; if so it is no longer."""
        place = self._holes.place_of(sequence)
        if place is None:
            return False
        first, last = self._holes.at(place)
        rest = [(first, sequence - 1), (sequence + 1, last)]
        self._holes.replace(
            place, [hole for hole in rest if self._owed_between(hole[0] - 1, hole[1])]
        )
        self._keep_no_more()
        return True

    def _may_fill_what_was_given_up(self, sequence: int, is_fence: bool) -> bool:
        """Whether `sequence` may have been still to come, as far as anybody remembers.

        Each number that was given up can come once, so not more of them than there were.
        """
        if sequence > self._given_up_to:
            return False
        if is_fence:
            return True
        if not self._given_up:
            return False
        self._given_up -= 1
        return True

    # --- For a report -----------------------------------------------------------------------

    def settled(self) -> StreamCounts:
        """All counts, as they are by what has been said of fences so far."""
        unreal = [one for one in self._returns if one.leap > self._last() and not one.is_back]
        withheld = sum(self.withheld().values())
        absent = sum(map(self._data_in, self._absent()))
        phantom = self._beyond()
        return replace(
            self.counts,
            reordered=self.counts.reordered - len(unreal),
            owed=self._data_between(*self._window()) - withheld,
            delivered=self._arrived - phantom,
            missing=self._given_up + absent - withheld,
            fence_missing=sum(map(self._is_lost_fence, self._fences)),
            phantom=phantom,
            withheld_late=self._late(),
            withheld=withheld,
            low=min(self.counts.low, self._last()),
            high=min(self.counts.high, self._last()),
        )

    def withheld(self) -> dict[str, int]:
        """By partition, the data publications between the fences that never came."""
        found: dict[str, int] = {}
        for part in self.told:
            absent = self._absent(part.first, part.last)
            found[part.partition] = found.get(part.partition, 0) + sum(map(self._data_in, absent))
        return {partition: n for partition, n in found.items() if n}

    def announcements(self) -> list[dict[str, Any]]:
        """What was announced, with how many publications of each stretch match."""
        return [
            {**asdict(part), "publications": self._owed_between(part.first - 1, part.last)}
            for part in self.told
        ]

    def _late(self) -> int:
        """How many were announced after something of the source had been delivered."""
        return sum(self._owed_between(part.first - 1, part.last) for part in self.told if part.late)

    def _window(self) -> tuple[int, int]:
        """The opening fence, and the last number of which anybody has said that it was sent."""
        return self._fences[0], self._last()

    def _last(self) -> int:
        """The highest number that was published, as far as anybody has said."""
        return self._fences[-1] if len(self._fences) > 1 else max(self.counts.high, OPENING_FENCE)

    def _absent(self, after: int = 1, up_to: int | None = None) -> list[tuple[int, int]]:
        """What was published and did not arrive, between two numbers, both included."""
        last = self._last() if up_to is None else min(self._last(), up_to)
        unheard = (max(after, self.counts.high + 1), last)
        return [*self._holes.within(after, last), unheard]

    def _beyond(self) -> int:
        """How many arrived of those that were never published."""
        last, high = self._last(), self.counts.high
        if high <= last:
            return 0
        holes = sum(
            self._owed_between(max(last, first - 1), end)
            for first, end in self._holes
            if end > last
        )
        return self._owed_between(last, high) - holes

    def _is_lost_fence(self, fence: int) -> bool:
        is_absent = fence > self.counts.high or self._holes.place_of(fence) is not None
        return is_absent and not any(part.first <= fence <= part.last for part in self.told)

    def _silent_data_between(self, after: int, up_to: int) -> int:
        """How many data publications were not announced either."""
        told = sum(
            self._data_between(max(after, part.first - 1), min(up_to, part.last))
            for part in self.told
        )
        return self._data_between(after, up_to) - told

    def _data_in(self, hole: tuple[int, int]) -> int:
        return self._data_between(hole[0] - 1, hole[1])

    def _data_between(self, after: int, up_to: int) -> int:
        inner = self._fences_between(after, up_to)
        return self._owed_between(after, up_to) - len(inner)


def _left_of(first: int, last: int, told: Iterable[ToldStretch]) -> list[tuple[int, int]]:
    """The stretches of [first, last] of which nothing has been told."""
    parts = [(first, last)]
    for known in told:
        parts = [
            part
            for low, high in parts
            for part in ((low, min(high, known.first - 1)), (max(low, known.last + 1), high))
            if part[0] <= part[1]
        ]
    return parts
