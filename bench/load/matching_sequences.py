"""Which sequence numbers of a source match a predicate, from what the seed says they contain."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import compress

from bench.load.content import AttributeSet, SourceContent

_LISTS_KEPT = 3


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


def match_table(
    matches: Callable[[AttributeSet], bool], attribute_sets: Sequence[AttributeSet]
) -> bytes:
    """One byte per attribute set: 1 where `matches` holds."""
    return bytes(bool(matches(attributes)) for attributes in attribute_sets)
