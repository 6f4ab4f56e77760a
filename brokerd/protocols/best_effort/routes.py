"""The routes of publications in best_effort: to every neighbour and client that subscribed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Deliveries, Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.protocols.interface import Deliver
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler
from brokerd.protocols.parts.selection import RunSelection, match_run


@dataclass(slots=True)
class Route:
    """A subscription with its origin, and the neighbours without a confirmation yet."""

    subscription: SubscriptionId
    predicate: Predicate
    origin: Peer
    number: int
    missing: dict[BrokerNumber, None]


class _Targets(NamedTuple):
    """The neighbours and the clients' subscriptions that a publication is sent to."""

    brokers: tuple[BrokerNumber, ...]
    clients: dict[ClientId, tuple[int, ...]]


class Routes:
    """All subscriptions, with the neighbour or client of their origin.

    Args:
        sessions: the neighbours with a session.
        connected: the connected clients.
    """

    def __init__(
        self,
        machine: EventMachine,
        broker: BrokerNumber,
        neighbours: tuple[BrokerNumber, ...],
        sessions: Collection[BrokerNumber],
        connected: Collection[ClientId],
        decode_attributes: DecodeAttributes,
    ) -> None:
        self._machine = machine
        self._broker = broker
        self._neighbours = neighbours
        self._sessions = sessions
        self._connected = connected
        self._routes: dict[SubscriptionId, Route] = {}
        self._index: MatchingIndex[SubscriptionId] = MatchingIndex()
        self._memo: MatchMemo[SubscriptionId, _Targets] = MatchMemo(
            self._index, decode_attributes, conclude=self._targets
        )
        self._counters = dict.fromkeys(
            ("publications_received", "publications_forwarded", "publications_delivered"), 0
        )

    def handlers(self) -> dict[type, MessageHandler]:
        return {
            SubscriptionsOffered: self._on_offered,
            SubscriptionsReached: self._on_reached,
            SubscriptionsWithdrawn: self._on_withdrawn,
            ForwardedPublications: self._on_forwarded,
        }

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._counters,
            "subscriptions": len(self._routes),
            "matching_hits": self._memo.hits,
            "matching_misses": self._memo.misses,
        }

    def offer_all(self, peer: BrokerNumber) -> None:
        """Send a neighbour all subscriptions from other sides, first of all in a session."""
        offered = [
            (route.subscription, route.predicate)
            for route in self._routes.values()
            if route.origin != peer
        ]
        self._machine.send(peer, SubscriptionsOffered(tuple(offered), complete=True))

    def add_local(
        self, client: ClientId, number: int, subscription: SubscriptionId, predicate: Predicate
    ) -> Route:
        """Add a subscription of a client here, and report its state to the client."""
        route = Route(subscription, predicate, client, number, self._other_neighbours(client))
        self._add([route], origin=client)
        if route.missing:
            self.report_state(route)
        self._confirm_reached([subscription])
        return route

    def report_state(self, route: Route) -> None:
        """Report the state of a subscription to its client."""
        state = Subscribed(route.number, "pending" if route.missing else "started")
        self._machine.send(route.origin, state)

    def _on_offered(self, peer: BrokerNumber, message: SubscriptionsOffered) -> None:
        for subscription, _ in message.subscriptions:
            known = self._routes.get(subscription)
            if subscription.home == self._broker or (known and known.origin != peer):
                raise RemoteProtocolError(peer, f"{subscription} belongs to another direction")
        offered = {subscription for subscription, _ in message.subscriptions}
        if len(offered) < len(message.subscriptions):
            raise RemoteProtocolError(peer, "offers a subscription twice")
        if message.complete:
            over = [
                route.subscription
                for route in self._routes.values()
                if route.origin == peer and route.subscription not in offered
            ]
            self.forget(over, origin=peer)
        fresh = [
            Route(subscription, predicate, peer, 0, self._other_neighbours(peer))
            for subscription, predicate in message.subscriptions
            if subscription not in self._routes
        ]
        self._add(fresh, origin=peer)
        self._confirm_reached([subscription for subscription, _ in message.subscriptions])

    def _on_reached(self, peer: BrokerNumber, message: SubscriptionsReached) -> None:
        named = dict.fromkeys(message.subscriptions)
        routes = [self._routes.get(subscription) for subscription in named]
        for route in routes:
            if route is not None and route.origin == peer:
                raise RemoteProtocolError(peer, f"{route.subscription} did not go to that side")
        awaiting = [route for route in routes if route is not None and peer in route.missing]
        for route in awaiting:
            del route.missing[peer]
        self._confirm_reached([route.subscription for route in awaiting])

    def _on_withdrawn(self, peer: BrokerNumber, message: SubscriptionsWithdrawn) -> None:
        named = dict.fromkeys(message.subscriptions)
        known = [subscription for subscription in named if subscription in self._routes]
        for subscription in known:
            if self._routes[subscription].origin != peer:
                raise RemoteProtocolError(peer, f"{subscription} belongs to another direction")
        self.forget(known, origin=peer)

    def _reaches(self, peer: Peer) -> bool:
        return peer in (self._sessions if isinstance(peer, int) else self._connected)

    def _other_neighbours(self, origin: Peer) -> dict[BrokerNumber, None]:
        return {neighbour: None for neighbour in self._neighbours if neighbour != origin}

    def _add(self, routes: list[Route], origin: Peer) -> None:
        if not routes:
            return
        for route in routes:
            self._routes[route.subscription] = route
            self._index.add(route.subscription, route.predicate)
        self._memo.forget()
        offer = SubscriptionsOffered(
            tuple((route.subscription, route.predicate) for route in routes), complete=False
        )
        for neighbour in self._other_neighbours(origin):
            if self._reaches(neighbour):
                self._machine.send(neighbour, offer)

    def forget(self, subscriptions: list[SubscriptionId], origin: Peer) -> None:
        """Remove subscriptions of one side, and withdraw them from the other neighbours."""
        if not subscriptions:
            return
        for subscription in subscriptions:
            del self._routes[subscription]
            self._index.remove(subscription)
        self._memo.forget()
        for neighbour in self._other_neighbours(origin):
            if self._reaches(neighbour):
                self._machine.send(neighbour, SubscriptionsWithdrawn(tuple(subscriptions)))

    def _confirm_reached(self, subscriptions: list[SubscriptionId]) -> None:
        """Confirm subscriptions to the side of their origin, if all other sides have confirmed."""
        reached: dict[BrokerNumber, list[SubscriptionId]] = {}
        for subscription in subscriptions:
            route = self._routes[subscription]
            if route.missing:
                continue
            if isinstance(route.origin, int):
                reached.setdefault(route.origin, []).append(subscription)
            elif self._reaches(route.origin):
                self.report_state(route)
        for neighbour, those in reached.items():
            if self._reaches(neighbour):
                self._machine.send(neighbour, SubscriptionsReached(tuple(those)))

    def _on_forwarded(self, peer: BrokerNumber, message: ForwardedPublications) -> None:
        if message.run.source.broker == self._broker:
            raise RemoteProtocolError(peer, f"our own {message.run.source} returned")
        self.forward(message.run, peer)

    def forward(self, run: PublicationRun, origin: Peer) -> None:
        """Send publications once to every neighbour and client with a matching subscription."""
        targets = match_run(self._memo, run, origin)
        self._counters["publications_received"] += len(run)
        places_by_broker: dict[BrokerNumber, list[int]] = {}
        places_by_client: dict[ClientId, list[int]] = {}
        for place, target in enumerate(targets):
            for broker in target.brokers:
                if broker != origin and self._reaches(broker):
                    places_by_broker.setdefault(broker, []).append(place)
            for client in target.clients:
                if self._reaches(client):
                    places_by_client.setdefault(client, []).append(place)
        selection = RunSelection(run)
        for broker, places in places_by_broker.items():
            part = selection.select(places)
            self._counters["publications_forwarded"] += len(part)
            self._machine.send(broker, ForwardedPublications(part))
        for client, places in places_by_client.items():
            numbers = [target.clients.get(client, ()) for target in targets]
            wanted = [numbers[place] for place in places]
            if len(places) == len(targets) and wanted.count(wanted[0]) == len(wanted):
                self._deliver(client, run, wanted[0])
                continue
            for those, stretch in selection.stretches(numbers):
                if those:
                    self._deliver(client, stretch, those)

    def _deliver(self, client: ClientId, run: PublicationRun, numbers: tuple[int, ...]) -> None:
        self._counters["publications_delivered"] += len(run)
        self._machine.emit(Deliver(client, Deliveries(run, numbers)))

    def _targets(self, subscriptions: tuple[SubscriptionId, ...]) -> _Targets:
        brokers: dict[BrokerNumber, None] = {}
        clients: dict[ClientId, list[int]] = {}
        for subscription in subscriptions:
            route = self._routes[subscription]
            if isinstance(route.origin, int):
                brokers[route.origin] = None
            else:
                clients.setdefault(route.origin, []).append(route.number)
        return _Targets(tuple(brokers), {client: tuple(those) for client, those in clients.items()})
