"""The core of the δ-fault-tolerant protocol at a broker, assembled from parts.

Exactly-once, per-source order and no gap hold for three reasons; PROTOCOL.md has the whole
argument. (1) A broker sends any two publications of a source to a hop in order. When the hop of
a destination changes, the broker sends all unconfirmed publications again, in order, before newer
publications. So first copies arrive in order everywhere, and a number per source detects
duplicates. (2) A publication leaves a queue only when every home broker in the audience has
confirmed. (3) A subscription starts when all brokers route by the subscription, and a stream begins
after the last publication that may have met a broker without the subscription.

Paper: [DFT11].
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Acknowledge, Publish
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.tree import Neighbourhood
from brokerd.protocols.delta_tree.clients import Clients
from brokerd.protocols.delta_tree.forwarding import Publications
from brokerd.protocols.delta_tree.home_subscriptions import (
    FLUSH_POSITIONS,
    Client,
    HomeSubscriptions,
)
from brokerd.protocols.delta_tree.messages import (
    BranchReply,
    BranchRequest,
    PartitionGone,
    PartitionNew,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryFlag,
    RecoveryNotifier,
    Relay,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    SyncEnd,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.partition_tags import AUDIT, PartitionTags
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.recovery import COLD_START, Recovery
from brokerd.protocols.delta_tree.relays import Relays
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.sessions import RETRY, Reach, Sessions
from brokerd.protocols.delta_tree.state import State, VolatileState
from brokerd.protocols.delta_tree.subscriptions import Subscriptions
from brokerd.protocols.delta_tree.unsubscriptions import Unsubscriptions
from brokerd.protocols.interface import (
    CloseSession,
    CoreStatus,
    DeadlineReached,
    Effect,
    Event,
    Instant,
    MessageReceived,
    OpenFailed,
    Persisted,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.protocols.parts.clients.progress import WRITE
from brokerd.protocols.parts.clients.table import LINGER, ClientTable
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler, message_handler

DEPARTED = "has left the tree"
"""The reason in a CloseSession."""


class DeltaTree(EventMachine):
    """A broker that delivers exactly once, in order, around up to δ failures.

    Implements `DeliveryProtocol`.

    Attributes:
        sessions: the reachable brokers and their sessions.
        relays: handles sessions that third brokers relay; None without such sessions.
        deadlines: of the core and of the layers around it.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbourhood: Neighbourhood,
        parameters: DeltaTreeParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__()
        self.relays: Relays | None = None
        assert neighbourhood.center == broker, f"{neighbourhood.center} is not {broker}"
        assert neighbourhood.radius == parameters.delta + 1, f"radius {neighbourhood.radius}"
        self._state = State(self, broker, neighbourhood, parameters)
        self.deadlines: list[DeadlineQueue[Any]] = [self._state.deadlines]
        self._deadline_changes = 0
        self._next_deadline: Instant | None = None
        self.sessions = self._sessions = Sessions(self._state)
        self._partitions = PartitionTable(self._state, self._sessions)
        table = RoutingTable(self._state, self._partitions, decode_attributes)
        clients = ClientTable(
            broker,
            self,
            self._state.deadlines,
            parameters,
            Client,
            writes_published=True,
        )
        self._queue = PublicationQueue(
            self._state, self._sessions, self._partitions, table, clients
        )
        self._publications = Publications(self._state, self._sessions, table, self._queue)
        self._unsubscriptions = Unsubscriptions(self._state, self._sessions, table)
        self._home = HomeSubscriptions(
            self._state,
            clients,
            self._publications.windows,
            self._queue,
            table,
            self._unsubscriptions,
        )
        self._tags = PartitionTags(
            self._state, self._sessions, self._partitions, table, self._queue, self._home
        )
        self._subscriptions = Subscriptions(
            self._state, self._sessions, table, self._tags, self._home
        )
        self._clients = Clients(self._state, self._home, self._subscriptions, self._publications)
        self._recovery = Recovery(self._state, self._sessions, self._subscriptions)
        self.dispatch_events(
            {
                Started: self._on_started,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: self._on_open_failed,
                MessageReceived: self._on_message,
                Persisted: self._on_persisted,
                RecordsRead: self._on_records,
                TopologyGrown: self._on_grown,
                TopologyShrunk: self._on_shrunk,
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_brokers: dict[type, MessageHandler] = {
            Summary: self._on_summary,
            SubscriptionCopy: self._subscriptions.on_copy,
            UpstreamCopy: self._subscriptions.on_upstream_copy,
            Unsubscription: self._on_unsubscription,
            SubscriptionConfirmation: self._subscriptions.on_confirmation,
            PublicationCopy: self._publications.on_copy,
            PublicationConfirmation: self._queue.on_confirmation,
            RecoveryNotifier: self._tags.on_notifier,
            SyncEnd: self._on_sync_end,
            RecoveryFlag: self._on_recovery_flag,
            BranchRequest: self._recovery.on_branch_request,
            BranchReply: self._recovery.on_branch_reply,
            PartitionNew: self._partitions.on_new,
            PartitionGone: self._partitions.on_gone,
        }
        self._from_clients = self._clients.handlers()

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        relays = self.relays
        if relays is None:
            return self.step(event, now_ns)
        if type(event) is MessageReceived:
            is_plain = type(event.message) is not Relay
        else:
            is_plain = type(event) in (Persisted, RecordsRead)
        if relays.is_busy or not is_plain:
            return relays.handle_relayed(event, now_ns)
        effects = self.step(event, now_ns)
        if relays.watch is not None:
            relays.watch(event, effects)
        return effects

    def step(self, event: Event, now_ns: Instant) -> list[Effect]:
        """Handle an event as `handle` does, without the relays."""
        fast_path = self._publications.fast_path
        if fast_path is not None:
            kind = type(event.message) if type(event) is MessageReceived else None
            if kind not in _OF_PUBLICATIONS or self._state.recovering:
                fast_path.clear()
            elif kind in _WITH_RUNS and type(event) is MessageReceived and fast_path.handle(event):
                effects, self.effects = self.effects, []
                return effects
        return super().handle(event, now_ns)

    @property
    def neighbourhood(self) -> Neighbourhood:
        """The present neighbourhood in the tree."""
        return self._state.neighbourhood

    @property
    def incarnation(self) -> int:
        return self._state.incarnation

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol; includes the deadlines of relays."""
        changes = 0
        for deadlines in self.deadlines:
            changes += deadlines.changes
        if changes != self._deadline_changes:
            self._deadline_changes = changes
            instants = [deadlines.earliest() for deadlines in self.deadlines]
            self._next_deadline = min([each for each in instants if each is not None], default=None)
        return self._next_deadline

    @property
    def is_due(self) -> bool:
        """True if a deadline of the core is due, not of the relays."""
        earliest = self._state.deadlines.earliest()
        return earliest is not None and earliest <= self.now_ns

    def clients_behind(self) -> Collection[ClientId]:
        return self._publications.windows.clients_behind()

    def statistics(self) -> Mapping[str, int]:
        nodes = self._sessions.nodes.values()
        return {
            **self._state.counters,
            "queue_publications": self._queue.publications,
            "queue_bytes": self._queue.payload_bytes(),
            "subscriptions": len(self._subscriptions),
            "subscriptions_tagged": self._subscriptions.tagged_count,
            "partitions": len(self._partitions),
            "matching_hits": self._subscriptions.table.memo.hits,
            "matching_misses": self._subscriptions.table.memo.misses,
            "sessions_active": sum(node.active for node in nodes),
            "sessions_ready": sum(node.ready for node in nodes),
        }

    def aftermath(self) -> Sequence[str]:
        left = {
            "subscriptions tagged": self._subscriptions.tagged_count,
            "partitions in its table": len(self._partitions),
        }
        recovering = ["a recovery"] if self._state.recovering else []
        return [*recovering, *(f"{count} {noun}" for noun, count in left.items() if count)]

    def status(self) -> CoreStatus[BrokerNumber]:
        nodes = self._sessions.nodes.values()
        own, queued = self._subscriptions.own_client_count, self._queue.publications
        reasons = {
            f"{own} subscriptions of its own clients": own,
            f"{queued} publications that are not done": queued,
        }
        return CoreStatus(
            state="recovering" if self._state.recovering else "running",
            queued=queued,
            subscriptions=len(self._subscriptions),
            own_subscriptions=own,
            wanted=tuple(
                node.broker for node in nodes if node.active or node.reach in _REACH_WITHOUT_SESSION
            ),
            ready=tuple(node.broker for node in nodes if node.ready),
            idle_reasons=tuple(reason for reason, count in reasons.items() if count),
        )

    def detail(self) -> Mapping[str, Any]:
        return self.state().to_mapping()

    def state(self) -> VolatileState:
        """Return the state in memory, for people."""
        table = self._subscriptions.table
        rows = table.rows.values()
        detector = self._partitions.detectors.get(self._state.broker)
        live = detector.live if detector is not None else {}
        return VolatileState(
            profile=self._state.parameters.profile,
            sessions={
                node.broker: "active" if node.active else node.reach.value
                for node in self._sessions.nodes.values()
            },
            partitions=len(self._partitions),
            detected={number: partition.nodes for number, partition in live.items()},
            unconfirmed=len(table.unconfirmed),
            tagged=self._subscriptions.tagged_count,
            own=Counter(row.local.phase.value for row in rows if row.local is not None),
            queued={
                source: sum(entry.publications for entry in entries)
                for source, entries in self._queue.entries.items()
            },
            sent={
                hop: sum(map(len, by_source.values()))
                for hop, by_source in self._queue.sent.items()
            },
            missing_publishers=len(self._state.missing_publishers),
        )

    def on_event_end(self) -> None:
        """Send the confirmations of one event together, behind all other messages."""
        queue, merge = self._queue, self._publications.merge
        if self._state.parameters.publication_log:
            self._clients.settle()
        if self._state.recovering:
            self._end_recovery()
        if self._recovery.exchanges_branches:
            self._recovery.exchange_branches()
        self._partitions.withdraw_ended()
        if queue.confirmations:
            queue.send_confirmations()
        if queue.publications > queue.limit or queue.is_over_limit:
            queue.watch_limit()
        if merge is not None and queue.publications > queue.merge_above:
            merge.watch(self.now_ns)

    # ------------------------------------------------------------ events

    def _on_started(self, event: Started) -> None:
        self._state.incarnation = event.incarnation
        self._clients.table.start(event.incarnation, event.recovered, event.lineage)
        if event.recovering:
            self._state.restarted = True
            self._unsubscriptions.recover(event.recovered)
            self._subscriptions.recover(event.recovered)
            self._clients.recover(event.recovered, event.logs)
        self._unsubscriptions.begin(self._home.list_live(), event.lineage)
        self._sessions_changed()
        if event.recovering and self._recovery.begin(event.recovered, event.lineage):
            self._clients.admit()

    def _on_records(self, event: RecordsRead) -> None:
        self._clients.on_records(event)
        self._end_recovery()

    def _on_session_established(self, event: SessionEstablished) -> None:
        if isinstance(event.peer, str):
            self._clients.on_established(event.peer, event.session)
            return
        if not self._sessions.has_broker(event.peer):
            self.emit(CloseSession(event.peer, DEPARTED))
            return
        self._sessions.on_established(event.peer, event.session)
        accepted = self._subscriptions.all_ids()
        tombstones = self._unsubscriptions.statements()
        self.send(event.peer, Summary(accepted, self._state.recovering, tombstones))
        self._sessions.retry_on_change()
        self._sessions_changed()

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
            return
        if not self._sessions.has_broker(event.peer):
            return  # it has left the tree
        self._sessions.on_lost(event.peer, event.session)
        self._sessions_changed()

    def _on_open_failed(self, event: OpenFailed) -> None:
        assert isinstance(event.peer, int), f"a broker opens no session to {event.peer!r}"
        if not self._sessions.has_broker(event.peer):
            return
        if self._sessions.open_failed(event.peer):
            self._sessions_changed()

    def _on_grown(self, event: TopologyGrown) -> None:
        """Add a leaf to the neighbourhood; until its session the leaf counts as unreachable.

        Paper: [DFT11] §II lines 272-276. Deviates: the operator notifies all of the leaf's
        neighbourhood, instead of the parent.
        """
        state = self._state
        state.change_neighbourhood(state.neighbourhood.with_leaf(event.broker, event.parent))
        self._sessions.adjust_to_neighbourhood()
        self._subscriptions.table.add_broker(event.broker)
        state.machine.record("topology_grown", broker=event.broker, parent=event.parent)
        self._sessions_changed()

    def _on_shrunk(self, event: TopologyShrunk) -> None:
        """Remove a departed leaf from every part, and tolerate later messages about it.

        Duplicate detection keeps the leaf's sources: copies of its publications may still be on
        their way.
        """
        state = self._state
        state.change_neighbourhood(state.neighbourhood.without_leaf(event.broker))
        self._sessions.adjust_to_neighbourhood()
        state.machine.emit(CloseSession(event.broker, DEPARTED))
        self._queue.forget_broker(event.broker)
        self._unsubscriptions.on_departed(event.broker)
        self._subscriptions.remove_broker(event.broker)
        self._partitions.forget(event.broker)
        state.machine.record("topology_shrunk", broker=event.broker)
        self._sessions_changed()

    def _on_persisted(self, event: Persisted) -> None:
        self._state.on_persisted(event.token)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._state.deadlines.due(self.now_ns):
            if purpose == RETRY:
                assert isinstance(peer, int), f"{peer!r} is not a broker"
                self._sessions.retry(peer)
            elif purpose == LINGER:
                assert isinstance(peer, str), f"{peer!r} is not a client"
                self._clients.linger_over(peer)
            elif purpose == WRITE:
                self._clients.write_progress()
            elif purpose == AUDIT:
                self._tags.audit()
            elif purpose == COLD_START:
                if self._recovery.cold_start():
                    self._clients.admit()
            else:
                assert purpose == FLUSH_POSITIONS, f"deadline for {purpose!r}"
                self._publications.windows.flush_positions()

    def _on_message(self, event: MessageReceived) -> None:
        peer = event.peer
        if isinstance(peer, int):
            current = self._sessions.current(peer)
        else:
            current = self._clients.table.session_of(peer)
        if event.session != current:
            self._state.counters["messages_ignored"] += 1
            return
        handlers = self._from_brokers if isinstance(peer, int) else self._from_clients
        handler = message_handler(handlers, event)
        if isinstance(peer, int):
            self._check_ready(peer, event.message)
        handler(peer, event.message)

    def _check_ready(self, peer: BrokerNumber, message: object) -> None:
        if not isinstance(message, Summary) and not self._sessions.node(peer).ready:
            raise RemoteProtocolError(peer, "its first message is no Summary")

    def _on_summary(self, peer: BrokerNumber, message: Summary) -> None:
        if self._sessions.node(peer).ready:
            raise RemoteProtocolError(peer, "a second Summary on one session")
        self._unsubscriptions.on_summary(peer, message)
        self._home.revoke(self._unsubscriptions.list_revoked(message.tombstones))
        self._subscriptions.set_shared(peer, message.accepted)
        self._sessions.on_summary(peer, message.recovering)
        self._partitions.synchronise(self._sessions.node(peer))
        self._sessions_changed()

    def _on_unsubscription(self, peer: BrokerNumber, message: Unsubscription) -> None:
        self._unsubscriptions.on_unsubscription(peer, message)
        self._home.revoke(self._unsubscriptions.list_revoked(message.tombstones))

    def _sessions_changed(self) -> None:
        """Adjust all parts to the present sessions; the order matters.

        SyncEnd follows all subscriptions, or a recovering peer would count as complete without the
        subscriptions pending here. Publications come last, so that they arrive at brokers with the
        subscriptions that they match.
        """
        newly_active = self._sessions.refresh()
        self._partitions.follow_sessions()
        for node in newly_active:
            self._subscriptions.synchronise(node)
        self._subscriptions.spread_unconfirmed()
        for node in newly_active:
            self.send(node.broker, SyncEnd(self._state.recovering))
        self._queue.reroute()
        self._end_recovery()

    def _end_recovery(self) -> None:
        """Admit the waiting clients if the recovery is complete."""
        if self._recovery.end_if_complete():
            self._clients.admit()

    def _on_sync_end(self, peer: BrokerNumber, message: SyncEnd) -> None:
        if self._recovery.on_sync_end(peer, message):
            self._clients.admit()

    def _on_recovery_flag(self, peer: BrokerNumber, message: RecoveryFlag) -> None:
        if self._recovery.on_recovery_flag(peer, message):
            self._clients.admit()


_WITH_RUNS = (PublicationCopy, Publish)
_OF_PUBLICATIONS = (*_WITH_RUNS, PublicationConfirmation, Acknowledge)
_REACH_WITHOUT_SESSION = (Reach.TRYING, Reach.UNREACHABLE)
