"""The end of a drain: on evidence, in silence, or at its bound.

A drain that ends while deliveries still arrive is no evidence about missing deliveries. So the
drain continues while anything arrives, up to a bound. A run with a drain that ended at the bound is
judged UNKNOWN.
"""

from dataclasses import dataclass
from typing import Final, Literal

QUIET_S: Final = 5.0
"""Time without arrivals behind the limit that counts as silence."""

DrainEnd = Literal["evidence", "silence", "bound"]


@dataclass(frozen=True, slots=True)
class Drained:
    """The end of a drain.

    Attributes:
        ended_by: `evidence`: everything arrived; `silence`: something did not, and nothing else
            arrived any more; `bound`: something did not, and deliveries still arrived.
        waiting_for: what had not arrived, in words.
    """

    ended_by: DrainEnd
    waiting_for: str


class Patience:
    """The time that a wait may take: a limit, and a bound while something arrives.

    Args:
        began_s: the instant at which the wait began.
        limit_s: the length of a wait in which nothing arrives behind it.
        bound_s: the length of any wait.
    """

    def __init__(self, began_s: float, limit_s: float, bound_s: float) -> None:
        assert limit_s <= bound_s, f"{limit_s} s of {bound_s} s"
        self._limit_s = began_s + limit_s
        self._bound_s = began_s + bound_s
        self._arrived: int | None = None
        self._arrived_s = began_s

    def is_over(self, now_s: float) -> bool:
        """Return True if the wait is over, by the recorded arrivals."""
        if self.is_at_bound(now_s):
            return True
        is_quiet = now_s - self._arrived_s >= QUIET_S
        return now_s >= self._limit_s and (self._arrived is None or is_quiet)

    def is_at_bound(self, now_s: float) -> bool:
        """Return True if the bound is reached."""
        return now_s >= self._bound_s

    def note_arrivals(self, now_s: float, arrived: int) -> None:
        """Record the total number of arrivals."""
        if arrived != self._arrived:
            self._arrived, self._arrived_s = arrived, now_s
