"""The best-effort core of [GES]: routing by outlines of connections and profiles.

A publication travels to gatekeepers and keepers, which decide which units are interested, and from
there to those units only. Publications that a failed link or broker held are lost.

The core is the only module that knows all parts. It takes the effects and facts that a part
returns, in order, and routes each fact to the part that it concerns.

Paper: [GES] §2, §3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from brokerd.model.client_messages import Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, SubscriptionId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.reading import linked
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.ges.membership import READDRESSED, Readdressing
from brokerd.protocols.ges.messages import (
    AddressStated,
    AddressTaken,
    GraphStated,
    LoadAnswered,
    LoadProbe,
    RoutedPublications,
)
from brokerd.protocols.ges.overload import LOAD, SLOW, LinkLoad, SlowBroker
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.ges.profile_graph import LATE, LocalSubscriptions, Subscription
from brokerd.protocols.ges.router import PublicationForwarding
from brokerd.protocols.ges.state import (
    CostChange,
    NeighbourArrival,
    NeighbourRelocation,
    Outcome,
    PersistentState,
    ProfileConfirmation,
    Refusal,
    Relocation,
    Separation,
)
from brokerd.protocols.ges.unit_router import MESSAGES, UnitRouter
from brokerd.protocols.ges.units import hierarchy_from, hierarchy_of
from brokerd.protocols.interface import CoreStatus, Deliver, OverlayChanged, Send
from brokerd.protocols.parts.clients.unkept import UnkeptClients
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.forwarding_core import ForwardingCore
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS


class Ges(ForwardingCore):
    """A broker that forwards publications to interested units, and stores none.

    Attributes:
        units: connections, profiles, routes and failures of the hierarchy.
        persistent: the state on disk.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        address: Address,
        neighbours: Mapping[BrokerNumber, Address],
        parameters: GesParameters,
        decode_attributes: DecodeAttributes,
        hierarchy: Hierarchy,
    ) -> None:
        super().__init__(broker, tuple(neighbours), parameters)
        deadlines = self._deadlines
        self.units = units = UnitRouter(
            broker, address, neighbours, parameters, decode_attributes, hierarchy, deadlines
        )
        self.persistent = PersistentState((PUBLISHERS,))
        self._readdressing = Readdressing(units.neighbours, units.view)
        self._readdressing.use(hierarchy)
        self._load = LinkLoad(broker, units.neighbours, deadlines, parameters)
        self._slow = SlowBroker(broker, units.neighbours, deadlines, parameters, units.view)
        self._subscriptions = LocalSubscriptions(parameters.purge_ns)
        handlers: dict[type, MessageHandler] = {
            **dict.fromkeys(MESSAGES, self._on_unit_message),
            GraphStated: self._on_graph_stated,
            RoutedPublications: self._on_routed,
            LoadProbe: self._on_probe,
            LoadAnswered: self._on_answered,
            AddressStated: self._on_address_stated,
            AddressTaken: self._on_address_taken,
        }
        clients: UnkeptClients[Subscription] = UnkeptClients(
            broker, self._disk, deadlines, parameters, self
        )
        clients.on_change = self._on_clients_changed
        self.serve(clients, handlers)
        self._forwarding = PublicationForwarding(
            units.place, units.router, units.profiles, clients.here
        )
        self.dispatch_events({**self._event_handlers, OverlayChanged: self._on_overlay_changed})

    # ------------------------------------------------------------ for the driver

    def count_routing(self) -> Mapping[str, int]:
        """See ForwardingCore."""
        return {
            **self._forwarding.counters,
            **self.units.profiles.statistics(),
            **self._load.counters,
            **self.units.statistics(),
            **self._readdressing.counters,
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        return replace(
            super().status(),
            discrepancies=self.units.discrepancies(),
            detail=self.units.state().to_mapping(),
        )

    def hears(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour has this broker's address; else its messages are dropped."""
        return self._readdressing.hears(peer)

    # ------------------------------------------------------------ facts

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        """Emit effects, and route facts to their parts, in order."""
        for each in outcomes:
            kind = type(each)
            if kind is Send:
                self.effects.append(each)  # type: ignore[arg-type]  # by its type
            elif isinstance(each, ProfileConfirmation):
                self._start_subscriptions(each)
            elif isinstance(each, CostChange):
                self._take(self.units.dissemination.on_cost_changed(each))
            elif isinstance(each, Refusal):
                self._clients.refusal = each.reason
            elif isinstance(each, Separation):
                self._take(self._readdressing.leave(each.part))
            elif isinstance(each, Relocation):
                self._relocate(each)
            elif isinstance(each, NeighbourRelocation):
                moved = self.units.on_neighbour_moved(each.peer, each.address, self.now_ns)
                self._take(moved)
            elif isinstance(each, NeighbourArrival):
                self._link(each.peer)
            else:
                self.effects.append(each)

    def _start_subscriptions(self, confirmation: ProfileConfirmation) -> None:
        """Start the subscriptions of a confirmed version, or state a later version for them."""
        coming = self.units.propagation.next_version()
        started, restates = self._subscriptions.on_confirmed(confirmation, coming)
        for route in started:
            if route.path_age_ns:
                about = {"client": route.client, "number": route.number}
                self.record(LATE, **about, path_age_ns=route.path_age_ns)
            if self._clients.is_connected(route.client):
                self.report_state(route)
        if restates:
            self._take(self.units.propagation.change_own((), (), self.now_ns))

    def _relocate(self, relocation: Relocation) -> None:
        """Restart at another address, with the current clients."""
        if relocation.is_return:
            self.units.fragment.on_return(self.now_ns)
        self.units.neighbours.linked.clear()
        self.renew_sessions(READDRESSED)
        self._take(self.units.restart_at(relocation.address, self.now_ns))

    def _link(self, peer: BrokerNumber) -> None:
        incarnation = self.incarnation_of(peer)
        self._take(self.units.on_neighbour_up(peer, incarnation, self.now_ns))
        self._take(self._load.on_session(peer, self.now_ns))
        self._slow.look(self.now_ns)

    # ------------------------------------------------------------ sessions and deadlines

    def start_routing(self, incarnation: int) -> None:
        """See ForwardingCore; starts without a connection and with an empty profile."""
        self._take(self.units.start(incarnation, self.now_ns))

    def neighbour_came(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; first sends the address of this broker."""
        self._take((self._readdressing.on_established(peer),))

    def neighbour_went(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; routes around the neighbour from now on."""
        self._readdressing.on_lost(peer)
        self._take(self.units.on_neighbour_down(peer, self.now_ns))
        self._load.on_session_lost(peer)
        self._slow.look(self.now_ns)

    def deadline_reached(self, purpose: str, peer: BrokerNumber) -> None:
        """See ForwardingCore."""
        if purpose == LOAD:
            self._take(self._load.check(self.now_ns))
        elif purpose == SLOW:
            self.emit(self._slow.on_wait_end())
        else:
            clients, is_alone = [*self._clients.here], not self._sessions
            due = self.units.on_deadline(purpose, peer, clients, self.now_ns, is_alone=is_alone)
            self._take(due)

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        """Add brokers that have joined, dial new neighbours, and remove brokers that have left."""
        hierarchy = hierarchy_from(event.overlay)
        self._readdressing.use(hierarchy)
        self._take(self.units.add_neighbours(hierarchy, self.now_ns))
        self.change_neighbours(sorted(linked(hierarchy.links, self._broker)))
        self._take(self.units.use_members(hierarchy, self.now_ns))

    # ------------------------------------------------------------ messages of brokers

    def _on_unit_message(self, peer: BrokerNumber, message: Any) -> None:
        if self._readdressing.hears(peer):
            self._take(self.units.on_message(peer, message, self.now_ns))

    def _on_graph_stated(self, peer: BrokerNumber, message: GraphStated) -> None:
        if self._readdressing.hears(peer):
            self._take(self.units.on_message(peer, message, self.now_ns))
            self._slow.look(self.now_ns)

    def _on_routed(self, peer: BrokerNumber, message: RoutedPublications) -> None:
        if self._readdressing.hears(peer):
            self._forward(self._forwarding.on_routed(peer, message))

    # A probe names no unit: unanswered, it would make its link dear until the session ends.

    def _on_probe(self, peer: BrokerNumber, _message: LoadProbe) -> None:
        self.emit(self._load.on_probe(peer))

    def _on_answered(self, peer: BrokerNumber, _message: LoadAnswered) -> None:
        self._load.on_answered(peer, self.now_ns)

    def _on_address_stated(self, peer: BrokerNumber, message: AddressStated) -> None:
        may_follow = self.units.fragment.can_follow(self.now_ns)
        self._take(self._readdressing.on_stated(peer, message, may_follow=may_follow))

    def _on_address_taken(self, peer: BrokerNumber, message: AddressTaken) -> None:
        self._take((self._readdressing.on_taken(peer, message),))

    # ------------------------------------------------------------ clients

    def _on_clients_changed(self) -> None:
        self._take(self.units.on_clients_changed(self._clients.here, self.now_ns))

    def add_local(
        self, client: ClientId, number: int, subscription: SubscriptionId, predicate: Predicate
    ) -> Subscription:
        """See Forwarding."""
        propagation = self.units.propagation
        self.units.profiles.set_local(subscription, client, number)
        coming = propagation.next_version()
        route = Subscription(subscription, predicate, client, number, coming)
        self._subscriptions.add(route)
        self._take(propagation.change_own([(subscription, predicate)], (), self.now_ns))
        if not propagation.is_everywhere(coming):
            self.report_state(route)
        return route

    def report_state(self, route: Subscription) -> None:
        """See Forwarding."""
        if self.units.propagation.is_everywhere(route.version):
            answer = Subscribed(route.number, "started", path_age_ns=route.path_age_ns)
        else:
            answer = Subscribed(route.number, "pending")
        self.send(route.client, answer)

    def forget(self, subscriptions: list[SubscriptionId], origin: ClientId) -> None:
        """See Forwarding."""
        self._subscriptions.remove(subscriptions)
        if subscriptions:
            self._take(self.units.propagation.change_own((), subscriptions, self.now_ns))

    def forward(self, run: PublicationRun, origin: ClientId) -> None:
        """See Forwarding."""
        self._forward(self._forwarding.publish(run, origin))

    def _forward(self, effects: list[Send | Deliver]) -> None:
        """Emit publications, and probe the links that they load."""
        if not self._load.is_measuring:
            self.effects.extend(effects)
            return
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Send):
                assert isinstance(effect.peer, int), f"{effect} of publications to a client"
                self.effects.extend(self._load.sent(effect.peer, self.now_ns))


def make_core(context: CoreContext) -> Ges:
    """Return the core of one broker."""
    hierarchy = hierarchy_of(context.topology)
    neighbours = sorted(linked(hierarchy.links, context.broker))
    return Ges(
        context.broker,
        hierarchy.addresses[context.broker],
        {neighbour: hierarchy.addresses[neighbour] for neighbour in neighbours},
        context.parameters,
        context.decode_attributes,
        hierarchy,
    )
