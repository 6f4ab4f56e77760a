"""The best-effort core of [GES]: routing by outlines of connections and profiles.

A publication travels to gatekeepers and keepers, which decide which units are interested, and from
there to those units only. Publications that a failed link or broker held are lost.

Paper: [GES] §2, §3.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.reading import linked
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.dissemination import Graph
from brokerd.protocols.ges.membership import LOOKS, READDRESSED, Ageing, Readdressing
from brokerd.protocols.ges.messages import (
    GraphStated,
    LoadAnswered,
    LoadProbe,
    ProfileChanged,
    ProfileReached,
    ProfileStated,
    RoutedPublications,
)
from brokerd.protocols.ges.overload import LOAD, SLOW, LinkLoad, SlowBroker
from brokerd.protocols.ges.parameters import GesParameters, HintParameters
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.roaming import APART, HINT, Fragment, RoamingHints
from brokerd.protocols.ges.router import PublicationForwarding, Router
from brokerd.protocols.ges.subscriptions import LocalSubscriptions
from brokerd.protocols.ges.units import Place, hierarchy_from, hierarchy_of
from brokerd.protocols.interface import CoreStatus, OverlayChanged
from brokerd.protocols.parts.clients.service import ClientService
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.forwarding_core import ForwardingCore, ForwardingParameters

PURGE = "purge"
"""Purpose of the deadline after which a neighbour is not awaited any more."""

LOOK = "look"
"""Purpose of the deadline at which missing brokers and units are counted."""


class UnitParameters(ForwardingParameters, HintParameters, Protocol):
    """The parameters of brokers of a hierarchy, whatever they carry."""

    @property
    def purge_ns(self) -> int:
        """The time without a session after which a neighbour is not awaited any more."""

    @property
    def reroute_limit(self) -> int:
        """The number of times that a publication may leave its route."""


class UnitBroker(ForwardingCore):
    """A broker of a hierarchy: connectivity graph, profiles, and missing units.

    Args:
        neighbours: the brokers at the other ends of the links, with their addresses.
        hierarchy: used for the members of the cluster only.

    Attributes:
        place: the place of this broker in the hierarchy.
        view: the connectivity graph.
        profiles: the profiles of all brokers, as far as received.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        address: Address,
        neighbours: Mapping[BrokerNumber, Address],
        parameters: UnitParameters,
        decode_attributes: DecodeAttributes,
        hierarchy: Hierarchy,
    ) -> None:
        super().__init__(broker, tuple(neighbours), parameters)
        self._purge_ns = parameters.purge_ns
        self._near = neighbours = dict(neighbours)
        self._left: Collection[BrokerNumber] = hierarchy.left
        self._linked: dict[BrokerNumber, None] = {}
        self._met: dict[BrokerNumber, int] = {}
        self.place = place = Place(address)
        self.view = view = GraphView(broker, place)
        paths = Paths(place, view)
        self._router = Router(broker, place, view, paths, parameters.reroute_limit)
        self.profiles = Profiles(decode_attributes)
        self._graph = Graph(self, place, view, neighbours, self.is_linked)
        self._propagation = Propagation(
            self, broker, place, neighbours, self.profiles, self.is_linked
        )
        self._ageing = Ageing(place, view, paths, self.profiles, self._graph, self._propagation)
        self._hints = RoamingHints(
            broker,
            self,
            self._deadlines,
            parameters,
            self._is_near,
            lambda: [peer for peer in self._near if self._is_near(peer) and self.is_linked(peer)],
            lambda: list(self._clients.here),
        )
        self._fragment = Fragment(
            broker,
            place,
            view,
            self,
            self._deadlines,
            parameters,
            parameters.purge_ns,
            self.is_linked,
            lambda: list(self._clients.here),
            self._refuse_clients,
            self._leave_cluster,
        )
        self._fragment.use(hierarchy, [*neighbours])
        self._use(hierarchy)
        self.dispatch_events({**self._event_handlers, OverlayChanged: self._on_overlay_changed})

    def serve(self, clients: ClientService[Any, Any], handlers: dict[type, MessageHandler]) -> None:
        """See ForwardingCore; may redirect clients to other brokers."""
        super().serve(clients, handlers)
        clients.on_change = self._on_clients_changed

    def _on_clients_changed(self) -> None:
        self._hints.changed()
        self._fragment.send_out()

    def _refuse_clients(self, why: str) -> None:
        self._clients.refusal = why

    def _leave_cluster(self, part: Collection[Address]) -> None:
        """Make the brokers of this part of the cluster a unit of their own."""
        raise AssertionError(f"{self._broker} is to leave with {part}")

    def _is_near(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour is in the cluster of this broker."""
        address = self._near.get(peer)
        return address is not None and self.place.seen_as(address) == address

    def is_linked(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour has a session and has acknowledged this broker's address.

        Messages about connections and profiles name units as the receiver sees them, so a
        neighbour without the current address receives none.
        """
        return peer in self._linked and self.reaches(peer)

    def unit_handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages about connections and profiles."""
        return {
            GraphStated: self._on_graph_stated,
            ProfileStated: self._on_profile_stated,
            ProfileChanged: self._on_profile_changed,
            ProfileReached: self._propagation.on_reached,
            **self._hints.handlers(),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        return replace(super().status(), discrepancies=self.discrepancies())

    def discrepancies(self) -> tuple[str, ...]:
        """Return contradictions of this broker's view to the topology and to own statements."""
        found = []
        wanting = [each for each in self._left if self.profiles.wants(each)]
        if wanting:
            found.append(f"has subscriptions of brokers that have left: {wanting}")
        outbid = sum(self.outbid_counters().values())
        if outbid:
            found.append(
                f"others have stated profiles or connections in its name {outbid} times, forged "
                "or damaged; it has replaced them"
            )
        return tuple(found)

    def outbid_counters(self) -> Mapping[str, int]:
        """Return the numbers of statements of other brokers in this broker's name."""
        return {**self._graph.counters, **self._propagation.counters}

    def link_factor(self, peer: BrokerNumber) -> int:
        """Return the factor that this broker states for the cost of a connection."""
        return self._graph.factor(peer)

    def start_routing(self, incarnation: int) -> None:
        """See ForwardingCore; starts without a connection and with an empty profile."""
        self._graph.start(incarnation)
        self._propagation.start(incarnation)
        self._looked_at = self.view.changes
        for peer in self._neighbours:
            self._purge_later(peer)
        self._fragment.look()

    def neighbour_came(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; sends connections and profiles to the neighbour."""
        self._linked[peer] = None
        self._deadlines.cancel((PURGE, peer))
        incarnation = self.incarnation_of(peer)
        if self._met.get(peer, incarnation) != incarnation:
            self._propagation.restarted(peer)
        self._met[peer] = incarnation
        self._graph.on_up(peer)
        self._propagation.offer_all(peer)
        self._hints.came(peer)
        self._look_later()

    def neighbour_went(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; routes around the neighbour from now on."""
        self._linked.pop(peer, None)
        self._graph.on_down(peer)
        self._hints.went(peer)
        self._purge_later(peer)
        self._look_later()

    def deadline_reached(self, purpose: str, peer: BrokerNumber) -> None:
        """See ForwardingCore."""
        if purpose == PURGE:
            self._propagation.give_up(peer)
            return
        if purpose == HINT:
            self._hints.look()
            return
        if purpose == APART:
            self._fragment.waited()
            return
        assert purpose == LOOK, f"{purpose!r} of broker {peer}"
        self._looked_at = self.view.changes
        # A broker without any session is itself the missing broker.
        if self._sessions and self._ageing.look():
            self._look_again()

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        """Add brokers that have joined, dial new neighbours, and remove brokers that have left.

        A new neighbour that has not started is not awaited; a new session sends it everything. For
        brokers that have left, every broker states at once that they have no connection and an
        empty profile.

        Paper: [GES] §1, §4 (brokers come and go); a broker that leaves has failed for ever.
        """
        hierarchy = hierarchy_from(event.overlay)
        near = sorted(linked(hierarchy.links, self._broker))
        for peer in near:
            if peer not in self._near:
                self._near[peer] = hierarchy.addresses[peer]
                self._propagation.give_up(peer)
        self.change_neighbours(near)
        self._fragment.use(hierarchy, near)
        self._use(hierarchy)
        for peer in [peer for peer in self._near if peer not in near]:
            self._linked.pop(peer, None)
            self._purge_later(peer)
            self._graph.on_down(peer)
            self._hints.went(peer)
            del self._near[peer]
        self._left = hierarchy.left
        for broker in hierarchy.left:
            self._graph.speak_for_broker(broker)
            self._propagation.speak_for_broker(broker)
        self._look_later()

    def _use(self, hierarchy: Hierarchy) -> None:
        """Take the brokers and links of a topology; statements about others are refused."""
        self._graph.use(hierarchy)
        self._propagation.use(hierarchy)

    def _on_graph_stated(self, peer: BrokerNumber, message: GraphStated) -> None:
        self._graph.on_stated(peer, message)
        # Statements in transit when a broker left may reach brokers that had none of it before.
        for broker in dict.fromkeys(each.by for each in message.statements):
            if broker in self._left:
                self._graph.speak_for_broker(broker)
        self._look_later()

    def _on_profile_stated(self, peer: BrokerNumber, message: ProfileStated) -> None:
        self._propagation.on_stated(peer, message)
        self._after_profile(message.origin)

    def _on_profile_changed(self, peer: BrokerNumber, message: ProfileChanged) -> None:
        self._propagation.on_changed(peer, message)
        self._after_profile(message.origin)

    def _after_profile(self, origin: BrokerNumber) -> None:
        if origin in self._left:
            self._propagation.speak_for_broker(origin)
        self._look_later()

    def _look_later(self) -> None:
        """Schedule a look after a change of the graph; units may be missing."""
        self._fragment.look()
        if (LOOK, self._broker) in self._deadlines:
            return
        if self._looked_at != self.view.changes or self._ageing.unknown():
            self._look_again()

    def _look_again(self) -> None:
        self._deadlines.set((LOOK, self._broker), self.now_ns + self._purge_ns // LOOKS)

    def _purge_later(self, peer: BrokerNumber) -> None:
        self._deadlines.set((PURGE, peer), self.now_ns + self._purge_ns)


class Ges(UnitBroker):
    """A broker that forwards publications to interested units, and stores none."""

    def __init__(
        self,
        broker: BrokerNumber,
        address: Address,
        neighbours: Mapping[BrokerNumber, Address],
        parameters: GesParameters,
        decode_attributes: DecodeAttributes,
        hierarchy: Hierarchy,
    ) -> None:
        super().__init__(broker, address, neighbours, parameters, decode_attributes, hierarchy)
        self._readdressing = Readdressing(
            self.place,
            self.view,
            self,
            self._near,
            self._fragment,
            self._rejoin,
            self._neighbour_moves,
            self._neighbour_knows,
        )
        self._readdressing.use(hierarchy)
        about = broker, self, self._deadlines, parameters
        self._load = LinkLoad(*about, self._graph, self._reached, self.is_linked)
        self._slow = SlowBroker(*about, self.view, self._reached)
        self._forwarding = PublicationForwarding(
            self, self.place, self._router, self.profiles, self.reaches, self._load.sent
        )
        subscriptions = LocalSubscriptions(
            self,
            self.profiles,
            self._propagation,
            self._forwarding,
            self.reaches,
            parameters.purge_ns,
        )
        handlers: dict[type, MessageHandler] = {
            **self.unit_handlers(),
            RoutedPublications: self._forwarding.on_routed,
        }
        heard = {kind: self._readdressing.heard(handler) for kind, handler in handlers.items()}
        # A probe names no unit: unanswered, it would make its link dear until the session ends.
        probes: dict[type, MessageHandler] = {
            LoadProbe: self._load.on_probe,
            LoadAnswered: self._load.on_answered,
        }
        self.begin(subscriptions, {**heard, **probes, **self._readdressing.handlers()})

    def _reached(self) -> list[BrokerNumber]:
        return [peer for peer in self._near if self.is_linked(peer)]

    def neighbour_came(self, peer: BrokerNumber) -> None:
        """See UnitBroker; first sends the address of this broker."""
        self._readdressing.established(peer)

    def hears(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour has this broker's address; else its messages are dropped."""
        return self._readdressing.hears(peer)

    def _neighbour_knows(self, peer: BrokerNumber) -> None:
        super().neighbour_came(peer)
        self._load.came(peer)
        self._slow.look()

    def _neighbour_moves(self, peer: BrokerNumber, address: Address) -> None:
        """Replace the connection to a neighbour's old address by one to the new address."""
        self._graph.on_down(peer)
        self._near[peer] = address
        self._graph.on_up(peer)
        self._propagation.restarted(peer)
        self._propagation.offer_all(peer)
        self._look_later()

    def _leave_cluster(self, part: Collection[Address]) -> None:
        self._readdressing.leave(part)

    def _rejoin(self, address: Address) -> None:
        """Restart at another address, with the current clients."""
        self.renew_sessions(READDRESSED)
        self.place.address = address
        self._graph.begin_anew()
        self._propagation.begin_anew()
        self._ageing.begin_anew()
        self._look_later()

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        self._readdressing.use(hierarchy_from(event.overlay))
        super()._on_overlay_changed(event)

    def neighbour_went(self, peer: BrokerNumber) -> None:
        """See UnitBroker."""
        self._readdressing.lost(peer)
        super().neighbour_went(peer)
        self._load.went(peer)
        self._slow.look()

    def _on_graph_stated(self, peer: BrokerNumber, message: GraphStated) -> None:
        super()._on_graph_stated(peer, message)
        self._slow.look()

    def deadline_reached(self, purpose: str, peer: BrokerNumber) -> None:
        """See ForwardingCore."""
        if purpose == LOAD:
            self._load.check()
        elif purpose == SLOW:
            self._slow.waited()
        else:
            super().deadline_reached(purpose, peer)

    def routing_statistics(self) -> Mapping[str, int]:
        """See ForwardingCore."""
        return {
            **self._forwarding.counters,
            **self.profiles.statistics(),
            **self._load.counters,
            **self._hints.counters,
            **self._fragment.counters,
            **self._readdressing.counters,
            **self.outbid_counters(),
            "spoken_for": self._ageing.spoken_for,
        }


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
