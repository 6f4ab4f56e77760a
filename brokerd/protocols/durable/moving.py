"""Migrations: subscriptions with clients that arrive from another broker, or move to one.

A client that presents a position of a subscription that is not here has come from elsewhere. The
subscription continues from there: later events are matched here from now on, and earlier ones are
fetched in batches and matched again. A subscription here with an earlier generation than its
client's has been elsewhere meanwhile.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.client_messages import Connect
from brokerd.model.identity import ClientId, StreamId
from brokerd.protocols.durable.arrivals import Arrivals, Whose
from brokerd.protocols.durable.hosted_streams import Snapshot
from brokerd.protocols.durable.hosting import DurableClients, Surroundings
from brokerd.protocols.durable.lanes import DurableSubscription, Lane
from brokerd.protocols.durable.subscription_rows import subscription_row
from brokerd.protocols.interface import Change, CloseSession
from brokerd.protocols.parts.clients.own_service import OwnClient, OwnSubscription
from brokerd.protocols.parts.clients.service import LINGER


@dataclass(slots=True, eq=False)
class MovingClient(OwnClient):
    """A client that may have been at another broker.

    Attributes:
        generation: of the attachment to this broker; increases with every move to another broker.
        brought: the positions that the client reports, by subscription number. Even a subscription
            of this broker may have to be released before the client requests it.
    """

    generation: int = 0
    brought: dict[int, dict[StreamId, int]] = field(default_factory=dict)


class MovingClients(DurableClients):
    """See ClientService: subscriptions continue at any broker of their clients."""

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

    def start(
        self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]], lineage: int = 0
    ) -> None:
        """See ClientService."""
        super().start(incarnation, recovered, lineage)
        self.arrivals.start(incarnation)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See DurableClients."""
        super().recover(recovered)
        self.arrivals.recover(recovered)
        for local in self._all.values() if self.lineage else ():
            self.arrivals.doubt(local)

    # ------------------------------------------------------------ arriving clients

    def _new_client(self, name: ClientId) -> OwnClient:
        return MovingClient(name)

    def _resume(self, client: OwnClient, message: Connect) -> None:
        super()._resume(client, message)
        moving = _make_moving(client)
        moving.generation = message.incarnation
        moving.brought = {number: dict(seen) for number, seen in message.resume if seen}

    def _on_gone(self, client: OwnClient) -> None:
        super()._on_gone(client)
        _make_moving(client).brought = {}

    def _place(self, client: OwnClient, lane: Lane) -> None:
        """See DurableClients: at the reported position.

        Matches begin at this broker's position. After an accepted loss, this broker may have had
        the subscription, and have released events in between.
        """
        brought = _make_moving(client).brought.get(lane.subscription.number, {})
        had, position = brought.get(lane.stream), lane.acknowledged
        if had is not None:
            lane.acknowledged = lane.committed = max(0, min(had, position))
            lane.matched_after = position if had < position else 0
            lane.lost_through = lane.matched_after if self.lineage else 0

    def _rows_first(self, client: OwnClient, local: DurableSubscription) -> Sequence[Change]:
        moving = _make_moving(client)
        local.generation = moving.generation
        rows = super()._rows_first(client, local)
        brought = moving.brought.pop(local.number, None)
        if brought is None:
            return rows
        local.presented = brought
        self._coming[local.identity] = local
        return (*rows, self.arrivals.row(local))

    def _on_kept(self, client: OwnClient, local: OwnSubscription) -> None:
        super()._on_kept(client, local)
        (durable,) = self._is_ours((local,))
        if self._coming.pop(durable.identity, None) is None:
            if self.lineage and not durable.is_over:
                self.arrivals.doubt(durable, is_new=True)
            return
        self.arrivals.begin(durable, lacks=True)
        if durable.is_over:
            self.arrivals.on_ended(durable)

    def _claim(self, client: OwnClient, subscription: OwnSubscription) -> None:
        """See DurableClients; nothing is lacking here that others could have released.

        A later generation is durable before the client is notified: after a crash the broker would
        otherwise not recall that the subscription was elsewhere, and would not end it there.
        """
        moving = _make_moving(client)
        moving.brought.pop(subscription.number, None)
        (durable,) = self._is_ours((subscription,))
        generation = moving.generation
        if durable.generation < generation:
            durable.generation, durable.accepted, durable.unwritten = generation, False, True
            rows = (subscription_row(durable), self.arrivals.row(durable))
            self._disk.commit(rows, lambda: self._on_stay(client, durable, generation))
        super()._claim(client, subscription)

    def _begin_one(self, client: OwnClient, local: OwnSubscription) -> None:
        """See DurableClients; waits for the row of a later generation."""
        (durable,) = self._is_ours((local,))
        if not durable.unwritten:
            super()._begin_one(client, local)

    def _on_stay(self, client: OwnClient, local: DurableSubscription, generation: int) -> None:
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
        hosted = self._clients.get(client)
        found = hosted.subscriptions.get(number) if hosted is not None else None
        if found is None:
            return None
        (durable,) = self._is_ours((found,))
        return durable

    def _cut(self, name: ClientId, generation: int) -> None:
        client = self._clients[name]
        if client.session and _make_moving(client).generation < generation:
            self._machine.emit(CloseSession(name, "it is at another broker"))

    def _release_subscription(
        self, local: DurableSubscription, generation: int, then: Callable[[], None]
    ) -> None:
        client = self._clients[local.client]
        self._cut(local.client, generation)
        self._end(client, [local], then)
        if not client.session and not client.subscriptions:
            self._deadlines.cancel((LINGER, client.name))
            self._forget(client.name)

    def _on_ended(self, over: Sequence[OwnSubscription]) -> None:
        super()._on_ended(over)
        for local in self._is_ours(over):
            if local.identity not in self._coming:
                self.arrivals.on_ended(local)

    def _on_committed(self, taken: Snapshot) -> None:
        super()._on_committed(taken)
        self.arrivals.on_progress()


def _make_moving(client: OwnClient) -> MovingClient:
    assert isinstance(client, MovingClient), f"{client.name} does not move"
    return client
