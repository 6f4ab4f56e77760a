"""Sequence numbers of a source that match a predicate, computed from the seed.

A predicate is evaluated once for each attribute set; the match of a publication follows from the
set that the seed chose. The sets of a block of publications are sorted once for all predicates.
Each predicate keeps the number of matches before every block, so the number of matches between two
sequence numbers costs two blocks at any distance.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, compress

from bench.load.content import AttributeSet, ContentBlock, SourceContent
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

    def in_block_of(self, sequence: int) -> Sequence[int]:
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
        return self._before[number] + bisect_right(self.in_block_of(last), last)

    def are_next(self, after: int, sequences: Sequence[int]) -> bool:
        """Return True if `sequences` are exactly the matching numbers that follow `after`."""
        if self.everything:
            return sequences[0] == after + 1 and sequences[-1] == after + len(sequences)
        position, at, last = 0, after + 1, sequences[-1]
        size = self._content.block_size
        while position < len(sequences) and at <= last:
            numbers = self.in_block_of(at)
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
