"""Migrations: subscriptions with clients that arrive from another broker, or move to one.

A client that presents a position of a subscription that is not here has come from elsewhere. The
subscription continues from there: later events are matched here from now on, and earlier ones are
fetched in batches and matched again. A subscription here with an earlier generation than its
client's has been elsewhere meanwhile.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokerd.model.client_messages import Connect, Refused
from brokerd.model.identity import ClientId
from brokerd.protocols.durable.arrivals import Arrivals, Whose
from brokerd.protocols.durable.hosted_streams import Snapshot
from brokerd.protocols.durable.hosting import DurableClients, Surroundings
from brokerd.protocols.durable.lanes import DurableClient, DurableSubscription, Lane
from brokerd.protocols.durable.subscription_rows import subscription_row
from brokerd.protocols.interface import Change, CloseSession


class MovingClients(DurableClients):
    """See DurableClients: subscriptions continue at any broker of their clients."""

    def __init__(self, surroundings: Surroundings, *arguments: Any, **others: Any) -> None:
        super().__init__(surroundings, *arguments, **others)
        self._coming: dict[int, DurableSubscription] = {}
        self.arrivals = Arrivals(
            self._broker,
            self._disk,
            self._timers,
            self._parameters,
            surroundings.all_streams,
            surroundings.tell,
            self._find,
            self._release_subscription,
            self._cut,
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See DurableClients."""
        self.arrivals.start(self.table.incarnation)
        super().recover(recovered)
        self.arrivals.recover(recovered)
        if self.table.lineage:
            self.arrivals.question_holds()
            for local in self._all.values():
                self.arrivals.doubt(local)

    # ------------------------------------------------------------ arriving clients

    def _resume(self, client: DurableClient, message: Connect) -> None:
        super()._resume(client, message)
        later, client.later = client.later, None
        client.generation = max(message.incarnation, 0 if later is None else later + 1)
        client.brought = {number: dict(seen) for number, seen in message.resume if seen}

    def _place(self, client: DurableClient, lane: Lane) -> None:
        """See DurableClients: at the reported position.

        Matches begin at this broker's position. After an accepted loss, this broker may have had
        the subscription, and have released events in between.
        """
        brought = client.brought.get(lane.subscription.number, {})
        had, position = brought.get(lane.stream), lane.acknowledged
        if had is not None:
            lane.acknowledged = lane.committed = max(0, min(had, position))
            lane.matched_after = position if had < position else 0
            lane.lost_through = lane.matched_after if self.table.lineage else 0

    def _rows_first(self, client: DurableClient, local: DurableSubscription) -> Sequence[Change]:
        local.generation = client.generation
        rows = super()._rows_first(client, local)
        brought = client.brought.pop(local.number, None)
        if brought is None:
            return rows
        local.presented = brought
        self._coming[local.identity] = local
        return (*rows, self.arrivals.row(local))

    def _on_kept(self, client: DurableClient, local: DurableSubscription) -> None:
        super()._on_kept(client, local)
        if self._coming.pop(local.identity, None) is None:
            if self.table.lineage and not local.is_over:
                self.arrivals.doubt(local, is_new=True)
            return
        self.arrivals.begin(local, lacks=True)
        if local.is_over:
            self.arrivals.on_ended(local)

    def _claim(self, client: DurableClient, local: DurableSubscription) -> None:
        """See DurableClients; nothing is lacking here that others could have released.

        A later generation is durable before the client is notified: after a crash the broker would
        otherwise not recall that the subscription was elsewhere, and would not end it there.
        """
        client.brought.pop(local.number, None)
        generation = client.generation
        if local.generation < generation:
            local.generation, local.accepted, local.unwritten = generation, False, True
            rows = (subscription_row(local), self.arrivals.row(local))
            self._disk.commit(rows, lambda: self._on_stay(client, local, generation))
        super()._claim(client, local)

    def _begin_one(self, client: DurableClient, local: DurableSubscription) -> None:
        """See DurableClients; waits for the row of a later generation."""
        if not local.unwritten:
            super()._begin_one(client, local)

    def _on_stay(self, client: DurableClient, local: DurableSubscription, generation: int) -> None:
        """Begin an arrival once its generation is durable, even if the subscription has ended."""
        if local.generation != generation:
            return
        local.unwritten = False
        self.arrivals.begin(local, lacks=False)
        if local.is_over:
            self.arrivals.on_ended(local)
        else:
            self._begin_one(client, local)

    # ------------------------------------------------------------ departed clients

    def _find(self, whose: Whose) -> DurableSubscription | None:
        client, number = whose
        hosted = self.table.clients.get(client)
        return hosted.subscriptions.get(number) if hosted is not None else None

    def _cut(self, name: ClientId, generation: int) -> None:
        """Close the session of a client with a later attachment to another broker.

        A client that connects again is here all the same: it returned to an older copy of its
        state, and exceeds the later generation. If that attachment returns, too, the client is told
        of the other process.
        """
        client = self.table.clients[name]
        if not client.session or client.generation >= generation:
            return
        if client.was_cut:
            reason = f"{name} is attached to another broker, too: another process has its state"
            self._machine.send(name, Refused("connect", 0, reason, False))
            return
        client.was_cut, client.later = True, generation
        self._machine.emit(CloseSession(name, "it is at another broker"))

    def _release_subscription(
        self, local: DurableSubscription, generation: int, then: Callable[[], None]
    ) -> None:
        client = self.table.clients[local.client]
        self._cut(local.client, generation)
        self._end(client, [local], then)
        if not client.session and not client.subscriptions:
            self._forget(client.name)

    def _on_ended(self, over: Sequence[DurableSubscription]) -> None:
        super()._on_ended(over)
        for local in over:
            if local.identity not in self._coming:
                self.arrivals.on_ended(local)

    def _on_committed(self, taken: Snapshot) -> None:
        super()._on_committed(taken)
        self.arrivals.on_progress()
