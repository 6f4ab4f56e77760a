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
