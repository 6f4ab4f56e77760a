"""From a driver's clock to ticks.

Paper: [GD02] §2.2. Deviates: the pubend's number stands beside its ticks and not in their low
bits, so that a burst's ticks are consecutive and travel as a range; two pubends' events at one
tick are told apart by the pubends.
"""

from typing import Final

from brokerd.protocols.interface import Instant

TICK_NS: Final = 1_000
"""A tick is a microsecond."""

LAST_TICK: Final = 1 << 54
"""No machine's clock shows this in the next five hundred years."""


def ticks_in(duration_ns: int) -> int:
    """How many ticks there are in a duration, at least one."""
    return max(1, duration_ns // TICK_NS)


class TickClock:
    """What tick it is: microseconds since 1970 as the machine's clock had it at the start.

    Behind every tick that an earlier incarnation has given, whatever that clock showed then, and
    whatever becomes of it later.
    """

    __slots__ = ("_base", "_started_ns")

    def __init__(self) -> None:
        self._base = 1
        self._started_ns: Instant = 0

    def start(self, now_ns: Instant, wall_ns: int) -> None:
        """Begin; the machine's clock shows `wall_ns` now."""
        self._base, self._started_ns = max(1, wall_ns // TICK_NS), now_ns

    def go_on(self, now_ns: Instant, used: int) -> None:
        """Be behind tick `used`."""
        if self.tick(now_ns) <= used:
            self._base, self._started_ns = used + 1, now_ns

    def tick(self, now_ns: Instant) -> int:
        """The tick at an instant."""
        return self._base + (now_ns - self._started_ns) // TICK_NS
