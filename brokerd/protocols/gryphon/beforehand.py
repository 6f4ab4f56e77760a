"""The silence that a pubend assigns in advance, from the rate of recent events.

Paper: [GD02] §2.2 (silence assigned beforehand, after expected rates).
"""

from typing import Protocol

from brokerd.protocols.gryphon.ticks import ticks_in
from brokerd.protocols.interface import Instant


class SilenceParameters(Protocol):
    """The amount of silence."""

    @property
    def silence_percent(self) -> int:
        """The share of the expected wait for the next event."""

    @property
    def silence_limit_ns(self) -> int:
        """The longest silence."""


class ExpectedSilence:
    """The duration for which a pubend expects no event.

    The wait between events is estimated like TCP's round trips, with a weight of 1/8 for the last
    wait.
    """

    __slots__ = ("_last_ns", "_parameters", "_wait_ns")

    def __init__(self, parameters: SilenceParameters) -> None:
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
