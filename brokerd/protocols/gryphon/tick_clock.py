"""The clock that assigns ticks to publications, and the silence that a pubend expects."""

from brokerd.protocols.gryphon.knowledge import TICK_NS, ticks_in
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import Instant


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
        return self._base + (now_ns - self._started_ns) // TICK_NS


class ExpectedSilence:
    """The duration for which a pubend expects no event.

    The wait between events is estimated like TCP's round trips, with a weight of 1/8 for the last
    wait.
    """

    __slots__ = ("_last_ns", "_parameters", "_wait_ns")

    def __init__(self, parameters: GryphonParameters) -> None:
        self._parameters = parameters
        self._last_ns: Instant | None = None
        self._wait_ns = 0

    def ticks_after(self, events: int, now_ns: Instant) -> int:
        """Return the number of ticks of silence to assign after the arrival of `events` events."""
        percent, limit_ns = self._parameters.silence_percent, self._parameters.silence_limit_ns
        if not percent:
            return 0
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns is None:
            return 0
        waited_ns = (now_ns - last_ns) // events
        self._wait_ns = (7 * self._wait_ns + waited_ns) // 8 if self._wait_ns else waited_ns
        return ticks_in(min(self._wait_ns * percent // 100, limit_ns)) - 1
