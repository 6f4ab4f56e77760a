"""Fences with topics: one copy per topic; a subscriber accepts the fence with the last copy."""

from collections.abc import Sequence

from brokerd.model.identity import SourceId


class FenceCopies:
    """The copies of each fence that a subscriber has received, one per topic of the subscription.

    A fence is published to every topic, behind all earlier publications of the topic. The fence has
    arrived when all copies have arrived. A repeated copy is a repetition of the fence.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = frozenset(topics)
        self._seen: dict[tuple[SourceId, int], set[str]] = {}

    def is_complete(self, source: SourceId, sequence: int, topic: str) -> bool:
        """Add a copy. Return True if the fence is complete with this copy."""
        seen = self._seen.setdefault((source, sequence), set())
        if topic in seen:
            return True
        seen.add(topic)
        return seen >= self._topics


class Places:
    """The places of sources in topics that a subscriber has received.

    Without a promised order, publications from before a fence may arrive after the fence.
    """

    def __init__(self) -> None:
        self._first_open: dict[tuple[SourceId, str], int] = {}
        self._ahead: dict[tuple[SourceId, str], set[int]] = {}

    @property
    def holes(self) -> int:
        """The number of missing places before the last received place."""
        return sum(
            max(ahead) - self._first_open[key] + 1 - len(ahead)
            for key, ahead in self._ahead.items()
            if ahead
        )

    def take(self, source: SourceId, topic: str, place: int) -> None:
        """Add a received place, perhaps again."""
        key = (source, topic)
        first_open, ahead = self._first_open.get(key, 1), self._ahead.setdefault(key, set())
        if place >= first_open:
            ahead.add(place)
        while first_open in ahead:
            ahead.remove(first_open)
            first_open += 1
        self._first_open[key] = first_open
