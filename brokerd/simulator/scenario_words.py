"""How a scenario says what brokers do: one line for each message, by the names of its people.

A source is called after its broker, a subscription after its home and its number there.
"""

from collections.abc import Iterator
from typing import Any

from brokerd.model.client_messages import (
    Connected,
    Notice,
    PublishAcknowledged,
    Refused,
    Subscribed,
    Unsubscribed,
)
from brokerd.model.identity import PartitionId, Peer, SourceId, SubscriptionId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.protocols.delta_tree.ended import LAST_NUMBER
from brokerd.protocols.delta_tree.messages import (
    EndedSubscriptions,
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
    Tag,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.interface import (
    Deliver,
    Effect,
    Event,
    OpenFailed,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.world.cluster import SimulatedCluster

_RELAY_WORDS = {
    "ask": "asks for a session between {}",
    "accept": "accepts a session between {}",
    "close": "ends the session between {}",
    "carry": "what follows is between {}",
}


class Wording:
    """The words for the messages between the brokers and clients of one cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def event(self, event: Event) -> str:
        """What has happened to a broker, behind its name; empty where that need not be told."""
        match event:
            case Started(recovering=recovering):
                return f"starts{' recovering' if recovering else ''}"
            case SessionEstablished(peer=peer):
                return f"has a session with {self.name(peer)}"
            case SessionLost(peer=peer, reason=reason):
                return f"loses {self.name(peer)}: {reason}"
            case OpenFailed(peer=peer, reason=reason):
                return f"cannot reach {self.name(peer)}: {reason}"
        return ""

    def effect(self, effect: Effect) -> str:
        """What a broker does, behind its name; empty where that need not be told."""
        match effect:
            case Deliver(client=client, item=item):
                return f"delivers {self._run(item.run)} to {client}"
            case Send(peer=peer, message=message):
                return f"-> {self.name(peer)}  {self._message(message)}"
            case Record(event=what, details=details):
                listed = " ".join(f"{key}={value}" for key, value in details.items())
                return f"notes {what} {listed}".rstrip()
        return ""

    def _message(self, message: Any) -> str:
        match message:
            case PublicationCopy(run=run) | ForwardedPublications(run=run):
                return f"publication {self._run(run)}"
            case PublicationConfirmation(ranges=ranges):
                return f"confirms {self._ranges(ranges)}"
            case SubscriptionCopy(subscription=subscription):
                return f"subscription {self._subscription(subscription)}"
            case UpstreamCopy(subscription=subscription):
                return f"upstream copy of {self._subscription(subscription)}"
            case SubscriptionConfirmation(subscription=subscription, cut=cut, tags=tags):
                above = " ".join(self.publication(*entry) for entry in cut)
                behind = f", from behind {above}" if above else ""
                return f"has {self._subscription(subscription)}{behind}{self._but(tags)}"
            case RecoveryNotifier(subscription=subscription, removed=removed, added=added):
                left = self._but(added)
                region = self._but(removed).removeprefix(" but for ")
                return f"notifier: {self._subscription(subscription)} now has {region}{left}"
            case Notice(subscription=number, source=source, ranges=ranges, partition=partition):
                nodes = "-".join(map(self.name, partition.nodes))
                listed = self._ranges(tuple((source, *stretch) for stretch in ranges))
                return (
                    f"withholds {listed} from {number}: {self.name(partition.detector)} | {nodes}"
                )
            case Summary(accepted=accepted, recovering=recovering, ended=ended):
                listed = " ".join(map(self._subscription, accepted)) or "nothing"
                over = " ".join(text for one in ended for text in self._ranges_over(one))
                listed += f", over: {over}" if over else ""
                return f"summary: {listed}{', recovering' if recovering else ''}"
            case PartitionNew(partitions=partitions):
                listed = " ".join(map(self._partition, partitions))
                return f"partitions: {listed}"
            case PartitionGone(withdrawn=withdrawn):
                listed = " ".join(
                    f"{self.name(numbers.detector)}#{numbers.first}"
                    + (f"-{numbers.last}" if numbers.last > numbers.first else "")
                    if numbers.last
                    else f"{self.name(numbers.detector)} before {numbers.incarnation}"
                    for numbers in withdrawn
                )
                return f"partitions gone: {listed}"
            case Unsubscription(ended=ended):
                return f"over: {' '.join(map(self._over, ended))}"
            case SyncEnd(recovering=recovering):
                return f"sync end{', recovering' if recovering else ''}"
            case Relay(step="own"):
                return "what follows is of this session"
            case Relay(step=step, asker=asker, target=target):
                between = f"{self.name(asker)} and {self.name(target)}"
                return _RELAY_WORDS[step].format(between)
            case RecoveryFlag(recovering=recovering):
                return "is recovering" if recovering else "has recovered"
            case SubscriptionsOffered(subscriptions=entries, complete=complete):
                listed = " ".join(self._subscription(entry[0]) for entry in entries) or "nothing"
                return f"{'all subscriptions' if complete else 'subscription'}: {listed}"
            case SubscriptionsReached(subscriptions=entries):
                return f"has {' '.join(map(self._subscription, entries))}"
            case SubscriptionsWithdrawn(subscriptions=entries):
                return f"withdraws {' '.join(map(self._subscription, entries))}"
            case PublishAcknowledged(first=first, last=last):
                return f"done: {first}" if first == last else f"done: {first}-{last}"
            case Subscribed(number=number, state=state):
                return f"subscription {number} {state}"
            case Unsubscribed(number=number):
                return f"subscription {number} over" if number else "detached"
            case Connected():
                return "connected"
            case Refused(request=request, reason=reason):
                return f"refuses {request}: {reason}"
        raise AssertionError(f"no words for {message}")

    def _run(self, run: PublicationRun) -> str:
        parts: list[list[int]] = []
        for sequence in run.sequences:
            if parts and sequence == parts[-1][-1] + 1:
                parts[-1][1:] = [sequence]
            else:
                parts.append([sequence])
        listed = ",".join("-".join(map(str, part)) for part in parts)
        return f"{self._source(run.source)}/{listed}"

    def _over(self, ended: EndedSubscriptions) -> str:
        before = f"all before {self.name(ended.home)}@{ended.before}"
        said = [before] if ended.before > 1 else []
        return " ".join([*said, *self._ranges_over(ended)])

    def _ranges_over(self, ended: EndedSubscriptions) -> Iterator[str]:
        for begin, first, end, last in ended.ranges:
            text = self._subscription(SubscriptionId(ended.home, begin, first))
            if (begin, first) == (end, last):
                yield text
            elif last == LAST_NUMBER:
                yield f"{text}…" if begin == end else f"{text}…@{end}"
            else:
                yield f"{text}-{last}" if begin == end else f"{text}-@{end}/{last}"

    def _ranges(self, ranges: tuple[tuple[SourceId, int, int], ...]) -> str:
        return " ".join(
            f"{self._source(source)}/{first}" + (f"-{last}" if last > first else "")
            for source, first, last in ranges
        )

    def publication(self, source: SourceId, sequence: int) -> str:
        """One publication."""
        return f"{self._source(source)}/{sequence}"

    def _partition(self, partition: PartitionId) -> str:
        nodes = "-".join(map(self.name, partition.nodes))
        return f"{self.name(partition.detector)}#{partition.number} | {nodes}"

    def _but(self, tags: tuple[Tag, ...]) -> str:
        listed = " ".join(f"{self.name(tag.node)}{'…' if tag.beyond else ''}" for tag in tags)
        return f" but for {listed}" if tags else ""

    def _source(self, source: SourceId) -> str:
        """The broker's name; where its client is not the usual one, the client's with it."""
        broker = self._cluster.topology.brokers[source.broker]
        for name, client in self._cluster.clients.items():
            if client.core.source == source and name != f"p-{broker}":
                return f"{broker}.{name}"
        return broker

    def _subscription(self, subscription: SubscriptionId) -> str:
        later = f"@{subscription.incarnation}" if subscription.incarnation > 1 else ""
        return f"{self._cluster.topology.brokers[subscription.home]}#{subscription.number}{later}"

    def name(self, peer: Peer) -> str:
        """A broker or client."""
        return peer if isinstance(peer, str) else self._cluster.topology.brokers[peer]


def is_of_partitions(effect: Effect) -> bool:
    """Whether it only tells of partitions, to peers or the event log."""
    match effect:
        case Send(message=PartitionNew() | PartitionGone()):
            return True
        case Record(event="partition_new" | "partition_gone"):
            return True
    return False
