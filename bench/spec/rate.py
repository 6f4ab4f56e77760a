"""Rates of publication as people write them: "25/s", "1.5k/s" or "max"."""

import re
from dataclasses import dataclass
from fractions import Fraction

_PERIODS_S = {"s": 1, "min": 60, "h": 3600}
_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}

_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?P<thousand>[kM]?)/(?P<unit>{'|'.join(_PERIODS_S)})")


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of publication; `per_second` is None for "max", the highest rate of the publisher."""

    per_second: Fraction | None

    @property
    def is_max(self) -> bool:
        """True if no rate is set."""
        return self.per_second is None

    def as_pair(self) -> tuple[int, int]:
        """Return numerator and denominator per second; (0, 1) for "max"."""
        rate = Fraction(0) if self.per_second is None else self.per_second
        return rate.numerator, rate.denominator

    def __str__(self) -> str:
        if self.per_second is None:
            return "max"
        for name, seconds in _PERIODS_S.items():
            if text := _decimal(self.per_second * seconds):
                return f"{text}/{name}"
        raise AssertionError(f"a rate that no text can say: {self.per_second}")


def parse_rate(text: object) -> Rate:
    """Return the rate of text such as "25/s", "1.5k/s" or "max".

    Raises:
        ValueError: the text is no rate, or nothing is published at it.
    """
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
    """Return a number as an exact decimal, or "" if it has more than 9 places."""
    scaled = number * 10**9
    if scaled.denominator != 1:
        return ""
    whole, part = divmod(int(scaled), 10**9)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")
