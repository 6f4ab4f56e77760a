"""The conversion of a driver's clock to ticks.

Paper: [GD02] §2.2. Deviates: the pubend's number is separate from its ticks and not in their low
bits, so that a burst's ticks are consecutive and travel as a range; two pubends' events at one
tick are distinguished by the pubends.
"""

from typing import Final

from brokerd.protocols.interface import Instant

TICK_NS: Final = 1_000
"""The length of a tick: a microsecond."""

LAST_TICK: Final = 1 << 54
"""A bound on ticks, five hundred years ahead of any machine's clock."""


def ticks_in(duration_ns: int) -> int:
    """Return the number of ticks in a duration, at least one."""
    return max(1, duration_ns // TICK_NS)


class TickClock:
    """A clock of ticks: microseconds since 1970, from the machine's clock at the start.

    The clock is ahead of every tick of an earlier incarnation, for any present or later change of
    the machine's clock.
    """

    __slots__ = ("_base", "_started_ns")

    def __init__(self) -> None:
        self._base = 1
        self._started_ns: Instant = 0

    def start(self, now_ns: Instant, wall_ns: int) -> None:
        """Start the clock; the machine's clock shows `wall_ns` now."""
        self._base, self._started_ns = max(1, wall_ns // TICK_NS), now_ns

    def advance_past(self, now_ns: Instant, used: int) -> None:
        """Advance the clock behind tick `used`."""
        if self.tick(now_ns) <= used:
            self._base, self._started_ns = used + 1, now_ns

    def tick(self, now_ns: Instant) -> int:
        """Return the tick at an instant."""
        return self._base + (now_ns - self._started_ns) // TICK_NS
