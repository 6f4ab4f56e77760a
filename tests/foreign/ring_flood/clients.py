"""The clients of one broker of the ring: what each wants is known here and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Detach,
    Publish,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.service import ClientService, HostedClient
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import RunSelection, match_run
from brokerd.protocols.ring_flood.log import Stored
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

SUBSCRIPTIONS = "subscriptions"


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of a client of this broker; `started` once it is on disk.

    `claimed`: the last session on which the client has asked for it.
    """

    client: ClientId
    number: int
    predicate: Predicate
    claimed: int = 0
    started: bool = False
    is_over: bool = False
    begins_after: dict[SourceId, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Client(HostedClient[Subscription]):
    """A client: how far it has sent what it publishes, and was told that this is done."""

    submitted: int = 0
    told: int = 0
    drains: bool = False


class Clients(ClientService[Client, Subscription]):
    """See ClientService."""

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: RingFloodParameters,
        decode_attributes: Callable[[bytes], Attributes],
        publish: Callable[[PublicationRun, Peer], None],
        on_acknowledged: Callable[[SourceId], None],
        counters: dict[str, int],
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters)
        self._publish_run = publish
        self._on_acknowledged = on_acknowledged
        self.windows: DeliveryWindows[Stored, Subscription] = DeliveryWindows(
            disk.machine, parameters.client_window, self._on_delivered, counters
        )
        self.index: MatchingIndex[Subscription] = MatchingIndex()
        self.memo: MatchMemo[Subscription, tuple[Subscription, ...]] = MatchMemo(
            self.index, decode_attributes
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the subscriptions of an earlier incarnation."""
        for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
            name, _, number = key.rpartition("/")
            local = Subscription(name, int(number), read_predicate(row))
            self._client(name).subscriptions[local.number] = local
            self._start(local)
        for name in self._clients:
            self._linger(name)

    def subscriptions(self) -> int:
        """How many there are, with those that have not started."""
        return sum(len(client.subscriptions) for client in self._clients.values())

    def connected(self) -> int:
        """How many clients are here."""
        return sum(client.connected for client in self._clients.values())

    def deliver(self, entry: Stored) -> None:
        """Give publications to all who want them."""
        wanted = match_run(self.memo, entry.run, entry.run.source.broker)
        for those, run in RunSelection(entry.run).stretches(wanted):
            by_client: dict[ClientId, list[Subscription]] = {}
            for local in those:
                by_client.setdefault(local.client, []).append(local)
            for name, locals_ in by_client.items():
                entry.open += 1
                self.windows.deliver(name, run, tuple(locals_), (entry,))

    def tell_done(self, source: SourceId, done: int) -> None:
        """Tell a publisher that is here what of its publications is stored as often as asked."""
        for client in self._clients.values():
            through = min(done, client.submitted)
            if client.source == source and client.connected and through > client.told:
                self._machine.send(client.name, PublishAcknowledged(client.told + 1, through))
                client.told = through

    def linger_over(self, name: ClientId) -> None:
        """See ClientService."""
        client = self._clients[name]
        self._end(client, list(client.subscriptions.values()), lambda: None)
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

    def _leave(self, client: Client) -> None:
        if client.drains and self.windows.drained(client.name):
            client.drains = False
            self._answer_ended(client, client.session, 0)

    def _new_client(self, name: ClientId) -> Client:
        return Client(name)

    def _subscribe(self, client: Client, message: Subscribe) -> None:
        local = Subscription(client.name, message.number, message.predicate, client.session)
        client.subscriptions[local.number] = local
        row = predicate_row(local.predicate)
        change = Change(SUBSCRIPTIONS, f"{client.name}/{local.number}", row)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        self._disk.commit((change,), partial(self._begin, client, local))

    def _begin(self, client: Client, local: Subscription) -> None:
        if not local.is_over:
            self._start(local)
            if client.connected and client.session == local.claimed:
                self._claim(client, local)

    def _start(self, local: Subscription) -> None:
        local.started = True
        self.index.add(local, local.predicate)
        self.memo.forget()

    def _claim(self, client: Client, subscription: Subscription) -> None:
        subscription.claimed = client.session
        if subscription.started:
            self._machine.send(client.name, Subscribed(subscription.number, "started"))
            self.windows.claim(subscription)

    def _end(
        self,
        client: Client,
        over: Sequence[Subscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        for local in over:
            del client.subscriptions[local.number]
            local.is_over = True
            if local.started:
                self.index.remove(local)
            if not drain:
                self.windows.give_up(local)
        self.memo.forget()
        keys = [f"{client.name}/{local.number}" for local in over]
        self._disk.commit([Change(SUBSCRIPTIONS, key, None) for key in keys], then)

    def _publish(self, client: Client, message: Publish) -> None:
        self._publish_run(message.run, client.name)
        client.submitted = max(client.submitted, message.run.last)
        self._on_acknowledged(message.run.source)

    def _acknowledge(self, client: Client, message: Acknowledge) -> None:
        self.windows.acknowledge(client.name, message.stream, message.first, message.last)
        self._leave(client)

    def _on_delivered(self, entry: Stored) -> None:
        entry.open -= 1
        self._on_acknowledged(entry.run.source)

    def _keeps(self, client: Client) -> bool:
        return bool(client.subscriptions)

    def _forget(self, name: ClientId) -> None:
        super()._forget(name)
        self.windows.forget(name)

    def _on_gone(self, client: Client) -> None:
        client.drains = False
        self.windows.close(client.name)

    def _resume(self, client: Client, message: Connect) -> None:
        client.submitted = client.told = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                begins_after = client.subscriptions[number].begins_after
                for source, last in seen:
                    begins_after[source] = max(last, begins_after.get(source, 0))
