"""The marks of the δ tree, found in the events and effects of a core.

`PROTOCOL.md` names each of them at the rule that it stands for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Detach,
    Notice,
    Publish,
    Refused,
    Subscribe,
    Unsubscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    PartitionGone,
    PartitionNew,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    SyncEnd,
    Tag,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.state import ROUTING, SUBSCRIPTIONS, Phase
from brokerd.protocols.interface import (
    FIRST_INNER_SESSION,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    # sessions and partitions
    Mark("bypass", "a session past an unreachable broker became active", seeds=4),
    Mark("partition-held", "a partition was withdrawn only after its notifiers were done", seeds=5),
    Mark("partition-stale", "an ended partition was announced again, and answered", seeds=4),
    # subscriptions
    Mark("walked-past", "a subscription was sent past an unreachable broker", seeds=4),
    Mark(
        "island-tagged",
        "a confirmation named an unreachable broker that was bypassed",
        seeds=5,
    ),
    Mark("barrier-tagged", "a confirmation named an unreachable broker that was not bypassed"),
    Mark("upstream-copy-first", "a broker received a subscription from beyond first", seeds=4),
    Mark(
        "over-elsewhere", "an ended subscription arrived at a broker with its tombstone", seeds=15
    ),
    Mark(
        "reissued", "an access broker restarted with a subscription that had not started", seeds=30
    ),
    Mark("publisher-came-back", "confirmations waited for a publisher to reconnect", seeds=30),
    Mark("ended-by-summary", "a Summary ended subscriptions of the routing table", seeds=10),
    # gates
    Mark("gate-opened", "an access broker reached more sources than before", seeds=10),
    Mark(
        "notifier-found-gate-open",
        "a notifier returned to an open gate",
        seeds=10,
    ),
    Mark("notifier-crossed", "a notifier changed tags of a broker on its way", seeds=8),
    Mark(
        "notifier-before-answers", "a notifier met a subscription not yet confirmed there", seeds=15
    ),
    Mark("notifier-sent-again", "a notifier was sent again on another session", seeds=8),
    Mark("audit", "an audit asked again", seeds=25),
    Mark("withheld", "a publication from behind a closed gate was announced", seeds=15),
    Mark(
        "withheld-unseen",
        "publications were announced that never reached the access broker",
        seeds=10,
    ),
    Mark("withheld-again", "a restarted access broker repeated an announcement", seeds=60),
    # publications
    Mark(
        "duplicate-waited", "a duplicate was confirmed only when the first copy was done", seeds=4
    ),
    Mark("partly-duplicate", "a frame was old in its front and new in its back", seeds=5),
    Mark("part-confirmed", "a frame was confirmed in parts", seeds=4),
    Mark("sent-again", "publications were sent again when sessions changed", seeds=4),
    Mark("queue-over-limit", "a queue grew over its limit"),
    Mark("window-full", "a client's window was full", seeds=20),
    # restarts
    Mark("recovered", "a restarted broker was whole again", seeds=5),
    Mark("recovered-together", "a recovering broker received state from another recovering broker"),
    Mark("held-while-recovering", "a publisher was held until its broker was whole", seeds=15),
    Mark("log-published-again", "publications came from the log of a restarted broker", seeds=60),
    Mark("cold-start", "a component continued alone after a timeout"),
    # clients
    Mark("left-at-once", "a client with three subscriptions or more left at once"),
    Mark("drained", "a client received the remaining deliveries before its release"),
    Mark("refused", "a subscription more than a client may have was refused"),
    Mark("given-up", "subscriptions expired whose client did not reconnect"),
    Mark("counter-lost", "a publisher reconnected without its counter"),
    # relayed sessions
    Mark("relayed", "a session through a third broker began", seeds=5),
    Mark("relay-lost", "a relayed session ended with its relay's", seeds=8),
    Mark("relay-replaced", "a direct session took the place of a relayed one", seeds=5),
    # between core and peers
    Mark("old-session", "a message of an ended session was ignored", seeds=15),
    Mark("frame-split", "a message was sent as several frames"),
    Mark("joined", "a leaf joined"),
    Mark("left", "a leaf left"),
)


@dataclass(slots=True)
class _Step:
    """An event of a core with its effects."""

    broker: BrokerView
    core: DeltaTree
    event: Any
    effects: Sequence[Effect]

    def sends(self, kind: type, peer: Peer | None = None) -> bool:
        """Return True if the step sends a message of this type, to this peer if named."""
        return any(
            type(effect) is Send and type(effect.message) is kind and peer in (None, effect.peer)
            for effect in self.effects
        )

    def delivers(self, kind: type) -> bool:
        """Return True if the step delivers an item of this type to a client."""
        return any(type(effect) is Deliver and type(effect.item) is kind for effect in self.effects)

    def commits(self, table: str) -> bool:
        """Return True if the step changes a row of this table."""
        return any(
            type(effect) is Commit and any(change.table == table for change in effect.changes)
            for effect in self.effects
        )

    def count_removed(self, table: str) -> int:
        """Return the number of removed rows of this table."""
        return sum(
            change.table == table and change.value is None
            for effect in self.effects
            if type(effect) is Commit
            for change in effect.changes
        )

    def answers(self, *kinds: type) -> bool:
        """Return True if the event is a message of one of these types."""
        return type(self.event) is MessageReceived and type(self.event.message) in kinds


class DeltaTreeMarks:
    """Counters of the marks of one cluster of δ-tree brokers; see marks.MarkObserver."""

    def __init__(self, tree: PrimaryTree) -> None:
        self.counts: dict[str, int] = {mark.name: 0 for mark in MARKS}
        self._tree = tree
        self._tags: dict[tuple[BrokerNumber, SubscriptionId], tuple[Tag, ...]] = {}
        self._duplicates: dict[BrokerNumber, int] = {}
        self._ignored: dict[BrokerNumber, int] = {}
        self._incarnations: dict[ClientId, int] = {}
        self._draining: dict[tuple[BrokerNumber, ClientId], None] = {}
        self._on_event: dict[type, Callable[[_Step], None]]
        self._on_event = {
            Started: self._on_started,
            MessageReceived: self._on_message,
            SessionEstablished: self._on_established,
            SessionLost: self._on_lost,
            DeadlineReached: self._on_deadline,
        }
        self._on_arrival: dict[type, Callable[[_Step], None]]
        self._on_arrival = {
            PartitionNew: self._on_partition_new,
            PublicationConfirmation: self._on_publication_confirmation,
            SubscriptionCopy: self._on_subscription,
            UpstreamCopy: self._on_subscription,
            SubscriptionConfirmation: self._on_confirmation,
            RecoveryNotifier: self._on_notifier,
            PublicationCopy: self._on_publications,
            Summary: self._on_summary,
            SyncEnd: self._on_sync_end,
            Connect: self._on_connect,
            Publish: self._on_publish,
            Subscribe: self._on_subscribe,
            Acknowledge: self._on_acknowledge,
            Detach: self._on_detach,
        }
        self._sent: dict[type, Callable[[_Step, Send], None]] = {
            SyncEnd: self._sent_sync_end,
            SubscriptionCopy: self._sent_copy,
            SubscriptionConfirmation: self._sent_confirmation,
            PublicationCopy: self._sent_publications,
            RecoveryNotifier: self._sent_notifier,
            PartitionGone: self._sent_gone,
            Unsubscribed: self._sent_unsubscribed,
            Refused: self._sent_refused,
        }

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        core = broker.protocol
        if not isinstance(core, DeltaTree):
            return
        handler = self._on_event.get(type(event))
        if handler is None and not effects:
            return
        taken = _Step(broker, core, event, effects)
        if handler is not None:
            handler(taken)
        elif type(event) is TopologyGrown:
            self._reach("joined")
        elif type(event) is TopologyShrunk:
            self._reach("left")
        for effect in effects:
            if type(effect) is Send:
                sent = self._sent.get(type(effect.message))
                if sent is not None:
                    sent(taken, effect)
            elif type(effect) is Record:
                self._on_record(effect)
            elif type(effect) is Deliver and type(effect.item) is Notice:
                unseen = not taken.answers(PublicationCopy)
                self._reach("withheld-unseen" if unseen else "withheld")

    def _reach(self, name: str) -> None:
        self.counts[name] += 1

    # ------------------------------------------------------------ events

    def _on_started(self, step: _Step) -> None:
        number = step.broker.number
        self._duplicates[number] = self._ignored[number] = 0
        self._tags = {key: tags for key, tags in self._tags.items() if key[0] != number}
        self._draining = {key: None for key in self._draining if key[0] != number}
        if any(not row[3] for row in step.event.recovered.get(SUBSCRIPTIONS, {}).values()):
            self._reach("reissued")
        if any(ends.first < ends.next for ends in step.event.logs.values()):
            self._reach("log-published-again")

    def _on_established(self, step: _Step) -> None:
        if step.event.session >= FIRST_INNER_SESSION:
            self._reach("relayed")

    def _on_lost(self, step: _Step) -> None:
        if step.event.session >= FIRST_INNER_SESSION:
            replaced = step.event.reason == "closed_by_us" and step.event.peer in step.broker.ends
            self._reach("relay-replaced" if replaced else "relay-lost")

    def _on_deadline(self, step: _Step) -> None:
        if step.sends(SubscriptionCopy):
            self._reach("audit")

    def _on_message(self, step: _Step) -> None:
        ignored = step.core._state.counters["messages_ignored"]
        if ignored > self._ignored[step.broker.number]:
            self._ignored[step.broker.number] = ignored
            if step.broker.session_with(step.event.peer) != step.event.session:
                self._reach("old-session")
                return
        handler = self._on_arrival.get(type(step.event.message))
        if handler is not None:
            handler(step)

    # ------------------------------------------------------------ messages of brokers

    def _on_partition_new(self, step: _Step) -> None:
        if step.sends(PartitionGone, step.event.peer):
            self._reach("partition-stale")

    def _on_subscription(self, step: _Step) -> None:
        message = step.event.message
        row = step.core._subscriptions.table.rows.get(message.subscription)
        if step.sends(Unsubscription, step.event.peer):
            self._reach("over-elsewhere")
        elif type(message) is UpstreamCopy and row is not None and not row.senders:
            self._reach("upstream-copy-first")

    def _on_confirmation(self, step: _Step) -> None:
        message = step.event.message
        row = step.core._subscriptions.table.rows.get(message.subscription)
        if row is not None and row.confirmed:
            self._tags[step.broker.number, message.subscription] = row.tags
            started = row.local is not None and row.local.phase is Phase.STARTED
            if started and step.commits(SUBSCRIPTIONS):
                self._reach("gate-opened")

    def _on_notifier(self, step: _Step) -> None:
        subscription = step.event.message.subscription
        row = step.core._subscriptions.table.rows.get(subscription)
        if row is None:
            return
        if not row.is_settled:
            self._reach("notifier-before-answers")
        elif row.local is None:
            key = step.broker.number, subscription
            before = self._tags.get(key, row.tags)
            self._tags[key] = row.tags
            if before != row.tags:
                self._reach("notifier-crossed")
        elif step.commits(SUBSCRIPTIONS):
            self._reach("gate-opened")
        else:
            self._reach("notifier-found-gate-open")

    def _on_publications(self, step: _Step) -> None:
        counted = step.core._state.counters["duplicates_received"]
        again = counted - self._duplicates[step.broker.number]
        self._duplicates[step.broker.number] = counted
        if again and not step.sends(PublicationConfirmation, step.event.peer):
            self._reach("duplicate-waited")
        if 0 < again < len(step.event.message.run):
            self._reach("partly-duplicate")

    def _on_publication_confirmation(self, step: _Step) -> None:
        assert isinstance(step.event.peer, int), f"{step.event.peer} confirms"
        sent = step.core._queue.sent.get(step.event.peer, {})
        for source, _, _ in step.event.message.ranges:
            transfers = sent.get(source)
            if transfers and transfers[0].remainder is not None:
                self._reach("part-confirmed")

    def _on_summary(self, step: _Step) -> None:
        if step.count_removed(ROUTING):
            self._reach("ended-by-summary")

    def _on_sync_end(self, step: _Step) -> None:
        if step.event.message.recovering and step.core._state.recovering:
            self._reach("recovered-together")

    # ------------------------------------------------------------ messages of clients

    def _on_connect(self, step: _Step) -> None:
        name, incarnation = str(step.event.peer), step.event.message.incarnation
        if step.event.message.publishes and self._incarnations.get(name, incarnation) < incarnation:
            self._reach("counter-lost")
        self._incarnations[name] = incarnation
        if step.sends(SubscriptionConfirmation) or step.commits(ROUTING):
            self._reach("publisher-came-back")

    def _on_publish(self, step: _Step) -> None:
        if step.core._state.recovering:
            self._reach("held-while-recovering")

    def _on_subscribe(self, step: _Step) -> None:
        if step.core._state.restarted and step.delivers(Notice):
            self._reach("withheld-again")

    def _on_acknowledge(self, step: _Step) -> None:
        if step.core.clients_behind():
            self._reach("window-full")

    def _on_detach(self, step: _Step) -> None:
        if step.event.message.drain:
            self._draining[step.broker.number, str(step.event.peer)] = None
        if step.count_removed(SUBSCRIPTIONS) >= 3:
            self._reach("left-at-once")

    # ------------------------------------------------------------ effects

    def _sent_sync_end(self, step: _Step, effect: Send) -> None:
        if not self._is_near(step, effect):
            self._reach("bypass")

    def _sent_copy(self, step: _Step, effect: Send) -> None:
        if not self._is_near(step, effect):
            self._reach("walked-past")

    def _sent_confirmation(self, step: _Step, effect: Send) -> None:
        message = effect.message
        self._tags[step.broker.number, message.subscription] = message.tags
        if any(tag.beyond for tag in message.tags):
            self._reach("barrier-tagged")
        if any(not tag.beyond for tag in message.tags):
            self._reach("island-tagged")

    def _sent_publications(self, step: _Step, effect: Send) -> None:
        if type(step.event) is not MessageReceived or step.answers(Summary):
            self._reach("sent-again")

    def _sent_notifier(self, step: _Step, effect: Send) -> None:
        arrived = step.answers(RecoveryNotifier, SubscriptionConfirmation)
        if not arrived and type(step.event) is not TopologyShrunk:
            self._reach("notifier-sent-again")

    def _sent_gone(self, step: _Step, effect: Send) -> None:
        own = any(numbers.detector == step.broker.number for numbers in effect.message.withdrawn)
        if own and step.answers(PublicationConfirmation):
            self._reach("partition-held")

    def _sent_unsubscribed(self, step: _Step, effect: Send) -> None:
        if not effect.message.number and (step.broker.number, str(effect.peer)) in self._draining:
            del self._draining[step.broker.number, str(effect.peer)]
            if step.answers(Acknowledge):
                self._reach("drained")

    def _sent_refused(self, step: _Step, effect: Send) -> None:
        if effect.message.request == "subscribe":
            self._reach("refused")

    def _on_record(self, effect: Record) -> None:
        mark = {
            "recovered": "recovered",
            "cold_start": "cold-start",
            "queue_over_limit": "queue-over-limit",
            "subscriptions_given_up": "given-up",
        }.get(effect.event)
        if mark is not None:
            self._reach(mark)

    def _is_near(self, step: _Step, effect: Send) -> bool:
        assert isinstance(effect.peer, int), f"{effect.message} for a client"
        return self._tree.distance(step.broker.number, effect.peer) == 1
