"""Consumers: subscriptions whose checkpoint token is stored at the broker.

The clients have no storage. A committed token is a row of its own, and nothing else moves it:
neither acknowledgements, which only make room for more events, nor the commit cycle.

Paper: [DS03] §1, §5.2 (JMS: the SHB maintains CT(s)).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    CommitConsumed,
    ConsumedCommitted,
    Consuming,
    Refused,
    Subscribe,
)
from brokerd.model.identity import ClientId, StreamId
from brokerd.protocols.durable.catchup_streams import CatchupStreams
from brokerd.protocols.durable.commit_cycle import CommitCycle, TokenCommits, TokenRequest
from brokerd.protocols.durable.consolidated_stream import HostedStream
from brokerd.protocols.durable.filtered_starts import FilteredStarts
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    DurableClient,
    DurableSubscription,
    Lane,
    lane_key,
)
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.protocols.parts.event_machine import Durability

ANY: Final = (1 << 62) - 1
"""Above any tick: deliveries of earlier incarnations, or of other brokers, are undetermined."""

MOST_UNCOMMITTED: Final = 1 << 20


class Consumers:
    """The tokens of a broker's consumers: a commit is durable before the client is notified.

    Args:
        table: the clients.
        hosted: the streams.
        starts: the subscriptions that have not started.
    """

    def __init__(
        self,
        disk: Durability,
        table: ClientTable[DurableClient],
        hosted: Mapping[StreamId, HostedStream],
        commits: CommitCycle,
        tokens: TokenCommits,
        catchups: CatchupStreams,
        starts: FilteredStarts,
    ) -> None:
        self._disk = disk
        self._machine = disk.machine
        self._table = table
        self._hosted = hosted
        self._commits = commits
        self._tokens = tokens
        self._catchups = catchups
        self._starts = starts
        self._early: dict[DurableSubscription, TokenRequest] = {}

    # ------------------------------------------------------------ requests for tokens

    def check_keeper(self, client: DurableClient, message: Subscribe) -> bool:
        """Return True unless another kind of subscription has the number; refuse that."""
        local = client.subscriptions.get(message.number)
        if local is None or bool(local.uncommitted) == bool(client.uncommitted):
            return True
        keeper = "broker" if local.uncommitted else "client"
        reason = f"subscription {message.number} exists, and its {keeper} keeps its token"
        self._machine.send(client.name, Refused("subscribe", message.number, reason, False))
        return False

    def place(self, client: DurableClient, lane: Lane) -> None:
        """Place the lane of a new consumer; its token is stored from now on, here only."""
        if not client.uncommitted:
            return
        had = client.brought.get(lane.subscription.number, {}).get(lane.stream)
        if had is not None:
            lane.acknowledged = lane.committed = had
        if had is not None or self._table.lineage:
            lane.given = ANY  # an earlier subscription may have been lost with the disk

    def adopt(self, local: DurableSubscription) -> None:
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
                self._commits.add_token(lane)
            self._commits.schedule()

        rows = [Change(ACKNOWLEDGED, lane_key(lane), last) for lane, last in ahead.items()]
        self._disk.commit(rows, adopted)

    def when_committed(self, local: DurableSubscription, then: Callable[[], None]) -> None:
        """Call `then` once the token at which a client continues is durable.

        After a crash, only the first events after the durable token are marked, up to the limit of
        one process.
        """
        lanes = local.lanes.values()
        if not local.uncommitted or all(lane.committed >= lane.acknowledged for lane in lanes):
            then()
        elif self._tokens.is_waiting(local):
            self._disk.when_written(partial(self.when_committed, local, then))
        else:
            self._disk.when_written(then)

    def announce(self, local: DurableSubscription) -> None:
        """Announce the token to a consumer, which continues after the token or after its position.

        After a loss, any number of events may have been committed beyond the token.
        """
        given = tuple(
            (stream, lane.given)
            for stream, lane in local.lanes.items()
            if lane.given > lane.acknowledged
        )
        most = MOST_UNCOMMITTED if self._table.lineage else local.uncommitted
        self._machine.send(local.client, Consuming(local.number, local.generation, most, given))
        for stream, last in local.presented.items():
            if stream in self._hosted:
                local.presented[stream] = max(last, local.lane(stream).acknowledged)

    def forget(self, local: DurableSubscription) -> None:
        """Forget the request of an earlier session, or of an ended subscription."""
        self._early.pop(local, None)

    # ------------------------------------------------------------ commits

    def on_commit(self, name: ClientId, message: CommitConsumed) -> None:
        """Commit the positions of an application."""
        client = self._table.requester(name, "CommitConsumed")
        local = client.subscriptions.get(message.number)
        if local is None:
            local = self._starts.waiting(name, message.number)
        if local is None:
            return  # its end was on its way
        streams = [stream for stream, _ in message.positions]
        if not local.uncommitted or not set(streams) <= self._hosted.keys():
            raise RemoteProtocolError(name, f"commits {message}"[:300])
        positions = {local.lane(stream): last for stream, last in message.positions}
        self._early[local] = TokenRequest(local, client.session, message.request, positions)
        self.commit_early(local)

    def commit_early(self, local: DurableSubscription) -> None:
        """Commit a client's request once the subscription is attached again."""
        if local.is_attached and (request := self._early.pop(local, None)) is not None:
            self._commit_tokens(request)

    def _commit_tokens(self, request: TokenRequest) -> None:
        """Commit a token, and query the pubend for positions ahead of this broker.

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
            self._catchups.prove(local)
        if not local.is_attached:
            return  # refused: a tick that was never published
        for lane, last in request.positions.items():
            lane.acknowledged = max(lane.acknowledged, last)
        self._tokens.request(request, self._on_tokens_kept)

    def _on_tokens_kept(self, taken: Sequence[TokenRequest]) -> None:
        for request in taken:
            local = request.subscription
            for lane, last in request.positions.items():
                lane.committed = max(lane.committed, last)
                self._commits.add_token(lane)
            if self._table.session_of(local.client) == request.session and not local.is_over:
                self._machine.send(local.client, ConsumedCommitted(local.number, request.number))
        self._commits.schedule()
