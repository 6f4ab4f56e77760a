"""The commit cycle: matches are durable before their position is announced.

Commits have a bounded rate, one at a time; a commit covers the state at its beginning. First the
logs are durable, then the rows with their positions, and only then may other brokers observe the
positions. Tokens are committed apart: waiting clients of a broker share a transaction.

Paper: [DS03] §4.1 (latestDelivered and released survive a crash), §5.1 (updates every 250 ms), §5.2
(each of four threads batches all waiting requests into one transaction). Deviates: there is one
writer, since SQLite has one; lanes bound the transactions that wait for it at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.consolidated_stream import HostedStream, SubscriptionTable
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    DELIVERED,
    WRITTEN,
    DurableSubscription,
    Lane,
    lane_key,
)
from brokerd.protocols.gryphon import InFlightEvents
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

COMMIT: Final = "commit"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a commit.

    Attributes:
        delivered: per stream, the tick through which matches are durable, or will be first.
        written: the index after the record of that tick.
        acknowledged: per lane, the tick through which the client has acknowledged.
    """

    delivered: Mapping[HostedStream, int]
    written: Mapping[HostedStream, int]
    acknowledged: Mapping[Lane, int]


class CommitCycle:
    """Commits at a bounded rate, one at a time; a commit covers the state at its beginning."""

    def __init__(
        self,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        interval_ns: Instant,
        hosted: Mapping[StreamId, HostedStream],
        table: SubscriptionTable,
    ) -> None:
        self._disk = disk
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._hosted = hosted
        self._table = table
        self._log = next((each.log.name for each in hosted.values()), "")
        self._is_running = False
        self._changed: dict[Lane, None] = {}
        self._moved: dict[StreamId, None] = {}

    # ------------------------------------------------------------ changes

    def add(self, lane: Lane) -> None:
        """Add new acknowledgements of a lane."""
        self._changed[lane] = None
        self.schedule()

    def add_token(self, lane: Lane) -> None:
        """Add a durable token, which may release events."""
        self._moved[lane.stream] = None
        self._hosted[lane.stream].log.note_acknowledged(lane.subscription.identity, lane.committed)

    def forget(self, lane: Lane) -> None:
        """Forget the lane of an ended subscription."""
        self._changed.pop(lane, None)

    def uncommitted(self) -> Mapping[StreamId, None]:
        """Return the streams with uncommitted deliveries, acknowledgements or tokens."""
        changed = {lane.stream: None for lane in self._changed}
        for identity, hosted in self._hosted.items():
            lanes = self._table.lanes(identity)
            if hosted.is_ahead or any(lane.committed < lane.acknowledged for lane in lanes):
                changed[identity] = None
        return {**changed, **self._moved}

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """Yield the cached and the recomputed released tick of streams without moved tokens."""
        return (each for each in self._table.recount_released() if each[0] not in self._moved)

    # ------------------------------------------------------------ commits

    def schedule(self) -> None:
        """Schedule a commit after a change."""
        if not self._is_running and (COMMIT, None) not in self._deadlines:
            self._deadlines.set((COMMIT, None), self._disk.machine.now_ns + self._interval_ns)

    def due(self, then: Callable[[Snapshot], None]) -> None:
        """Commit the present state, and call `then` once the state is durable."""
        if self._is_running:
            return
        taken = self._take()
        if taken is None:
            return
        self._is_running = True
        self._disk.sync(self._log, lambda: self._on_synced(taken, then))

    def _take(self) -> Snapshot | None:
        """Return the state to commit; None without changes."""
        streams = self._hosted.values()
        delivered = {hosted: hosted.position for hosted in streams if hosted.is_ahead}
        acknowledged = {lane: lane.acknowledged for lane in self._changed}
        self._changed = {}
        written = {hosted: hosted.log.next for hosted in delivered}
        is_changed = delivered or acknowledged or self._moved
        return Snapshot(delivered, written, acknowledged) if is_changed else None

    def _on_synced(self, taken: Snapshot, then: Callable[[Snapshot], None]) -> None:
        self._disk.commit(self._rows(taken), lambda: self._on_committed(taken, then))

    def _rows(self, taken: Snapshot) -> Sequence[Change]:
        delivered = [
            Change(DELIVERED, hosted.key, max(tick, hosted.delivered))
            for hosted, tick in taken.delivered.items()
        ]
        written = [Change(WRITTEN, hosted.key, index) for hosted, index in taken.written.items()]
        acknowledged = [
            Change(ACKNOWLEDGED, lane_key(lane), tick)
            for lane, tick in taken.acknowledged.items()
            if not lane.subscription.is_over
        ]
        return [*delivered, *written, *acknowledged]

    def _on_committed(self, taken: Snapshot, then: Callable[[Snapshot], None]) -> None:
        self._is_running = False
        then(taken)
        self.schedule()

    def advance(self, taken: Snapshot) -> Iterator[tuple[HostedStream, list[InFlightEvents]]]:
        """Advance the committed ticks; yield each stream with the entries that are complete.

        Later positions could be lost, and requested again.
        """
        streams: dict[HostedStream, None] = dict.fromkeys(taken.delivered)
        for lane, tick in taken.acknowledged.items():
            hosted = self._hosted[lane.stream]
            if not lane.subscription.is_over:  # else it was not written down
                lane.committed = max(lane.committed, tick)
                hosted.log.note_acknowledged(lane.subscription.identity, lane.committed)
            streams[hosted] = None
        for hosted in streams:
            self._table.forget_released(hosted.identity)
            yield hosted, hosted.commit(taken.delivered.get(hosted, 0))

    def take_moved(self) -> Iterator[HostedStream]:
        """Yield the streams with new tokens, which may be released further."""
        moved, self._moved = self._moved, {}
        for stream in moved:
            self._table.forget_released(stream)
            yield self._hosted[stream]


Continuation = Callable[[Sequence["TokenRequest"]], None]
"""Receives requests that are durable."""


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
        counters: `tokens_committed` and `token_transactions` count here.
    """

    def __init__(
        self,
        disk: Durability,
        lanes: int,
        most: int,
        counters: dict[str, int],
    ) -> None:
        self._counters = counters
        self._disk = disk
        self._most = most
        self._waiting: list[dict[DurableSubscription, TokenRequest]] = [{} for _ in range(lanes)]
        self._running = [False] * lanes
        self._continuing = [False] * lanes

    def request(self, request: TokenRequest, then: Continuation) -> None:
        """Commit a request, with all others that wait; call `then` once they are durable."""
        shard = request.subscription.identity % len(self._waiting)
        self._waiting[shard][request.subscription] = request
        self._continue_commits(shard, then)

    def is_waiting(self, subscription: DurableSubscription) -> bool:
        """Return True if a request of a subscription waits for an earlier transaction."""
        return subscription in self._waiting[subscription.identity % len(self._waiting)]

    def _continue_commits(self, shard: int, then: Continuation) -> None:
        """Begin transactions until a transaction has rows to write."""
        waiting = self._waiting[shard]
        if self._continuing[shard]:
            return
        self._continuing[shard] = True
        while waiting and not self._running[shard]:
            taken = [waiting.pop(each) for each in [*islice(waiting, self._most or len(waiting))]]
            taken = [each for each in taken if not each.subscription.is_over]
            self._running[shard] = True
            self._counters["tokens_committed"] += len(taken)
            self._counters["token_transactions"] += 1
            self._disk.commit(_rows(taken), partial(self._on_durable, shard, taken, then))
        self._continuing[shard] = False

    def _on_durable(self, shard: int, taken: Sequence[TokenRequest], then: Continuation) -> None:
        self._running[shard] = False
        then(taken)
        self._continue_commits(shard, then)


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
