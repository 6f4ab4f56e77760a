"""Lengths of time as schedules say them: with a unit, fixed or drawn from the seed."""

import re
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final, Self

from brokerd.units import LONGEST_H, LONGEST_NS

_UNITS_NS: Final = {"ms": 1_000_000, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_PART: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)(ms|s|min|h)")
_VALID: Final = '"250ms", "2.5s", "1min30s"'


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time between two bounds, both included; drawn in whole milliseconds."""

    low_ns: int
    high_ns: int

    @classmethod
    def read(cls, value: object) -> Self:
        """The span in "5s", "2s..3s" or { uniform = ["2s", "3s"] }.

        Raises:
            ValueError: it is none of these; says what is valid.
        """
        if isinstance(value, Span):
            return cls(value.low_ns, value.high_ns)
        bounds: list[object]
        if isinstance(value, dict) and set(value) == {"uniform"}:
            found = value["uniform"]
            bounds = found if isinstance(found, list) else []
        elif isinstance(value, str):
            bounds = list(value.split(".."))
            bounds = bounds * 2 if len(bounds) == 1 else bounds
        else:
            bounds = []
        if len(bounds) != 2:
            raise ValueError(f'a time is {_VALID}, "2s..3s" or {{ uniform = ["2s", "3s"] }}')
        low_ns, high_ns = (parse_duration_ns(bound) for bound in bounds)
        if low_ns > high_ns:
            raise ValueError("the shorter bound comes first")
        return cls(low_ns, high_ns)

    @property
    def is_fixed(self) -> bool:
        return self.low_ns == self.high_ns

    def draw(self, random: Random) -> int:
        """One length out of the span, in nanoseconds."""
        if self.is_fixed:
            return self.low_ns
        return random.randint(self.low_ns // 1_000_000, self.high_ns // 1_000_000) * 1_000_000

    def to_value(self) -> object:
        """What `read` reads as this span."""
        if self.is_fixed:
            return format_duration(self.low_ns)
        return {"uniform": [format_duration(self.low_ns), format_duration(self.high_ns)]}

    def __str__(self) -> str:
        low, high = format_duration(self.low_ns), format_duration(self.high_ns)
        return low if self.is_fixed else f"{low}..{high}"


def parse_duration_ns(text: object) -> int:
    """Nanoseconds of text such as "2.5s" or "1min30s".

    Raises:
        ValueError: it has no unit, another one, or is no whole number of milliseconds.
    """
    if not isinstance(text, str) or not re.fullmatch(rf"(?:{_PART.pattern})+", text):
        raise ValueError(f"a time needs a unit ({', '.join(_UNITS_NS)}): {_VALID}")
    exact = sum(Fraction(number) * _UNITS_NS[unit] for number, unit in _PART.findall(text))
    if exact % 1_000_000:
        raise ValueError("times here are whole milliseconds")
    if exact > LONGEST_NS:
        raise ValueError(f"a time is at most {LONGEST_H}h")
    return int(exact)


def format_duration(duration_ns: int) -> str:
    """The shortest text for a whole number of milliseconds."""
    milliseconds = duration_ns // 1_000_000
    if milliseconds % 1000 == 0:
        return f"{milliseconds // 1000}s"
    if milliseconds > 1000:
        return f"{milliseconds // 1000}.{milliseconds % 1000:03d}".rstrip("0") + "s"
    return f"{milliseconds}ms"
