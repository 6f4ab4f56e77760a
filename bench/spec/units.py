"""Durations, sizes and rates as people write them: always with a unit, never a bare number.

Each has a parser, which says what is valid when it refuses, and a formatter that gives text
which parses back to the same value.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from brokerd.units import format_duration as format_duration
from brokerd.units import parse_duration_ns as parse_duration_ns

_SIZES_BYTES = {"B": 1, "kB": 1_000, "KiB": 1 << 10, "MB": 1_000_000, "MiB": 1 << 20}
_PERIODS_S = {"s": 1, "min": 60, "h": 3600}
_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}

_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?P<unit>{'|'.join(_SIZES_BYTES)})")
_RATE = re.compile(rf"{_NUMBER}\s*(?P<thousand>[kM]?)/(?P<unit>{'|'.join(_PERIODS_S)})")


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a publisher publishes; without a number ("max"): as fast as it can."""

    per_second: Fraction | None

    @property
    def is_max(self) -> bool:
        """Whether no rate is set."""
        return self.per_second is None

    def __str__(self) -> str:
        if self.per_second is None:
            return "max"
        for name, seconds in _PERIODS_S.items():
            if text := _decimal(self.per_second * seconds):
                return f"{text}/{name}"
        raise AssertionError(f"a rate that no text can say: {self.per_second}")


def parse_size_bytes(text: object) -> int:
    """Bytes of text like "100B" or "4KiB"; raises ValueError with what is valid."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'a size has a number and a unit ({", ".join(_SIZES_BYTES)}): "100B"')
    exact = Fraction(match["number"]) * _SIZES_BYTES[match["unit"]]
    if exact.denominator != 1:
        raise ValueError("a size is a whole number of bytes")
    return int(exact)


def format_size(size_bytes: int) -> str:
    """The shortest exact text for a size."""
    for unit in ("MiB", "KiB"):
        if size_bytes and size_bytes % _SIZES_BYTES[unit] == 0:
            return f"{size_bytes // _SIZES_BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def parse_rate(text: object) -> Rate:
    """The rate in text like "25/s", "1.5k/s" or "max"; raises ValueError with what is valid."""
    if text == "max":
        return Rate(None)
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError('a rate has a number and a period (s, min, h): "25/s", "1.5k/s", or "max"')
    number = Fraction(match["number"]) * _THOUSANDS[match["thousand"]]
    if number == 0:
        raise ValueError("a rate is more than nothing")
    return Rate(number / _PERIODS_S[match["unit"]])


def _decimal(number: Fraction) -> str:
    """`number` as a decimal that is exactly it, or "" where there is none of 9 places."""
    scaled = number * 10**9
    if scaled.denominator != 1:
        return ""
    whole, part = divmod(int(scaled), 10**9)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")
