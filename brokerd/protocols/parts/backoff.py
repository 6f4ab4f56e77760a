"""When to try an unreachable peer again: after twice as long each time, up to a limit."""

from typing import Protocol


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
