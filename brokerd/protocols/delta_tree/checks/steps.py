"""Invariants of delta_tree on every step: true confirmations, and announced withholding.

The checks of every invariant of the δ tree's design:

    I1   exactly once          deliveries: `judge` (duplicate)
    I2   order                 deliveries: `_check_rank` (order)
    I3   no gap                deliveries: `_check_rank` (gap), `_check_first` (gap, silent)
    I4   complete after heal   oracle: `judge_end`; plan_run: `_has_converged`, `_list_rest` (the
                               queues, tags, partition tables empty, no broker recovering; no
                               ended subscription in a table, or on disk)
    I5   not before the start  deliveries: `judge` (early, closed gate), `_check_rank` (gap);
                               invariants: `_check_delivery`
    I6   duplicates are such   first_copies: `_check_delivery`, `_check_disagreement`; here:
                               `_check_confirmation` (a false duplicate is confirmed, and has not
                               arrived)
    I7   confirmations true    here: `_check_confirmation`; invariants:
                               `_check_acknowledgement`
    I8   hops are aware        awareness: `_check_handed_over`
    I9   gates only open       here: `_note_gates`; notices: `Gates`; separation: `judge` (only
                               brokers that were cut off are closed at the start)
    I10  sources are aware     awareness: `_on_commit`; durability: `_faults` (a
                               recovering broker publishes nothing)
    I11  active sessions       internals: `_check_sessions`
    I12  queues in order       internals: `_check_queue`
    I13  own partitions        internals: `_check_partitions`
    I14  partition tables      internals: `_check_partitions`
    I15  legitimacy            with held publications: the core counts illegitimate ones
    I16  subscription first    awareness: `_check_handed_over`
    I17  purity                broker_factory: `repeat_events`; determinism: whole seeds
    I18  summaries are true    internals: `_check_known`

And, so that no crash makes a statement untrue:

    no client is evicted too soon
                               linger: `_check`
    on disk before a statement, and nothing published or confirmed in an incomplete state
                               durability: `_faults`

A source at P reaches a subscription at S if the walk of next hops from P reaches S: every broker
hands over to the first broker on the path to S with a possible session, at most δ + 1 links
away. Nothing is owed if a broker on the walk has no broker to hand over to. That is the
paper's own limit: activity is one-sided, so a broker next to a broken link may receive publications
without a way to forward.

Relayed sessions remove the one-sidedness. A broken link counts as whole for the walk if
both ends certainly get a session through a third broker: both request sessions through δ
brokers within δ + 1 links of both, if there are enough, in an unspecified choice. So the session
is certain when fewer than δ of the possible relays have a broken link with either end. With at most
δ links broken that is always so, in a tree of δ + 2 brokers or more: all is owed then, starts
included, and no broker is exempt.

Without relays, brokers are exempt that had not recovered yet when a link of the tree broke:
the only complete broker may have a session with an exempt broker that is not active at the other
end. Nothing is owed from publishers, or to subscriptions, at exempt brokers.

Paper: [DFT11] §I (reliability), §II (one-sided activity), §V-VI (awareness before delivery), §VI
lines 646-652 (next hop).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, SubscriptionId
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link
from brokerd.overlay.tree import tree_of
from brokerd.protocols.delta_tree.checks import internals
from brokerd.protocols.delta_tree.checks.awareness import HOME_TABLE, AwarenessChecker, read_tags
from brokerd.protocols.delta_tree.checks.durability import DurabilityChecker
from brokerd.protocols.delta_tree.checks.first_copies import FirstCopyChecker
from brokerd.protocols.delta_tree.checks.separation import SeparationChecker
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy, Tag
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt, SourceQueue
from brokerd.protocols.delta_tree.regions import covers
from brokerd.protocols.delta_tree.state import ATTACHED, SUBSCRIPTIONS
from brokerd.protocols.interface import (
    Change,
    Commit,
    Effect,
    Event,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.growth import ContainerLimits
from brokerd.simulator.checks.linger import LingerChecker
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, Reach
from brokerd.simulator.checks.recounts import Holdings, Recount
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class DeltaTreeChecks(ProtocolChecks):
    """See ProtocolChecks."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._tree = tree = tree_of(world.graph)
        self._oracle = oracle = world.oracle
        self._lingering = LingerChecker(
            world.schedule, oracle, world.parameters.client_linger_ns, SUBSCRIPTIONS, ATTACHED
        )
        self._separation = SeparationChecker(tree, tree.topology.delta + 1)
        self._awareness = AwarenessChecker(tree, world, late=world.parameters.accept == "late")
        self._durability = DurabilityChecker()
        self._first_copies = FirstCopyChecker(tree, oracle)
        self._homes: dict[ClientId, int] = {}
        self._received: dict[tuple[int, Peer, int], dict[SourceId, list[int]]] = {}
        self._current: dict[tuple[int, Peer], int] = {}
        self._committing: dict[tuple[int, int], list[tuple[Change, ...]]] = {}
        self._tags: dict[tuple[int, str], tuple[Tag, ...]] = {}

    def client_added(self, client: ClientId, home: int) -> None:
        self._homes[client] = home

    def on_joined(self, newcomer: BrokerNumber) -> None:
        for (home, key), tags in self._tags.items():
            if home not in self._tree.present:
                continue
            if covers(tags, self._tree.path(home, newcomer), self._tree.newcomers):
                client, _, number = key.rpartition("/")
                self._oracle.gates.on_joined(client, int(number), newcomer)

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        given_up = self._lingering.step(broker, event, effects)
        self._separation.step(broker, event, effects)
        self._note_gates(broker.number, event, effects)
        if self.world.strict:
            self._note_event(broker.number, event)
            self._awareness.step(broker, event, effects)
            self._durability.step(broker, event, effects)
            self._first_copies.step(broker, event, effects)
            for effect in effects:
                if type(effect) is Send and type(effect.message) is PublicationConfirmation:
                    self._check_confirmation(broker, effect.peer, effect.message)
        return given_up

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        internals.check_broker(broker, brokers)

    def list_rest(self, brokers: Sequence[BrokerView]) -> list[str]:
        return internals.zombies(brokers) + self._durability.describe_stale_rows(brokers)

    def can_serve(self, one: BrokerView, other: BrokerView) -> bool:
        return internals.can_serve(one, other)

    def _note_event(self, broker: int, event: Event) -> None:
        if type(event) is MessageReceived:
            message = event.message
            current = self._current.get((broker, event.peer)) == event.session
            if type(message) is PublicationCopy and current:
                sources = self._received.setdefault((broker, event.peer, event.session), {})
                sources.setdefault(message.run.source, []).extend(message.run.sequences)
        elif type(event) is SessionEstablished:
            self._current[broker, event.peer] = event.session
        elif type(event) is SessionLost:
            session = self._current.pop((broker, event.peer))
            self._received.pop((broker, event.peer, session), None)
        elif type(event) is Started:
            for key in [key for key in self._current if key[0] == broker]:
                self._received.pop((*key, self._current.pop(key)), None)

    def _note_gates(self, broker: int, event: Event, effects: list[Effect]) -> None:
        """I9: the open sources of a subscription are on disk at its home, and never close."""
        if type(event) is Persisted:
            for changes in self._committing.pop((broker, event.token), []):
                self._take_over_gates(broker, [(c.key, c.value) for c in changes])
        elif type(event) is Started:
            self._committing = {k: v for k, v in self._committing.items() if k[0] != broker}
            self._take_over_gates(broker, list(event.recovered.get(HOME_TABLE, {}).items()))
        for effect in effects:
            if type(effect) is Commit and effect.token is not None:
                changes = tuple(c for c in effect.changes if c.table == HOME_TABLE and c.value)
                if changes:
                    self._committing.setdefault((broker, effect.token), []).append(changes)

    def _take_over_gates(self, broker: int, rows: list[tuple[str, Any]]) -> None:
        for key, value in rows:
            if not value[3]:
                continue
            client, _, number = key.rpartition("/")
            self._tags[broker, key] = tags = read_tags(value)
            closed = frozenset(
                other
                for other in self._tree.present
                if covers(tags, self._tree.path(broker, other), self._tree.newcomers)
            )
            subscription = SubscriptionId(broker, value[0], value[1])
            if self.world.strict:
                self._separation.judge(subscription, key, closed)
            self._oracle.gates.replace(client, int(number), closed)

    def _check_confirmation(
        self, broker: BrokerView, peer: Peer, message: PublicationConfirmation
    ) -> None:
        """I7: a confirmed publication has arrived at every owed client behind the broker."""
        assert isinstance(peer, int), f"{message} sent to a client"
        session = self._current.get((broker.number, peer))
        if session is None:
            return  # the driver drops it
        received = self._received.get((broker.number, peer, session), {})
        for source, first, last in message.ranges:
            sequences = received.get(source, [])
            confirmed = [sequence for sequence in sequences if first <= sequence <= last]
            if len(confirmed) < len(sequences):
                received[source] = [seq for seq in sequences if not first <= seq <= last]
            else:
                received.pop(source, None)
            for sequence in confirmed:
                for client in self._oracle.list_missing_subscribers(source, sequence):
                    path = self._tree.path(peer, self._homes[client])
                    back = self._tree.path(peer, source.broker)
                    if broker.number in path and broker.number not in back:
                        raise InvariantViolated(
                            "confirmed too early",
                            f"{broker.name} confirms {tuple(source)} {sequence} to broker {peer}; "
                            f"{client} behind it has not got it",
                        )


class DeltaTreeReach(Reach):
    """See Reach."""

    def __init__(
        self,
        graph: OverlayGraph,
        parameters: DeltaTreeParameters,
        broken: Iterable[Link],
        removed: Iterable[BrokerNumber] = (),
    ) -> None:
        super().__init__(graph, parameters, broken, removed)
        self._tree = tree_of(graph)
        self._radius = graph.topology.delta + 1
        self._assisted = parameters.assist == "on"
        self.includes_recovering = all(
            self._tree.distance(a, b) > 1 or self._is_bridged(a, b) for a, b in self._broken
        )

    def _find(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        path = self._tree.path(source, home)
        while len(path) > 1:
            for place, broker in enumerate(path[1 : self._radius + 1], 1):
                if self._is_open(path[0], broker) or self._is_bridged(path[0], broker):
                    path = path[place:]
                    break
                if self._assisted and self._relays(path[0], broker)[0]:
                    return False  # they may meet or not
            else:
                return False
        return True

    def _is_open(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        return (min(a, b), max(a, b)) not in self._broken

    def _is_bridged(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        """Return True if two brokers with a broken link certainly meet through a third one."""
        if not self._assisted:
            return False
        able, unable = self._relays(a, b)
        return able > 0 and unable < self._radius - 1

    def _relays(self, a: BrokerNumber, b: BrokerNumber) -> tuple[int, int]:
        """Return the number of brokers near both that can relay, and of the others."""
        near_b = self._tree.ball(b, self._radius)
        both = [c for c in self._tree.ball(a, self._radius) if c in near_b and c != b]
        able = sum(self._is_open(a, c) and self._is_open(c, b) for c in both)
        return able, len(both) - able


def _count_remaining(receipt: Receipt, holdings: Holdings) -> int:
    return sum(
        sum(each is receipt for each in entry.receipts)
        for queue in holdings.of(SourceQueue)
        for entry in queue
    )


RECOUNTS = (
    Recount(
        PublicationQueue,
        "publications",
        lambda queue: queue.publications,
        lambda queue, _: sum(
            entry.publications for each in queue.entries.values() for entry in each
        ),
    ),
    Recount(SourceQueue, "living", len, lambda queue, _: len([*queue])),
    Recount(
        SourceQueue,
        "frame_firsts",
        lambda queue: queue._frame_firsts,
        lambda queue, _: [entry.frame_first for entry in queue._entries],
    ),
    Recount(
        Entry,
        "deliveries",
        lambda entry: 0 if entry.done or entry.part_of else entry.deliveries,
        lambda entry, holdings: 0 if entry.done or entry.part_of else holdings.parcels_of(entry),
    ),
    Recount(Receipt, "remaining", lambda receipt: receipt.remaining, _count_remaining),
)

KEPT = ContainerLimits(
    empty=(
        "Client.held",
        "Clients._deferred",
        "Detector.live",
        "HomeSubscriptions.pending",
        "Outlet.parked",
        "Outlet.sent",
        "Outlet.waiting",
        "PartitionTable._ended",
        "PartitionTable._holds",
        "Propagation._blocked",
        "PublicationLog._done_since",
        "PublicationLog._found",
        "PublicationLog._living",
        "PublicationLog._unpublished",
        "PublicationLog.changed",
        "PublicationQueue.confirmations",
        "PublicationQueue.entries",
        "PublicationQueue.sent[]",
        "RoutedSubscription.answers",
        "RoutedSubscription.replacements",
        "RoutingTable.tagged",
        "RoutingTable.unconfirmed",
        "State._when_durable",
        "State.missing_publishers",
    ),
    paired=(
        "Detector.ended",
        "LocalSubscription.begins_after",
        "LocalSubscription.late",
        "LocalSubscription.acknowledged",
        "LocalSubscription.start_cut",
        "RoutedSubscription.cut",
        "RoutedSubscription.senders",
        "RoutedSubscription.sent",
        "RoutedSubscription.sent_upstream",
        "RoutedSubscription.source_paths",
        "RoutingTable.shared[]",
        "positions",
    ),
)
