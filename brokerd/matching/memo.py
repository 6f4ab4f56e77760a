"""Matching results cached by attribute blob, so that repeated contents cost a look-up."""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from brokerd.matching.index import MatchingIndex
from brokerd.model.losses import MARKER
from brokerd.model.predicate import DecodeAttributes

Key = TypeVar("Key", bound=Hashable)

Result = TypeVar("Result")

MEMO_LIMIT = 65_536
AT_ONCE = 1_024
"""Number of blobs that are decoded together."""


def _keys_themselves(keys: tuple[Any, ...]) -> Any:
    return keys


class MatchMemo(Generic[Key, Result]):
    """`index.match` on undecoded attribute blobs, with a bounded cache.

    The cache contains the results of `conclude` for the keys (by default the keys themselves). A
    loss marker matches every key.

    Blobs with the same keys share one result object between two calls of `forget`, so that code
    that sorts publications by result can compare with `is`.

    Code that changes the index must call `forget`. A full cache is cleared: for contents that never
    repeat, caching costs one insertion per blob and nothing else.

    Args:
        limit: number of cached blobs; 0 for MEMO_LIMIT.

    Attributes:
        hits, misses: look-ups answered from the cache, and other look-ups.
    """

    def __init__(
        self,
        index: MatchingIndex[Key],
        decode: DecodeAttributes,
        limit: int = 0,
        conclude: Callable[[tuple[Key, ...]], Result] = _keys_themselves,
    ) -> None:
        self._index = index
        self._decode = decode
        self._limit = limit or MEMO_LIMIT
        self._conclude = conclude
        self._results: dict[bytes, Result] = {}
        self._by_keys: dict[tuple[Key, ...], Result] = {}
        self.hits = 0
        self.misses = 0

    def match(self, blob: bytes) -> Result:
        """Return the conclusion from the keys with a predicate that matches these attributes.

        Raises:
            ValueError: the blob is not an attribute map: the sender's fault.
        """
        result = self._results.get(blob)
        if result is not None:
            self.hits += 1
            return result
        (result,) = self._match_new((blob,))
        return result

    def match_all(self, blobs: Sequence[bytes]) -> list[Result]:
        """Return the result of `match` for each of many.

        New blobs are decoded and matched together.

        Raises:
            ValueError: a blob is not an attribute map: the sender's fault.
        """
        try:
            found = list(map(self._results.__getitem__, blobs))
        except KeyError:
            known = dict(zip(blobs, map(self._results.get, blobs), strict=True))
            new = [blob for blob, result in known.items() if result is None]
            if len(new) == len(blobs):
                return self._match_in_parts(blobs)
            self.hits += len(blobs) - len(new)
            known.update(zip(new, self._match_in_parts(new), strict=True))
            return list(map(known.__getitem__, blobs))  # type: ignore[arg-type]
        self.hits += len(found)
        return found

    def _match_in_parts(self, blobs: Sequence[bytes]) -> list[Result]:
        """Match blobs in parts, so that the number of blobs decoded together is bounded."""
        parts = range(0, len(blobs), AT_ONCE)
        return list(chain.from_iterable([self._match_new(blobs[n : n + AT_ONCE]) for n in parts]))

    def _match_new(self, blobs: Sequence[bytes]) -> list[Result]:
        matched = self._index.match_all(self._decode(blobs))
        if MARKER in blobs:
            every = self._index.keys()
            matched = [
                every if blob == MARKER else keys for blob, keys in zip(blobs, matched, strict=True)
            ]
        self.misses += len(blobs)
        results: list[Result] = []
        before: tuple[Key, ...] | None = None
        for keys in matched:
            if keys is not before:
                before = keys
                result = self._conclusion(keys)
            results.append(result)
        if len(self._results) + len(blobs) > self._limit:
            self._results.clear()
        self._results.update(zip(blobs[: self._limit], results, strict=False))
        return results

    def _conclusion(self, keys: tuple[Key, ...]) -> Result:
        result = self._by_keys.get(keys)
        if result is None:
            if len(self._by_keys) >= self._limit:
                self._by_keys.clear()
            result = self._by_keys[keys] = self._conclude(keys)
        return result

    def forget(self) -> None:
        """Clear the cache; required after each change of the index."""
        self._results.clear()
        self._by_keys.clear()
