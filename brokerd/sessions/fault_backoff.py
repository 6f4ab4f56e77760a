"""Pauses between sessions that end with a protocol error.

A core dials a lost neighbour at once. If every session ends with the same error, the link would
open and close several times a second for as long as the cause lasts.
"""

from dataclasses import dataclass, field
from typing import Final

from brokerd.model.identity import BrokerNumber
from brokerd.units import SECOND_NS

SHORTEST_NS: Final = SECOND_NS
LONGEST_NS: Final = 30 * SECOND_NS
FORGOTTEN_NS: Final = 120 * SECOND_NS
"""Without another error for this time, the next error counts as the first again."""


@dataclass(slots=True)
class FaultBackoff:
    """The pauses of one broker, per neighbour. The first error causes no pause."""

    _errors: dict[BrokerNumber, tuple[int, int]] = field(default_factory=dict)

    def note(self, peer: BrokerNumber, now_ns: int) -> None:
        """Count a session that ended with a protocol error."""
        count, last_ns = self._errors.get(peer, (0, now_ns))
        self._errors[peer] = (count + 1 if now_ns - last_ns < FORGOTTEN_NS else 1, now_ns)

    def left_ns(self, peer: BrokerNumber, now_ns: int) -> int:
        """Return the time for which no session with a neighbour may be opened, in nanoseconds."""
        count, last_ns = self._errors.get(peer, (0, 0))
        if count < 2:
            return 0
        pause_ns = min(SHORTEST_NS << min(count - 2, 16), LONGEST_NS)
        return max(0, last_ns + pause_ns - now_ns)

    def forget(self, peer: BrokerNumber) -> None:
        """Drop the errors of a broker that has left for good."""
        self._errors.pop(peer, None)
