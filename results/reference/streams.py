"""Checks of the places of deliveries in streams, and of the orders of common publications."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from results.reference.history import Key, Violation

Publication = tuple[str, Key]
"""A publication: source and key."""


@dataclass(frozen=True, slots=True, order=True)
class PlacedPublication:
    """A publication at a place of a stream."""

    stream: str
    position: int
    source: str
    key: Key

    def violation(self, kind: str, subscription: str = "") -> Violation:
        """Return a violation at this place."""
        return Violation(kind, subscription, self.source, *self.key)


def wrong_places(logs: Mapping[str, Sequence[PlacedPublication]]) -> Iterator[Violation]:
    """Yield wrong places within a log, and between all logs.

    Args:
        logs: publications in the order received, by subscription.
    """
    for name, log in logs.items():
        reached: dict[str, int] = {}
        for one in log:
            if one.position <= reached.get(one.stream, -1):
                yield one.violation("place_back", name)
            reached[one.stream] = one.position
    everywhere = sorted({one for log in logs.values() for one in log})
    at: dict[tuple[str, int], list[PlacedPublication]] = {}
    of: dict[tuple[str, Key], list[PlacedPublication]] = {}
    streams: dict[tuple[str, str], list[PlacedPublication]] = {}
    for one in everywhere:
        at.setdefault((one.stream, one.position), []).append(one)
        of.setdefault((one.source, one.key), []).append(one)
        streams.setdefault((one.stream, one.source), []).append(one)
    for several in (*at.values(), *of.values()):
        if len(several) > 1:
            yield several[1].violation("place_taken")
    for placed in streams.values():
        for before, after in pairwise(sorted(placed, key=lambda one: (one.position, one.key))):
            if after.key < before.key:
                yield after.violation("place_order")


def order_differences(places: Mapping[str, Mapping[Publication, int]]) -> Iterator[Violation]:
    """Yield a violation for any two subscriptions with different orders of publications.

    Args:
        places: places of publications in the log, by subscription.
    """
    for first, second in combinations(sorted(places), 2):
        there, here = places[first], places[second]
        both = sorted((one for one in here if one in there), key=here.__getitem__)
        for before, after in pairwise(both):
            if there[after] < there[before]:
                source, key = after
                yield Violation("order_differs", second, source, *key, here[after])
                break
