"""The numbers and contents that a subscription must receive, as they follow from the seed.

`MatchingSequences` has the sequence numbers of a source that match a predicate. A predicate is
evaluated once for each attribute set; the match of a publication follows from the set that the seed
chose. The sets of a block of publications are sorted once for all predicates. Each predicate keeps
the number of matches before every block, so the number of matches between two sequence numbers
costs two blocks at any distance. Received runs are compared with the contents as a whole.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter

from bench.load.content import AttributeSet, ContentBlock, SourceContent, content_digest
from brokerd.model.publication import PublicationRun
from results.rules.expectation import PredicateNode

_LISTS_KEPT = 64
_FEW_SETS = 16
"""Number of matching attribute sets up to which their sorted sequence numbers are merged."""


class MatchingSequences:
    """Sequence numbers of one source that match one predicate, in blocks.

    Args:
        matching: one byte per attribute set, 1 for a match.
    """

    def __init__(self, content: SourceContent, matching: bytes) -> None:
        self._content = content
        self._matching = matching
        self._sets = [number for number, matches in enumerate(matching) if matches]
        self.everything = 0 not in matching
        self._lists: dict[int, Sequence[int]] = {}
        self._before = [0]
        content.watch(self._on_block)

    def matches(self, sequence: int) -> bool:
        """Return True if the publication with this number matches (unless it is a fence)."""
        return bool(self._matching[self._content.choice(sequence)[0]])

    def find_in_block(self, sequence: int) -> Sequence[int]:
        """Return the matching sequence numbers of the block with `sequence`, ascending."""
        first = self._content.first_of_block(sequence)
        found = self._lists.get(first)
        if found is None:
            found = self._select(self._content.block_of(sequence))
            if len(self._lists) >= _LISTS_KEPT:
                del self._lists[next(iter(self._lists))]
            self._lists[first] = found
        return found

    def _select(self, block: ContentBlock) -> Sequence[int]:
        numbers = range(block.first, block.first + len(block))
        if self.everything:
            return numbers
        if len(self._sets) <= _FEW_SETS:
            parts = [part for chosen in self._sets if (part := block.by_set.get(chosen))]
            return parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts))
        if isinstance(block.sets, bytes):
            flags = block.sets.translate(self._matching.ljust(256, b"\0"))
            return list(compress(numbers, flags))
        return list(compress(numbers, map(self._matching.__getitem__, block.sets)))

    def _on_block(self, number: int, block: ContentBlock) -> None:
        """Add the matches of a block to the sums, if the sums of all blocks before are complete."""
        if number == len(self._before) - 1 and self._sets and not self.everything:
            self._before.append(self._before[-1] + self._count(block))

    def _count(self, block: ContentBlock) -> int:
        if len(self._sets) <= _FEW_SETS:
            return sum([len(block.by_set.get(chosen, ())) for chosen in self._sets])
        if isinstance(block.sets, bytes):
            return block.sets.translate(self._matching.ljust(256, b"\0")).count(1)
        return sum(map(self._matching.__getitem__, block.sets))

    def count_between(self, after: int, up_to: int) -> int:
        """Return the number of matching sequence numbers above `after`, to `up_to` included."""
        if self.everything:
            return up_to - after
        if not self._sets:
            return 0
        return self._count_up_to(up_to) - self._count_up_to(after)

    def _count_up_to(self, last: int) -> int:
        if last < 1:
            return 0
        size = self._content.block_size
        number = (last - 1) // size
        while len(self._before) <= number:
            self._content.compute(len(self._before) - 1)
        return self._before[number] + bisect_right(self.find_in_block(last), last)

    def is_next(self, after: int, sequences: Sequence[int]) -> bool:
        """Return True if `sequences` are exactly the matching numbers that follow `after`."""
        if self.everything:
            return sequences[0] == after + 1 and sequences[-1] == after + len(sequences)
        position, at, last = 0, after + 1, sequences[-1]
        size = self._content.block_size
        while position < len(sequences) and at <= last:
            numbers = self.find_in_block(at)
            start = bisect_left(numbers, at)
            wanted = tuple(numbers[start : start + len(sequences) - position])
            if tuple(sequences[position : position + len(wanted)]) != wanted:
                return False
            position += len(wanted)
            at = ((at - 1) // size + 1) * size + 1
        return position == len(sequences)


class MatchTables:
    """Matches of attribute sets and predicates; equal tables are one object.

    A predicate is evaluated once for each combination of values of its attributes, so a million
    sets with few combinations cost little.
    """

    def __init__(self, attribute_sets: Sequence[AttributeSet]) -> None:
        self._attribute_sets = attribute_sets
        self._alike: dict[frozenset[str], list[list[int]]] = {}
        self._tables: dict[bytes, bytes] = {}

    def table(self, predicate: PredicateNode) -> bytes:
        """Return one byte per attribute set: 1 if the predicate holds."""
        table = bytearray(len(self._attribute_sets))
        for numbers in self._sets_alike(frozenset(predicate.attributes())):
            if predicate.holds(self._attribute_sets[numbers[0]]):
                for number in numbers:
                    table[number] = 1
        found = bytes(table)
        return self._tables.setdefault(found, found)

    def _sets_alike(self, names: frozenset[str]) -> list[list[int]]:
        """Return the sets in groups with equal values, of equal types, of these attributes."""
        alike = self._alike.get(names)
        if alike is None:
            by_values: dict[tuple[object, ...], list[int]] = {}
            for number, attributes in enumerate(self._attribute_sets):
                values = [attributes.get(name) for name in names]
                by_values.setdefault((*values, *map(type, values)), []).append(number)
            alike = self._alike[names] = list(by_values.values())
        return alike


@dataclass(frozen=True, slots=True)
class RunContent:
    """The content of a received run, compared with the content from the seed.

    Attributes:
        digests: CRC-32 of attribute blob and payload as received, per publication.
        corrupted: positions with a content other than the content from the seed.
        fences: positions of fences.
    """

    digests: "array[int]"
    corrupted: tuple[int, ...] = ()
    fences: tuple[int, ...] = ()


class ContentCheck:
    """Digests of received runs, fast for correct contents.

    Bytes that equal the expected bytes have the expected digest. So the comparison of a whole run
    replaces the digest of every publication. If a run differs anywhere, each digest is computed.
    """

    def __init__(self, blobs: Sequence[bytes], fence_blob: bytes) -> None:
        self._fence_blob = fence_blob
        # Equal sets have the same blob, so a blob stands for the first set with this blob.
        self._place_of_blob: dict[bytes, int] = {}
        for place, blob in enumerate(blobs):
            self._place_of_blob.setdefault(blob, place)

    def examine(self, run: PublicationRun, content: SourceContent | None) -> RunContent:
        """Return the digests of a run, with its fences and corrupted publications.

        `content` is None for a source outside this run, and nothing is compared.
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
        """Examine a run of one publication, the usual case at low rates; see `_examine_whole`."""
        sequence = run.sequences[0]
        block = content.block_of(sequence)
        place = sequence - block.first
        tables = content.tables
        if (
            run.attribute_table[run.attribute_index[0]] == _blob(content, block, place)
            and b"".join(run.payload) == tables.payloads[block.payload_numbers[place]]
        ):
            return block.digests[place : place + 1]
        return None

    def _examine_whole(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """Return the digests if the run is exactly as expected, else None."""
        if content.tables.numbered is not None:
            return self._examine_numbered(run, content)
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
                payload.append(content.payload_of(block)[low * size : high * size])
            places = parts[0] if len(parts) == 1 else _join(parts)
        else:
            places = []
            payloads = content.tables.payloads
            for block, offsets in _offsets(run.sequences, content):
                pick = itemgetter(*offsets, offsets[0])  # two items always make a tuple
                digests.extend(pick(block.digests)[:-1])
                places.extend(pick(block.blob_places)[:-1])
                payload.extend([payloads[n] for n in pick(block.payload_numbers)[:-1]])
        if not _is_same(run.attribute_index, translation, places):
            return None
        return digests if b"".join(payload) == b"".join(run.payload) else None

    def _examine_numbered(self, run: PublicationRun, content: SourceContent) -> "array[int] | None":
        """Examine a run of publications with different blobs; see `_examine_whole`."""
        digests = array("I")
        blobs: list[bytes] = []
        payload: list[bytes] = []
        for block, offsets in _offsets(run.sequences, content):
            pick = itemgetter(*offsets, offsets[0])
            digests.extend(pick(block.digests)[:-1])
            blobs.extend(pick(block.blobs)[:-1])
            payload.extend([content.tables.payloads[n] for n in pick(block.payload_numbers)[:-1]])
        if [run.attribute_table[place] for place in run.attribute_index] != blobs:
            return None
        return digests if b"".join(payload) == b"".join(run.payload) else None

    def _examine_singly(self, run: PublicationRun, content: SourceContent) -> RunContent:
        digests = array("I")
        corrupted, fences = [], []
        for position, (sequence, blob, payload) in enumerate(run.publications()):
            digests.append(content_digest(blob, payload))
            _, payload_number = content.choice(sequence)
            expected_blob = content.blob(sequence)
            if blob == self._fence_blob:
                fences.append(position)
                expected_blob = blob
            if blob != expected_blob or payload != content.tables.payloads[payload_number]:
                corrupted.append(position)
        return RunContent(digests, tuple(corrupted), tuple(fences))


def _blob(content: SourceContent, block: ContentBlock, place: int) -> bytes:
    """Return the expected blob of a publication of a block."""
    return block.blobs[place] if block.blobs else content.tables.blobs[block.sets[place]]


def _stretches(sequences: range, content: SourceContent) -> Iterable[tuple[ContentBlock, int, int]]:
    """Yield the blocks of consecutive sequence numbers, with the range in each block."""
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
    """Yield the blocks of ascending sequence numbers, with the places in each block."""
    start = 0
    while start < len(sequences):
        block = content.block_of(sequences[start])
        first = block.first
        end = bisect_left(sequences, first + len(block), start)
        yield block, [sequence - first for sequence in sequences[start:end]]
        start = end


def _join(parts: Sequence[bytes | list[int]]) -> bytes | list[int]:
    if all(isinstance(part, bytes) for part in parts):
        return b"".join(map(bytes, parts))
    return [place for part in parts for place in part]


def _is_same(index: Sequence[int], translation: list[int], places: list[int] | bytes) -> bool:
    """Return True if the blobs in the index of a run are the blobs at `places`."""
    if isinstance(places, bytes) and isinstance(index, bytes):
        return index.translate(bytes(translation).ljust(256, b"\0")) == places
    return [translation[place] for place in index] == list(places)
