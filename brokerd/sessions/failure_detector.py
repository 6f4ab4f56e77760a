"""When silence means that the other end is gone.

Heartbeats leave at a fixed pace, and any byte counts as a sign of life. Time in which this
process did not run, because it was stopped or starved of its CPU, is not silence: it could not
have heard anything. And before anybody is suspected, what may be waiting to be read is read.

How much silence is allowed follows the load. Where everybody shares two busy cores, a peer's
heartbeats come late and our own checks run late; twice the worst lateness seen lately is added
to the configured silence, up to four times of it. It halves every ten seconds, so that one bad
moment does not make us slow for long.

Paper: [DFT11] §II (failure detector, eventually strong and accurate).
"""

from typing import Final

from brokerd.config import SessionParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS

LATENESS_HALVES_EVERY_NS: Final = 10 * SECOND_NS
LIMIT_FACTOR: Final = 4
GRACE_NS: Final = 10 * MILLISECOND_NS
"""How long a suspicion waits for what is already there to be read."""


class FailureDetector:
    """Watches one session.

    Attributes:
        allowed_ns: silence after which the peer is suspected, as things are now.
    """

    def __init__(self, parameters: SessionParameters, now_ns: int) -> None:
        self.tick_ns = check_interval_ns(parameters)
        self.allowed_ns = parameters.suspicion_ns
        self._parameters = parameters
        self._heard_ns = now_ns
        self._checked_ns = now_ns
        self._halved_ns = now_ns
        self._excused_ns = 0
        self._lateness_ns = 0
        self._doubted_ns = 0

    @property
    def due_ns(self) -> int:
        """When `check` will find the silence too long, if it lasts."""
        due_ns = self._heard_ns + self._excused_ns + self.allowed_ns
        return max(due_ns, self._doubted_ns + GRACE_NS) if self._doubted_ns else due_ns

    def heard(self, now_ns: int) -> None:
        """Bytes came, or we chose not to read: either way this is not silence."""
        silence_ns = now_ns - self._heard_ns - self._excused_ns
        lateness_ns = silence_ns - self._parameters.heartbeat_ns - self.tick_ns
        if lateness_ns > self._lateness_ns:
            self._adapt(lateness_ns)
        self._heard_ns = now_ns
        self._excused_ns = 0
        self._doubted_ns = 0

    def check(self, now_ns: int) -> bool:
        """Whether the peer is suspected; to be asked every `tick_ns`, and at `due_ns`.

        What was not asked in time counts as at most two ticks of silence.
        """
        late_ns = now_ns - self._checked_ns - 2 * self.tick_ns
        self._checked_ns = now_ns
        if now_ns - self._halved_ns >= LATENESS_HALVES_EVERY_NS:
            self._halved_ns = now_ns
            self._adapt(self._lateness_ns // 2)
        if late_ns > 0:
            self._excused_ns += late_ns
            self._adapt(max(late_ns, self._lateness_ns))
        if now_ns - self._heard_ns - self._excused_ns < self.allowed_ns:
            return False
        if not self._doubted_ns:
            self._doubted_ns = now_ns
        return now_ns - self._doubted_ns >= GRACE_NS

    def _adapt(self, lateness_ns: int) -> None:
        suspicion_ns = self._parameters.suspicion_ns
        self._lateness_ns = min(lateness_ns, (LIMIT_FACTOR - 1) * suspicion_ns // 2)
        self.allowed_ns = suspicion_ns + 2 * self._lateness_ns


def check_interval_ns(parameters: SessionParameters) -> int:
    """How often sessions are looked after: heartbeats sent, silence measured."""
    return max(1, min(parameters.heartbeat_ns, parameters.suspicion_ns) // 2)
