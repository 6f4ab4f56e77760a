"""Whether the comparison of repetitions can be believed on this machine: trials with known answers.

Half of the trials compare two series of the same thing, half of them one with a second one that was
made slower on purpose. Of 20 alike at most one may be said to differ, of 20 slowed at least 19 must
be said to be slower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from results.repetitions.spread import Difference, difference_of

SCHEMA: Final = "pubsubctl/compare-selftest/1"
SLOWDOWN: Final = 0.10
WRONG_OF: Final = 20
"""Of so many trials of a kind, one may be wrong."""

Measure = Callable[[bool], float]
"""One repetition's figure, of which less is better; of the slowed side when true."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison whose answer is known.

    Attributes:
        planted: whether the second series was slowed.
    """

    number: int
    planted: bool
    difference: Difference

    @property
    def said(self) -> str:
        """What the comparison says of the second series."""
        if self.difference.outcome != "differs":
            return self.difference.outcome
        return "slower" if (self.difference.ratio or 0) > 1 else "faster"

    @property
    def is_right(self) -> bool:
        """A series of the same thing must not differ; a slowed one must be slower."""
        return self.said == "slower" if self.planted else self.difference.outcome != "differs"

    def row(self) -> dict[str, Any]:
        """For JSON."""
        found = self.difference
        return {
            "trial": self.number, "planted": self.planted, "ratio": found.ratio,
            "low": found.low, "high": found.high, "said": self.said, "right": self.is_right,
        }  # fmt: skip


def trial_of(number: int, planted: bool, instances: int, measure: Measure) -> Trial:
    """Make two series in turn (A B, B A, …), as `bench --against` does, and compare them."""
    series: tuple[list[float], list[float]] = ([], [])
    for repetition in range(instances):
        for side in (0, 1) if repetition % 2 == 0 else (1, 0):
            series[side].append(measure(planted and side == 1))
    return Trial(number, planted, difference_of(*series))


def can_be_believed(trials: list[Trial]) -> bool:
    """Whether of each kind at most one of 20 is wrong."""
    return all(
        WRONG_OF * sum(not trial.is_right for trial in kind) <= len(kind)
        for planted in (False, True)
        for kind in [[trial for trial in trials if trial.planted == planted]]
    )
