"""Checks of the subscriptions at every broker, from the messages alone.

A broker that routes by a subscription may send a matching publication only to brokers that have
the subscription, too: a broker without the subscription would drop and confirm the publication.

Paper: [DFT11] §V-B lines 456-465, §VI lines 614-621.
"""

from dataclasses import dataclass, field
from typing import Any

from brokerd.model.client_messages import Publish
from brokerd.model.identity import BrokerNumber, Peer, SourceId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    PublicationCopy,
    SubscriptionCopy,
    Summary,
    Tag,
    Tombstones,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.regions import covers
from brokerd.protocols.delta_tree.tombstones import TombstoneTable, read_tombstones
from brokerd.protocols.interface import (
    Commit,
    Effect,
    Event,
    MessageReceived,
    SessionEstablished,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

HOME_TABLE = "subscriptions"
ROUTING_TABLE = "routing"


@dataclass(slots=True)
class _Memory:
    """The messages that one broker incarnation has received.

    Attributes:
        accepted: subscription → number of its arrival; ended ones are removed.
        tombstones: the received tombstones.
        received: source → sequence number → number of its first arrival.
        peers: broker → its incarnation at the other end of the session.
        arrivals: number of arrivals so far.
    """

    accepted: dict[SubscriptionId, int] = field(default_factory=dict)
    tombstones: TombstoneTable = field(default_factory=TombstoneTable)
    received: dict[SourceId, dict[int, int]] = field(default_factory=dict)
    peers: dict[BrokerNumber, int] = field(default_factory=dict)
    arrivals: int = 0

    def accept(self, subscription: SubscriptionId) -> None:
        """Record the first arrival of a subscription."""
        if subscription not in self.accepted:
            self.arrivals += 1
            self.accepted[subscription] = self.arrivals

    def receive(self, run: PublicationRun) -> None:
        """Record the first arrival of publications."""
        received = self.received.setdefault(run.source, {})
        missing = [sequence for sequence in run.sequences if sequence not in received]
        if missing:
            self.arrivals += 1
            received.update(dict.fromkeys(missing, self.arrivals))


class AwarenessChecker:
    """Checks of I8, I10 and I16 of the design on every step.

    Args:
        late: brokers route by a subscription when they confirm it. Publications forwarded before
            that are no part of the stream, by the start cut; so I8 is not checked.
    """

    def __init__(
        self,
        tree: PrimaryTree,
        world: CheckedWorld,
        late: bool,
    ) -> None:
        self._late = late
        self._tree = tree
        self._world = world
        self._memories: dict[BrokerNumber, _Memory] = {}
        self._of_incarnations: dict[tuple[BrokerNumber, int], _Memory] = {}
        self._predicates: dict[SubscriptionId, Predicate] = {}
        self._behind: dict[tuple[BrokerNumber, BrokerNumber], tuple[SubscriptionId, ...]] = {}

    def step(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """Check a core's step."""
        if type(event) is Started:
            rows = event.recovered.get(ROUTING_TABLE, {})
            memory = _Memory(dict.fromkeys(map(_id_of_row, rows), 0))
            self._memories[broker.number] = memory
            self._of_incarnations[broker.number, event.incarnation] = memory
            for statement in read_tombstones(event.recovered):
                self._end(memory, statement)
        elif type(event) is SessionEstablished and isinstance(event.peer, int):
            self._memories[broker.number].peers[event.peer] = event.incarnation
        elif (message := message_of(broker, event)) is not None:
            assert isinstance(event, MessageReceived), f"{message} by {event}"
            self._on_message(broker, event.peer, message)
        for effect in effects:
            if type(effect) is Commit:
                self._on_commit(broker, effect)

    def _on_message(self, broker: BrokerView, peer: Peer, message: object) -> None:
        memory = self._memories[broker.number]
        if isinstance(message, SubscriptionCopy | UpstreamCopy):
            subscription = message.subscription
            if subscription not in memory.tombstones:
                memory.accept(subscription)
            if subscription not in self._predicates:
                self._predicates[subscription] = message.predicate
                self._behind.clear()
        elif isinstance(message, Summary | Unsubscription):
            for statement in message.tombstones:
                self._end(memory, statement)
        elif isinstance(message, PublicationCopy):
            assert isinstance(peer, int), f"{message} from a client"
            if not self._late:
                self._check_handed_over(broker, peer, message.run)
            memory.receive(message.run)
        elif isinstance(message, Publish):
            memory.receive(message.run)

    def _end(self, memory: _Memory, statement: Tombstones) -> None:
        if memory.tombstones.add(statement):
            for subscription in [each for each in memory.accepted if each in memory.tombstones]:
                del memory.accepted[subscription]

    def _check_handed_over(
        self, broker: BrokerView, peer: BrokerNumber, run: PublicationRun
    ) -> None:
        """I8, I16: the receiver has the subscriptions that the sender routes a publication by."""
        here = self._memories[broker.number]
        # A thawed broker may find messages of a peer from before its restart.
        sender = self._of_incarnations[peer, here.peers[peer]]
        unknown = [
            subscription
            for subscription in self._subscriptions_beyond(broker.number, peer)
            if subscription in sender.accepted
            and subscription not in here.accepted
            and subscription not in here.tombstones
        ]
        if not unknown:
            return
        received = sender.received.get(run.source, {})
        for position, sequence in enumerate(run.sequences):
            first = received.get(sequence)
            if first is None:
                continue  # the sender has it from its log
            for subscription in unknown:
                if sender.accepted[subscription] < first and self._world.oracle.wants(
                    self._predicates[subscription], run.blob(position)
                ):
                    raise InvariantViolated(
                        "unaware",
                        f"{broker.name} gets {tuple(run.source)} {sequence} from broker {peer}, "
                        f"which routes it by {tuple(subscription)}; {broker.name} has not got that",
                    )

    def _subscriptions_beyond(
        self, broker: BrokerNumber, peer: BrokerNumber
    ) -> tuple[SubscriptionId, ...]:
        """Return the subscriptions with a home strictly behind a broker, as seen from a peer."""
        found = self._behind.get((broker, peer))
        if found is None:
            found = tuple(
                subscription
                for subscription in self._predicates
                if subscription.home != broker
                and broker in self._tree.path(peer, subscription.home)
            )
            self._behind[broker, peer] = found
        return found

    def _on_commit(self, broker: BrokerView, effect: Commit) -> None:
        """I10: a source that a subscription receives from has the subscription, or recovers."""
        for change in effect.changes:
            if change.table != HOME_TABLE or change.value is None or not change.value[3]:
                continue
            subscription = SubscriptionId(broker.number, change.value[0], change.value[1])
            tags = read_tags(change.value)
            for other in self._world.brokers():
                if (
                    other is not broker
                    and other.alive
                    and self._world.has_publishers(other.number)
                    and not self._has_accepted(other, subscription)
                    and other.core.status().state == "running"
                    and not covers(
                        tags, self._tree.path(broker.number, other.number), self._tree.newcomers
                    )
                ):
                    raise InvariantViolated(
                        "unaware source",
                        f"{tuple(subscription)} starts and {other.name} has not got it",
                    )

    def _has_accepted(self, broker: BrokerView, subscription: SubscriptionId) -> bool:
        core = broker.protocol
        if self._late and isinstance(core, DeltaTree):
            return subscription in core._subscriptions.all_ids()
        return subscription in self._memories[broker.number].accepted


def read_tags(row: Any) -> tuple[Tag, ...]:
    """Return the tags in a row of the home table."""
    return tuple(Tag(tuple(path), *rest) for path, *rest in row[5])


def _id_of_row(key: str) -> SubscriptionId:
    home, incarnation, number = map(int, key.split("."))
    return SubscriptionId(home, incarnation, number)
