"""Whether any two subscriptions get what both get in the same order, as it comes."""

from brokerd.simulator.world.streams import Publication


class TotalOrder:
    """Compares each delivery with those to all other subscriptions, ended ones too."""

    def __init__(self) -> None:
        self._places: list[dict[Publication, int]] = []
        self._highest: dict[tuple[int, int], int] = {}

    def begin(self) -> int:
        """The number of a subscription that has got nothing."""
        self._places.append({})
        return len(self._places) - 1

    def got(self, subscription: int, publication: Publication) -> list[int]:
        """Note its first delivery; returns who got it before something that this one had first."""
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
