"""The rank-delta rule while the run is going on, in constant memory per subscription and source.

A subscriber's process knows the seed, so it knows what every publication contains and which
ones match. It need not keep any: usually a run of deliveries is exactly the matching
publications that come next, which is one comparison. What is kept is how far a subscription
has come, and the holes it left behind, which a correct protocol never leaves.

It takes every sequence number for published and acknowledged. Where a publisher was refused
one, or does not know, only the checkers that read the publishers' logs can tell; whether a
partition had a reason, only those that read the fault log. The verdict of record is theirs, and
this one is there to agree with them.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import compress
from operator import itemgetter
from typing import Any

from bench.content import AttributeSet, ContentBlock, SourceContent, content_digest
from brokerd.model.publication import PublicationRun

OPENING_FENCE = 1
"""The first publication of every publisher of a run is its opening fence."""

_LISTS_KEPT = 3
_HOLES_KEPT = 1024
_FARTHEST_JUMP = 1 << 26  # no publisher is that far ahead of what was delivered of it


@dataclass(slots=True)
class LaneCounts:
    """What one subscription saw of one source, by the checker's names for what is wrong.

    Attributes:
        deliveries: data publications delivered, repeated ones too, fences not.
        fences: fences delivered.
        duplicate: delivered before.
        reordered: first delivered after a later one of the source.
        wrong_match: the subscription does not match it.
        corrupted: the content is not what the seed says.
        withheld_delivered: delivered though it, or a later one, had been announced as withheld.
        withheld_late: announced as withheld after the source had been heard; counted for a
            report only, as all that follow.
        withheld: data publications between the fences, announced and not delivered.
        missing: skipped and neither delivered since nor announced.
        low, high: the lowest and highest matching sequence number delivered; 0 before any.
    """

    deliveries: int = 0
    fences: int = 0
    duplicate: int = 0
    reordered: int = 0
    wrong_match: int = 0
    corrupted: int = 0
    withheld_delivered: int = 0
    withheld_late: int = 0
    withheld: int = 0
    missing: int = 0
    low: int = 0
    high: int = 0

    def as_mapping(self) -> dict[str, int]:
        """By name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class RunContent:
    """What a received run contains, held against what the seed says.

    Attributes:
        digests: per publication, CRC-32 of the attribute blob and payload as received.
        corrupted: positions whose content is not what the seed says.
        fences: positions that are fences.
    """

    digests: "array[int]"
    corrupted: tuple[int, ...] = ()
    fences: tuple[int, ...] = ()


class ContentCheck:
    """Digests of received runs, fast where the contents are what they should be.

    Bytes that equal the expected ones have the expected digest, so comparing whole runs saves
    computing it publication by publication. Where a run differs anywhere, each is computed.
    """

    def __init__(self, blobs: Sequence[bytes], fence_blob: bytes) -> None:
        self._fence_blob = fence_blob
        # Sets drawn alike have one blob, so a blob stands for the first set that has it.
        self._place_of_blob: dict[bytes, int] = {}
        for place, blob in enumerate(blobs):
            self._place_of_blob.setdefault(blob, place)

    def examine(self, run: PublicationRun, content: SourceContent | None) -> RunContent:
        """The run's digests and which of its publications are fences or corrupted.

        Without `content`, of a source that is nobody's of this run, there is nothing to compare.
        """
        if content is None:
            digests = [content_digest(blob, payload) for _, blob, payload in run.publications()]
            return RunContent(array("I", digests))
        if run.payload_lengths == content.tables.size_bytes:
            if len(run.sequences) == 1:
                whole = self._examine_one(run, content)
            else:
                whole = self._examine_whole(run, content)
            if whole is not None:
                return RunContent(whole)
        return self._examine_singly(run, content)

    def _examine_one(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """As `_examine_whole`, for the run of one publication that low rates are made of."""
        sequence = run.sequences[0]
        block = content.block_of(sequence)
        place = sequence - block.first
        tables = content.tables
        if (
            run.attribute_table[run.attribute_index[0]] == tables.blobs[block.sets[place]]
            and b"".join(run.payload) == tables.payloads[block.payload_numbers[place]]
        ):
            return block.digests[place : place + 1]
        return None

    def _examine_whole(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """The digests if the run is exactly as expected, else None."""
        translation = [self._place_of_blob.get(blob, -1) for blob in run.attribute_table]
        if -1 in translation:
            return None
        digests = array("I")
        places: list[int] | bytes
        payload: list[bytes] = []
        if isinstance(run.sequences, range):
            parts: list[bytes | list[int]] = []
            size = content.tables.size_bytes
            for block, low, high in _stretches(run.sequences, content):
                digests += block.digests[low:high]
                parts.append(block.blob_places[low:high])
                payload.append(block.payload[low * size : high * size])
            places = parts[0] if len(parts) == 1 else _joined(parts)
        else:
            places = []
            payloads = content.tables.payloads
            for block, offsets in _offsets(run.sequences, content):
                pick = itemgetter(*offsets, offsets[0])  # twice one, so that it is a tuple
                digests.extend(pick(block.digests)[:-1])
                places.extend(pick(block.blob_places)[:-1])
                payload.extend([payloads[n] for n in pick(block.payload_numbers)[:-1]])
        if not _are_same(run.attribute_index, translation, places):
            return None
        return digests if b"".join(payload) == b"".join(run.payload) else None

    def _examine_singly(self, run: PublicationRun, content: SourceContent) -> RunContent:
        digests = array("I")
        corrupted, fences = [], []
        for position, (sequence, blob, payload) in enumerate(run.publications()):
            digests.append(content_digest(blob, payload))
            attribute_set, payload_number = content.choice(sequence)
            expected_blob = content.tables.blobs[attribute_set]
            if blob == self._fence_blob:
                fences.append(position)
                expected_blob = blob
            if blob != expected_blob or payload != content.tables.payloads[payload_number]:
                corrupted.append(position)
        return RunContent(digests, tuple(corrupted), tuple(fences))


def _stretches(sequences: range, content: SourceContent) -> Iterable[tuple[ContentBlock, int, int]]:
    """The blocks that consecutive sequence numbers lie in, with the part of each block."""
    first, end = sequences[0], sequences[-1] + 1
    while first < end:
        block = content.block_of(first)
        low = first - block.first
        high = min(len(block), end - block.first)
        yield block, low, high
        first = block.first + high


def _offsets(
    sequences: Sequence[int], content: SourceContent
) -> Iterable[tuple[ContentBlock, list[int]]]:
    """The blocks that rising sequence numbers lie in, with their places in each block."""
    start = 0
    while start < len(sequences):
        block = content.block_of(sequences[start])
        first = block.first
        end = bisect_left(sequences, first + len(block), start)
        yield block, [sequence - first for sequence in sequences[start:end]]
        start = end


def _joined(parts: Sequence[bytes | list[int]]) -> bytes | list[int]:
    if all(isinstance(part, bytes) for part in parts):
        return b"".join(map(bytes, parts))
    return [place for part in parts for place in part]


def _are_same(index: Sequence[int], translation: list[int], places: list[int] | bytes) -> bool:
    """Whether the blobs that a run's index leads to are those at `places`."""
    if isinstance(places, bytes) and isinstance(index, bytes):
        return index.translate(bytes(translation).ljust(256, b"\0")) == places
    return [translation[place] for place in index] == list(places)


class MatchingSequences:
    """Which sequence numbers of one source match one predicate, a block at a time."""

    def __init__(self, content: SourceContent, matching: bytes) -> None:
        self._content = content
        self._matching = matching
        self.everything = 0 not in matching
        self._lists: dict[int, Sequence[int]] = {}

    def matches(self, sequence: int) -> bool:
        """Whether the publication with this number matches (unless it is a fence)."""
        return bool(self._matching[self._content.choice(sequence)[0]])

    def in_block_of(self, sequence: int) -> Sequence[int]:
        """The matching sequence numbers of the block that `sequence` is in, rising."""
        block = self._content.block_of(sequence)
        found = self._lists.get(block.first)
        if found is None:
            numbers = range(block.first, block.first + len(block))
            if self.everything:
                found = numbers
            elif isinstance(block.sets, bytes):
                flags = block.sets.translate(self._matching.ljust(256, b"\0"))
                found = list(compress(numbers, flags))
            else:
                found = list(compress(numbers, map(self._matching.__getitem__, block.sets)))
            if len(self._lists) >= _LISTS_KEPT:
                del self._lists[next(iter(self._lists))]
            self._lists[block.first] = found
        return found

    def count_between(self, after: int, up_to: int) -> int:
        """How many matching sequence numbers there are above `after`, to `up_to` included."""
        if self.everything:
            return up_to - after
        count, at = 0, after + 1
        while at <= up_to:
            numbers = self.in_block_of(at)
            count += bisect_right(numbers, up_to) - bisect_left(numbers, at)
            at = ((at - 1) // self._content.block_size + 1) * self._content.block_size + 1
        return count

    def are_next(self, after: int, sequences: Sequence[int]) -> bool:
        """Whether `sequences` are exactly the matching ones that follow `after`."""
        if self.everything:
            return sequences[0] == after + 1 and sequences[-1] == after + len(sequences)
        position, at, last = 0, after + 1, sequences[-1]
        while position < len(sequences) and at <= last:
            numbers = self.in_block_of(at)
            start = bisect_left(numbers, at)
            wanted = list(numbers[start : start + len(sequences) - position])
            if list(sequences[position : position + len(wanted)]) != wanted:
                return False
            position += len(wanted)
            at = ((at - 1) // self._content.block_size + 1) * self._content.block_size + 1
        return position == len(sequences)


@dataclass(frozen=True, slots=True)
class ToldStretch:
    """Consecutive sequence numbers that a subscriber was told it does not get.

    Attributes:
        partition: which withholds them.
        told_ns: when the first of them was announced.
        late: whether something of the source had been delivered before.
    """

    first: int
    last: int
    partition: str
    told_ns: int
    late: bool


class Lane:
    """One subscription's deliveries of one source, in the order they came.

    Attributes:
        counts: of everything so far, but for those that are counted for a report.
        told: what was announced as withheld, each number once, in the order it was.
        exact: False once there were so many holes that the oldest was given up; an arrival in
            it counts as a duplicate.
    """

    def __init__(self, matching: MatchingSequences) -> None:
        self.counts = LaneCounts()
        self.exact = True
        self._matching = matching
        self._previous = 0
        self._fences = [OPENING_FENCE]
        self._holes: list[tuple[int, int]] = []
        self._given_up = 0
        self.told: list[ToldStretch] = []
        self._told_to = 0

    def know_fence(self, sequence: int) -> None:
        """Sequence number `sequence` is a fence, which every subscription matches."""
        if sequence not in self._fences:
            insort(self._fences, sequence)

    def withhold(self, first: int, last: int, partition: str, told_ns: int) -> None:
        """The subscriber was told that it does not get the numbers from `first` to `last`."""
        last = min(last, self.counts.high + _FARTHEST_JUMP)
        late = self.counts.high > 0
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

    def take(self, sequences: Sequence[int], content: RunContent) -> None:
        """Judge a delivered run."""
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
            counts.high = self._previous = sequences[-1]
            return
        for position in content.fences:
            self.know_fence(sequences[position])
        for position, sequence in enumerate(sequences):
            self._step(sequence, position in content.fences, position in content.corrupted)

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
            counts.high = sequence
        elif not self._fill(sequence):
            counts.duplicate += 1
            return
        counts.withheld_delivered += sequence <= self._told_to
        counts.low = min(counts.low or sequence, sequence)
        counts.reordered += sequence < self._previous
        self._previous = sequence

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
        self._holes.append((first, last))
        if len(self._holes) > _HOLES_KEPT:
            first, last = self._holes.pop(0)
            self._given_up += self._silent_between(first - 1, last)
            self.exact = False

    def _fill(self, sequence: int) -> bool:
        """Whether `sequence` was still to come; if so it is no longer."""
        place = bisect_right(self._holes, (sequence, 1 << 63)) - 1
        if place < 0 or self._holes[place][1] < sequence:
            return False
        first, last = self._holes[place]
        rest = [(first, sequence - 1), (sequence + 1, last)]
        self._holes[place : place + 1] = [
            hole for hole in rest if self._owed_between(hole[0] - 1, hole[1])
        ]
        return True

    def _silent_between(self, after: int, up_to: int) -> int:
        """How many of those owed were not announced either."""
        told = sum(
            self._owed_between(max(after, part.first - 1), min(up_to, part.last))
            for part in self.told
        )
        return self._owed_between(after, up_to) - told

    def missing(self) -> int:
        """How many publications, fences too, were neither delivered nor announced in time."""
        holes = sum(self._silent_between(first - 1, last) for first, last in self._holes)
        return self._given_up + holes + self._silent_between(self.counts.high, self._fences[-1])

    def owed(self) -> int:
        """How many data publications lie between the outermost fences and were not withheld."""
        opening, closing = self._fences[0], self._fences[-1]
        return self._data_between(opening, closing) - sum(self.withheld().values())

    def withheld(self) -> dict[str, int]:
        """By partition, the data publications between the fences that never came."""
        opening, closing = self._fences[0], self._fences[-1]
        absent = [*self._holes, (self.counts.high + 1, closing)]
        found: dict[str, int] = {}
        for part in self.told:
            found[part.partition] = found.get(part.partition, 0) + sum(
                self._data_between(
                    max(opening, part.first - 1, first - 1), min(closing, part.last, last)
                )
                for first, last in absent
            )
        return {partition: n for partition, n in found.items() if n}

    def announcements(self) -> list[dict[str, Any]]:
        """What was announced, with how many publications of each stretch match."""
        return [
            {**asdict(part), "publications": self._owed_between(part.first - 1, part.last)}
            for part in self.told
        ]

    def late(self) -> int:
        """How many were announced after something of the source had been delivered."""
        return sum(self._owed_between(part.first - 1, part.last) for part in self.told if part.late)

    def _data_between(self, after: int, up_to: int) -> int:
        inner = self._fences_between(after, up_to)
        return self._owed_between(after, up_to) - len(inner)


class OnlineChecker:
    """Judges the deliveries of every subscription of one process.

    Args:
        matching: for a subscription, one byte per attribute set: 1 where it matches.
        content_of: the contents of a source, by publisher identity and incarnation; None for a
            source that is no publisher of this run.
    """

    def __init__(
        self,
        matching: Mapping[str, bytes],
        content_of: Callable[[str, int], SourceContent | None],
    ) -> None:
        self._matching = matching
        self._content_of = content_of
        self._shared: dict[tuple[bytes, str, int], MatchingSequences] = {}
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self.foreign = 0

    def lane(self, subscription: str, publisher: str, incarnation: int) -> Lane | None:
        """The lane of one subscription and source; None when the source is not of this run."""
        key = (subscription, publisher, incarnation)
        lane = self._lanes.get(key)
        if lane is None:
            content = self._content_of(publisher, incarnation)
            if content is None:
                return None
            table = self._matching[subscription]
            shared = self._shared.setdefault(
                (table, publisher, incarnation), MatchingSequences(content, table)
            )
            lane = self._lanes[key] = Lane(shared)
        return lane

    def know_fence(self, publisher: str, incarnation: int, sequence: int) -> None:
        """A publisher says that this sequence number is one of its fences."""
        for subscription in self._matching:
            lane = self.lane(subscription, publisher, incarnation)
            if lane is not None:
                lane.know_fence(sequence)

    def fences_missing(self, fences: Iterable[tuple[str, int, int]]) -> int:
        """How many of these fences (publisher, incarnation, sequence) a subscription awaits."""
        missing = 0
        for publisher, incarnation, sequence in fences:
            for subscription in self._matching:
                lane = self._lanes.get((subscription, publisher, incarnation))
                missing += lane is None or lane.accounted_to() < sequence
        return missing

    def report(self) -> dict[str, Any]:
        """What was seen, in all and per subscription and source (`online.json`)."""
        lanes = []
        totals = dict.fromkeys(("owed", *LaneCounts().as_mapping()), 0)
        del totals["low"], totals["high"]
        for (subscription, publisher, incarnation), lane in self._lanes.items():
            lane.counts.missing = lane.missing()
            lane.counts.withheld_late = lane.late()
            lane.counts.withheld = sum(lane.withheld().values())
            row = {"owed": lane.owed(), **lane.counts.as_mapping()}
            totals = {name: value + row[name] for name, value in totals.items()}
            source: dict[str, Any] = {"publisher": publisher, "incarnation": incarnation}
            if lane.told:
                source["announced"] = lane.announcements()
            lanes.append({"subscription": subscription, **source, **row, "exact": lane.exact})
        return {
            "schema": "pubsubctl/online/1",
            "totals": {**totals, "phantom": self.foreign},
            "lanes": lanes,
        }


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


def match_table(
    matches: Callable[[AttributeSet], bool], attribute_sets: Sequence[AttributeSet]
) -> bytes:
    """One byte per attribute set: 1 where `matches` holds."""
    return bytes(bool(matches(attributes)) for attributes in attribute_sets)
