"""Spans: durations of a schedule, fixed or drawn from the seed."""

from dataclasses import dataclass
from random import Random
from typing import Self

from brokerd.units import MILLISECOND_NS, format_duration, parse_duration_ns


@dataclass(frozen=True, slots=True)
class Span:
    """A duration between two bounds, both included, in whole milliseconds."""

    low_ns: int
    high_ns: int

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the span of "5s", "2s..3s" or { uniform = ["2s", "3s"] }.

        Raises:
            ValueError: the value is none of these.
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
            raise ValueError('a duration is "2.5s", "2s..3s" or { uniform = ["2s", "3s"] }')
        low_ns, high_ns = (parse_duration_ns(bound, MILLISECOND_NS) for bound in bounds)
        if low_ns > high_ns:
            raise ValueError("the shorter bound comes first")
        return cls(low_ns, high_ns)

    @property
    def is_fixed(self) -> bool:
        return self.low_ns == self.high_ns

    def draw(self, random: Random) -> int:
        """Return a duration of the span, in nanoseconds."""
        if self.is_fixed:
            return self.low_ns
        low_ms, high_ms = self.low_ns // MILLISECOND_NS, self.high_ns // MILLISECOND_NS
        return random.randint(low_ms, high_ms) * MILLISECOND_NS

    def to_value(self) -> object:
        """Return a value that `read` reads as this span."""
        if self.is_fixed:
            return format_duration(self.low_ns)
        return {"uniform": [format_duration(self.low_ns), format_duration(self.high_ns)]}

    def __str__(self) -> str:
        low, high = format_duration(self.low_ns), format_duration(self.high_ns)
        return low if self.is_fixed else f"{low}..{high}"
