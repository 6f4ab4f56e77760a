"""Statistics of repetitions: the spread of a number, and the difference of two numbers.

`scipy.stats.ttest_ind` warns of lost precision for values that hardly vary, such as counts. The
sums here are exact; scipy supplies the distributions.

The typical run among repetitions is the medoid: the run with the least sum of distances to all
others. The distance of two runs is the mean, over all places with a value in either, of the
difference of logarithms (of 10); for a place with only one value, the difference is 1, as for a
factor of ten.

Paper: [GD02] §4.2 ("a modal instance"). Deviates: the paper does not describe the selection.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

CONFIDENCE: Final = 0.95
SAME_WITHIN: Final = 0.05
"""Two means are the same if the interval of their ratio is within this distance of 1."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over repetitions.

    Attributes:
        low, high: the 95 % interval of the mean, as `_interval` defines it; None for a single
            value.
    """

    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @property
    def smallest(self) -> float:
        return min(self.values)

    @property
    def largest(self) -> float:
        return max(self.values)

    def row(self) -> dict[str, object]:
        """Return a mapping for JSON."""
        return {
            "n": len(self.values), "mean": self.mean, "low": self.low, "high": self.high,
            "smallest": self.smallest, "largest": self.largest, "values": list(self.values),
        }  # fmt: skip


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of some values, at least one."""
    assert values, "no values"
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Spread(tuple(values), mean, None, None)
    return Spread(tuple(values), mean, *_interval(values, mean))


def _interval(values: Sequence[float], mean: float) -> tuple[float, float]:
    """Return the 95 % interval of the mean of two or more values, by Student's t.

    If all values are above 0, the interval is symmetric on a scale of logarithms: the mean divided
    by, and multiplied by, a factor. Its half width there is that of the plain interval, relative to
    the mean (the delta method). So no bound of a latency is negative, and small spreads agree with
    the plain interval. Values that include a 0, and none below, have a plain interval that ends at
    0.
    """
    largest = max(map(abs, values)) or 1.0
    error = largest * math.sqrt(_variance(values, largest) / len(values))
    half = _student(len(values) - 1) * error
    if min(values) > 0:
        return mean * math.exp(-half / mean), mean * math.exp(half / mean)
    return max(mean - half, 0.0) if min(values) == 0 else mean - half, mean + half


Outcome = Literal["differs", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the second of two numbers from the first.

    Attributes:
        ratio: second / first; None if either is not above 0.
        low, high: the 95 % interval of the ratio, or of the difference without a ratio
            (Welch's); None if repetitions are too few.
        p: probability of a difference as large by chance; None without an interval.
    """

    difference: float
    ratio: float | None
    low: float | None
    high: float | None
    outcome: Outcome
    p: float | None = None


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number, after Holm; None stays None.

    If nothing differs, the chance that any corrected value is below `1 - CONFIDENCE` is at most `1
    - CONFIDENCE`, for any number of values and any dependence between the values.
    """
    places = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(places):
        highest = max(highest, min(1.0, value * (len(places) - rank)))
        corrected[place] = highest
    return corrected


def difference_of(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of two numbers over repetitions.

    Means are compared by their logarithms, so that twice as much and half as much are equally far.
    Values that do not vary on either side have no variance to test by: they differ if so few
    divisions of all values separate them as well (an exact permutation test).
    """
    one, other = spread_of(first).mean, spread_of(second).mean
    difference = other - one
    if min(*first, *second) <= 0:
        return _plain(first, second, difference)
    ratio = math.exp(_mean_log(second) - _mean_log(first))
    interval = _welch([math.log(v) for v in first], [math.log(v) for v in second])
    if interval is None:
        same = {*first} == {*second}
        return Difference(difference, ratio, None, None, "same" if same else "cannot tell")
    low, high, p = math.exp(interval[0]), math.exp(interval[1]), interval[2]
    outcome: Outcome = "cannot tell"
    if low >= 1 / (1 + SAME_WITHIN) and high <= 1 + SAME_WITHIN:
        outcome = "same"
    elif (high < 1 or low > 1) and p <= 1 - CONFIDENCE:
        outcome = "differs"
    return Difference(difference, ratio, low, high, outcome, p)


def _plain(first: Sequence[float], second: Sequence[float], difference: float) -> Difference:
    """Return the difference without a ratio, for values that include a 0."""
    interval = _welch(first, second)
    if interval is None:
        same = {*first} == {*second}
        return Difference(difference, None, None, None, "same" if same else "cannot tell")
    low, high, p = interval
    if low == high == 0:
        return Difference(difference, None, low, high, "same", p)
    is_beyond = (low > 0 or high < 0) and p <= 1 - CONFIDENCE
    outcome: Outcome = "differs" if is_beyond else "cannot tell"
    return Difference(difference, None, low, high, outcome, p)


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the interval of mean(second) - mean(first), with its p-value.

    None if there is a single value on either side.
    """
    n, m = len(first), len(second)
    if min(n, m) < 2:
        return None
    difference = math.fsum(second) / m - math.fsum(first) / n
    largest = max(map(abs, (*first, *second))) or 1.0
    a, b = _variance(first, largest) / n, _variance(second, largest) / m
    if a + b == 0:
        # Rounded values are often equal by chance; 2 of all divisions separate them so far.
        return difference, difference, 1.0 if difference == 0 else 2 / math.comb(n + m, n)
    share = a / (a + b)
    freedom = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    error = largest * math.sqrt(a + b)
    half = _student(freedom) * error
    return difference - half, difference + half, _p_value(difference / error, freedom)


def _student(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _p_value(statistic: float, freedom: float) -> float:
    from scipy.stats import t

    return float(2 * t.sf(abs(statistic), freedom))


def _variance(values: Sequence[float], scale: float) -> float:
    """Return the variance of values in units of `scale`, so that no square is out of range."""
    mean = math.fsum(values) / len(values)
    return math.fsum(((value - mean) / scale) ** 2 for value in values) / (len(values) - 1)


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)


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
