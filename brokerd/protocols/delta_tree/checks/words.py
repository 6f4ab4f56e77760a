"""The wording of delta_tree's messages in scenarios."""

from collections.abc import Iterator
from typing import Any

from brokerd.model.identity import PartitionId, SubscriptionId
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
    Tag,
    Tombstones,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.tombstones import LAST_NUMBER
from brokerd.protocols.interface import Effect, Record, Send
from brokerd.simulator.checks.step_text import Wording

_RELAY_WORDS = {
    "ask": "asks for a session between {}",
    "accept": "accepts a session between {}",
    "close": "ends the session between {}",
    "carry": "what follows is between {}",
}


class DeltaTreeWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        match message:
            case PublicationCopy(run=run):
                return f"publication {self.run(run)}"
            case PublicationConfirmation(ranges=ranges):
                return f"confirms {self.ranges(ranges)}"
            case SubscriptionCopy(subscription=subscription):
                return f"subscription {self.subscription(subscription)}"
            case UpstreamCopy(subscription=subscription):
                return f"upstream copy of {self.subscription(subscription)}"
            case SubscriptionConfirmation(subscription=subscription, cut=cut, tags=tags):
                above = " ".join(self.publication(*entry) for entry in cut)
                behind = f", from behind {above}" if above else ""
                return f"has {self.subscription(subscription)}{behind}{self._exceptions(tags)}"
            case RecoveryNotifier(subscription=subscription, removed=removed, added=added):
                left = self._exceptions(added)
                region = self._exceptions(removed).removeprefix(" but for ")
                return f"notifier: {self.subscription(subscription)} now has {region}{left}"
            case Summary(accepted=accepted, recovering=recovering, tombstones=tombstones):
                listed = " ".join(map(self.subscription, accepted)) or "nothing"
                over = " ".join(text for one in tombstones for text in self._ranges_over(one))
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
                return f"ended partitions: {listed}"
            case Unsubscription(tombstones=tombstones):
                return f"over: {' '.join(map(self._describe_end, tombstones))}"
            case SyncEnd(recovering=recovering):
                return f"sync end{', recovering' if recovering else ''}"
            case Relay(step="own"):
                return "what follows is of this session"
            case Relay(step=step, asker=asker, target=target):
                between = f"{self.name(asker)} and {self.name(target)}"
                return _RELAY_WORDS[step].format(between)
            case RecoveryFlag(recovering=recovering):
                return "is recovering" if recovering else "has recovered"
            case BranchRequest():
                return "requests all on that side"
            case BranchReply():
                return "has sent all on this side"
        return super().message(message)

    def is_detail(self, effect: Effect) -> bool:
        """Return True for an effect about partitions only, to peers or the event log."""
        match effect:
            case Send(message=PartitionNew() | PartitionGone()):
                return True
            case Record(event="partition_new" | "partition_gone"):
                return True
        return False

    def _describe_end(self, one: Tombstones) -> str:
        before = f"all before {self.name(one.home)}@{one.before}"
        parts = [before] if one.before > 1 else []
        return " ".join([*parts, *self._ranges_over(one)])

    def _ranges_over(self, one: Tombstones) -> Iterator[str]:
        for begin, first, end, last in one.ranges:
            text = self.subscription(SubscriptionId(one.home, begin, first))
            if (begin, first) == (end, last):
                yield text
            elif last == LAST_NUMBER:
                yield f"{text}…" if begin == end else f"{text}…@{end}"
            else:
                yield f"{text}-{last}" if begin == end else f"{text}-@{end}/{last}"

    def _partition(self, partition: PartitionId) -> str:
        nodes = "-".join(map(self.name, partition.nodes))
        return f"{self.name(partition.detector)}#{partition.number} | {nodes}"

    def _exceptions(self, tags: tuple[Tag, ...]) -> str:
        listed = " ".join(f"{self.name(tag.node)}{'…' if tag.beyond else ''}" for tag in tags)
        return f" but for {listed}" if tags else ""
