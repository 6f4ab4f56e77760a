"""The timer that ends a session whose peer is silent for too long.

Heartbeats are sent at a fixed pace, and any byte received is a sign of life. Time in which this
process did not run, because the process was stopped or starved of its CPU, does not count as
silence: no byte could have been received. Before a peer is suspected, the bytes that may wait to be
read are read.

The allowed silence follows the load. Where all processes share two busy cores, heartbeats of a peer
arrive late and the checks of this process run late; twice the worst recent lateness is added to the
configured silence, up to four times the configured silence. The lateness is halved every ten
seconds, so that a single bad moment does not slow the detector for long.

Paper: [DFT11] §II (failure detector, eventually strong and accurate).
"""

from typing import Final

from brokerd.config import SessionParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS

LATENESS_HALVES_EVERY_NS: Final = 10 * SECOND_NS
LIMIT_FACTOR: Final = 4
GRACE_NS: Final = 10 * MILLISECOND_NS
"""Time between a suspicion and its confirmation, in which bytes that have arrived are read."""


class FailureDetector:
    """The failure detector of one session.

    Attributes:
        allowed_ns: silence after which the peer is suspected, under the present load.
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
        """Return the time at which `check` suspects the peer if the silence lasts."""
        due_ns = self._heard_ns + self._excused_ns + self.allowed_ns
        return max(due_ns, self._doubted_ns + GRACE_NS) if self._doubted_ns else due_ns

    def heard(self, now_ns: int) -> None:
        """Record a sign of life: bytes arrived, or this process chose not to read."""
        silence_ns = now_ns - self._heard_ns - self._excused_ns
        lateness_ns = silence_ns - self._parameters.heartbeat_ns - self.tick_ns
        if lateness_ns > self._lateness_ns:
            self._adapt(lateness_ns)
        self._heard_ns = now_ns
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
    """Return the interval of the checks of a session: heartbeats sent, silence measured."""
    return max(1, min(parameters.heartbeat_ns, parameters.suspicion_ns) // 2)
