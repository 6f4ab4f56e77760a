"""The commit cycle: matches are durable before their position is announced.

Paper: [DS03] §4.1 (latestDelivered and released survive a crash), §5.1 (updates every 250 ms).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

COMMIT: Final = "commit"

Snapshot = TypeVar("Snapshot")


class CommitCycle(Generic[Snapshot]):
    """Commits at a bounded rate, one at a time; a commit covers the state at its beginning.

    First the logs are durable, then the rows with their positions, and only then may other brokers
    observe the positions.

    Args:
        take: returns the state to commit; None without changes.
        rows: returns the rows of a state.
        log: a log of the group that must be durable first.
        then: called after a commit.
    """

    def __init__(
        self,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        interval_ns: Instant,
        log: str,
        take: Callable[[], Snapshot | None],
        rows: Callable[[Snapshot], Sequence[Change]],
        then: Callable[[Snapshot], None],
    ) -> None:
        self._disk = disk
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._log = log
        self._take = take
        self._rows = rows
        self._then = then
        self._is_running = False

    def schedule(self) -> None:
        """Schedule a commit after a change."""
        if not self._is_running and (COMMIT, None) not in self._deadlines:
            self._deadlines.set((COMMIT, None), self._disk.machine.now_ns + self._interval_ns)

    def due(self) -> None:
        """Commit the present state."""
        if self._is_running:
            return
        taken = self._take()
        if taken is None:
            return
        self._is_running = True
        self._disk.sync(self._log, lambda: self._on_synced(taken))

    def _on_synced(self, taken: Snapshot) -> None:
        self._disk.commit(self._rows(taken), lambda: self._on_committed(taken))

    def _on_committed(self, taken: Snapshot) -> None:
        self._is_running = False
        self._then(taken)
        self.schedule()
