"""Fences where there are topics: one for each, of which a subscriber takes in the last."""

from collections.abc import Sequence

from brokerd.model.identity import SourceId


class FenceCopies:
    """Which copies of each fence a subscriber has got, one per topic that it wants.

    A fence is published to every topic, so that it is behind all that was published there before.
    It has come when all copies have; a copy that comes again is the fence coming again.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = frozenset(topics)
        self._seen: dict[tuple[SourceId, int], set[str]] = {}

    def is_complete(self, source: SourceId, sequence: int, topic: str) -> bool:
        """Take a copy; whether the fence is to be taken in with it."""
        seen = self._seen.setdefault((source, sequence), set())
        if topic in seen:
            return True
        seen.add(topic)
        return seen >= self._topics


class Places:
    """Which places of sources in topics a subscriber has got.

    Where no order is promised, what was published before a fence may come after it.
    """

    def __init__(self) -> None:
        self._first_open: dict[tuple[SourceId, str], int] = {}
        self._ahead: dict[tuple[SourceId, str], set[int]] = {}

    @property
    def holes(self) -> int:
        """How many places are open before the last one of theirs that has come."""
        return sum(
            max(ahead) - self._first_open[key] + 1 - len(ahead)
            for key, ahead in self._ahead.items()
            if ahead
        )

    def take(self, source: SourceId, topic: str, place: int) -> None:
        """It has come, perhaps again."""
        key = (source, topic)
        first_open, ahead = self._first_open.get(key, 1), self._ahead.setdefault(key, set())
        if place >= first_open:
            ahead.add(place)
        while first_open in ahead:
            ahead.remove(first_open)
            first_open += 1
        self._first_open[key] = first_open
