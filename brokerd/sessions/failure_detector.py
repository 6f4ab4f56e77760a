"""When silence means that the other end is gone.

Heartbeats leave at a fixed pace, and any byte counts as a sign of life. What is measured is not
time but time in which this process ran: a process that was stopped, or starved of its CPU, has
heard nothing through its own fault, and first takes in what waits for it.

How much silence is allowed follows the load. Where everybody shares two busy cores, a peer's
heartbeats come late and our own checks run late; twice the worst lateness seen lately is added
to the configured silence, up to four times of it. It halves every ten seconds, so that one bad
moment does not make us slow for long.

Paper: [DFT11] §II (failure detector, eventually strong and accurate).
"""

from typing import Final

from brokerd.config import SECOND_NS, SessionParameters

LATENESS_HALVES_EVERY_NS: Final = 10 * SECOND_NS
LIMIT_FACTOR: Final = 4


class FailureDetector:
    """Watches one session.

    Attributes:
        allowed_ns: silence after which the peer is suspected, as things are now.
    """

    def __init__(self, parameters: SessionParameters, now_ns: int) -> None:
        self.tick_ns = check_interval_ns(parameters)
        self.allowed_ns = parameters.suspicion_ns
        self._parameters = parameters
        self._checked_ns = now_ns
        self._halved_ns = now_ns
        self._silence_ns = 0
        self._lateness_ns = 0
        self._heard = False

    def heard(self) -> None:
        """Bytes came, or we chose not to read: either way this is not silence."""
        self._heard = True

    def check(self, now_ns: int) -> bool:
        """Whether the peer is suspected; to be asked every `tick_ns`.

        What was not asked in time counts as at most two ticks of silence.
        """
        elapsed_ns = now_ns - self._checked_ns
        self._checked_ns = now_ns
        own_lateness_ns = elapsed_ns - 2 * self.tick_ns
        self._silence_ns += min(elapsed_ns, 2 * self.tick_ns)
        lateness_ns = max(own_lateness_ns, 0)
        if self._heard:
            expected_ns = self._parameters.heartbeat_ns + self.tick_ns
            lateness_ns = max(lateness_ns, self._silence_ns - expected_ns)
            self._heard = False
            self._silence_ns = 0
        self._adapt(lateness_ns, now_ns)
        return self._silence_ns >= self.allowed_ns

    def _adapt(self, lateness_ns: int, now_ns: int) -> None:
        if now_ns - self._halved_ns >= LATENESS_HALVES_EVERY_NS:
            self._lateness_ns //= 2
            self._halved_ns = now_ns
        suspicion_ns = self._parameters.suspicion_ns
        limit_ns = (LIMIT_FACTOR - 1) * suspicion_ns // 2
        self._lateness_ns = min(max(self._lateness_ns, lateness_ns), limit_ns)
        self.allowed_ns = suspicion_ns + 2 * self._lateness_ns


def check_interval_ns(parameters: SessionParameters) -> int:
    """How often sessions are looked after: heartbeats sent, silence measured."""
    return max(1, min(parameters.heartbeat_ns, parameters.suspicion_ns) // 2)
