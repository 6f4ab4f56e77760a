"""Messages between brokers of a δ tree. One FIFO per session carries all of them.

Paper: [DFT11] §V-VIII.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from brokerd.model.identity import BrokerNumber, PartitionId, SourceId, SubscriptionId
from brokerd.model.message_kind import MessageKind, ranges_kind, run_kind
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record

Path = tuple[BrokerNumber, ...]
"""Linked brokers in order, both ends included."""

NOTIFIER = 1 << 32
"""The publisher number of recovery notifiers; no publisher has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Tag:
    """A partition tag: a part of the tree without (so far) a subscription.

    The tag covers the last broker of `path`, and with `beyond` all brokers behind it, seen from the
    subscription's home. Two tags of the same detector for the same broker are equal, for any
    partition.

    Attributes:
        path: home … the unreachable broker.
        detector: the broker that detected the partition; on the path.
        incarnation, number: of the partition.
    """

    path: tuple[BrokerNumber, ...]
    detector: BrokerNumber
    incarnation: int
    number: int
    beyond: bool

    @property
    def node(self) -> BrokerNumber:
        """The unreachable broker."""
        return self.path[-1]

    @property
    def partition(self) -> PartitionId:
        nodes = self.path[self.path.index(self.detector) + 1 :]
        return PartitionId(self.detector, self.incarnation, self.number, nodes)

    @property
    def place(self) -> tuple[BrokerNumber, tuple[BrokerNumber, ...], bool]:
        """The key that distinguishes tags of a subscription."""
        return self.detector, self.path[-1:], self.beyond

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tag) and self.place == other.place


@record
class Tombstones:
    """Tombstones: subscriptions of a home broker that have ended permanently.

    Attributes:
        before: all subscriptions of earlier incarnations of the home have ended.
        ranges: (incarnation, first, incarnation, last): all subscriptions in the range have ended,
            including whole incarnations in between; increasing, without adjacent ranges.
    """

    home: BrokerNumber
    before: int
    ranges: tuple[tuple[int, int, int, int], ...]


@record
class Summary:
    """First message of every session: the sender's subscriptions, and whether it recovers.

    `tombstones`: every ended subscription in the sender's record, home by home.
    """

    accepted: tuple[SubscriptionId, ...]
    recovering: bool
    tombstones: tuple[Tombstones, ...] = ()


@record
class Unsubscription:
    """Ended subscriptions beyond the sender's earlier messages on this session."""

    tombstones: tuple[Tombstones, ...]


@record
class SyncEnd:
    """The end of the messages that bring the receiver up to date."""

    recovering: bool


@record
class RecoveryFlag:
    """On sessions that are not active: the sender is (no longer) recovering."""

    recovering: bool


@record
class BranchRequest:
    """A request for a BranchReply of the same number, on one session with a neighbour."""

    number: int


@record
class BranchReply:
    """The receiver has the subscriptions of all brokers on the sender's side of the link."""

    number: int


@record
class SubscriptionCopy:
    """A subscription on its way away from home. `path`: home … receiver, all brokers between.

    `recovery` is set if the receiver had lost the subscription (tracing only).
    """

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    recovery: bool


@record
class UpstreamCopy:
    """A subscription for a broker nearer to home that may lack it; accepted at once."""

    subscription: SubscriptionId
    predicate: Predicate
    path: tuple[BrokerNumber, ...]
    tags: tuple[Tag, ...]


@record
class SubscriptionConfirmation:
    """The confirmation that all brokers behind the sender have the subscription.

    `tags`: the exceptions. `cut`: the beginning of each source's stream: publications up to the cut
    are not part of the stream. `source_paths`: home … source broker, for every broker with a source
    in the cut.
    """

    subscription: SubscriptionId
    tags: tuple[Tag, ...]
    cut: tuple[tuple[SourceId, int], ...]
    source_paths: tuple[tuple[BrokerNumber, ...], ...]


@record
class RecoveryNotifier:
    """For a subscription's home: of `removed` only `added` still lacks the subscription.

    A notifier travels, is queued, sent again and confirmed like a publication of `source`, number
    `sequence`; all brokers on the way apply the notifier. `path`: emitter … home, complete.

    Paper: [DFT11] §VIII-A lines 859-900 (p_rec). Deviates: a notifier per subscription.
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
    """Partitions of a detector, all numbers from `first` to `last`; 0, 0 for none."""

    detector: BrokerNumber
    incarnation: int
    first: int
    last: int


@record
class PartitionNew:
    """New partitions. `paths`: detector … receiver, for every detector.

    Sent over all sessions, as far as 2δ links from the detector.

    Paper: [DFT11] §IV lines 362-370.
    """

    partitions: tuple[PartitionId, ...]
    paths: tuple[tuple[BrokerNumber, ...], ...]


@record
class PartitionGone:
    """The end of partitions, and of all partitions of earlier incarnations of their detectors.

    Prevails over PartitionNew, in any order of arrival. `paths`: detector … receiver.

    Paper: [DFT11] §VIII-A lines 896-900.
    """

    withdrawn: tuple[PartitionNumbers, ...]
    paths: tuple[tuple[BrokerNumber, ...], ...]


class Stamp(NamedTuple):
    """The place of a publication in the queue of a broker, counted within its incarnation."""

    incarnation: int
    number: int


@record
class SequenceVector:
    """The brokers that have queued the publications of a run on their way, with the places in their
    queues.

    Stamps follow sequence numbers: a broker that queued publication `sequence` as number n queued
    publication `sequence` + 3 as number n + 3. So one vector serves a whole run, and every part
    of the run.

    Attributes:
        sequence: the publication of the stamps; no number in the run is lower.
        stamps: of the brokers before the receiver on the path, nearest first; None for a bypassed
            broker.

    Paper: [DFT11] §VII lines 688-816.
    """

    sequence: int
    stamps: tuple[Stamp | None, ...]

    def at(self, sequence: int) -> "SequenceVector":
        """Return the vector with the stamps of a later publication."""
        later = sequence - self.sequence
        stamps = [stamp and Stamp(stamp.incarnation, stamp.number + later) for stamp in self.stamps]
        return SequenceVector(sequence, tuple(stamps))


class PublicationTag(NamedTuple):
    """A tag of publications with a source on a partition, or, with `beyond`, behind it."""

    partition: PartitionId
    beyond: bool

    @property
    def place(self) -> tuple[BrokerNumber, BrokerNumber]:
        """The detector and the broker that it could not reach."""
        return self.partition.detector, self.partition.nodes[-1]


@record
class PublicationCopy:
    """Publications on their way. `path`: source broker … receiver, on the primary tree.

    `vector` is present exactly if the deployment detects duplicates by vectors or holds
    publications without a legitimate path. `tags` is empty unless home brokers evaluate tags
    (`tag_eval` "pt").
    """

    run: PublicationRun
    path: tuple[BrokerNumber, ...]
    vector: SequenceVector | None = None
    tags: tuple[PublicationTag, ...] = ()


@record
class PublicationConfirmation:
    """Confirmations of (source, first, last): all publications in the range on this session."""

    ranges: tuple[tuple[SourceId, int, int], ...]


@record
class Relay:
    """A message about a session between `asker` and `target` that a third broker relays.

    On a direct session the message names the session of the messages behind it; other messages do
    not change that. `incarnation` is that of the sender's end, if announced.

    Attributes:
        step: "ask": the asker requests such a session, until revoked. "accept": the session is
            established at the target. "close": the session has ended, or is no longer requested.
            "carry": later messages on this session belong to the relayed session, up to the next
            "carry" or "own". "own": later messages belong to the direct session.
        number: of the asker, increasing.
    """

    step: Literal["ask", "accept", "close", "carry", "own"]
    asker: BrokerNumber
    target: BrokerNumber
    number: int
    incarnation: int

    @property
    def name(self) -> tuple[BrokerNumber, BrokerNumber, int]:
        """The key that distinguishes relayed sessions."""
        return self.asker, self.target, self.number


KINDS: Final = (
    MessageKind(48, Summary),
    MessageKind(49, SyncEnd),
    MessageKind(50, RecoveryFlag),
    MessageKind(51, SubscriptionCopy),
    MessageKind(52, UpstreamCopy),
    MessageKind(53, SubscriptionConfirmation),
    run_kind(54, PublicationCopy, beside=lambda message: message.path),
    ranges_kind(55, PublicationConfirmation),
    MessageKind(56, RecoveryNotifier),
    MessageKind(57, Unsubscription),
    MessageKind(58, PartitionNew),
    MessageKind(59, PartitionGone),
    MessageKind(60, Relay),
    MessageKind(61, BranchRequest),
    MessageKind(62, BranchReply),
)
