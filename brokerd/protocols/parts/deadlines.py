"""Keyed deadlines, earliest first: the timers of a core."""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from brokerd.protocols.interface import Instant

_STALE: Final = 32
"""The number of moved or cancelled entries that may stay in the heap before a sweep."""

Key = TypeVar("Key", bound=Hashable)


class DeadlineQueue(Generic[Key]):
    """A queue with at most one deadline per key; a second `set` moves the deadline.

    Keys due at the same instant are returned in the order in which they were set.

    Attributes:
        changes: increases with every `set`, `cancel` and `due`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, Key]] = []
        self._current: dict[Key, tuple[Instant, int]] = {}
        self._sets = 0
        self.changes = 0

    def set(self, key: Key, at_ns: Instant) -> None:
        """Set the deadline of `key` to `at_ns`; replaces an earlier deadline."""
        self._sets += 1
        self.changes += 1
        self._current[key] = (at_ns, self._sets)
        heapq.heappush(self._heap, (at_ns, self._sets, key))
        if len(self._heap) > 2 * len(self._current) + _STALE:
            self._heap = [(when, number, each) for each, (when, number) in self._current.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of `key`; has no effect without a deadline."""
        self._current.pop(key, None)
        self.changes += 1

    def __contains__(self, key: Key) -> bool:
        return key in self._current

    def instant(self, key: Key) -> Instant | None:
        """Return the deadline of `key`; None without a deadline."""
        found = self._current.get(key)
        return found[0] if found is not None else None

    def earliest(self) -> Instant | None:
        """Return the next instant at which a key falls due; None for an empty queue."""
        while self._heap:
            at_ns, number, key = self._heap[0]
            if self._current.get(key) == (at_ns, number):
                return at_ns
            heapq.heappop(self._heap)
        return None

    def in_order(self) -> list[tuple[Key, Instant]]:
        """Return every key with its deadline, in the order in which they fall due."""
        found = sorted(self._current.items(), key=lambda item: item[1])
        return [(key, at_ns) for key, (at_ns, _) in found]

    def due(self, now_ns: Instant) -> list[Key]:
        """Remove and return every key due at `now_ns` or before, earliest first."""
        found: list[Key] = []
        self.changes += 1
        while (at_ns := self.earliest()) is not None and at_ns <= now_ns:
            key = heapq.heappop(self._heap)[2]
            del self._current[key]
            found.append(key)
        return found
