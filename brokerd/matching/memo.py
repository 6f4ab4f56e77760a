"""Matching results remembered by attribute blob, so that repeated contents cost a look-up."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from brokerd.matching.index import MatchingIndex
from brokerd.model.predicate import Attributes

Key = TypeVar("Key", bound=Hashable)

MEMO_LIMIT = 65_536


class MatchMemo(Generic[Key]):
    """`index.match` on undecoded attribute blobs, with a bounded memory.

    Whoever changes the index calls `forget`. When the memory is full it starts anew: for
    contents that never repeat, remembering costs one insertion each and nothing else.

    Attributes:
        hits, misses: look-ups answered from memory, and those that were not.
    """

    def __init__(
        self,
        index: MatchingIndex[Key],
        decode: Callable[[bytes], Attributes],
        limit: int = MEMO_LIMIT,
    ) -> None:
        self._index = index
        self._decode = decode
        self._limit = limit
        self._results: dict[bytes, tuple[Key, ...]] = {}
        self.hits = 0
        self.misses = 0

    def match(self, blob: bytes) -> tuple[Key, ...]:
        """The keys whose predicate holds for the publication with these attributes.

        Raises:
            ValueError: the blob is not an attribute map: the fault of whoever sent it.
        """
        result = self._results.get(blob)
        if result is not None:
            self.hits += 1
            return result
        self.misses += 1
        result = self._index.match(self._decode(blob))
        if len(self._results) >= self._limit:
            self._results.clear()
        self._results[blob] = result
        return result

    def forget(self) -> None:
        """Drop everything remembered; needed after each change of the index."""
        self._results.clear()
