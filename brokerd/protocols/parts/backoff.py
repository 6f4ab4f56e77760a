"""When to try an unreachable peer again: after twice as long each time, up to a limit."""

from typing import Protocol

from brokerd.protocols.interface import Instant, LossReason


class RetryParameters(Protocol):
    """How long to wait."""

    @property
    def retry_first_ns(self) -> int:
        """Before the first attempt after a failure."""

    @property
    def retry_limit_ns(self) -> int:
        """Before any later one, at most."""


def backed_off_ns(last_ns: int, parameters: RetryParameters) -> int:
    """How long to wait after having waited `last_ns` in vain; 0 for not yet."""
    return min(max(2 * last_ns, parameters.retry_first_ns), parameters.retry_limit_ns)


def dials_at_once(
    reason: LossReason, established_ns: Instant, now_ns: Instant, parameters: RetryParameters
) -> bool:
    """Return whether a lost session is dialled again without a wait.

    A peer that closed the session is running. So a broker that was stopped for a while dials its
    peers as soon as it continues: they have closed its sessions meanwhile, and wait longer before
    they dial it. A session that was short-lived is not dialled at once: its peer might close each.
    """
    is_settled = now_ns - established_ns >= parameters.retry_limit_ns
    return reason == "closed_by_peer" and is_settled
