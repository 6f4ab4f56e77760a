"""Whether subscriptions of one process get what two of them get in the same order, as it comes.

In bounded memory: of the last publications, for the first few subscriptions. Those that come
later than so many others, and subscriptions of other processes, are for the checkers that read all
logs.
"""

from collections.abc import Sequence
from typing import Final

_KEPT: Final = 8192
"""So many publications' places are remembered."""
COMPARED: Final = 16
"""So many subscriptions are compared with each other; each delivery costs as many steps."""

Publication = tuple[str, int, int]
"""Publisher, incarnation, sequence number."""


class SharedOrder:
    """Compares each delivery with those of the same publication to other subscriptions.

    Args:
        subscriptions: all of this process.
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
        """How many pairs of subscriptions got something in different orders."""
        return len(self._differing)

    def got(
        self, subscription: str, publisher: str, incarnation: int, sequences: Sequence[int]
    ) -> None:
        """A subscription was given these, in this order; what it had before does not count."""
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
