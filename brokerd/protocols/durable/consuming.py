"""Subscriptions with a resume token at the broker, for clients without storage.

A committed token is a row of its own, and nothing else moves it: neither acknowledgements, which
only make room for more events, nor the commit cycle.

Paper: [DS03] §1, §5.2 (JMS: the SHB maintains CT(s)).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    CommitConsumed,
    Connect,
    Consume,
    ConsumedCommitted,
    Consuming,
    Refused,
    Subscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.durable.commit_cycle import TokenCommits, TokenRequest
from brokerd.protocols.durable.consolidated_stream import Snapshot
from brokerd.protocols.durable.hosting import Surroundings
from brokerd.protocols.durable.moving import MovingClients
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    DurableClient,
    DurableSubscription,
    Lane,
    lane_key,
    subscription_row,
)
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler

ANY: Final = (1 << 62) - 1
"""Above any tick: deliveries of earlier incarnations, or of other brokers, are undetermined."""

MOST_UNCOMMITTED: Final = 1 << 20


class ConsumingClients(MovingClients):
    """See DurableClients: a requested commit is durable before the client is notified."""

    def __init__(
        self,
        surroundings: Surroundings,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: DurableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        **others: Any,
    ) -> None:
        super().__init__(
            surroundings, broker, disk, deadlines, parameters, decode_attributes, counters, **others
        )
        self._early: dict[DurableSubscription, TokenRequest] = {}
        self._moved: dict[StreamId, None] = {}
        lanes, most = parameters.token_lanes, parameters.token_batch
        self._token_commits = TokenCommits(disk, lanes, most, self._on_tokens_kept, counters)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See DurableClients."""
        super().recover(recovered)
        for local in self._all.values():
            for identity in self._hosted:
                local.lane(identity).given = ANY

    # ------------------------------------------------------------ requests for tokens

    def handlers(self) -> dict[type, MessageHandler]:
        """See HostedClients."""
        return {
            **super().handlers(),
            Consume: self._on_consume,
            CommitConsumed: self._on_commit_consumed,
        }

    def _on_consume(self, name: ClientId, message: Consume) -> None:
        """Subscribe with a token at this broker."""
        client = self.table.requester(name, "Consume")
        if not 1 <= message.uncommitted <= MOST_UNCOMMITTED:
            raise RemoteProtocolError(name, f"{message.uncommitted} publications uncommitted")
        client.uncommitted = message.uncommitted
        try:
            self.on_subscribe(name, Subscribe(message.number, message.predicate))
        finally:
            client.uncommitted = 0

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """See DurableClients; the place of the token is fixed when a subscription begins."""
        client = self.table.requester(name, "Subscribe")
        local = client.subscriptions.get(message.number)
        if local is not None and bool(local.uncommitted) != bool(client.uncommitted):
            keeper = "broker" if local.uncommitted else "client"
            reason = f"subscription {message.number} exists, and its {keeper} keeps its token"
            self._machine.send(name, Refused("subscribe", message.number, reason, False))
            return
        super().on_subscribe(name, message)

    def _rows_first(self, client: DurableClient, local: DurableSubscription) -> Sequence[Change]:
        local.uncommitted = client.uncommitted
        return super()._rows_first(client, local)

    def _claim(self, client: DurableClient, local: DurableSubscription) -> None:
        """See DurableClients; a higher limit of uncommitted events is durable first."""
        more, session = client.uncommitted, client.session
        if more:
            self._adopt(local)
        if local.generation < client.generation:  # it was elsewhere meanwhile
            for lane in local.lanes.values():
                lane.given = ANY
        if more <= local.uncommitted:
            super()._claim(client, local)
            return

        def claim() -> None:
            if client.session == session and not local.is_over:
                super(ConsumingClients, self)._claim(client, local)

        local.uncommitted = more
        self._disk.commit((subscription_row(local),), claim)

    def _place(self, client: DurableClient, lane: Lane) -> None:
        """See DurableClients; the client's token is stored from now on, here only."""
        super()._place(client, lane)
        had = client.brought.get(lane.subscription.number, {}).get(lane.stream)
        if client.uncommitted and had is not None:
            lane.acknowledged = lane.committed = had
        if client.uncommitted and (had is not None or self.table.lineage):
            lane.given = ANY  # an earlier subscription may have been lost with the disk

    def _adopt(self, local: DurableSubscription) -> None:
        """Commit the positions that a client presents, which it has committed, maybe elsewhere."""
        ahead = {
            lane: last
            for stream, last in local.presented.items()
            if stream in self._hosted and last > (lane := local.lane(stream)).acknowledged
        }
        for lane, last in ahead.items():
            lane.acknowledged = last

        def adopted() -> None:
            for lane, last in ahead.items():
                lane.committed = max(lane.committed, last)
                self._moved[lane.stream] = None
            self._commits.schedule()

        rows = [Change(ACKNOWLEDGED, lane_key(lane), last) for lane, last in ahead.items()]
        self._disk.commit(rows, adopted)

    def _attach(self, local: DurableSubscription) -> None:
        """See DurableClients: continues after the token, or after the client's position.

        After a loss, any number of events may have been committed beyond the token.
        """
        if not local.uncommitted:
            super()._attach(local)
            return
        given = tuple(
            (stream, lane.given)
            for stream, lane in local.lanes.items()
            if lane.given > lane.acknowledged
        )
        most = MOST_UNCOMMITTED if self.table.lineage else local.uncommitted
        self._machine.send(
            local.client,
            Consuming(local.number, local.generation, most, given),
        )
        for stream, last in local.presented.items():
            if stream in self._hosted:
                local.presented[stream] = max(last, local.lane(stream).acknowledged)
        super()._attach(local)
        self._commit_early(local)

    def _resume(self, client: DurableClient, message: Connect) -> None:
        super()._resume(client, message)
        for local in client.subscriptions.values():
            self._early.pop(local, None)

    # ------------------------------------------------------------ commits

    def _on_commit_consumed(self, name: ClientId, message: CommitConsumed) -> None:
        """Commit the positions of an application."""
        client = self.table.requester(name, "CommitConsumed")
        local = client.subscriptions.get(message.number)
        if local is None:
            return  # its end was on its way
        streams = [stream for stream, _ in message.positions]
        if not local.uncommitted or not set(streams) <= self._hosted.keys():
            raise RemoteProtocolError(name, f"commits {message}"[:300])
        positions = {local.lane(stream): last for stream, last in message.positions}
        self._early[local] = TokenRequest(local, client.session, message.request, positions)
        self._commit_early(local)

    def _commit_early(self, local: DurableSubscription) -> None:
        """Commit a client's request once the subscription is attached again."""
        if local.is_attached and (request := self._early.pop(local, None)) is not None:
            self._commit_tokens(request)

    def _commit_tokens(self, request: TokenRequest) -> None:
        """Commit a token, and ask the pubend about positions ahead of this broker.

        A broker behind a token has crashed and lacks its last deliveries. Until the pubend can be
        asked, the token is accepted, as at a reconnect: others must not wait for that.
        """
        local = request.subscription
        ahead = {
            lane: last
            for lane, last in request.positions.items()
            if last > max(lane.committed, self._hosted[lane.stream].position)
        }
        for lane, last in ahead.items():
            lane.floor = max(lane.floor, last)
        if ahead:
            self._tokens.prove(local)
        if not local.is_attached:
            return  # refused: a tick that was never published
        for lane, last in request.positions.items():
            lane.acknowledged = max(lane.acknowledged, last)
        self._token_commits.ask(request)

    def _on_tokens_kept(self, taken: Sequence[TokenRequest]) -> None:
        for request in taken:
            local = request.subscription
            for lane, last in request.positions.items():
                lane.committed = max(lane.committed, last)
                self._moved[lane.stream] = None
            if self.table.session_of(local.client) == request.session and not local.is_over:
                self._machine.send(local.client, ConsumedCommitted(local.number, request.number))
        self._commits.schedule()

    def uncommitted(self) -> Mapping[StreamId, None]:
        """See DurableClients; moved tokens release events with the next commit."""
        return {**super().uncommitted(), **self._moved}

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """See DurableClients; without streams with moved tokens."""
        return (each for each in super().recount_released() if each[0] not in self._moved)

    def _take(self) -> Snapshot | None:
        """See DurableClients: commits may release events that the pubend retains."""
        return super()._take() or (Snapshot({}, {}, {}) if self._moved else None)

    def _on_committed(self, taken: Snapshot) -> None:
        super()._on_committed(taken)
        moved, self._moved = self._moved, {}
        for stream in moved:
            self._released.pop(stream, None)
            self._release(self._hosted[stream])

    def _on_ended(self, over: Sequence[DurableSubscription]) -> None:
        super()._on_ended(over)
        for local in over:
            self._early.pop(local, None)
