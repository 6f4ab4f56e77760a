"""The clients of one broker of the ring, with subscriptions that no other broker stores."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Publish,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import (
    SUBSCRIPTIONS,
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
    kept_subscription,
    new_subscription,
    read_subscriptions,
)
from brokerd.protocols.parts.clients.table import Admission, ClientTable
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.ring_flood.log import Stored
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

Client = OwnClient[OwnSubscription]


class Clients:
    """The clients of a broker.

    Args:
        publish: accepts the publications of clients.
        on_acknowledged: called when more of a source may be released.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: RingFloodParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        publish: Callable[[PublicationRun, Peer], None],
        on_acknowledged: Callable[[SourceId], None],
    ) -> None:
        machine = disk.machine
        self.table = ClientTable(broker, machine, deadlines, parameters, Client)
        windows = DeliveryWindows[Stored, OwnSubscription](
            machine, parameters.client_window, counters
        )
        self.own = OwnSubscriptions(machine, windows, decode_attributes, self.table.clients)
        self._machine = machine
        self._disk = disk
        self._publish_run = publish
        self._on_more = on_acknowledged

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of clients' messages by type."""
        return {
            Connect: self._on_connect,
            Subscribe: self._on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def _take_done(self, entries: Iterable[Stored]) -> None:
        for entry in entries:
            self._on_more(entry.run.source)

    # ------------------------------------------------------------ sessions

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the subscriptions of an earlier incarnation."""
        for local in read_subscriptions(recovered):
            self.table.find(local.client).subscriptions[local.number] = local
            self.own.start(local)
        for name in self.table.clients:
            self.table.linger(name)

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        client = self.table.check_connect(name, message)
        if client is not None:
            admission = self.table.assign_source(client, message)
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _admit(self, admission: Admission[Client]) -> None:
        if admission.is_current():
            client = admission.client
            self.own.resume(client, admission.message)
            self.table.enter(client)
            self.table.welcome(client)
            if client.subscriptions:
                self.table.linger(client.name)

    def on_lost(self, name: ClientId, session: int) -> None:
        """Keep the subscriptions of a client for a while after the end of the session."""
        client, was_admitted = self.table.close_session(name, session)
        self._take_done(self.own.close(client))
        if was_admitted and not client.subscriptions:
            self._forget(name)
        else:
            self.table.keep(client)

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions that a client has not requested in time."""
        client = self.table.clients[name]
        self._end(client, self.own.unrequested(client))
        if not client.session:
            self._forget(name)

    def _forget(self, name: ClientId) -> None:
        self.table.forget(name)
        self.own.windows.forget(name)

    # ------------------------------------------------------------ subscriptions

    def _on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        client = self.table.requester(name, "Subscribe")
        if not self.table.is_permitted(client, message):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._claim(client, known)
            return
        local = new_subscription(client, message)
        self._machine.send(name, Subscribed(local.number, "pending"))
        self._disk.commit((kept_subscription(local),), partial(self._start, client, local))

    def _start(self, client: Client, local: OwnSubscription) -> None:
        if not local.is_over:
            self.own.start(local)
            if client.connected and client.session == local.claimed:
                self._claim(client, local)

    def _claim(self, client: Client, local: OwnSubscription) -> None:
        local.claimed = client.session
        if local.started:
            self._take_done(self.own.claim(client, local))

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        client = self.table.check_unsubscribe(name, message)
        found = client.subscriptions.get(message.number)
        answer = partial(self.table.report_end, client, client.session, message.number)
        self._end(client, [found] if found is not None else [], answer)

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client = self.table.check_detach(name)
        session = client.session

        def leave() -> None:
            client.drains = client.session == session
            self.own.answer_detach(client)

        self._end(client, [*client.subscriptions.values()], leave, drain=message.drain)

    def _end(
        self,
        client: Client,
        over: Sequence[OwnSubscription],
        then: Callable[[], None] = lambda: None,
        *,
        drain: bool = False,
    ) -> None:
        self._take_done(self.own.end(client, over, drain=drain))
        self._disk.commit([Change(SUBSCRIPTIONS, local.row, None) for local in over], then)

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client = self.table.check_publish(name, message)
        self._publish_run(message.run, name)
        self.table.record_published(name, message.run.source, message.run.last)
        client.submitted = max(client.submitted, message.run.last)
        self._on_more(message.run.source)

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._take_done(self.own.acknowledge(name, message))
        self.own.answer_detach(client)

    def tell_stored(self, source: SourceId, through: int) -> None:
        """Acknowledge to a local publisher the publications with enough stored copies."""
        for client in self.table.clients.values():
            if client.source == source:
                self.own.acknowledge_through(client, through)
