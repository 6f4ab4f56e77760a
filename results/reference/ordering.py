"""Whether subscriptions that got the same publications got them in the same order."""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise

from results.reference.history import Key, Violation

Publication = tuple[str, Key]
"""A publication: its source, and which it is of those."""


def differences(places: Mapping[str, Mapping[Publication, int]]) -> Iterator[Violation]:
    """One for any two subscriptions that got what both got in different orders.

    Args:
        places: by subscription, where in its log each publication is.
    """
    for first, second in combinations(sorted(places), 2):
        there, here = places[first], places[second]
        both = sorted((one for one in here if one in there), key=here.__getitem__)
        for before, after in pairwise(both):
            if there[after] < there[before]:
                source, key = after
                yield Violation("order_differs", second, source, *key, here[after])
                break
