"""The commit cycle: what is matched is on disk before it is said how far that has come.

Paper: [DS03] §4.1 (latestDelivered and released survive a crash), §5.1 (updates every 250 ms).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability

COMMIT: Final = "commit"

Snapshot = TypeVar("Snapshot")


class CommitCycle(Generic[Snapshot]):
    """One commit at a time, at most so often; each covers what was there when it began.

    First the logs, then the rows that say how far these have come, and only when both are on disk
    whatever anybody else may see of it.

    Args:
        take: what is to be committed, as it is now; None where nothing has changed.
        rows: what to write down of it.
        log: a log of those that must be durable first.
        then: it is committed.
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

    def soon(self) -> None:
        """Something has changed."""
        if not self._is_running and (COMMIT, None) not in self._deadlines:
            self._deadlines.set((COMMIT, None), self._disk.machine.now_ns + self._interval_ns)

    def due(self) -> None:
        """Commit what there is."""
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
        self.soon()
