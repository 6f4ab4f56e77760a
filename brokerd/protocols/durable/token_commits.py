"""Tokens that clients ask their broker to write down: all who wait share a transaction.

Paper: [DS03] §5.2 (each of four threads batches all waiting requests into one transaction).
Deviates: there is one writer, since SQLite has one; lanes say how many transactions may wait for
it at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from brokerd.protocols.durable.lanes import DurableSubscription, Lane
from brokerd.protocols.durable.subscription_rows import ACKNOWLEDGED, lane_key
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.durability import Durability


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a client has asked to have committed.

    Attributes:
        session: of the client; who has another one by then is not answered.
        number: of the request.
        positions: per lane, up to where its application is done.
    """

    subscription: DurableSubscription
    session: int
    number: int
    positions: Mapping[Lane, int]


class TokenCommits:
    """What waits for the disk, by subscription: who asks again before is answered once.

    Args:
        lanes: how many transactions may be under way.
        most: how many subscriptions share one; 0: all that wait.
        then: these are on disk.
        counters: where `tokens_committed` and `token_transactions` count.
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
        """Commit this, with all else that waits."""
        shard = request.subscription.identity % len(self._waiting)
        self._waiting[shard][request.subscription] = request
        self._go_on(shard)

    def _go_on(self, shard: int) -> None:
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
        self._go_on(shard)


def _rows(taken: Sequence[TokenRequest]) -> Sequence[Change]:
    """What is not on disk yet; who has had its answer lost asks for nothing new.

    Never less than what any commit before says.
    """
    return [
        Change(ACKNOWLEDGED, lane_key(lane), lane.acknowledged)
        for request in taken
        for lane, last in request.positions.items()
        if last > lane.committed
    ]
