"""The typical one of several repetitions, by a rule and not by eye.

It is the medoid: the one whose distances to all others sum up to the least. The distance of two
is the mean, over all places where either has a value, of how far their logarithms (of 10) are
apart; where one has none, 1, as if it were ten times as large.

Paper: [GD02] §4.2 ("a modal instance"). Deviates: it does not say how it was chosen.
"""

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)

ABSENT = 1.0
"""The distance where one has a value and the other has none."""


def modal(instances: Mapping[str, Mapping[Place, float]]) -> str:
    """Which instance is the typical one; of several, the one whose name comes first.

    Args:
        instances: by name, its values (above 0) by place.
    """
    assert instances, "no instances"
    sums = {
        name: math.fsum(distance(values, other) for other in instances.values())
        for name, values in instances.items()
    }
    return min(sorted(sums), key=lambda name: sums[name])


def distance(one: Mapping[Place, float], other: Mapping[Place, float]) -> float:
    """How far two instances are apart; 0 for the same, and the same both ways."""
    places = {**one, **other}
    if not places:
        return 0.0
    return math.fsum(_apart(one.get(place), other.get(place)) for place in places) / len(places)


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return ABSENT
    return abs(math.log10(one) - math.log10(other))
