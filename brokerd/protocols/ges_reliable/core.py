"""The reliable core of [GES]: publications are acknowledged once a storage has them on disk.

A broker serves its clients and forwards messages of others; some brokers are storages, too. Every
broker but storages may fail for ever: clients continue at other brokers, from the state of their
storages.

Paper: [GES] §1, §4.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.reading import linked
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.ges.state import Outcome, ProfileConfirmation, Refusal
from brokerd.protocols.ges.unit_router import MESSAGES, UnitRouter
from brokerd.protocols.ges.units import hierarchy_from, hierarchy_of
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.changes import CHANGE, Changes
from brokerd.protocols.ges_reliable.clients import RoamingClients
from brokerd.protocols.ges_reliable.crossing import CROSSING
from brokerd.protocols.ges_reliable.following import FETCH, RECEIPT, Following
from brokerd.protocols.ges_reliable.intake import INTAKE
from brokerd.protocols.ges_reliable.logs import LOG
from brokerd.protocols.ges_reliable.messages import KINDS, Changed, Events, Fetched, Stored
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.places import place_of, root_of, roots_of, storages_for
from brokerd.protocols.ges_reliable.puts import PUT, Puts
from brokerd.protocols.ges_reliable.storage import OTHER_WAITING, WAITING, Storage
from brokerd.protocols.ges_reliable.unit_profile import PROFILE
from brokerd.protocols.interface import (
    CoreStatus,
    Effect,
    LogEnds,
    OverlayChanged,
    RecordsRead,
    Started,
)
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.forwarding_core import ForwardingCore

_COUNTERS: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "messages_carried",
    "messages_without_route",
)


class GesReliable(ForwardingCore):
    """A broker of a hierarchy with storages.

    Attributes:
        storage: the storage of this broker; None if the broker is no storage.
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
        super().__init__(broker, near, parameters)
        self.units = units = UnitRouter(
            broker,
            addresses[broker],
            neighbours,
            parameters,
            decode_attributes,
            hierarchy,
            self._deadlines,
        )
        self._counters = counters = dict.fromkeys(_COUNTERS, 0)
        self._carriage = carriage = Carriage(
            broker, self, units.place, units.router, addresses, self._take, counters
        )
        self._make_storage = partial(
            Storage,
            broker,
            self._disk,
            self._deadlines,
            parameters,
            decode_attributes,
            counters,
            carriage,
        )
        storages = storages_for(hierarchy, broker)
        self._changes = Changes(broker, self, self._deadlines, parameters, carriage)
        self._homed = RoamingClients(
            broker,
            self._disk,
            self._deadlines,
            parameters,
            decode_attributes,
            counters,
            storages=storages,
            roots=roots_of(hierarchy),
            changes=self._changes,
        )
        self._following = Following(
            broker, self, self._deadlines, parameters, carriage, self._homed.hand_out
        )
        self._puts = Puts(
            broker,
            self,
            self._deadlines,
            parameters,
            carriage,
            root_of(hierarchy, broker),
            self._homed.tell_stored,
        )
        self._homed.use(self._following, self._puts)
        self.storage: Storage | None = None
        self._incarnation, self._log_ends = 0, LogEnds()
        self._handlers: dict[type, MessageHandler] = {
            Changed: self._changes.on_changed,
            Stored: self._puts.on_stored,
            Events: self._following.on_events,
            Fetched: self._following.on_fetched,
        }
        self._among_storages: dict[type, MessageHandler] = {}
        if broker in storages:
            self.storage = self._begin_storage(hierarchy)
        carried = {kind.type: carriage.on_carried for kind in KINDS}
        self._homed.on_change = self._on_clients_changed
        self.serve(self._homed, {**dict.fromkeys(MESSAGES, self._on_unit_message), **carried})
        self.dispatch_events(
            {
                **self._event_handlers,
                OverlayChanged: self._on_overlay_changed,
                RecordsRead: self._on_records,
            }
        )

    def _begin_storage(self, hierarchy: Hierarchy) -> Storage:
        storage = self._make_storage(place_of(hierarchy, self._broker))
        self._handlers |= storage.handlers()
        self._among_storages |= storage.handlers() | storage.answer_handlers()
        return storage

    # ------------------------------------------------------------ for the driver

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self._homed.windows.clients_behind()

    def routing_statistics(self) -> Mapping[str, int]:
        """See ForwardingCore."""
        return {
            **self._counters,
            "subscriptions": len(self.storage.registrations) if self.storage else 0,
            "matching_hits": self._homed.memo.hits,
            "matching_misses": self._homed.memo.misses,
            **self.units.statistics(),
        }

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        queued_bytes = self.storage.log.retained_bytes if self.storage else 0
        return {
            **super().statistics(),
            "queue_publications": self._queued(),
            "queue_bytes": queued_bytes,
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        own, queued = self._homed.subscriptions(), self._queued()
        idle_reasons = [f"{own} subscriptions of its own clients"] * bool(own)
        if queued:
            idle_reasons.append(f"{queued} publications that are not acknowledged everywhere")
        if waiting := self._changes.waiting():
            idle_reasons.append(
                f"{waiting} storages without the current subscriptions of this broker"
            )
        is_read = self.storage is None or self.storage.log.is_read
        return CoreStatus(
            state="running" if is_read else "recovering",
            queued=queued,
            subscriptions=len(self.storage.registrations) if self.storage else own,
            own_subscriptions=own,
            discrepancies=self.units.discrepancies(),
            wanted=self._neighbours,
            ready=tuple(peer for peer in self._neighbours if peer in self._sessions),
            idle_reasons=tuple(idle_reasons),
            detail={
                "role": "storage" if self.storage else "home",
                "undone": self._following.undone(),
                "epoch": self.storage.log.durable if self.storage else 0,
            },
        )

    def has_come(self, storage: BrokerNumber, epoch: int) -> bool:
        """Return True if everything through an epoch of a storage has arrived for clients here."""
        return self._following.has_come(storage, epoch)

    def waits_for_roots(self) -> int:
        """Return the number of waits for a root that was behind before a tree handover."""
        return self._homed.crossings.waited

    def _queued(self) -> int:
        stored = self.storage.log.retained() if self.storage else 0
        return self._puts.pending() + stored

    # ------------------------------------------------------------ events

    def _emit(self, outcomes: Iterable[Outcome]) -> None:
        """Emit the effects of the unit router, and take its facts, in order."""
        for each in outcomes:
            if isinstance(each, Refusal):
                self._clients.refusal = each.reason
            elif not isinstance(each, ProfileConfirmation):  # no client waits for this profile
                assert isinstance(each, Effect), f"{each}, which storages do not allow"
                self.effects.append(each)

    def start_routing(self, incarnation: int) -> None:
        """See ForwardingCore; starts without a connection and with an empty profile."""
        self._emit(self.units.start(incarnation, self.now_ns))

    def neighbour_came(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; sends connections and profiles to the neighbour."""
        incarnation = self.incarnation_of(peer)
        self._emit(self.units.on_neighbour_up(peer, incarnation, self.now_ns))

    def neighbour_went(self, peer: BrokerNumber) -> None:
        """See ForwardingCore; routes around the neighbour from now on."""
        self._emit(self.units.on_neighbour_down(peer, self.now_ns))

    def _on_unit_message(self, peer: BrokerNumber, message: Any) -> None:
        self._emit(self.units.on_message(peer, message, self.now_ns))

    def _on_clients_changed(self) -> None:
        self._emit(self.units.on_clients_changed(self._clients.here, self.now_ns))

    def _on_started(self, event: Started) -> None:
        self._incarnation, self._log_ends = event.incarnation, event.logs[LOG]
        self._changes.start(event.incarnation)
        self._following.start(event.incarnation)
        if self.storage is not None:
            self.storage.recover(event.recovered, event.logs[LOG], event.incarnation)
        super()._on_started(event)

    def _on_overlay_changed(self, event: OverlayChanged) -> None:
        """Take storages that were added or retired; this broker may be an added one.

        Other brokers may have joined, or left.

        Paper: [GES] §4 (a finer storage is added).
        """
        hierarchy = hierarchy_from(event.overlay)
        self._emit(self.units.add_neighbours(hierarchy, self.now_ns))
        self.change_neighbours(sorted(linked(hierarchy.links, self._broker)))
        self._emit(self.units.use_members(hierarchy, self.now_ns))
        self._carriage.change(hierarchy.addresses)
        storages = storages_for(hierarchy, self._broker)
        if self.storage is not None:
            self.storage.change(place_of(hierarchy, self._broker))
        elif self._broker in storages:
            self.storage = self._begin_storage(hierarchy)
            self.storage.recover({}, self._log_ends, self._incarnation)
        self._homed.change(storages, roots_of(hierarchy))

    def _on_records(self, event: RecordsRead) -> None:
        assert self.storage is not None, f"{self._broker} is no storage and read {event.log}"
        self.storage.on_records(event)

    def before_return(self) -> None:
        """See EventMachine; a storage answers its own clients after all other processing."""
        self._carriage.take_own()

    def _take(self, peer: Peer, message: Any) -> None:
        """Process a message for this broker."""
        stores = getattr(message, "stores", False)
        handler = (self._among_storages if stores else self._handlers).get(type(message))
        if handler is not None:
            handler(peer, message)

    def deadline_reached(self, purpose: str, peer: BrokerNumber) -> None:
        """See ForwardingCore."""
        if purpose == FETCH:
            self._following.due(peer)
        elif purpose == RECEIPT:
            self._following.receipt_due(peer)
        elif purpose == CHANGE:
            self._changes.due(peer)
        elif purpose == CROSSING:
            self._homed.crossings.due(peer)
        elif purpose == PUT:
            self._puts.due()
        elif purpose == WAITING:
            assert self.storage is not None, f"{self._broker} is no storage, fetched from by {peer}"
            self.storage.due(peer)
        elif purpose in (OTHER_WAITING, INTAKE, PROFILE):
            assert self.storage is not None, f"{self._broker} is no storage: {purpose}, {peer}"
            self.storage.other_due(purpose, peer)
        else:
            clients, is_alone = [*self._clients.here], not self._sessions
            due = self.units.on_deadline(purpose, peer, clients, self.now_ns, is_alone=is_alone)
            self._emit(due)


def make_core(context: CoreContext) -> GesReliable:
    """Return the core of a broker."""
    hierarchy = hierarchy_of(context.topology)
    return GesReliable(context.broker, hierarchy, context.parameters, context.decode_attributes)
