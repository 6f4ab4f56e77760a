"""Exponential backoff for dialling an unreachable peer: the wait doubles up to a limit."""

from typing import Protocol

from brokerd.protocols.interface import Instant, LossReason


class RetryParameters(Protocol):
    """The bounds of the wait between two attempts."""

    @property
    def retry_first_ns(self) -> int:
        """The wait before the first attempt after a failure."""

    @property
    def retry_limit_ns(self) -> int:
        """The longest wait before a later attempt."""


def next_wait_ns(last_ns: int, parameters: RetryParameters) -> int:
    """Return the next wait after a vain wait of `last_ns`; 0 for no wait so far."""
    return min(max(2 * last_ns, parameters.retry_first_ns), parameters.retry_limit_ns)


def dials_at_once(
    reason: LossReason, established_ns: Instant, now_ns: Instant, parameters: RetryParameters
) -> bool:
    """Return whether a lost session is dialled again without a wait.

    A peer that closed the session is running. So a broker that was stopped for a while dials all
    peers as soon as the broker continues: the peers have closed the sessions in the meantime, and
    wait longer before the next attempt. A short-lived session is not dialled at once: the peer
    might close every session.
    """
    is_settled = now_ns - established_ns >= parameters.retry_limit_ns
    return reason == "closed_by_peer" and is_settled
