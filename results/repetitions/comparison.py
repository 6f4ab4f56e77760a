"""Comparison of groups of runs: differences, sizes, and significance over repetitions.

Trials with predetermined answers show how reliable comparisons are on this machine. Half of the
trials compare two equal series, the other half a series with a slowed second series. Of 20 trials
with equal series at most 1 may report a difference; of 20 trials with a slowed series at least 19
must report "slower".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from results.repetitions.comparable import NotComparable, check_comparable, check_groups
from results.repetitions.numbers import NUMBERS, Number, numbers_of, words_of
from results.repetitions.spread import (
    CONFIDENCE,
    Difference,
    Spread,
    difference_of,
    holm,
    spread_of,
)

SCHEMA = "pubsubctl/compare/1"
TRIALS_SCHEMA: Final = "pubsubctl/compare-selftest/1"
SLOWDOWN: Final = 0.10
WRONG_OF: Final = 20
"""The number of trials of a kind among which a single trial may be wrong."""

Measure = Callable[[bool], float]
"""Returns the figure of a repetition, of which less is better; of the slowed side if True."""


@dataclass(frozen=True)
class Group:
    """Repetitions of a run, under a name for people."""

    name: str
    runs: tuple[Path, ...]


@dataclass(frozen=True)
class ComparedNumber:
    """A number of a group beside the first group's.

    Attributes:
        p: of the difference, corrected for all numbers of the comparison (Holm); None if
            repetitions are too few.
        verdict: `faster`, `slower`, `better`, `worse`, `same` or `cannot tell`.
    """

    number: Number
    group: str
    first: Spread
    second: Spread
    difference: Difference
    p: float | None
    verdict: str

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "number": self.number.name,
            "unit": self.number.unit,
            "group": self.group,
            "first": self.first.row(),
            "second": self.second.row(),
            "difference": self.difference.difference,
            "ratio": self.difference.ratio,
            "low": self.difference.low,
            "high": self.difference.high,
            "p": self.difference.p,
            "p_corrected": self.p,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Comparison:
    """Groups of runs compared with the first group.

    Attributes:
        differing: differing conditions: name → the value per group.
        rows: all numbers that both groups have.
    """

    groups: tuple[Group, ...]
    differing: Mapping[str, Sequence[Any]]
    rows: tuple[ComparedNumber, ...]

    def document(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "schema": SCHEMA,
            "groups": [
                {"name": group.name, "runs": [str(run) for run in group.runs]}
                for group in self.groups
            ],
            "differing": {name: [*values] for name, values in self.differing.items()},
            "compared": [row.row() for row in self.rows],
        }


def compare(groups: Sequence[Group]) -> Comparison:
    """Compare groups of runs with the first group.

    Raises:
        NotComparable: a required condition differs; names runs, reason and values.
        IntegrityError: a file of a run is damaged.
    """
    runs = [run for group in groups for run in group.runs]
    if empty := [group.name for group in groups if not group.runs]:
        raise NotComparable(f"{empty[0]}: no run of this point has ended")
    by_run = check_comparable(runs)
    check_groups([group.runs for group in groups], by_run)
    place = {run: number for number, run in reversed([*enumerate(runs)])}
    differing = {
        name: [values[place[group.runs[0]]] for group in groups] for name, values in by_run.items()
    }
    numbers = [_spreads(group) for group in groups]
    pairs = [
        (number, group.name, numbers[0][number.name], of_group[number.name])
        for group, of_group in zip(groups[1:], numbers[1:], strict=True)
        for number in NUMBERS
        if number.name in numbers[0] and number.name in of_group
    ]
    found = [difference_of(first.values, second.values) for _, _, first, second in pairs]
    corrected = holm([difference.p for difference in found])
    rows = [
        ComparedNumber(*pair, difference, p, _verdict(pair[0], difference, p))
        for pair, difference, p in zip(pairs, found, corrected, strict=True)
    ]
    return Comparison(tuple(groups), differing, tuple(rows))


def spreads_of(runs: Sequence[Path]) -> dict[str, Spread]:
    """Return the spread of each number that all of the given runs have."""
    found = [numbers_of(run) for run in runs]
    return {
        number.name: spread_of([values[number.name] for values in found])
        for number in NUMBERS
        if all(number.name in values for values in found)
    }


def _spreads(group: Group) -> dict[str, Spread]:
    return spreads_of(group.runs)


def _verdict(number: Number, difference: Difference, p: float | None) -> str:
    """Return the verdict on a number, given its corrected p-value."""
    if difference.outcome != "differs":
        return difference.outcome
    if p is not None and p > 1 - CONFIDENCE:
        return "cannot tell"
    ratio = difference.ratio
    if ratio is None:
        ratio = 2.0 if difference.difference > 0 else 0.5
    return words_of(number, ratio)


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
