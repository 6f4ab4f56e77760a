"""The clients of a best_effort broker: nothing is kept for them but their subscriptions."""

from collections.abc import Callable, Sequence

from brokerd.model.client_messages import Detach, Publish, PublishAcknowledged, Subscribe
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.best_effort.routes import Route, Routes
from brokerd.protocols.parts.clients.service import ClientService, HostedClient
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability

Client = HostedClient[Route]


class Clients(ClientService[Client, Route]):
    """The clients of one broker."""

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: BestEffortParameters,
        routes: Routes,
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters)
        self._routes = routes
        self._next_number = 1

    def is_connected(self, name: ClientId) -> bool:
        """Whether the client can be told anything now."""
        client = self._clients.get(name)
        return client is not None and client.connected

    def linger_over(self, name: ClientId) -> None:
        """The client has not come back: its subscriptions are over."""
        client = self._clients[name]
        self._end(client, list(client.subscriptions.values()), lambda: self._forget(name))

    def on_detach(self, name: ClientId, message: Detach) -> None:
        """End all subscriptions; there is nothing to drain, what matched has been sent."""
        client = self._connected_client(name, "Detach")
        client.leaving, session = True, client.session
        over = list(client.subscriptions.values())
        self._end(client, over, lambda: self._answer_ended(client, session, 0))

    def _new_client(self, name: ClientId) -> Client:
        return HostedClient(name)

    def _subscribe(self, client: Client, message: Subscribe) -> None:
        subscription = SubscriptionId(self._broker, self.incarnation, self._next_number)
        self._next_number += 1
        client.subscriptions[message.number] = self._routes.add_local(
            client.name, message.number, subscription, message.predicate
        )

    def _claim(self, client: Client, subscription: Route) -> None:
        self._routes.tell(subscription)

    def _end(self, client: Client, over: Sequence[Route], then: Callable[[], None]) -> None:
        for route in over:
            del client.subscriptions[route.number]
        self._routes.forget([route.subscription for route in over], origin=client.name)
        then()

    def _publish(self, client: Client, message: Publish) -> None:
        run = message.run
        self._routes.forward(run, client.name)
        self._machine.send(client.name, PublishAcknowledged(run.first, run.last))
