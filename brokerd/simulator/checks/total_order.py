"""The check that any two subscriptions receive their common publications in the same order."""

from brokerd.simulator.world.streams import Publication


class TotalOrder:
    """A comparison of each delivery with the deliveries of all other subscriptions."""

    def __init__(self) -> None:
        self._places: list[dict[Publication, int]] = []
        self._highest: dict[tuple[int, int], int] = {}

    def begin(self) -> int:
        """Return the number of a new subscription without deliveries."""
        self._places.append({})
        return len(self._places) - 1

    def got(self, subscription: int, publication: Publication) -> list[int]:
        """Record a first delivery; return the subscriptions with another order."""
        mine = self._places[subscription]
        mine[publication] = here = len(mine)
        differing = []
        for other, places in enumerate(self._places):
            there = places.get(publication)
            if other == subscription or there is None:
                continue
            highest = self._highest.get((subscription, other), -1)
            if there < highest:
                differing.append(other)
            self._highest[subscription, other] = max(there, highest)
            self._highest[other, subscription] = here
        return differing
