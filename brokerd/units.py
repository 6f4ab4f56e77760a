"""Durations as people write them: always with a unit, never a bare number."""

import re
from fractions import Fraction

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
LONGEST_H = 10_000
LONGEST_NS = LONGEST_H * _UNITS_NS["h"]
_DURATION = re.compile(r"(?P<number>\d{1,20}(?:\.\d{1,20})?)\s*(?P<unit>ns|us|ms|s|min|h)")


def parse_duration_ns(text: object) -> int:
    """Nanoseconds of text like "2.5s"; raises ValueError with what is valid."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'a duration has a number and a unit ({", ".join(_UNITS_NS)}): "2.5s"')
    exact = Fraction(match["number"]) * _UNITS_NS[match["unit"]]
    if exact.denominator != 1:
        raise ValueError("a duration is a whole number of nanoseconds")
    if exact > LONGEST_NS:
        raise ValueError(f"a duration is at most {LONGEST_H}h")
    return int(exact)


def format_duration(duration_ns: int) -> str:
    """The shortest exact text for a duration."""
    for unit in ("min", "s", "ms", "us", "ns"):
        if duration_ns % _UNITS_NS[unit] == 0 and (duration_ns or unit == "s"):
            return f"{duration_ns // _UNITS_NS[unit]}{unit}"
    raise AssertionError(duration_ns)
