"""What brokers of a δ tree say to each other. One FIFO per session carries all of it.

Paper: [DFT11] §V-VIII.
"""

from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber, SourceId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class Tag:
    """A part of the tree whose sources a subscription does not (yet) hear.

    Covers source broker q when q = `node`, or when `beyond` and `node` lies on the path from
    `detector` to q. No tag is made before partitions exist; the field has its place on the wire.
    """

    detector: BrokerNumber
    node: BrokerNumber
    beyond: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """First message of every session: what the sender has accepted, and whether it recovers."""

    accepted: tuple[SubscriptionId, ...]
    recovering: bool


@dataclass(frozen=True, slots=True)
class SyncEnd:
    """Everything the sender had to bring the receiver up to date has been sent."""

    recovering: bool


@dataclass(frozen=True, slots=True)
class RecoveryFlag:
    """On sessions that are not active: the sender is (no longer) recovering."""

    recovering: bool


@dataclass(frozen=True, slots=True)
class SubscriptionCopy:
    """A subscription on its way away from home. `path`: home … receiver, all brokers between.

    `recovery` is set when it was sent because the receiver had lost it (tracing only).
    """

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    recovery: bool


@dataclass(frozen=True, slots=True)
class UpstreamCopy:
    """A subscription for a broker nearer to its home that may not know it; accepted at once."""

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    tags: tuple[Tag, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionConfirmation:
    """Every broker behind the sender has the subscription, but for the tagged parts.

    `cut` is where the stream of each source begins: publications up to it are not part of it.
    """

    subscription: SubscriptionId
    tags: tuple[Tag, ...]
    cut: tuple[tuple[SourceId, int], ...]


@dataclass(frozen=True, slots=True)
class PublicationCopy:
    """Publications on their way. `path`: source broker … receiver, on the primary tree."""

    run: PublicationRun
    path: tuple[BrokerNumber, ...]


@dataclass(frozen=True, slots=True)
class PublicationConfirmation:
    """Per (source, first, last): all of that source received on this session in it is done."""

    ranges: tuple[tuple[SourceId, int, int], ...]
