"""Checks that the disk backs a broker's statements, so that no crash makes them untrue.

Other brokers act on a statement at once and never request it again: they stop spreading a confirmed
subscription, drop a confirmed notifier, and forward an end. A run without a crash at that moment
shows no mistake, so every statement is compared with the disk, crash or not. Likewise a restarted
broker is checked to publish and confirm nothing before the broker's state is complete.

Paper: [DFT11] §VIII. Deviates: the paper is silent on durability.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.client_messages import Connected, Subscribed, Unsubscribed
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, SubscriptionId
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    NOTIFIER,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SubscriptionConfirmation,
    Tag,
    Unsubscription,
)
from brokerd.protocols.delta_tree.regions import includes
from brokerd.protocols.delta_tree.state import ATTACHED, ROUTING, SUBSCRIPTIONS
from brokerd.protocols.delta_tree.tombstones import TombstoneTable
from brokerd.protocols.interface import (
    Change,
    Commit,
    Effect,
    Event,
    MessageReceived,
    Persisted,
    Send,
    Started,
)
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

Rows = dict[str, dict[str, Any]]


@dataclass(slots=True)
class _Memory:
    """One broker's disk, as far as its incarnation may rely on it, and its pending work.

    Attributes:
        rows: table → key → value, as far as reported durable.
        written: not yet durable, in order.
        missing: publishers that were attached before a restart, and have neither returned nor left.
        notifiers: arrived at this broker as their home; None after the confirmation: tags that
            an older confirmation restores later are left to the audit, and do no harm.
    """

    rows: Rows = field(default_factory=dict)
    written: list[Commit] = field(default_factory=list)
    missing: dict[ClientId, None] = field(default_factory=dict)
    notifiers: dict[tuple[SourceId, int], RecoveryNotifier | None] = field(default_factory=dict)

    def apply_commits(self, token: int) -> None:
        """Apply a durable commit, and all commits written before it."""
        if all(commit.token != token for commit in self.written):
            return  # of the publication log
        while self.written:
            commit = self.written.pop(0)
            for change in commit.changes:
                self._apply(change)
            if commit.token == token:
                return

    def routed_keys(self) -> dict[str, None]:
        """Return the keys of the routing table once all written commits are durable."""
        keys = dict.fromkeys(self.rows.get(ROUTING, {}))
        for commit in self.written:
            for change in commit.changes:
                if change.table == ROUTING and change.value is None:
                    keys.pop(change.key, None)
                elif change.table == ROUTING:
                    keys[change.key] = None
        return keys

    def _apply(self, change: Change) -> None:
        rows = self.rows.setdefault(change.table, {})
        if change.value is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.value


class DurabilityChecker:
    """Checks of the statements of delta_tree's brokers against their disks, on every step."""

    def __init__(self) -> None:
        self._memories: dict[BrokerNumber, _Memory] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """Check the effects of an event against the rows that are durable."""
        core = broker.protocol
        if not isinstance(core, DeltaTree):
            return
        if type(event) is Started:
            rows = {table: dict(found) for table, found in event.recovered.items()}
            missing = dict.fromkeys(rows.get(ATTACHED, ()))
            self._memories[broker.number] = _Memory(rows, missing=missing)
        memory = self._memories[broker.number]
        if type(event) is Persisted:
            memory.apply_commits(event.token)
        elif type(event) is MessageReceived and type(event.message) is RecoveryNotifier:
            notifier = event.message
            if notifier.subscription.home == broker.number:
                memory.notifiers.setdefault((notifier.source, notifier.sequence), notifier)
        for effect in effects:
            if type(effect) is Commit:
                memory.written.append(effect)
                for change in effect.changes:
                    if change.table == ATTACHED and change.value is None:
                        memory.missing.pop(change.key, None)
            elif type(effect) is Send:
                for fault in _faults(broker, core, memory, effect):
                    raise InvariantViolated("sent before durable", f"{broker.name} {fault}")

    def describe_stale_rows(self, brokers: Sequence[BrokerView]) -> list[str]:
        """Return rows on disk that no live broker routes by, for people.

        The end of a run allows none.
        """
        lines = []
        for broker in brokers:
            core = broker.protocol
            if broker.alive and isinstance(core, DeltaTree) and broker.number in self._memories:
                rows = {_routing_key(each) for each in core._subscriptions.table.rows}
                on_disk = self._memories[broker.number].routed_keys()
                over = [key for key in on_disk if key not in rows]
                if over:
                    lines.append(f"{broker.name} has {over[:3]} on its disk, which are over")
        return lines


def _faults(broker: BrokerView, core: DeltaTree, memory: _Memory, effect: Send) -> Iterator[str]:
    message, peer = effect.message, effect.peer
    match message:
        case SubscriptionConfirmation():
            subscription = message.subscription
            durable = _routing_key(subscription) in memory.rows.get(ROUTING, {})
            if core._state.parameters.persist_routing and not durable:
                yield f"confirms {tuple(subscription)} to {peer}, which is not on its disk"
            if memory.missing:
                yield f"confirms {tuple(subscription)}, and {[*memory.missing]} are not back"
        case PublicationCopy():
            recovering = core.status().state != "running"
            if message.run.source.broker == broker.number and recovering:
                yield f"recovers, and publishes {message.run.first} of {message.run.source}"
        case PublicationConfirmation():
            for source, first, last in message.ranges:
                if source.publisher == NOTIFIER:
                    yield from _gates_on_disk(memory, source, range(first, last + 1))
        case Unsubscription():
            tombstones = TombstoneTable()
            for statement in message.tombstones:
                tombstones.add(statement)
            for row in memory.rows.get(SUBSCRIPTIONS, {}).values():
                subscription = SubscriptionId(broker.number, row[0], row[1])
                reissued = not row[3] and row[0] < broker.incarnation
                if subscription in tombstones and not reissued:
                    yield f"ends {tuple(subscription)}, which is on its disk"
        case Unsubscribed():
            if f"{peer}/{message.number}" in memory.rows.get(SUBSCRIPTIONS, {}):
                yield f"calls {peer}/{message.number} over, which is on its disk"
        case Subscribed() if message.state == "started":
            row = memory.rows.get(SUBSCRIPTIONS, {}).get(f"{peer}/{message.number}")
            if row is None or not row[3]:
                yield f"calls {peer}/{message.number} started, which it is not on its disk"
        case Connected() if message.source is not None:
            assert isinstance(peer, str), f"{message} sent to a broker"
            memory.missing.pop(peer, None)
            if memory.rows.get(ATTACHED, {}).get(peer) != message.source.incarnation:
                yield f"lets {peer} publish, of which nothing is on its disk"


def _gates_on_disk(memory: _Memory, source: SourceId, sequences: range) -> Iterator[str]:
    """Yield faults: tags on disk that a confirmed notifier has removed."""
    for sequence in sequences:
        notifier = memory.notifiers.get((source, sequence))
        if notifier is None:
            continue  # not at its home, or repeated
        memory.notifiers[source, sequence] = None
        home, incarnation, number = notifier.subscription
        for key, row in memory.rows.get(SUBSCRIPTIONS, {}).items():
            if row[:2] != [incarnation, number] or not row[3]:
                continue
            for path, *rest in row[5]:
                tag = Tag(tuple(path), *rest)
                taken = includes(notifier.removed, (tag,)) and not includes(notifier.added, (tag,))
                if taken:
                    yield f"has notifier {sequence} of {home} done, and {key} has {tag} on disk"


def _routing_key(subscription: SubscriptionId) -> str:
    return f"{subscription.home}.{subscription.incarnation}.{subscription.number}"
