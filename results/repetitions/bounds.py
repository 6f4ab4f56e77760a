"""Bounds on numbers, and the points of a series that break bounds: the danger zone."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from brokerd.text import format_number
from results.repetitions.numbers import NUMBERS, Number
from results.tables.json_files import ResultsError

_NUMBERS: Final = {number.name: number for number in NUMBERS}


def check_bounds(bounds: Mapping[str, float]) -> None:
    """Refuse a bound on an unknown number of a run.

    Raises:
        ResultsError: names the number, and the available numbers.
    """
    for name, bound in bounds.items():
        if name not in _NUMBERS:
            raise ResultsError(f"{name!r} is no number of a run; there are {', '.join(_NUMBERS)}")
        if not isfinite(bound) or bound < 0:
            raise ResultsError(f"{name} = {bound}: a bound is a number, at least 0")


def passes(number: Number, value: float, bound: float) -> bool:
    """Return True if a value is on the wrong side of a bound."""
    return value > bound if number.better == "less" else value < bound


def beyond(about: Mapping[str, Any], bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield the broken bounds and promises of a point in a series, in words.

    Nothing outside danger.

    Bounds apply to means; a bound on a number that no run of the point has counts as broken.

    Args:
        about: the point, as in its summary.
    """
    broken = [*about["runs"].values()].count("INVALID")
    if broken:
        yield f"{broken} of {len(about['runs'])} INVALID"
    for name, bound in bounds.items():
        spread = about["numbers"].get(name)
        if spread is None:
            yield f"no {name}"
        elif passes(_NUMBERS[name], spread["mean"], bound):
            yield f"{name} {format_number(spread['mean'])}, bound {format_number(bound)}"
