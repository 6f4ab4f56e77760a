"""Selection of the typical run among repetitions, by a rule.

The typical run is the medoid: the run with the least sum of distances to all others. The distance
of two runs is the mean, over all places with a value in either, of the difference of logarithms (of
10); for a place with only one value, the difference is 1, as for a factor of ten.

Paper: [GD02] §4.2 ("a modal instance"). Deviates: the paper does not describe the selection.
"""

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)

ABSENT = 1.0
"""The distance at a place with only one value."""


def modal(instances: Mapping[str, Mapping[Place, float]]) -> str:
    """Return the typical instance; among equals, the first by name.

    Args:
        instances: by name, the values (above 0) by place.
    """
    assert instances, "no instances"
    sums = {
        name: math.fsum(distance(values, other) for other in instances.values())
        for name, values in instances.items()
    }
    return min(sorted(sums), key=lambda name: sums[name])


def distance(one: Mapping[Place, float], other: Mapping[Place, float]) -> float:
    """Return the distance of two instances; symmetric, and 0 for equal instances."""
    places = {**one, **other}
    if not places:
        return 0.0
    return math.fsum(_split(one.get(place), other.get(place)) for place in places) / len(places)


def _split(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return ABSENT
    return abs(math.log10(one) - math.log10(other))
