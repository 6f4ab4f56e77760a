"""Matching results remembered by attribute blob, so that repeated contents cost a look-up."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from brokerd.matching.index import MatchingIndex
from brokerd.model.predicate import Attributes

Key = TypeVar("Key", bound=Hashable)

Result = TypeVar("Result")

MEMO_LIMIT = 65_536


def _keys_themselves(keys: tuple[Any, ...]) -> Any:
    return keys


class MatchMemo(Generic[Key, Result]):
    """`index.match` on undecoded attribute blobs, with a bounded memory.

    What is remembered is what `conclude` makes of the keys (by default the keys themselves).
    Blobs with the same keys share one result object between two `forget`s, so that whoever
    sorts publications by result compares with `is`.

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
        conclude: Callable[[tuple[Key, ...]], Result] = _keys_themselves,
    ) -> None:
        self._index = index
        self._decode = decode
        self._limit = limit
        self._conclude = conclude
        self._results: dict[bytes, Result] = {}
        self._by_keys: dict[tuple[Key, ...], Result] = {}
        self.hits = 0
        self.misses = 0

    def match(self, blob: bytes) -> Result:
        """What follows from the keys whose predicate holds for these attributes.

        Raises:
            ValueError: the blob is not an attribute map: the fault of whoever sent it.
        """
        result = self._results.get(blob)
        if result is not None:
            self.hits += 1
            return result
        self.misses += 1
        keys = self._index.match(self._decode(blob))
        if len(self._results) >= self._limit:
            self._results.clear()
        result = self._by_keys.get(keys)
        if result is None:
            if len(self._by_keys) >= self._limit:
                self._by_keys.clear()
            result = self._by_keys[keys] = self._conclude(keys)
        self._results[blob] = result
        return result

    def forget(self) -> None:
        """Drop everything remembered; needed after each change of the index."""
        self._results.clear()
        self._by_keys.clear()
