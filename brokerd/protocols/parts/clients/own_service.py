"""Subscriptions that are stored and matched at their clients' access broker."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Detach,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.service import ClientParameters, ClientService, HostedClient
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import RunSelection, match_run

SUBSCRIPTIONS: Final = "subscriptions"


class WindowParameters(ClientParameters, Protocol):
    """A protocol's parameters of clients and of their delivery windows."""

    @property
    def client_window(self) -> int:
        """The number of unacknowledged publications of a client at which deliveries wait."""


class HandedOut(Protocol):
    """Publications that were delivered to clients; `open` parts have no acknowledgement yet."""

    open: int


Entry = TypeVar("Entry", bound=HandedOut)


@dataclass(slots=True, eq=False)
class OwnSubscription:
    """A subscription of a client of this broker.

    Attributes:
        claimed: the last session on which the client has requested the subscription.
        started: the subscription is on disk, and receives all later matching publications.
        begins_after: see WindowedSubscription.
        is_restarted: the client is behind the beginning, because this broker has lost state.
    """

    client: ClientId
    number: int
    predicate: Predicate
    claimed: int = 0
    started: bool = False
    is_over: bool = False
    begins_after: dict[StreamId, int] = field(default_factory=dict)
    is_restarted: bool = False


@dataclass(slots=True, eq=False)
class OwnClient(HostedClient[OwnSubscription]):
    """A client of this broker.

    Attributes:
        submitted: the last sequence number that the client has published on its present session.
        told: the last sequence number acknowledged to the client.
        drains: the client's Detach is answered once all deliveries are acknowledged.
    """

    submitted: int = 0
    told: int = 0
    drains: bool = False


class OwnSubscriptions(ClientService[OwnClient, OwnSubscription], Generic[Entry]):
    """See ClientService; subscriptions survive a restart of the broker.

    Attributes:
        started: number of started subscriptions.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: WindowParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters)
        self.windows: DeliveryWindows[Entry, OwnSubscription] = DeliveryWindows(
            disk.machine, parameters.client_window, counters
        )
        self.started = 0
        self._index: MatchingIndex[OwnSubscription] = MatchingIndex()
        self.memo: MatchMemo[OwnSubscription, tuple[OwnSubscription, ...]] = MatchMemo(
            self._index, decode_attributes
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the subscriptions of an earlier incarnation."""
        for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
            name, _, number = key.rpartition("/")
            local = OwnSubscription(name, int(number), read_predicate(row))
            client = self._client(name)
            client.subscriptions[local.number] = local
            self._take_over(client, local, recovered)
        for name in self._clients:
            self._linger(name)

    def _take_over(
        self, client: OwnClient, local: OwnSubscription, recovered: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Resume a subscription of an earlier incarnation."""
        self._start(local)

    def check_run(self, run: PublicationRun, peer: Peer) -> None:
        """Check that all attributes of a run are well formed.

        Raises:
            RemoteProtocolError: a blob is malformed.
        """
        match_run(self.memo, run, peer)

    def hand_out(self, run: PublicationRun, entry: Entry) -> None:
        """Deliver publications to all matching subscriptions; count the parts in `entry`.

        Publications that a client reported as received when it connected are not delivered again.
        """
        wanted = match_run(self.memo, run, run.source.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[tuple[ClientId, int], list[OwnSubscription]] = {}
            for local in those:
                had = local.begins_after.get(run.source, 0)
                rest = had if had >= part.first else 0
                by_client.setdefault((local.client, rest), []).append(local)
            for (name, had), locals_ in by_client.items():
                lacked = part.after(had) if had else part
                if lacked is not None:
                    entry.open += 1
                    self.windows.deliver(name, lacked, tuple(locals_), (entry,))

    def linger_over(self, name: ClientId) -> None:
        """See ClientService: a connected client loses the subscriptions it has not requested."""
        client = self._clients[name]
        over = [
            local
            for local in client.subscriptions.values()
            if not client.session or local.claimed != client.session
        ]
        self._end(client, over, lambda: None)
        if not client.session:
            self._forget(name)

    def on_detach(self, name: ClientId, message: Detach) -> None:
        """See ClientService."""
        client = self._client_of(name, "Detach")
        client.leaving, session = True, client.session

        def leave() -> None:
            client.drains = client.session == session
            self._leave(client)

        over = list(client.subscriptions.values())
        self._end(client, over, leave, drain=message.drain)

    def acknowledge_through(self, client: OwnClient, done: int) -> None:
        """Acknowledge a publisher's publications through `done`, if the publisher is connected."""
        through = min(done, client.submitted)
        if client.connected and through > client.told:
            self._machine.send(client.name, PublishAcknowledged(client.told + 1, through))
            client.told = through

    def _leave(self, client: OwnClient) -> None:
        if client.drains and self.windows.is_drained(client.name):
            client.drains = False
            self._answer_ended(client, client.session, 0)

    def _new_client(self, name: ClientId) -> OwnClient:
        return OwnClient(name)

    # ------------------------------------------------------------ subscriptions

    def _subscribe(self, client: OwnClient, message: Subscribe) -> None:
        local = OwnSubscription(client.name, message.number, message.predicate, client.session)
        client.subscriptions[local.number] = local
        row = predicate_row(local.predicate)
        change = Change(SUBSCRIPTIONS, f"{client.name}/{local.number}", row)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        self._disk.commit((change,), partial(self._on_kept, client, local))

    def _on_kept(self, client: OwnClient, local: OwnSubscription) -> None:
        """Start a subscription that is now on disk, unless it has ended."""
        if not local.is_over:
            self._begin_one(client, local)

    def _begin_one(self, client: OwnClient, local: OwnSubscription) -> None:
        self._start(local)
        self._claim_begun(client, local)

    def _claim_begun(self, client: OwnClient, local: OwnSubscription) -> None:
        if client.connected and client.session == local.claimed:
            self._claim(client, local)

    def _start(self, local: OwnSubscription) -> None:
        local.started = True
        self.started += 1
        self._index.add(local, local.predicate)
        self.memo.forget()

    def _claim(self, client: OwnClient, subscription: OwnSubscription) -> None:
        subscription.claimed = client.session
        if subscription.started:
            begun = self._starts_after(client, subscription)
            gaps = [*self._gaps_of_forgotten(client, subscription.number, begun)]
            told = {gap.stream for gap in gaps}  # the client takes their positions from the gaps
            begins_after = tuple(
                each for each in self._begins_after(subscription) if each[0] not in told
            )
            self._machine.send(
                client.name, Subscribed(subscription.number, "started", begins_after)
            )
            for gap in reversed(gaps):
                self.windows.announce_first(subscription, gap)
            self._take_done(self.windows.claim(subscription))

    def _has_whole(self, client: OwnClient, number: int) -> bool:
        local = client.subscriptions.get(number)
        return local is not None and local.started and not local.is_restarted

    def _starts_after(
        self, client: OwnClient, subscription: OwnSubscription
    ) -> Mapping[StreamId, int]:
        """Return the positions behind which a started subscription begins."""
        return subscription.begins_after

    def _begins_after(self, local: OwnSubscription) -> tuple[tuple[StreamId, int], ...]:
        """Return the positions that a claiming client must state when it reconnects."""
        return ()

    def _end(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        for local in over:
            del client.subscriptions[local.number]
            local.is_over = True
            if local.started:
                self.started -= 1
                self._index.remove(local)
            # A subscription that is not claimed on this session gets nothing more on it.
            if not (drain and local.claimed == client.session):
                self._take_done(self.windows.discard_unsent(local))
        self.memo.forget()
        self._on_ended(over)
        rows = [row for local in over for row in self._rows_over(f"{client.name}/{local.number}")]
        self._disk.commit(rows, then)

    def _end_unstated(self, client: OwnClient, stated: Sequence[int]) -> None:
        """See ClientService: no session has claimed a subscription from disk."""
        over = [
            local
            for number, local in client.subscriptions.items()
            if not local.claimed and number not in stated
        ]
        if over:
            self._disk.machine.record(
                "subscriptions_revoked", client=client.name, subscriptions=len(over)
            )
            self._end(client, over, lambda: None)

    def _rows_over(self, key: str) -> Sequence[Change]:
        """Return the changes that remove a subscription from disk."""
        return (Change(SUBSCRIPTIONS, key, None),)

    def _on_ended(self, over: Sequence[OwnSubscription]) -> None:
        """Handle the end of subscriptions, which are no longer matched."""

    # ------------------------------------------------------------ deliveries and sessions

    def _acknowledge(self, client: OwnClient, message: Acknowledge) -> None:
        stream, first, last = message.stream, message.first, message.last
        self._take_done(self.windows.acknowledge(client.name, stream, first, last))
        self._leave(client)

    def _take_done(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.open -= 1
            if not entry.open:
                self._on_done(entry)

    @abstractmethod
    def _on_done(self, entry: Entry) -> None:
        """Handle the last acknowledgement of an entry's deliveries."""

    def _keeps(self, client: OwnClient) -> bool:
        return bool(client.subscriptions)

    def _forget(self, name: ClientId) -> None:
        super()._forget(name)
        self.windows.forget(name)

    def _on_connected(self, client: OwnClient) -> None:
        if client.subscriptions:
            self._linger(client.name)

    def _on_gone(self, client: OwnClient) -> None:
        client.drains = False
        self._take_done(self.windows.close(client.name))

    def _resume(self, client: OwnClient, message: Connect) -> None:
        client.submitted = client.told = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                begins_after = client.subscriptions[number].begins_after
                for stream, last in seen:
                    begins_after[stream] = max(last, begins_after.get(stream, 0))
