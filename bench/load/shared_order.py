"""Comparison of the orders in which subscriptions of one process receive shared publications.

Memory is bounded: the comparison covers the last publications, and the first few subscriptions.
Checkers that read all logs compare later deliveries, and subscriptions of other processes.
"""

from collections.abc import Sequence
from typing import Final

_KEPT: Final = 8192
"""Number of publications with remembered places."""
COMPARED: Final = 16
"""Number of subscriptions that are compared; each delivery costs as many steps."""

Publication = tuple[str, int, int]
"""Publisher, incarnation, sequence number."""


class SharedOrder:
    """A comparison of each delivery with deliveries of the same publication to other subscriptions.

    Args:
        subscriptions: all subscriptions of this process.
    """

    def __init__(self, subscriptions: Sequence[str]) -> None:
        compared = subscriptions[:COMPARED]
        self._numbers = {name: number for number, name in enumerate(compared)}
        self._next = [0] * len(compared)
        self._highest = [[-1] * len(compared) for _ in compared]
        self._places: dict[Publication, dict[int, int]] = {}
        self._differing: dict[tuple[int, int], None] = {}

    @property
    def differing(self) -> int:
        """The number of pairs of subscriptions with different orders."""
        return len(self._differing)

    def got(
        self, subscription: str, publisher: str, incarnation: int, sequences: Sequence[int]
    ) -> None:
        """Record publications in the order of a subscription; repetitions do not count."""
        number = self._numbers.get(subscription)
        if number is None:
            return
        highest = self._highest
        for sequence in sequences:
            places = self._places_of((publisher, incarnation, sequence))
            if number in places:
                continue
            for other, there in places.items():
                if there < highest[number][other]:
                    self._differing[min(number, other), max(number, other)] = None
                highest[number][other] = max(there, highest[number][other])
                highest[other][number] = self._next[number]
            places[number] = self._next[number]
            self._next[number] += 1

    def _places_of(self, publication: Publication) -> dict[int, int]:
        found = self._places.get(publication)
        if found is None:
            found = self._places[publication] = {}
            if len(self._places) > _KEPT:
                del self._places[next(iter(self._places))]
        return found
