"""The texts of a progress line: numbers in a given width, share that is done, time left."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pubsubctl.console.waits import describe_s

_UNITS: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_COUNT: Final = re.compile(r"(\d+)/(\d+)")


def cut(text: str, width: int) -> str:
    """Return a text that fits a width, with an ellipsis in place of the rest."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def fit_numbers(start: Sequence[str], numbers: Mapping[str, Any], width: int) -> str:
    """Return the start of a line and the numbers that fit a width.

    Large numbers are rounded if necessary (1.2M), and a number that does not fit is left out. Only
    texts are cut.
    """
    parts = [*start, *(f"{name} {short(value)}" for name, value in numbers.items())]
    if len(" · ".join(parts)) <= width:
        return " · ".join(parts)
    text = " · ".join(start)
    for name, value in numbers.items():
        longer = f"{text} · {name} {_rounded(value)}"
        if len(longer) <= width:
            text = longer
        elif isinstance(value, str) and not _COUNT.fullmatch(value):
            return cut(longer, width)
    return cut(text, width)


def share_of(numbers: Mapping[str, Any]) -> float | None:
    """Return the least share among counts such as 3/12; None without a count."""
    counts = [found for value in numbers.values() if (found := _COUNT.fullmatch(str(value)))]
    return min((int(found[1]) / max(1, int(found[2])) for found in counts), default=None)


def estimate_left(
    elapsed_s: float, usual_s: float | None, share: float | None
) -> tuple[float | None, str]:
    """Return the share of a wait that is done, None if unknown, and the time left in words.

    Args:
        usual_s: the expected duration of the whole wait.
        share: the counted share; None without a count.
    """
    if share is not None and share > 0:
        left_s = elapsed_s * (1 - share) / share
        if usual_s is not None and share < 1:
            left_s = max(min(left_s, usual_s), usual_s - elapsed_s)
        return share, f"{describe_s(left_s)} left"
    if not usual_s:
        return share, ""
    if elapsed_s > 2.0 + 1.5 * usual_s:
        return 0.99, f"longer than usual ({describe_s(usual_s)})"
    if elapsed_s > usual_s:
        return 0.99, "0 s left"
    return elapsed_s / usual_s, f"{describe_s(usual_s - elapsed_s)} left"


def short(value: Any) -> str:
    """Return a value of a progress line, with separators of thousands."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _rounded(value: Any) -> str:
    """Return a number in at most five characters; another value as `short` returns it."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) < 10_000:
        return short(value)
    size, unit = next((row for row in _UNITS if abs(value) >= row[0]), _UNITS[-1])
    return f"{value / size:.{1 if abs(value) < 100 * size else 0}f}{unit}"
