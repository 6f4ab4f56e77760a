"""The commit cycle: matches are durable before their position is announced.

Commits have a bounded rate, one at a time; a commit covers the state at its beginning. First the
logs are durable, then the rows with their positions, and only then may other brokers observe the
positions. Tokens are committed apart: waiting clients of a broker share a transaction.

Paper: [DS03] §4.1 (latestDelivered and released survive a crash), §5.1 (updates every 250 ms), §5.2
(each of four threads batches all waiting requests into one transaction). Deviates: there is one
writer, since SQLite has one; lanes bound the transactions that wait for it at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from brokerd.protocols.durable.state import ACKNOWLEDGED, DurableSubscription, Lane, lane_key
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


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A client's request for a commit.

    Attributes:
        session: of the client; a client with another session by then is not answered.
        number: of the request.
        positions: per lane, the position of the application.
    """

    subscription: DurableSubscription
    session: int
    number: int
    positions: Mapping[Lane, int]


class TokenCommits:
    """The waiting requests, by subscription; of several requests, only the last is answered.

    Args:
        lanes: the most transactions under way.
        most: the most subscriptions in a transaction; 0: all that wait.
        then: called with durable requests.
        counters: `tokens_committed` and `token_transactions` count here.
    """

    def __init__(
        self,
        disk: Durability,
        lanes: int,
        most: int,
        then: Callable[[Sequence[TokenRequest]], None],
        counters: dict[str, int],
    ) -> None:
        self._counters = counters
        counters |= {"tokens_committed": 0, "token_transactions": 0}
        self._disk = disk
        self._most = most
        self._then = then
        self._waiting: list[dict[DurableSubscription, TokenRequest]] = [{} for _ in range(lanes)]
        self._running = [False] * lanes

    def ask(self, request: TokenRequest) -> None:
        """Commit a request, with all others that wait."""
        shard = request.subscription.identity % len(self._waiting)
        self._waiting[shard][request.subscription] = request
        self._continue_commits(shard)

    def _continue_commits(self, shard: int) -> None:
        waiting = self._waiting[shard]
        if self._running[shard] or not waiting:
            return
        taken = [waiting.pop(each) for each in [*islice(waiting, self._most or len(waiting))]]
        taken = [each for each in taken if not each.subscription.is_over]
        self._running[shard] = True
        self._counters["tokens_committed"] += len(taken)
        self._counters["token_transactions"] += 1
        self._disk.commit(_rows(taken), lambda: self._on_durable(shard, taken))

    def _on_durable(self, shard: int, taken: Sequence[TokenRequest]) -> None:
        self._running[shard] = False
        self._then(taken)
        self._continue_commits(shard)


def _rows(taken: Sequence[TokenRequest]) -> Sequence[Change]:
    """Return rows of positions that are not durable yet; repeated requests need none.

    No row is lower than that of an earlier commit.
    """
    return [
        Change(ACKNOWLEDGED, lane_key(lane), lane.acknowledged)
        for request in taken
        for lane, last in request.positions.items()
        if last > lane.committed
    ]
