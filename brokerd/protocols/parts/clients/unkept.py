"""Clients of a broker that stores only publisher numbers."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Publish,
    PublishAcknowledged,
    Subscribe,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.parts.clients.table import (
    Admission,
    ClientTable,
    HostedClient,
    HostedSubscription,
)
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler


class UnkeptSubscription(HostedSubscription, Protocol):
    """A subscription with a deployment-wide identity."""

    @property
    def subscription(self) -> SubscriptionId:
        """The deployment-wide identity."""


Subscription = TypeVar("Subscription", bound=UnkeptSubscription)


class Forwarding(Protocol[Subscription]):
    """The routes of clients' subscriptions and publications."""

    def add_local(
        self, client: ClientId, number: int, subscription: SubscriptionId, predicate: Predicate
    ) -> Subscription:
        """Add a subscription of a client here, and report its state to the client."""

    def report_state(self, route: Subscription) -> None:
        """Report the state of a subscription to its client."""

    def forget(self, subscriptions: list[SubscriptionId], origin: ClientId) -> None:
        """Remove ended subscriptions of a client."""

    def forward(self, run: PublicationRun, origin: ClientId) -> None:
        """Send publications of a client to all matching subscribers."""


class UnkeptClients(Generic[Subscription]):
    """The clients of one broker; publications are acknowledged as soon as they are forwarded."""

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        table: ClientTable[HostedClient[Subscription]],
        routes: Forwarding[Subscription],
    ) -> None:
        self.table = table
        self._broker = broker
        self._machine = machine
        self._routes = routes
        self._next_number = 1

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of clients' messages by type, but of Connect."""
        return {
            Subscribe: self._on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def on_lost(self, name: ClientId, session: int) -> bool:
        """Keep a client after its session; return True if the client was admitted."""
        client, _ = self.table.close_session(name, session)
        return self.table.keep(client)

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions of a client that has not returned in time."""
        client = self.table.clients[name]
        self._end(client, [*client.subscriptions.values()])
        self.table.forget(name)

    def on_connect(
        self, name: ClientId, message: Connect
    ) -> Admission[HostedClient[Subscription]] | None:
        """Return the admission of a client; None if it is refused."""
        client = self.table.check_connect(name, message)
        return self.table.assign_source(client, message) if client is not None else None

    def _on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing."""
        client = self.table.requester(name, "Subscribe")
        if not self.table.is_permitted(client, message):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._routes.report_state(known)
            return
        subscription = SubscriptionId(self._broker, self.table.incarnation, self._next_number)
        self._next_number += 1
        client.subscriptions[message.number] = self._routes.add_local(
            name, message.number, subscription, message.predicate
        )

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription at once, without waiting for other brokers."""
        client = self.table.check_unsubscribe(name, message)
        known = client.subscriptions.get(message.number)
        self._end(client, [known] if known is not None else [])
        self.table.report_end(client, client.session, message.number)

    def _on_detach(self, name: ClientId, _message: Detach) -> None:
        """End all subscriptions; no drain is necessary, since all matches have been sent."""
        client = self.table.check_detach(name)
        self._end(client, [*client.subscriptions.values()])
        self.table.report_end(client, client.session, 0)

    def _end(self, client: HostedClient[Subscription], over: Sequence[Subscription]) -> None:
        for route in over:
            del client.subscriptions[route.number]
        self._routes.forget([route.subscription for route in over], origin=client.name)

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        self.table.check_publish(name, message)
        run = message.run
        self._routes.forward(run, name)
        self.table.record_published(name, run.source, run.last)
        self._machine.send(name, PublishAcknowledged(run.first, run.last))

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        """Check an acknowledgement, for which no delivery waits."""
        self.table.check_acknowledge(name, message)
