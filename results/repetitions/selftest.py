"""Reliability of comparisons on this machine: trials with predetermined answers.

Half of the trials compare two equal series, the other half a series with a slowed second series. Of
20 trials with equal series at most 1 may report a difference; of 20 trials with a slowed series at
least 19 must report "slower".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from results.repetitions.spread import Difference, difference_of

SCHEMA: Final = "pubsubctl/compare-selftest/1"
SLOWDOWN: Final = 0.10
WRONG_OF: Final = 20
"""The number of trials of a kind among which a single trial may be wrong."""

Measure = Callable[[bool], float]
"""Returns the figure of a repetition, of which less is better; of the slowed side if True."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A comparison with a predetermined answer.

    Attributes:
        planted: True if the second series was slowed.
    """

    number: int
    planted: bool
    difference: Difference

    @property
    def outcome(self) -> str:
        """Return the outcome of the comparison for the second series."""
        if self.difference.outcome != "differs":
            return self.difference.outcome
        return "slower" if (self.difference.ratio or 0) > 1 else "faster"

    @property
    def is_right(self) -> bool:
        """Return True for no difference of equal series, and for a slower slowed series."""
        return self.outcome == "slower" if self.planted else self.difference.outcome != "differs"

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        found = self.difference
        return {
            "trial": self.number, "planted": self.planted, "ratio": found.ratio,
            "low": found.low, "high": found.high, "said": self.outcome, "right": self.is_right,
        }  # fmt: skip


def trial_of(number: int, planted: bool, instances: int, measure: Measure) -> Trial:
    """Measure two series in turn (A B, B A, …), like `compare --against`, and compare both."""
    series: tuple[list[float], list[float]] = ([], [])
    for repetition in range(instances):
        for side in (0, 1) if repetition % 2 == 0 else (1, 0):
            series[side].append(measure(planted and side == 1))
    return Trial(number, planted, difference_of(*series))


def can_be_believed(trials: list[Trial]) -> bool:
    """Return True if at most 1 in 20 trials of each kind is wrong."""
    return all(
        WRONG_OF * sum(not trial.is_right for trial in kind) <= len(kind)
        for planted in (False, True)
        for kind in [[trial for trial in trials if trial.planted == planted]]
    )
