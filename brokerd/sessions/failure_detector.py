"""Timers of sessions: the end after a silent peer, and pauses after protocol errors."""

from dataclasses import dataclass, field
from typing import Final

from brokerd.config import SessionParameters
from brokerd.model.identity import BrokerNumber
from brokerd.units import MILLISECOND_NS, SECOND_NS

LATENESS_HALVES_EVERY_NS: Final = 10 * SECOND_NS
LIMIT_FACTOR: Final = 4
GRACE_NS: Final = 10 * MILLISECOND_NS
"""Time between a suspicion and its confirmation, in which bytes that have arrived are read."""

SHORTEST_NS: Final = SECOND_NS
LONGEST_NS: Final = 30 * SECOND_NS
FORGOTTEN_NS: Final = 120 * SECOND_NS
"""Without another error for this time, the next error counts as the first again."""


class FailureDetector:
    """The failure detector of one session.

    Attributes:
        allowed_ns: silence after which the peer is suspected, under the present load.
    """

    def __init__(self, parameters: SessionParameters, now_ns: int) -> None:
        self.tick_ns = check_interval_ns(parameters)
        self.allowed_ns = parameters.suspicion_ns
        self._parameters = parameters
        self._received_ns = now_ns
        self._checked_ns = now_ns
        self._halved_ns = now_ns
        self._excused_ns = 0
        self._lateness_ns = 0
        self._doubted_ns = 0

    @property
    def due_ns(self) -> int:
        """Return the time at which `check` suspects the peer if the silence lasts."""
        due_ns = self._received_ns + self._excused_ns + self.allowed_ns
        return max(due_ns, self._doubted_ns + GRACE_NS) if self._doubted_ns else due_ns

    def record_life(self, now_ns: int) -> None:
        """Record a sign of life: bytes arrived, or this process chose not to read."""
        silence_ns = now_ns - self._received_ns - self._excused_ns
        lateness_ns = silence_ns - self._parameters.heartbeat_ns - self.tick_ns
        if lateness_ns > self._lateness_ns:
            self._adapt(lateness_ns)
        self._received_ns = now_ns
        self._excused_ns = 0
        self._doubted_ns = 0

    def check(self, now_ns: int) -> bool:
        """Return True if the peer is suspected; to be called every `tick_ns`, and at `due_ns`.

        A late call counts as at most two ticks of silence.
        """
        late_ns = now_ns - self._checked_ns - 2 * self.tick_ns
        self._checked_ns = now_ns
        if now_ns - self._halved_ns >= LATENESS_HALVES_EVERY_NS:
            self._halved_ns = now_ns
            self._adapt(self._lateness_ns // 2)
        if late_ns > 0:
            self._excused_ns += late_ns
            self._adapt(max(late_ns, self._lateness_ns))
        if now_ns - self._received_ns - self._excused_ns < self.allowed_ns:
            return False
        if not self._doubted_ns:
            self._doubted_ns = now_ns
        return now_ns - self._doubted_ns >= GRACE_NS

    def _adapt(self, lateness_ns: int) -> None:
        suspicion_ns = self._parameters.suspicion_ns
        self._lateness_ns = min(lateness_ns, (LIMIT_FACTOR - 1) * suspicion_ns // 2)
        self.allowed_ns = suspicion_ns + 2 * self._lateness_ns


def check_interval_ns(parameters: SessionParameters) -> int:
    """Return the interval of the checks of a session: heartbeats sent, silence measured."""
    return max(1, min(parameters.heartbeat_ns, parameters.suspicion_ns) // 2)


@dataclass(slots=True)
class FaultBackoff:
    """The pauses of one broker, per neighbour. The first error causes no pause."""

    _errors: dict[BrokerNumber, tuple[int, int]] = field(default_factory=dict)

    def note(self, peer: BrokerNumber, now_ns: int) -> None:
        """Count a session that ended with a protocol error."""
        count, last_ns = self._errors.get(peer, (0, now_ns))
        self._errors[peer] = (count + 1 if now_ns - last_ns < FORGOTTEN_NS else 1, now_ns)

    def remaining_ns(self, peer: BrokerNumber, now_ns: int) -> int:
        """Return the time for which no session with a neighbour may be opened, in nanoseconds."""
        count, last_ns = self._errors.get(peer, (0, 0))
        if count < 2:
            return 0
        pause_ns = min(SHORTEST_NS << min(count - 2, 16), LONGEST_NS)
        return max(0, last_ns + pause_ns - now_ns)

    def forget(self, peer: BrokerNumber) -> None:
        """Drop the errors of a broker that has left for good."""
        self._errors.pop(peer, None)
