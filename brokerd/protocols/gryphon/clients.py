"""The clients of one broker: what each wants is known here and nowhere else.

Paper: [GD02] §2.3 (delivery). Deviates: a client is done with what it has acknowledged, not with
what was put into its queue, and its subscriptions are on disk, so that a restart of its broker
ends nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

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
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, StreamId
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.subend import Delivered
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.service import ClientService, HostedClient
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import RunSelection, match_run

SUBSCRIPTIONS: Final = "subscriptions"


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of a client of this broker.

    Attributes:
        started: it is on disk, and gets what is handed to clients from then on.
        begins_after: see WindowedSubscription.
    """

    client: ClientId
    number: int
    predicate: Predicate
    begins_after: dict[StreamId, int]
    started: bool = False
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Client(HostedClient[Subscription]):
    """A client.

    Attributes:
        submitted: how far it has sent what it publishes, on its present session.
        told: how far it was told that this is on disk.
        drains: its Detach is answered when it has acknowledged all there is for it.
        asked: the subscriptions that it has asked for on its present session.
    """

    submitted: int = 0
    told: int = 0
    drains: bool = False
    asked: dict[int, None] = field(default_factory=dict)


class Clients(ClientService[Client, Subscription]):
    """See ClientService.

    Args:
        publish: logs a run, and does what is handed to it once all of that is on disk.
        durable: how far what a source has published is on disk.
        on_done: clients are done with what they were handed.
        on_unwanted: the last subscription has ended.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GryphonParameters,
        decode_attributes: Callable[[bytes], Attributes],
        counters: dict[str, int],
        *,
        publish: Callable[[PublicationRun, Callable[[], None]], None],
        durable: Callable[[SourceId], int],
        on_done: Callable[[Delivered], None],
        on_unwanted: Callable[[], None],
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters)
        self._publish_run = publish
        self._durable = durable
        self._on_done = on_done
        self._on_unwanted = on_unwanted
        self.windows: DeliveryWindows[Delivered, Subscription] = DeliveryWindows(
            disk.machine, parameters.client_window, self._on_delivered, counters
        )
        self._index: MatchingIndex[Subscription] = MatchingIndex()
        self.memo: MatchMemo[Subscription, tuple[Subscription, ...]] = MatchMemo(
            self._index, decode_attributes
        )
        self.started = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the subscriptions of an earlier incarnation."""
        for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
            name, _, number = key.rpartition("/")
            local = Subscription(name, int(number), read_predicate(row), {})
            self._client(name).subscriptions[local.number] = local
            self._start(local)
        for name in self._clients:
            self._linger(name)

    def check_run(self, run: PublicationRun, peer: Peer) -> None:
        """Make sure that all attributes of a run can be read.

        Raises:
            RemoteProtocolError: they cannot.
        """
        match_run(self.memo, run, peer)

    def hand_out(self, stream: StreamId, run: PublicationRun) -> Delivered | None:
        """Give events to all who want them; None where nobody does."""
        entry = Delivered(stream, run.first)
        wanted = match_run(self.memo, run, stream.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[ClientId, list[Subscription]] = {}
            for local in those:
                by_client.setdefault(local.client, []).append(local)
            for name, locals_ in by_client.items():
                entry.open += 1
                self.windows.deliver(name, part, tuple(locals_), (entry,))
        entry.open -= 1
        return entry if entry.open else None

    def linger_over(self, name: ClientId) -> None:
        """See ClientService: one that is here has not asked for what is over now."""
        client = self._clients[name]
        over = [each for each in client.subscriptions.values() if each.number not in client.asked]
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

    def _leave(self, client: Client) -> None:
        if client.drains and self.windows.drained(client.name):
            client.drains = False
            self._answer_ended(client, client.session, 0)

    def _new_client(self, name: ClientId) -> Client:
        return Client(name)

    def _subscribe(self, client: Client, message: Subscribe) -> None:
        client.asked[message.number] = None
        local = Subscription(client.name, message.number, message.predicate, {})
        client.subscriptions[local.number] = local
        row = predicate_row(local.predicate)
        change = Change(SUBSCRIPTIONS, f"{client.name}/{local.number}", row)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        self._disk.commit((change,), partial(self._begin, client, local))

    def _begin(self, client: Client, local: Subscription) -> None:
        if not local.is_over:
            self._start(local)
            if local.number in client.asked:
                self._claim(client, local)

    def _start(self, local: Subscription) -> None:
        local.started = True
        self.started += 1
        self._index.add(local, local.predicate)
        self.memo.forget()

    def _claim(self, client: Client, subscription: Subscription) -> None:
        client.asked[subscription.number] = None
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
                self.started -= 1
                self._index.remove(local)
            if not drain:
                self.windows.give_up(local)
        self.memo.forget()
        if not self.started:
            self._on_unwanted()
        keys = [f"{client.name}/{local.number}" for local in over]
        self._disk.commit([Change(SUBSCRIPTIONS, key, None) for key in keys], then)

    def _publish(self, client: Client, message: Publish) -> None:
        self.check_run(message.run, client.name)
        client.submitted = max(client.submitted, message.run.last)
        self._publish_run(message.run, partial(self._tell_durable, client))

    def _tell_durable(self, client: Client) -> None:
        """Tell a publisher that is here what of its publications is on disk."""
        if client.source is None or not client.connected:
            return
        through = min(self._durable(client.source), client.submitted)
        if through > client.told:
            self._machine.send(client.name, PublishAcknowledged(client.told + 1, through))
            client.told = through

    def _acknowledge(self, client: Client, message: Acknowledge) -> None:
        self.windows.acknowledge(client.name, message.stream, message.first, message.last)
        self._leave(client)

    def _on_delivered(self, entry: Delivered) -> None:
        entry.open -= 1
        if not entry.open:
            self._on_done(entry)

    def _keeps(self, client: Client) -> bool:
        return bool(client.subscriptions)

    def _forget(self, name: ClientId) -> None:
        super()._forget(name)
        self.windows.forget(name)

    def _on_connected(self, client: Client) -> None:
        if client.subscriptions:
            self._linger(client.name)

    def _on_gone(self, client: Client) -> None:
        client.asked.clear()
        client.drains = False
        self.windows.close(client.name)

    def _resume(self, client: Client, message: Connect) -> None:
        client.submitted = client.told = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                begins_after = client.subscriptions[number].begins_after
                for stream, last in seen:
                    begins_after[stream] = max(last, begins_after.get(stream, 0))
