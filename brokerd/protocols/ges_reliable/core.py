"""The reliable core of [GES]: publications are acknowledged once a storage has them on disk.

A broker serves its clients and forwards messages of others; some brokers are storages, too. Every
broker but storages may fail for ever: clients continue at other brokers, from the state of their
storages.

The core has a unit router of `ges`, and up to two roles: an access broker (`clients.py`), and a
storage (`storage.py`). Messages between the roles of two brokers are forwarded by address, over any
routes, without repetition or report of losses.

Paper: [GES] §1, §3 (event routing), §4 (storages are reached over the same broker network).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Connect
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.section_checks import linked
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.ges import (
    MESSAGES,
    SYSTEM,
    Outcome,
    ProfileConfirmation,
    Refusal,
    Target,
    UnitRouter,
    hierarchy_from,
    hierarchy_of,
)
from brokerd.protocols.ges_reliable.clients import DEADLINES as ACCESS_DEADLINES
from brokerd.protocols.ges_reliable.clients import RoamingClients
from brokerd.protocols.ges_reliable.definition import LOG, place_of, root_of, roots_of, storages_for
from brokerd.protocols.ges_reliable.fetches import EpochFetches
from brokerd.protocols.ges_reliable.handover import Handovers
from brokerd.protocols.ges_reliable.messages import KINDS, brokers_in
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.reconnection import StorageSearches
from brokerd.protocols.ges_reliable.requests import PublishRequests, SubscriptionRequests
from brokerd.protocols.ges_reliable.state import (
    COUNTERS,
    TABLES,
    PersistentState,
    RoamingClient,
    VolatileState,
)
from brokerd.protocols.ges_reliable.storage import DEADLINES as STORAGE_DEADLINES
from brokerd.protocols.ges_reliable.storage import Storage
from brokerd.protocols.interface import (
    CoreStatus,
    DeadlineReached,
    Effect,
    Instant,
    LogEnds,
    MessageReceived,
    OpenFailed,
    OpenSession,
    OverlayChanged,
    Persisted,
    RecordsRead,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.clients.table import LINGER, Admission
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import (
    Durability,
    EventMachine,
    MessageHandler,
    message_handler,
)
from brokerd.protocols.parts.neighbours import RETRY, NeighbourSessions
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS

HOPS_PER_LEVEL: Final = 32
"""Links per level; a message that has crossed more has travelled in a circle."""
_MOST_ROUTES: Final = 1_024
"""The number of routes that are kept between two changes of the connectivity graph."""


class AddressedMessages:
    """The forwarding of messages to single brokers.

    Args:
        addresses: of all brokers, including brokers that have left.

    Attributes:
        own: the messages from this broker to itself.
    """

    def __init__(
        self,
        units: UnitRouter,
        effects: list[Effect],
        addresses: Sequence[Address],
        counters: dict[str, int],
    ) -> None:
        self.own: list[Any] = []
        self._units = units
        self._effects = effects
        self._addresses = addresses
        self._counters = counters
        self._routes: dict[Target, tuple[BrokerNumber, Target] | None] = {}
        self._seen = units.view.changes

    def change(self, addresses: Sequence[Address]) -> None:
        """Replace the addresses after brokers have joined."""
        self._addresses = addresses

    def are_known(self, message: Any) -> bool:
        """Return True unless a message names a broker that was never announced here.

        Such a message is dropped: of an honest sender, it is repeated until the overlay is here.
        """
        return all(broker < len(self._addresses) for broker in brokers_in(message))

    def to(self, broker: BrokerNumber) -> Target:
        assert broker < len(self._addresses), f"broker {broker} was never announced"
        return Target(0, self._addresses[broker], SYSTEM, (), 0)

    def send(self, message: Any) -> None:
        """Route a message; a message for this broker waits in `own`."""
        if message.target.unit == self._units.place.address:
            self.own.append(message)
        else:
            self._pass_on(message)

    def is_for_here(self, peer: Peer, message: Any) -> bool:
        """Return True for a message of a neighbour that is for this broker; forward any other.

        Raises:
            RemoteProtocolError: the target is impossible, or the message has crossed too many
                links; the fault of the neighbour.
        """
        target: Target = message.target
        address = self._units.place.address
        empty = not all(target.frames) or not all(
            len(unit) for way in target.frames for unit in way
        )
        if empty or target.level or len(target.unit) != len(address):
            raise RemoteProtocolError(peer, f"nothing can be done for {target}"[:300])
        if message.hops > HOPS_PER_LEVEL * len(address):
            raise RemoteProtocolError(peer, f"{message} arrived over {message.hops} links"[:300])
        if target.unit == address:
            return True
        self._pass_on(message)
        return False

    def _pass_on(self, message: Any) -> None:
        if self._seen != self._units.view.changes or len(self._routes) > _MOST_ROUTES:
            self._seen = self._units.view.changes
            self._routes.clear()
        target = message.target
        route = self._routes[target] if target in self._routes else self._route(target)
        if route is None:
            self._counters["messages_without_route"] += 1
            return
        self._counters["messages_carried"] += 1
        peer, onward = route
        self._effects.append(Send(peer, replace(message, target=onward, hops=message.hops + 1)))

    def _route(self, target: Target) -> tuple[BrokerNumber, Target] | None:
        """Return the next broker, and the target to follow there; None without a path.

        The route depends on the target and the connectivity graph alone.
        """
        routed = self._units.router.route((target,), _no_units)
        route = None
        for peer, targets in routed.hops.items():
            (onward,) = targets
            route = peer, onward
        self._routes[target] = route
        return route


class GesReliable(EventMachine):
    """A broker of a hierarchy with storages. Implements `DeliveryProtocol`.

    Attributes:
        units: connections, profiles, routes and failures of the hierarchy.
        access: the clients of this broker, and their requests to storages.
        storage: the storage of this broker; None if the broker is no storage.
        persistent: the state on disk.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        hierarchy: Hierarchy,
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        addresses = hierarchy.addresses
        near = sorted(linked(hierarchy.links, broker))
        neighbours = {each: addresses[each] for each in near}
        super().__init__()
        self._broker = broker
        self._disk = Durability(self)
        self._deadlines = deadlines = DeadlineQueue[tuple[str, Peer]]()
        self._neighbours = NeighbourSessions(near, parameters, deadlines)
        self.units = units = UnitRouter(
            broker,
            addresses[broker],
            neighbours,
            parameters,
            decode_attributes,
            hierarchy,
            deadlines,
        )
        self._counters = counters = dict.fromkeys(COUNTERS, 0)
        self._forwarding = forwarding = AddressedMessages(units, self.effects, addresses, counters)
        own = deadlines, parameters, decode_attributes, counters
        self._make_storage = partial(Storage, broker, self._disk, *own, forwarding)
        storages = storages_for(hierarchy, broker)
        handovers = Handovers(storages[0], roots_of(hierarchy), deadlines, parameters)
        root = root_of(hierarchy, broker)
        self.access = RoamingClients(
            broker,
            self,
            *own,
            names=hierarchy.brokers,
            forwarding=forwarding,
            requests=SubscriptionRequests(broker, deadlines, parameters, forwarding),
            publishes=PublishRequests(broker, deadlines, parameters, forwarding, root),
            fetches=EpochFetches(broker, deadlines, parameters, forwarding),
            handovers=handovers,
            searches=StorageSearches(storages, handovers),
        )
        self.storage: Storage | None = None
        self.persistent = PersistentState((PUBLISHERS,), ())
        self._incarnation, self._log_ends, self._ignored = 0, LogEnds(), 0
        self._handlers: dict[type, MessageHandler] = self.access.message_handlers()
        self._among_storages: dict[type, MessageHandler] = {}
        if broker in storages:
            self.storage = self._begin_storage(hierarchy)
        carried = {kind.type: self._on_carried for kind in KINDS}
        self._table = self.access.table
        self._from_clients = {Connect: self._on_connect, **self.access.handlers()}
        self._from_brokers: dict[type, MessageHandler] = {
            **dict.fromkeys(MESSAGES, self._on_unit_message),
            **carried,
        }
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
                RecordsRead: self._on_records,
            }
        )

    def _begin_storage(self, hierarchy: Hierarchy) -> Storage:
        made = self._make_storage(place_of(hierarchy, self._broker))
        self.persistent = PersistentState((PUBLISHERS, *TABLES), (LOG,))
        self._handlers |= made.handlers()
        self._among_storages |= made.handlers() | made.answer_handlers()
        return made

    # ------------------------------------------------------------ for the driver

    def next_deadline(self) -> Instant | None:
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        return self.access.own.windows.clients_behind()

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol: failures leave nothing behind at this broker."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._counters,
            "subscriptions": len(self.storage.registrations) if self.storage else 0,
            "matching_hits": self.access.own.memo.hits,
            "matching_misses": self.access.own.memo.misses,
            **self.units.statistics(),
            "messages_ignored": self._ignored,
            "queue_publications": self._count_queued(),
            "queue_bytes": self.storage.log.retained_bytes if self.storage else 0,
            **self._neighbours.statistics(),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        own, queued = self._table.count_subscriptions(), self._count_queued()
        idle_reasons = [f"{own} subscriptions of its own clients"] * bool(own)
        if queued:
            idle_reasons.append(f"{queued} publications that are not acknowledged everywhere")
        if waiting := len(self.access.requests.waiting()):
            idle_reasons.append(
                f"{waiting} storages without the current subscriptions of this broker"
            )
        is_read = self.storage is None or self.storage.log.is_read
        subscriptions = len(self.storage.registrations) if self.storage else own
        return replace(
            self._neighbours.status(subscriptions, own),
            state="running" if is_read else "recovering",
            queued=queued,
            discrepancies=self.units.discrepancies(),
            idle_reasons=tuple(idle_reasons),
        )

    def detail(self) -> Mapping[str, Any]:
        return self.state().to_mapping()

    def state(self) -> VolatileState:
        access = self.access
        return VolatileState(
            units=self.units.state().to_mapping(),
            undone=access.fetches.undone(),
            unstored=access.publishes.pending(),
            unanswered=access.requests.waiting(),
            followed=access.fetches.state(),
            storage=self.storage.state() if self.storage is not None else None,
        )

    def has_arrived(self, storage: BrokerNumber, epoch: int) -> bool:
        """Return True if everything through an epoch of a storage has arrived for clients here."""
        return self.access.fetches.has_arrived(storage, epoch)

    def waits_for_roots(self) -> int:
        """Return the number of waits for a root that was behind before a tree handover."""
        return self.access.handovers.trees.waited

    def _count_queued(self) -> int:
        stored = self.storage.log.retained() if self.storage else 0
        return self.access.publishes.pending() + stored

    # ------------------------------------------------------------ units

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        """Emit the effects of the unit router, and take its facts, in order."""
        for each in outcomes:
            if isinstance(each, Refusal):
                self._table.refusal = each.reason
            elif not isinstance(each, ProfileConfirmation):  # no client waits for this profile
                assert isinstance(each, Effect), f"{each}, which storages do not allow"
                self.effects.append(each)

    def _on_unit_message(self, peer: BrokerNumber, message: Any) -> None:
        self._take(self.units.on_message(peer, message, self.now_ns))

    def _on_clients_changed(self) -> None:
        self._take(self.units.on_clients_changed(self._table.here, self.now_ns))

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        admission = self.access.on_connect(name, message)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _admit(self, admission: Admission[RoamingClient]) -> None:
        if self.access.enter(admission):
            self._on_clients_changed()
            self._table.welcome(admission.client)

    # ------------------------------------------------------------ sessions and deadlines

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._table.open_session(peer, event.session)
        elif (refusal := self._neighbours.on_established(peer, event)) is not None:
            self.emit(refusal)
        else:
            self._take(self.units.on_neighbour_up(peer, event.incarnation, self.now_ns))

    def _on_session_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str):
            if self.access.on_lost(peer, event.session):
                self._on_clients_changed()
        elif self._neighbours.on_lost(peer, event, self.now_ns):
            self._take(self.units.on_neighbour_down(peer, self.now_ns))
            self._neighbours.retry_later(peer, self.now_ns)

    def _on_open_failed(self, event: OpenFailed) -> None:
        self._neighbours.on_open_failed(event.peer, self.now_ns)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._neighbours.current.get(event.peer)
        else:
            handlers, current = self._from_clients, self._table.session_of(event.peer)
        if current != event.session:
            self._ignored += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    def _on_persisted(self, event: Persisted) -> None:
        self._disk.on_persisted(event.token)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, str):
                assert purpose == LINGER, f"{purpose!r} of client {peer!r}"
                self.access.linger_over(peer)
            elif purpose == RETRY:
                self.emit(OpenSession(peer))
            elif purpose in ACCESS_DEADLINES:
                self.access.due(purpose, peer)
            elif purpose in STORAGE_DEADLINES:
                assert self.storage is not None, f"{self._broker} is no storage: {purpose}, {peer}"
                self.storage.due(purpose, peer)
            else:
                here, is_alone = [*self._table.here], not self._neighbours.current
                due = self.units.on_deadline(purpose, peer, here, self.now_ns, is_alone=is_alone)
                self._take(due)

    # ------------------------------------------------------------ roles

    def _on_started(self, event: Started) -> None:
        self._incarnation, self._log_ends = event.incarnation, event.logs[LOG]
        self.access.requests.start(event.incarnation)
        self.access.fetches.start(event.incarnation)
        if self.storage is not None:
            self.storage.recover(event.recovered, event.logs[LOG], event.incarnation, event.lineage)
        self._table.start(event.incarnation, event.recovered, event.lineage)
        self._take(self.units.start(event.incarnation, self.now_ns))
        self.effects.extend(self._neighbours.start())

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        """Take storages that were added or retired; this broker may be an added one.

        Other brokers may have joined, or left.

        Paper: [GES] §4 (a finer storage is added).
        """
        hierarchy = hierarchy_from(event.overlay)
        self._take(self.units.add_neighbours(hierarchy, self.now_ns))
        near = sorted(linked(hierarchy.links, self._broker))
        self.effects.extend(self._neighbours.change(near))
        self._take(self.units.use_members(hierarchy, self.now_ns))
        self._forwarding.change(hierarchy.addresses)
        storages = storages_for(hierarchy, self._broker)
        if self.storage is not None:
            self.storage.change(place_of(hierarchy, self._broker))
        elif self._broker in storages:
            self.storage = self._begin_storage(hierarchy)
            self.storage.recover({}, self._log_ends, self._incarnation)
        self.access.change(storages, roots_of(hierarchy))

    def _on_records(self, event: RecordsRead) -> None:
        assert self.storage is not None, f"{self._broker} is no storage and read {event.log}"
        self.storage.on_records(event)

    def _on_carried(self, peer: Peer, message: Any) -> None:
        if not self._forwarding.is_for_here(peer, message):
            return
        if self._forwarding.are_known(message):
            self._on_addressed(peer, message)
        else:
            self._ignored += 1

    def _on_addressed(self, peer: Peer, message: Any) -> None:
        """Process a message for this broker."""
        stores = getattr(message, "stores", False)
        handler = (self._among_storages if stores else self._handlers).get(type(message))
        if handler is not None:
            handler(peer, message)

    def on_event_end(self) -> None:
        """See EventMachine; a storage answers its own clients after all other processing."""
        own = self._forwarding.own
        while own:
            self._on_addressed(self._broker, own.pop(0))


def _no_units(_unit: Address) -> tuple[()]:
    """Return no interested units: messages to a single broker have no other target."""
    return ()


def make_core(context: CoreContext) -> GesReliable:
    hierarchy = hierarchy_of(context.topology)
    return GesReliable(context.broker, hierarchy, context.parameters, context.decode_attributes)
