"""What brokers of a δ tree say to each other. One FIFO per session carries all of it.

Paper: [DFT11] §V-VIII.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from brokerd.model.identity import BrokerNumber, PartitionId, SourceId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record


@dataclass(frozen=True, slots=True, eq=False)
class Tag:
    """A part of the tree whose sources a subscription does not (yet) hear.

    Covers the last broker of `path`, and with `beyond` whatever lies behind it, seen from the
    subscription's home. Two tags of the same detector for the same broker are equal, whichever
    partition made them.

    Attributes:
        path: home … the broker that could not be reached.
        detector: who could not; on the path.
        incarnation, number: of the partition.
    """

    path: tuple[BrokerNumber, ...]
    detector: BrokerNumber
    incarnation: int
    number: int
    beyond: bool

    @property
    def node(self) -> BrokerNumber:
        """The broker that could not be reached."""
        return self.path[-1]

    @property
    def partition(self) -> PartitionId:
        """The partition that the tag stands for."""
        nodes = self.path[self.path.index(self.detector) + 1 :]
        return PartitionId(self.detector, self.incarnation, self.number, nodes)

    @property
    def place(self) -> tuple[BrokerNumber, tuple[BrokerNumber, ...], bool]:
        """What tells tags of one subscription apart."""
        return self.detector, self.path[-1:], self.beyond

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tag) and self.place == other.place


@record
class Tombstones:
    """Tombstones: subscriptions of one home broker that are over for ever.

    Attributes:
        before: all of the home's incarnations before this one are.
        ranges: (incarnation, first, incarnation, last): what was issued from one to the other is,
            whole incarnations between them included; increasing, none touches another.
    """

    home: BrokerNumber
    before: int
    ranges: tuple[tuple[int, int, int, int], ...]


@record
class Summary:
    """First message of every session: what the sender routes by, and whether it recovers.

    `tombstones`: every subscription that it knows to be over, home by home.
    """

    accepted: tuple[SubscriptionId, ...]
    recovering: bool
    tombstones: tuple[Tombstones, ...] = ()


@record
class Unsubscription:
    """More subscriptions are over than the sender has told on this session so far."""

    tombstones: tuple[Tombstones, ...]


@record
class SyncEnd:
    """Everything the sender had to bring the receiver up to date has been sent."""

    recovering: bool


@record
class RecoveryFlag:
    """On sessions that are not active: the sender is (no longer) recovering."""

    recovering: bool


@record
class SubscriptionCopy:
    """A subscription on its way away from home. `path`: home … receiver, all brokers between.

    `recovery` is set when it was sent because the receiver had lost it (tracing only).
    """

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    recovery: bool


@record
class UpstreamCopy:
    """A subscription for a broker nearer to its home that may not know it; accepted at once."""

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    tags: tuple[Tag, ...]


@record
class SubscriptionConfirmation:
    """Every broker behind the sender has the subscription, but for the tagged parts.

    `cut` is where the stream of each source begins: publications up to it are not part of it.
    `source_paths`: home … source broker, for each broker with a source in the cut.
    """

    subscription: SubscriptionId
    tags: tuple[Tag, ...]
    cut: tuple[tuple[SourceId, int], ...]
    source_paths: tuple[tuple[BrokerNumber, ...], ...]


@record
class RecoveryNotifier:
    """For a subscription's home: of `removed` only `added` is still unaware of it.

    Travels, is kept, sent again and confirmed like a publication of `source`, number `sequence`;
    all brokers it passes apply it. `path`: emitter … home, the whole way.

    Paper: [DFT11] §VIII-A lines 859-900 (p_rec). Deviates: one per subscription.
    """

    source: SourceId
    sequence: int
    path: tuple[BrokerNumber, ...]
    subscription: SubscriptionId
    removed: tuple[Tag, ...]
    added: tuple[Tag, ...]
    cut: tuple[tuple[SourceId, int], ...]
    source_paths: tuple[tuple[BrokerNumber, ...], ...]


class PartitionNumbers(NamedTuple):
    """Partitions of one detector, all numbers from `first` to `last`; 0, 0 for none."""

    detector: BrokerNumber
    incarnation: int
    first: int
    last: int


@record
class PartitionNew:
    """There are partitions. `paths`: detector … receiver, for each detector.

    Goes over all sessions, as far as 2δ links from the detector.

    Paper: [DFT11] §IV lines 362-370.
    """

    partitions: tuple[PartitionId, ...]
    paths: tuple[tuple[BrokerNumber, ...], ...]


@record
class PartitionGone:
    """Partitions are over, and so is every one of an earlier incarnation of their detectors.

    Wins over PartitionNew, in whatever order the two come. `paths`: detector … receiver.

    Paper: [DFT11] §VIII-A lines 896-900.
    """

    withdrawn: tuple[PartitionNumbers, ...]
    paths: tuple[tuple[BrokerNumber, ...], ...]


class Stamp(NamedTuple):
    """The place of a publication in the queue of one broker, counted within its incarnation."""

    incarnation: int
    number: int


@record
class SequenceVector:
    """Which brokers have queued the publications of a run on their way, and in which place.

    Stamps follow sequences: whoever queued publication `sequence` as number n queued
    publication `sequence` + 3 as number n + 3. So one vector serves a whole run, and every part
    of it.

    Attributes:
        sequence: the publication whose stamps these are; none of the run's is lower.
        stamps: of the brokers before the receiver on the path, nearest first; None for one that
            this copy went past.

    Paper: [DFT11] §VII lines 688-816.
    """

    sequence: int
    stamps: tuple[Stamp | None, ...]

    def at(self, sequence: int) -> "SequenceVector":
        """The same with the stamps of another publication, which is no lower."""
        later = sequence - self.sequence
        stamps = [stamp and Stamp(stamp.incarnation, stamp.number + later) for stamp in self.stamps]
        return SequenceVector(sequence, tuple(stamps))


class PublicationTag(NamedTuple):
    """Publications come from a source on a partition, or, with `beyond`, behind it."""

    partition: PartitionId
    beyond: bool

    @property
    def place(self) -> tuple[BrokerNumber, BrokerNumber]:
        """Who could not reach whom."""
        return self.partition.detector, self.partition.nodes[-1]


@record
class PublicationCopy:
    """Publications on their way. `path`: source broker … receiver, on the primary tree.

    `vector` is there if and only if the deployment detects duplicates by vectors or holds back
    what would not propagate legitimately. `tags` is empty but where home brokers go by it
    (`tag_eval` "pt").
    """

    run: PublicationRun
    path: tuple[BrokerNumber, ...]
    vector: SequenceVector | None = None
    tags: tuple[PublicationTag, ...] = ()


@record
class PublicationConfirmation:
    """Per (source, first, last): all of that source received on this session in it is done."""

    ranges: tuple[tuple[SourceId, int, int], ...]


@record
class Relay:
    """About a session between `asker` and `target` that a third broker relays.

    On a direct session it says whose the messages behind it are; all others change nothing of
    that. `incarnation` is the sender's own end's, where one is made known.

    Attributes:
        step: "ask": the asker wants such a session, until it says otherwise. "accept": it is up
            at the target. "close": it is over, or asked for no longer. "carry": what follows on
            this session is its, up to the next "carry" or "own". "own": what follows is of the
            direct session itself.
        number: the asker's, rising.
    """

    step: Literal["ask", "accept", "close", "carry", "own"]
    asker: BrokerNumber
    target: BrokerNumber
    number: int
    incarnation: int

    @property
    def name(self) -> tuple[BrokerNumber, BrokerNumber, int]:
        """What tells relayed sessions apart."""
        return self.asker, self.target, self.number
