"""Clients of a broker that stores only their subscriptions."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from brokerd.model.client_messages import Detach, Publish, PublishAcknowledged, Subscribe
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.parts.clients.service import (
    ClientParameters,
    ClientService,
    HostedClient,
    HostedSubscription,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability


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


class UnkeptClients(ClientService[HostedClient[Subscription], Subscription]):
    """The clients of one broker; publications are acknowledged as soon as they are forwarded."""

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: ClientParameters,
        routes: Forwarding[Subscription],
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters)
        self._routes = routes
        self._next_number = 1

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions of a client that has not returned in time."""
        client = self._clients[name]
        self._end(client, list(client.subscriptions.values()), lambda: self._forget(name))

    def on_detach(self, name: ClientId, message: Detach) -> None:
        """End all subscriptions; no drain is necessary, since all matches have been sent."""
        client = self._client_of(name, "Detach")
        client.leaving, session = True, client.session
        over = list(client.subscriptions.values())
        self._end(client, over, lambda: self._answer_ended(client, session, 0))

    def _new_client(self, name: ClientId) -> HostedClient[Subscription]:
        return HostedClient(name)

    def _subscribe(self, client: HostedClient[Subscription], message: Subscribe) -> None:
        subscription = SubscriptionId(self._broker, self.incarnation, self._next_number)
        self._next_number += 1
        client.subscriptions[message.number] = self._routes.add_local(
            client.name, message.number, subscription, message.predicate
        )

    def _claim(self, client: HostedClient[Subscription], subscription: Subscription) -> None:
        self._routes.report_state(subscription)

    def _end(
        self,
        client: HostedClient[Subscription],
        over: Sequence[Subscription],
        then: Callable[[], None],
    ) -> None:
        for route in over:
            del client.subscriptions[route.number]
        self._routes.forget([route.subscription for route in over], origin=client.name)
        then()

    def _publish(self, client: HostedClient[Subscription], message: Publish) -> None:
        run = message.run
        self._routes.forward(run, client.name)
        self._machine.send(client.name, PublishAcknowledged(run.first, run.last))
