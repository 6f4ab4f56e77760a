"""Subscriptions that are kept at their clients' broker: on its disk, and matched there."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import RunSelection, match_run

SUBSCRIPTIONS: Final = "subscriptions"


class WindowParameters(ClientParameters, Protocol):
    """What a protocol's parameters say of clients and what is out to them."""

    @property
    def client_window(self) -> int:
        """Publications a client may have unacknowledged before deliveries wait."""


class HandedOut(Protocol):
    """Publications that were handed to clients; `open` parts of it are not acknowledged yet."""

    open: int


Entry = TypeVar("Entry", bound=HandedOut)


@dataclass(slots=True, eq=False)
class OwnSubscription:
    """A subscription of a client of this broker.

    Attributes:
        claimed: the last session on which its client has asked for it.
        started: it is on disk, and gets what is handed to clients from then on.
        begins_after: see WindowedSubscription.
    """

    client: ClientId
    number: int
    predicate: Predicate
    claimed: int = 0
    started: bool = False
    is_over: bool = False
    begins_after: dict[StreamId, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class OwnClient(HostedClient[OwnSubscription]):
    """A client.

    Attributes:
        submitted: how far it has sent what it publishes, on its present session.
        told: how far it was told that this is done.
        drains: its Detach is answered when it has acknowledged all there is for it.
    """

    submitted: int = 0
    told: int = 0
    drains: bool = False


class OwnSubscriptions(ClientService[OwnClient, OwnSubscription], Generic[Entry]):
    """See ClientService; a client keeps what it has subscribed to, also over a restart here.

    Attributes:
        started: how many subscriptions there are that have started.
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
            disk.machine, parameters.client_window, self._on_acknowledged, counters
        )
        self.started = 0
        self._index: MatchingIndex[OwnSubscription] = MatchingIndex()
        self.memo: MatchMemo[OwnSubscription, tuple[OwnSubscription, ...]] = MatchMemo(
            self._index, decode_attributes
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the subscriptions of an earlier incarnation."""
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
        """A subscription of an earlier incarnation goes on."""
        self._start(local)

    def check_run(self, run: PublicationRun, peer: Peer) -> None:
        """Make sure that all attributes of a run can be read.

        Raises:
            RemoteProtocolError: they cannot.
        """
        match_run(self.memo, run, peer)

    def hand_out(self, run: PublicationRun, entry: Entry) -> None:
        """Give publications to all who want them; counts in `entry` the parts that makes.

        What a client has, as it said when it came, is not given to it again.
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
        """See ClientService: one that is here has not asked for what is over now."""
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
        client = self._connected_client(name, "Detach")
        client.leaving, session = True, client.session

        def leave() -> None:
            client.drains = client.session == session
            self._leave(client)

        over = list(client.subscriptions.values())
        self._end(client, over, leave, drain=message.drain)

    def tell_done(self, client: OwnClient, done: int) -> None:
        """Tell a publisher, where it is here, how far what it has published is done."""
        through = min(done, client.submitted)
        if client.connected and through > client.told:
            self._machine.send(client.name, PublishAcknowledged(client.told + 1, through))
            client.told = through

    def _leave(self, client: OwnClient) -> None:
        if client.drains and self.windows.drained(client.name):
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
        """A subscription is on disk, and may have ended meanwhile."""
        if not local.is_over:
            self._begin_one(client, local)

    def _begin_one(self, client: OwnClient, local: OwnSubscription) -> None:
        self._start(local)
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
            begins_after = self._begins_after(subscription)
            self._machine.send(
                client.name, Subscribed(subscription.number, "started", begins_after)
            )
            self.windows.claim(subscription)
            begun = self._begun_after(client, subscription)
            for gap in self._gaps_of_forgotten(client, subscription.number, begun):
                self.windows.announce(client.name, (subscription,), gap.stream, gap.last, gap)

    def _begun_after(
        self, client: OwnClient, subscription: OwnSubscription
    ) -> Mapping[StreamId, int]:
        """Return the positions behind which a started subscription begins."""
        return subscription.begins_after

    def _begins_after(self, local: OwnSubscription) -> tuple[tuple[StreamId, int], ...]:
        """What its client has had as it claims it, and has to say when it comes back."""
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
                self.windows.give_up(local)
        self.memo.forget()
        self._on_ended(over)
        rows = [row for local in over for row in self._rows_over(f"{client.name}/{local.number}")]
        self._disk.commit(rows, then)

    def _rows_over(self, key: str) -> Sequence[Change]:
        """What takes a subscription off the disk."""
        return (Change(SUBSCRIPTIONS, key, None),)

    def _on_ended(self, over: Sequence[OwnSubscription]) -> None:
        """These subscriptions have ended; nothing more is matched with them."""

    # ------------------------------------------------------------ deliveries and sessions

    def _acknowledge(self, client: OwnClient, message: Acknowledge) -> None:
        self.windows.acknowledge(client.name, message.stream, message.first, message.last)
        self._leave(client)

    def _on_acknowledged(self, entry: Entry) -> None:
        entry.open -= 1
        if not entry.open:
            self._on_done(entry)

    @abstractmethod
    def _on_done(self, entry: Entry) -> None:
        """Clients are done with what they were handed."""

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
        self.windows.close(client.name)

    def _resume(self, client: OwnClient, message: Connect) -> None:
        client.submitted = client.told = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                begins_after = client.subscriptions[number].begins_after
                for stream, last in seen:
                    begins_after[stream] = max(last, begins_after.get(stream, 0))
