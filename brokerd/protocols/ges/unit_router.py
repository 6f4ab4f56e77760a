"""A broker's view of units: connections, profiles, routes, and failures.

A `UnitRouter` carries no publications. `ges` and `ges_reliable` each have one, and forward
publications and messages by its routes. Its methods are iterators of effects and facts. The core
takes each fact before it requests the next one, so facts take effect in their order.

Paper: [GES] §2, §3.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.section_checks import linked
from brokerd.protocols.ges.confirmations import Confirmations
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.dissemination import Dissemination
from brokerd.protocols.ges.keepers import Keepers
from brokerd.protocols.ges.membership import LOOKS, FailureDetection
from brokerd.protocols.ges.messages import (
    ClientsCounted,
    DutyStated,
    GraphStated,
    ProfileChanged,
    ProfileReached,
    ProfileStated,
    UnitsAttested,
)
from brokerd.protocols.ges.parameters import READDRESS, HintParameters
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.roaming import APART, HINT, Fragment, RoamingHints
from brokerd.protocols.ges.router import Router
from brokerd.protocols.ges.state import Neighbours, Outcome, VolatileState, edges_text
from brokerd.protocols.ges.units import Place, unit_text
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue

PURGE: Final = "purge"
"""Purpose of the deadline after which a neighbour is not awaited any more."""

LOOK: Final = "look"
"""Purpose of the deadline at which missing brokers and units are counted."""

KEEP: Final = "keep"
"""Purpose of the deadline at which a duty ends that the graph does not require any more."""

MESSAGES: Final = (
    GraphStated,
    ProfileStated,
    ProfileChanged,
    ProfileReached,
    ClientsCounted,
    DutyStated,
    UnitsAttested,
)
"""The messages that `UnitRouter.on_message` takes."""


class UnitParameters(HintParameters, Protocol):
    """The parameters of brokers of a hierarchy, whatever they carry."""

    @property
    def purge_ns(self) -> int:
        """The time without a session after which a neighbour is not awaited any more."""

    @property
    def reroute_limit(self) -> int:
        """The number of times that a publication may leave its route."""

    @property
    def keeper_policy(self) -> str:
        """The brokers that keep a profile."""


class UnitRouter:
    """The connectivity graph, the profiles, the routes and the failures at one broker.

    Args:
        neighbours: the brokers at the other ends of the links, with their addresses.
        hierarchy: used for the members of the cluster only.

    Attributes:
        place: the place of this broker in the hierarchy.
        neighbours: the neighbours, with addresses and sessions.
        view: the connectivity graph.
        keepers: the duty of this broker, and the units of which it has all profiles.
        profiles: the profiles of all brokers, as far as received.
        confirmations: the versions of profiles that await confirmations.
        router: the routing decisions over the graph.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        address: Address,
        neighbours: Mapping[BrokerNumber, Address],
        parameters: UnitParameters,
        decode_attributes: DecodeAttributes,
        hierarchy: Hierarchy,
        deadlines: DeadlineQueue[tuple[str, Peer]],
    ) -> None:
        self.place = place = Place(address)
        self.neighbours = near = Neighbours(place, dict(neighbours))
        self.view = view = GraphView(broker, place)
        self.profiles = Profiles(decode_attributes)
        self.paths = Paths(place, view)
        self.router = Router(broker, place, view, self.paths, parameters.reroute_limit)
        self.dissemination = Dissemination(view, near)
        self.keepers = Keepers(broker, near, view, self.paths, parameters.keeper_policy)
        may_move = parameters.partition_policy == READDRESS
        self.confirmations = Confirmations(broker, near)
        self.propagation = Propagation(
            broker, near, self.profiles, self.keepers, self.confirmations, may_move=may_move
        )
        self.failures = FailureDetection()
        self.hints = RoamingHints(broker, near, deadlines, parameters)
        purge_ns = parameters.purge_ns
        self.fragment = Fragment(broker, near, deadlines, parameters, purge_ns, view)
        self._broker = broker
        self._deadlines = deadlines
        self._purge_ns = purge_ns
        self._departed: Collection[BrokerNumber] = hierarchy.left
        self._met: dict[BrokerNumber, int] = {}
        self._checked_changes = -1
        self.fragment.use(hierarchy, [*neighbours])
        self._use(hierarchy)

    def is_linked(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour has a session and has acknowledged this broker's address."""
        return peer in self.neighbours.linked

    def discrepancies(self) -> tuple[str, ...]:
        """Return contradictions of this broker's view to the topology and to own statements."""
        found = []
        wanting = [each for each in self._departed if self.profiles.wants(each)]
        if wanting:
            found.append(f"has subscriptions of brokers that have left: {wanting}")
        outbid = sum(self.count_restated().values())
        if outbid:
            found.append(
                f"others have stated profiles or connections in its name {outbid} times, forged "
                "or damaged; it has replaced them"
            )
        return tuple(found)

    def count_restated(self) -> Mapping[str, int]:
        """Return the numbers of statements of other brokers in this broker's name."""
        return {**self.dissemination.counters, **self.propagation.counters}

    def statistics(self) -> Mapping[str, int]:
        """Return the counters of all parts except routes and profiles."""
        return {
            **self.hints.counters,
            **self.fragment.counters,
            **self.count_restated(),
            **self.keepers.counters,
            "spoken_for": self.failures.spoken_for,
        }

    def state(self) -> VolatileState:
        near = self.neighbours
        return VolatileState(
            address=unit_text(self.place.address),
            linked=tuple(near.all_linked()),
            costs={peer: factor for peer, factor in near.factors.items() if factor > 1},
            connections=edges_text(self.view.edges),
            profiles={each: self.profiles.size(each) for each in self.profiles.origins()},
            unconfirmed=self.confirmations.count_unconfirmed(),
            missing={unit_text(unit): looks for unit, looks in self.failures.missed.items()},
            is_closed=self.fragment.is_closed,
        )

    # ------------------------------------------------------------ sessions

    def start(self, incarnation: int, now_ns: Instant) -> Iterator[Outcome]:
        """Start without a connection and with an empty profile."""
        self.dissemination.start(incarnation)
        self.propagation.start(incarnation)
        self._checked_changes = self.view.changes
        for peer in self.neighbours.addresses:
            self._purge_later(peer, now_ns)
        yield from self.fragment.look(now_ns)

    def restart_at(self, address: Address, now_ns: Instant) -> Iterator[Outcome]:
        """Restart at another address, with this broker's own profile; no session is left."""
        self.place.address = address
        self.keepers.restart()
        self.dissemination.restart()
        yield from self.propagation.restart(now_ns)
        self.failures.restart()
        yield from self._look_later(now_ns)

    def on_neighbour_up(
        self, peer: BrokerNumber, incarnation: int, now_ns: Instant
    ) -> Iterator[Outcome]:
        """Send connections and profiles to a neighbour that has this broker's address."""
        self.neighbours.linked[peer] = None
        self._deadlines.cancel((PURGE, peer))
        if self._met.get(peer, incarnation) != incarnation:
            self.confirmations.on_restart(peer)
        self._met[peer] = incarnation
        yield from self.dissemination.on_up(peer)
        yield from self.propagation.offer_all(peer)
        yield from self.keepers.on_up(peer)
        yield from self.hints.on_session(peer)
        yield from self._look_later(now_ns)

    def on_neighbour_down(self, peer: BrokerNumber, now_ns: Instant) -> Iterator[Outcome]:
        """Route around a neighbour without a session from now on."""
        self.neighbours.linked.pop(peer, None)
        yield from self.dissemination.on_down(peer)
        self.hints.on_session_lost(peer)
        self.keepers.on_session_lost(peer)
        self.confirmations.on_session_lost(peer)
        self._purge_later(peer, now_ns)
        yield from self._look_later(now_ns)

    def on_neighbour_moved(
        self, peer: BrokerNumber, address: Address, now_ns: Instant
    ) -> Iterator[Outcome]:
        """Replace the connection to a neighbour's old address by one to the new address."""
        yield from self.dissemination.on_down(peer)
        self.neighbours.addresses[peer] = address
        yield from self.dissemination.on_up(peer)
        self.confirmations.on_restart(peer)
        self.keepers.forget(peer)
        yield from self.propagation.offer_all(peer)
        yield from self.keepers.on_up(peer)
        yield from self._look_later(now_ns)

    # ------------------------------------------------------------ members

    def add_neighbours(self, hierarchy: Hierarchy, now_ns: Instant) -> Iterator[Outcome]:
        """Add the new neighbours of a topology.

        A new neighbour that has not started is not awaited; a new session sends it everything.
        """
        for peer in sorted(linked(hierarchy.links, self._broker)):
            if peer not in self.neighbours.addresses:
                self.neighbours.addresses[peer] = hierarchy.addresses[peer]
                yield from self.confirmations.stop_waiting(peer, now_ns)

    def use_members(self, hierarchy: Hierarchy, now_ns: Instant) -> Iterator[Outcome]:
        """Take the members of a topology, after new neighbours were added.

        For brokers that have left, every broker states at once that they have no connection and an
        empty profile.

        Paper: [GES] §1, §4 (brokers come and go); a broker that leaves has failed for ever.
        """
        near = sorted(linked(hierarchy.links, self._broker))
        self.fragment.use(hierarchy, near)
        self._use(hierarchy)
        former = [peer for peer in self.neighbours.addresses if peer not in near]
        for peer in former:
            self.neighbours.linked.pop(peer, None)
        for peer in former:
            self._purge_later(peer, now_ns)
            yield from self.dissemination.on_down(peer)
            self.hints.on_session_lost(peer)
            self.keepers.forget(peer)
            self.confirmations.on_session_lost(peer)
            del self.neighbours.addresses[peer]
        self._departed = hierarchy.left
        for broker in hierarchy.left:
            yield from self.dissemination.speak_for_broker(broker)
            yield from self.propagation.speak_for_broker(broker, now_ns)
        yield from self._look_later(now_ns)

    def _use(self, hierarchy: Hierarchy) -> None:
        """Take the brokers and links of a topology; statements about others are refused."""
        self.dissemination.use(hierarchy)
        self.propagation.use(hierarchy)

    # ------------------------------------------------------------ messages and deadlines

    def on_message(self, peer: BrokerNumber, message: Any, now_ns: Instant) -> Iterator[Outcome]:
        """Take a message of `MESSAGES` from a linked neighbour.

        Raises:
            RemoteProtocolError: the message is impossible; the fault of the neighbour.
        """
        kind = type(message)
        if kind is ProfileReached:
            yield from self.confirmations.on_reached(peer, message, now_ns)
        elif kind is GraphStated:
            yield from self._on_graph_stated(peer, message, now_ns)
        elif kind is ProfileChanged:
            yield from self.propagation.on_changed(peer, message, now_ns)
            yield from self._on_profile(message.origin, now_ns)
        elif kind is ProfileStated:
            yield from self.propagation.on_stated(peer, message, now_ns)
            yield from self._on_profile(message.origin, now_ns)
        elif kind is DutyStated:
            before, is_first = self.keepers.on_stated(peer, message)
            yield from self.propagation.on_duty(peer, before, now_ns, is_first=is_first)
            yield from self.keepers.attest()
        elif kind is UnitsAttested:
            self.keepers.on_attested(peer, message)
            yield from self.keepers.attest()
        else:
            self.hints.on_counted(peer, message, now_ns)

    def _on_graph_stated(
        self, peer: BrokerNumber, message: GraphStated, now_ns: Instant
    ) -> Iterator[Outcome]:
        yield from self.dissemination.on_stated(peer, message)
        # Statements in transit when a broker left may reach brokers that had none of it before.
        for broker in dict.fromkeys(each.by for each in message.statements):
            if broker in self._departed:
                yield from self.dissemination.speak_for_broker(broker)
        yield from self._look_later(now_ns)

    def _on_profile(self, origin: BrokerNumber, now_ns: Instant) -> Iterator[Outcome]:
        if origin in self._departed:
            yield from self.propagation.speak_for_broker(origin, now_ns)
        yield from self._look_later(now_ns)

    def on_clients_changed(
        self, clients: Collection[ClientId], now_ns: Instant
    ) -> Iterator[Outcome]:
        """Redirect clients after the admission or departure of a client, if necessary."""
        self.hints.on_change(now_ns)
        yield from self.fragment.send_out(clients)

    def on_deadline(
        self,
        purpose: str,
        peer: BrokerNumber,
        clients: Sequence[ClientId],
        now_ns: Instant,
        *,
        is_alone: bool,
    ) -> Iterator[Outcome]:
        """Take a deadline of a part.

        Args:
            clients: the clients of this broker, in order of arrival.
            is_alone: True if this broker has no session: then it is itself the missing broker.
        """
        if purpose == PURGE:
            yield from self.confirmations.stop_waiting(peer, now_ns)
        elif purpose == HINT:
            yield from self.hints.look(clients, now_ns)
        elif purpose == APART:
            yield from self.fragment.on_wait_end(clients, now_ns)
        elif purpose == KEEP:
            yield from self._adapt_duty(now_ns, is_late=True)
        else:
            assert purpose == LOOK, f"{purpose!r} of broker {peer}"
            self._checked_changes = self.view.changes
            if not is_alone:
                yield from self._look(now_ns)

    # ------------------------------------------------------------ failures

    def _look(self, now_ns: Instant) -> Iterator[Outcome]:
        """Count missing brokers and units, and state the failure of long missing ones."""
        named = dict.fromkeys((*self.view.list_connected(), *self.profiles.places()))
        missing = [
            unit for unit in named if not self.place.is_in(unit) and self.paths.best(unit) is None
        ]
        for unit in self.failures.look(missing):
            yield from self.dissemination.speak_for(unit)
            yield from self.propagation.speak_for(unit, now_ns)
        for origin in self.failures.find_unknown(self._unknown()):
            yield from self.dissemination.speak_for_unknown(origin)
            yield from self.propagation.speak_for_unknown(origin, now_ns)
        yield from self._review_duty(now_ns)
        if self.failures.is_counting:
            self._schedule_check(now_ns)

    def _unknown(self) -> Sequence[BrokerNumber]:
        """Return brokers of own units with later statements outside than inside."""
        return *self.dissemination.find_outside_only(), *self.propagation.find_outside_only()

    def _look_later(self, now_ns: Instant) -> Iterator[Outcome]:
        """Schedule a look after a change of the graph; units may be missing."""
        yield from self.fragment.look(now_ns)
        yield from self._review_duty(now_ns)
        if (LOOK, self._broker) in self._deadlines:
            return
        if self._checked_changes != self.view.changes or self._unknown():
            self._schedule_check(now_ns)

    def _review_duty(self, now_ns: Instant) -> Iterator[Outcome]:
        """Adapt the duty, and the neighbours that are awaited, to a change of the graph."""
        if self.keepers.is_paper and self.keepers.is_outdated:
            yield from self._adapt_duty(now_ns, is_late=False)

    def _adapt_duty(self, now_ns: Instant, *, is_late: bool) -> Iterator[Outcome]:
        found = self.keepers.look(is_late=is_late)
        if not self.keepers.is_waiting:
            self._deadlines.cancel((KEEP, self._broker))
        elif found.is_changed:
            self._deadlines.set((KEEP, self._broker), now_ns + self._purge_ns)
        if found.is_smaller:
            self.propagation.forget_unkept()
        yield from found.statements
        for peer, before in found.changed.items():
            yield from self.propagation.on_duty(peer, before, now_ns, is_first=False)
        yield from self.propagation.on_expected(now_ns)
        yield from self.keepers.attest()

    def _schedule_check(self, now_ns: Instant) -> None:
        self._deadlines.set((LOOK, self._broker), now_ns + self._purge_ns // LOOKS)

    def _purge_later(self, peer: BrokerNumber, now_ns: Instant) -> None:
        self._deadlines.set((PURGE, peer), now_ns + self._purge_ns)
