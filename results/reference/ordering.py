"""The comparison of the orders in which subscriptions received common publications."""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise

from results.reference.history import Key, Violation

Publication = tuple[str, Key]
"""A publication: source and key."""


def differences(places: Mapping[str, Mapping[Publication, int]]) -> Iterator[Violation]:
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
