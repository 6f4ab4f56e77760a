"""The best-effort core of [GES]: routing by outlines of connections and profiles.

A publication travels to gatekeepers and keepers, which decide which units are interested, and from
there to those units only. Publications that a failed link or broker held are lost.

The core is the only module with all parts. It takes the effects and facts that a part
returns, in order, and routes each fact to the part that it concerns.

Paper: [GES] §2, §3.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from brokerd.model.client_messages import Connect, Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.section_checks import linked
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
from brokerd.protocols.interface import (
    CloseSession,
    CoreStatus,
    DeadlineReached,
    Deliver,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    OverlayChanged,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.clients.progress import PUBLISHER_PROGRESS, WRITE
from brokerd.protocols.parts.clients.table import LINGER, Admission, ClientTable, HostedClient
from brokerd.protocols.parts.clients.unkept import UnkeptClients
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import (
    Durability,
    EventMachine,
    MessageHandler,
    message_handler,
)
from brokerd.protocols.parts.neighbours import RETRY, NeighbourSessions
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS


class Ges(EventMachine):
    """A broker that forwards publications to interested units, and stores none.

    Implements `DeliveryProtocol` and `Forwarding`.

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
        super().__init__()
        self._broker = broker
        self._ignored = 0
        self._disk = Durability(self)
        self._deadlines = deadlines = DeadlineQueue[tuple[str, Peer]]()
        self._neighbours = NeighbourSessions(tuple(neighbours), parameters, deadlines)
        self.units = units = UnitRouter(
            broker, address, neighbours, parameters, decode_attributes, hierarchy, deadlines
        )
        self.persistent = PersistentState((PUBLISHERS, PUBLISHER_PROGRESS))
        self._readdressing = Readdressing(units.neighbours, units.view)
        self._readdressing.use(hierarchy)
        self._load = LinkLoad(broker, units.neighbours, deadlines, parameters)
        self._slow = SlowBroker(broker, units.neighbours, deadlines, parameters, units.view)
        self._subscriptions = LocalSubscriptions(parameters.purge_ns)
        self._table: ClientTable[HostedClient[Subscription]] = ClientTable(
            broker, self, deadlines, parameters, HostedClient, writes_published=True
        )
        self._clients = UnkeptClients(broker, self, self._table, self)
        self._from_clients = {Connect: self._on_connect, **self._clients.handlers()}
        self._from_brokers: dict[type, MessageHandler] = {
            **dict.fromkeys(MESSAGES, self._on_unit_message),
            GraphStated: self._on_graph_stated,
            RoutedPublications: self._on_routed,
            LoadProbe: self._on_probe,
            LoadAnswered: self._on_answered,
            AddressStated: self._on_address_stated,
            AddressTaken: self._on_address_taken,
        }
        self._forwarding = PublicationForwarding(
            units.place, units.router, units.profiles, units.keepers, self._table.here
        )
        self.dispatch_events(
            {
                Started: self._on_started,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: self._on_open_failed,
                MessageReceived: self._on_message,
                Persisted: self._on_persisted,
                DeadlineReached: self._on_deadline,
                OverlayChanged: self._on_overlay_changed,
            }
        )

    # ------------------------------------------------------------ for the driver

    def next_deadline(self) -> Instant | None:
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol: no delivery waits for a client's acknowledgement here."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._forwarding.counters,
            **self.units.profiles.statistics(),
            **self._load.counters,
            **self.units.statistics(),
            **self._readdressing.counters,
            "messages_ignored": self._ignored,
            "queue_publications": 0,
            "queue_bytes": 0,
            **self._neighbours.statistics(),
        }

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol. Failures leave nothing behind: lost publications stay lost."""
        return ()

    def status(self) -> CoreStatus[BrokerNumber]:
        subscriptions = self.units.profiles.statistics()["subscriptions"]
        return replace(
            self._neighbours.status(subscriptions, self._table.count_subscriptions()),
            discrepancies=self.units.discrepancies(),
        )

    def detail(self) -> Mapping[str, Any]:
        return self.units.state().to_mapping()

    def receives_from(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour has this broker's address; else its messages are dropped."""
        return self._readdressing.receives_from(peer)

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
                self._table.refusal = each.reason
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
            if self._table.is_connected(route.client):
                self.report_state(route)
        if restates:
            self._take(self.units.propagation.change_own((), (), self.now_ns))

    def _relocate(self, relocation: Relocation) -> None:
        """Restart at another address, with the current clients."""
        if relocation.is_return:
            self.units.fragment.on_return(self.now_ns)
        self.units.neighbours.linked.clear()
        ended = self._neighbours.renew()
        self.effects.extend(CloseSession(peer, READDRESSED) for peer in ended)
        for peer in ended:
            self._on_neighbour_down(peer)
        self._take(self.units.restart_at(relocation.address, self.now_ns))

    def _link(self, peer: BrokerNumber) -> None:
        incarnation = self._neighbours.incarnations[peer]
        self._take(self.units.on_neighbour_up(peer, incarnation, self.now_ns))
        self._take(self._load.on_session(peer, self.now_ns))
        self._slow.look(self.now_ns)

    # ------------------------------------------------------------ sessions and deadlines

    def _on_started(self, event: Started) -> None:
        """Start without a connection and with an empty profile."""
        self._table.start(event.incarnation, event.recovered, event.lineage)
        self._take(self.units.start(event.incarnation, self.now_ns))
        self.effects.extend(self._neighbours.start())

    def _on_session_established(self, event: SessionEstablished) -> None:
        """Begin a session; first send the address of this broker to a neighbour."""
        peer = event.peer
        if isinstance(peer, str):
            self._table.open_session(peer, event.session)
        elif (refusal := self._neighbours.on_established(peer, event)) is not None:
            self.emit(refusal)
        else:
            self._take((self._readdressing.on_established(peer),))

    def _on_session_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str):
            if self._clients.on_lost(peer, event.session):
                self._on_clients_changed()
        elif self._neighbours.on_lost(peer, event, self.now_ns):
            self._on_neighbour_down(peer)
            self._neighbours.retry_later(peer, self.now_ns)

    def _on_neighbour_down(self, peer: BrokerNumber) -> None:
        """Route around a neighbour from now on."""
        self._readdressing.on_lost(peer)
        self._take(self.units.on_neighbour_down(peer, self.now_ns))
        self._load.on_session_lost(peer)
        self._slow.look(self.now_ns)

    def _on_open_failed(self, event: OpenFailed) -> None:
        self._neighbours.on_open_failed(event.peer, self.now_ns)

    def _on_persisted(self, event: Persisted) -> None:
        self._disk.on_persisted(event.token)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, str):
                assert purpose == LINGER, f"{purpose!r} of client {peer!r}"
                self._clients.linger_over(peer)
            elif purpose == RETRY:
                self.emit(OpenSession(peer))
            elif purpose == WRITE:
                self._table.write_progress()
            elif purpose == LOAD:
                self._take(self._load.check(self.now_ns))
            elif purpose == SLOW:
                self.emit(self._slow.on_wait_end())
            else:
                here, is_alone = [*self._table.here], not self._neighbours.current
                due = self.units.on_deadline(purpose, peer, here, self.now_ns, is_alone=is_alone)
                self._take(due)

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        """Add brokers that have joined, dial new neighbours, and remove brokers that have left."""
        hierarchy = hierarchy_from(event.overlay)
        self._readdressing.use(hierarchy)
        self._take(self.units.add_neighbours(hierarchy, self.now_ns))
        near = sorted(linked(hierarchy.links, self._broker))
        self.effects.extend(self._neighbours.change(near))
        self._take(self.units.use_members(hierarchy, self.now_ns))

    # ------------------------------------------------------------ messages of brokers

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._neighbours.current.get(event.peer)
        else:
            handlers, current = self._from_clients, self._table.session_of(event.peer)
        if current != event.session:
            self._ignored += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    def _on_unit_message(self, peer: BrokerNumber, message: Any) -> None:
        if self._readdressing.receives_from(peer):
            self._take(self.units.on_message(peer, message, self.now_ns))

    def _on_graph_stated(self, peer: BrokerNumber, message: GraphStated) -> None:
        if self._readdressing.receives_from(peer):
            self._take(self.units.on_message(peer, message, self.now_ns))
            self._slow.look(self.now_ns)

    def _on_routed(self, peer: BrokerNumber, message: RoutedPublications) -> None:
        if self._readdressing.receives_from(peer):
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
        self._take(self.units.on_clients_changed(self._table.here, self.now_ns))

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        admission = self._clients.on_connect(name, message)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _admit(self, admission: Admission[HostedClient[Subscription]]) -> None:
        if admission.is_current():
            self._table.enter(admission.client)
            self._on_clients_changed()
            self._table.welcome(admission.client)

    def add_local(
        self, client: ClientId, number: int, subscription: SubscriptionId, predicate: Predicate
    ) -> Subscription:
        propagation = self.units.propagation
        self.units.profiles.set_local(subscription, client, number)
        coming = propagation.next_version()
        route = Subscription(subscription, predicate, client, number, coming)
        self._subscriptions.add(route)
        self._take(propagation.change_own([(subscription, predicate)], (), self.now_ns))
        if not self.units.confirmations.is_confirmed(coming):
            self.report_state(route)
        return route

    def report_state(self, route: Subscription) -> None:
        if self.units.confirmations.is_confirmed(route.version):
            answer = Subscribed(route.number, "started", path_age_ns=route.path_age_ns)
        else:
            answer = Subscribed(route.number, "pending")
        self.send(route.client, answer)

    def forget(self, subscriptions: list[SubscriptionId], origin: ClientId) -> None:
        self._subscriptions.remove(subscriptions)
        if subscriptions:
            self._take(self.units.propagation.change_own((), subscriptions, self.now_ns))

    def forward(self, run: PublicationRun, origin: ClientId) -> None:
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
