"""The highest rate that brokers bear: which rates to try, in which order, and when it is known.

Rates are doubled until one is too high, the gap is halved until it is small, and the highest that
passed has to pass again. Then the same rates as shares of it are run, so that a picture shows how
latency rises towards it. What comes next follows from what was answered so far, and from nothing
else: who goes on after a crash answers the same questions again from what is written down.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

SHARES: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05)
"""Of the highest rate that passed; that one has been run several times."""
_DIGITS: Final = 3

Stage = Literal["bracket", "bisect", "confirm", "knee"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate to try, per second, and what for."""

    rate: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a search goes.

    Attributes:
        start: the first rate, per second.
        limit: no rate beyond is tried.
        resolution: the search ends where the lowest rate that failed is at most so much more than
            the highest that passed, as a share.
        confirmations: how often the highest one has to pass in all.
    """

    start: float
    limit: float
    resolution: float = 0.05
    confirmations: int = 3

    def __post_init__(self) -> None:
        assert 0 < self.start <= self.limit, (self.start, self.limit)
        assert 0 < self.resolution < 1, self.resolution
        assert self.confirmations >= 1, self.confirmations


@dataclass(slots=True)
class RateSearch:
    """A search under way.

    Attributes:
        passed: how often each rate passed that has never failed.
        failed: the rates that failed, however often they had passed.
    """

    bounds: Bounds
    passed: dict[float, int] = field(default_factory=dict)
    failed: set[float] = field(default_factory=set)
    _drawn: list[float] = field(default_factory=list)

    @property
    def highest(self) -> float | None:
        """The highest rate that passed below every one that failed; None where none did."""
        lowest = self.lowest_failed
        below = [rate for rate in self.passed if lowest is None or rate < lowest]
        return max(below, default=None)

    @property
    def lowest_failed(self) -> float | None:
        """None where none failed."""
        return min(self.failed, default=None)

    def next(self) -> Probe | None:
        """What to try now; None when all is known."""
        highest, lowest = self.highest, self.lowest_failed
        if lowest is None:
            if highest is None:
                return Probe(_round(self.bounds.start), "bracket")
            if highest < _round(self.bounds.limit):
                return Probe(_round(min(2 * highest, self.bounds.limit)), "bracket")
        elif highest is None:
            # Too much from the beginning: down, until something is so little that it is nothing.
            if lowest <= self.bounds.start / 64:
                return None
            return Probe(_round(lowest / 2), "bracket")
        elif (between := self._between(highest, lowest)) is not None:
            return Probe(between, "bisect")
        assert highest is not None, "nothing passed, and nothing failed"
        if self.passed[highest] < self.bounds.confirmations:
            return Probe(highest, "confirm")
        return next(self._knee(highest), None)

    def note(self, probe: Probe, *, has_passed: bool) -> None:
        """How a try went; of the knee nothing is decided by it."""
        if probe.stage == "knee":
            self._drawn.append(probe.rate)
        elif has_passed:
            self.passed[probe.rate] = self.passed.get(probe.rate, 0) + 1
        else:
            self.failed.add(probe.rate)
            self.passed.pop(probe.rate, None)

    def _between(self, highest: float, lowest: float) -> float | None:
        """A rate between these two; None where they are near enough."""
        if lowest <= highest * (1 + self.bounds.resolution):
            return None
        middle = _round(math.sqrt(highest * lowest))
        return middle if highest < middle < lowest else None

    def _knee(self, highest: float) -> Iterator[Probe]:
        for share in SHARES:
            rate = _round(share * highest)
            if rate not in self._drawn:
                yield Probe(rate, "knee")


def _round(rate: float) -> float:
    """A rate that people can read, and that a workload can say."""
    digits = _DIGITS - 1 - math.floor(math.log10(rate))
    return round(rate, digits)
