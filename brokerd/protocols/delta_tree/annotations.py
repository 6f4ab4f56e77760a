"""Publications that carry more than their path: sequence vectors, and tags of partitions.

The classes here replace the plain queue and publications if any of `dedupe`, `legitimacy`,
`tag_eval` and `switch` differs from profile "robust".

With `tag_eval` "pt" every broker within 2δ links of a detector tags publications from a source on
or beyond one of the detector's partitions, if the partition is in the broker's table or in the tags
of a subscription that the broker routes by. A home broker withholds a publication from a
subscription with a tag for the same broker, of the same detector: a publication from the broker
itself always, a publication from beyond if the tag has `beyond`. A broker examines no more of a
publication's path than is necessary for the whole of a partition: 3δ + 1 brokers. A partition is
identified by the detector and the unreachable broker, not by the partition's number: if the same
broker is lost again, the same publications are withheld.

Paper: [DFT11] §VI-§VII, §VIII lines 917-944.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, PartitionId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.forwarding import Publications
from brokerd.protocols.delta_tree.messages import (
    Path,
    PublicationConfirmation,
    PublicationCopy,
    PublicationTag,
    SequenceVector,
    Tag,
)
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import FRAME_PAYLOAD_BYTES, Entry, Receipt, Transfer
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, SourceSequences, State
from brokerd.protocols.delta_tree.vectors import (
    LONGEST_SPAN,
    DuplicateDetection,
    Propagation,
    check_vector,
    make_detection,
)

PublicationTags = tuple[PublicationTag, ...]


class Untagged:
    """Publications without tags; the path alone decides about withholding."""

    def tags_along(self, given: PublicationTags, path: Path) -> PublicationTags:
        """Return the tags of publications along `path` (source … here), with this broker's."""
        return given

    def check(self, peer: BrokerNumber, tags: PublicationTags, path: Path) -> None:
        """Check that received tags are for partitions that the publications come from.

        Raises:
            RemoteProtocolError: they are not; the fault of the peer that sent them.
        """
        if tags:
            raise RemoteProtocolError(peer, "tagged publications, in a profile without")

    def find_withholding_tag(
        self, local: LocalSubscription, path: Path, given: PublicationTags, covered: Tag | None
    ) -> Tag | None:
        """Return the tag for which tagged publications are withheld from a subscription.

        Args:
            covered: the tag that covers their path.
        """
        return covered


class Tagging(Untagged):
    """The tags that one broker adds to publications, and withholding by tags."""

    def __init__(self, state: State, partitions: PartitionTable, table: RoutingTable) -> None:
        self._state = state
        self._partitions = partitions
        self._table = table
        self._trail = 3 * state.parameters.delta + 1

    def tags_along(self, given: PublicationTags, path: Path) -> PublicationTags:
        """See Untagged."""
        found = {tag.place: tag for tag in given}
        near = path[-self._trail - 1 :]
        for partition in self._known():
            tag = tag_for(partition, path, near)
            if tag is not None:
                found.setdefault(tag.place, tag)
        return tuple(found.values()) if len(found) > len(given) else given

    def check(self, peer: BrokerNumber, tags: PublicationTags, path: Path) -> None:
        """See Untagged."""
        for tag in tags:
            if tag != tag_for(tag.partition, path, path) or tag.partition.number < 1:
                raise RemoteProtocolError(peer, f"is not from {tuple(tag)}"[:300])

    def _known(self) -> Iterable[PartitionId]:
        yield from self._partitions
        for row in self._table.tagged.values():
            for tag in row.tags:
                detector = tag.path[: tag.path.index(tag.detector) + 1]
                if _distance(detector, row.path) <= self._partitions.reach:
                    yield tag.partition

    def find_withholding_tag(
        self, local: LocalSubscription, path: Path, given: PublicationTags, covered: Tag | None
    ) -> Tag | None:
        """See Untagged. A disagreement of path and tags is recorded in the event log."""
        withheld = find_first_tag(local.tags, given, has_joined=path[0] >= self._state.newcomers)
        if (covered is None) != (withheld is None):
            missing = withheld is None
            self._state.counters["tags_missing" if missing else "tags_extra"] += 1
            self._state.machine.record(
                "missing_tag" if missing else "extra_tag",
                client=local.client,
                number=local.number,
                path=list(path),
            )
        return withheld


def make_tagging(state: State, partitions: PartitionTable, table: RoutingTable) -> Untagged:
    """Return the tagging for `tag_eval`."""
    if state.parameters.tag_eval == "pt":
        return Tagging(state, partitions, table)
    return Untagged()


def tag_for(partition: PartitionId, path: Path, near: Path) -> PublicationTag | None:
    """Return the tag of publications along `path` for a partition; None without one.

    Args:
        near: the end of the path, which is searched for the partition.
    """
    if not partition.nodes or partition.nodes[-1] not in near:
        return None
    node = partition.nodes[-1]
    place = path.index(node)
    if place == 0:
        return PublicationTag(partition, beyond=False)
    nearer = (partition.detector, *partition.nodes)[-2]
    return PublicationTag(partition, beyond=True) if path[place - 1] != nearer else None


def join_tags(parts: Iterable[PublicationTags]) -> PublicationTags:
    """Return the tags of publications of a source that leave together.

    A tag of one publication holds for all: they come from the same broker.
    """
    found: dict[tuple[BrokerNumber, BrokerNumber], PublicationTag] = {}
    for tags in parts:
        found.update((tag.place, tag) for tag in tags)
    return tuple(found.values())


def find_first_tag(
    tags: Iterable[Tag], given: PublicationTags, *, has_joined: bool = False
) -> Tag | None:
    """Return the first tag of a subscription for which tagged publications are withheld.

    Args:
        has_joined: the source's broker has joined; a tag covers it at any place behind.
    """
    beyond = {tag.place: tag.beyond for tag in given}
    for tag in tags:
        kind = beyond.get((tag.detector, tag.node))
        if kind is not None and (tag.beyond or not kind or has_joined):
            return tag
    return None


def _distance(home_to_detector: Path, home_to_here: Path) -> int:
    """Return the number of links between the ends of two paths from a home."""
    shared = 0
    for one, other in zip(home_to_detector, home_to_here, strict=False):
        if one != other:
            break
        shared += 1
    return len(home_to_detector) + len(home_to_here) - 2 * shared


@dataclass(slots=True, eq=False)
class AnnotatedReceipt(Receipt):
    """A frame with its vector and tags: as received, then with this broker's own."""

    vector: SequenceVector | None = None
    tags: PublicationTags = ()


@dataclass(slots=True, eq=False)
class AnnotatedEntry(Entry):
    """An entry with the vector and tags of its publications.

    Attributes:
        vector: the stamps, this broker's first, if vectors are in use.
        tags: if home brokers evaluate tags.
    """

    vector: SequenceVector | None = None
    tags: PublicationTags = ()

    @property
    def order(self) -> int:
        """The place of its frame in the queue of this broker, if vectors are in use."""
        assert self.vector is not None, f"{self} has no vector"
        own = self.vector.stamps[0]
        assert own is not None, f"{self} has no stamp of this broker"
        return own.number + self.frame_first - self.vector.sequence


class AnnotatedQueue(PublicationQueue):
    """The queue of annotated publications; some of them wait although a hop exists."""

    entry_type = AnnotatedEntry

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
        sequences: SourceSequences,
        detection: DuplicateDetection,
    ) -> None:
        super().__init__(state, sessions, partitions, table, sequences)
        self._detection = detection
        self._stamped = state.parameters.carries_vectors
        self._propagation = Propagation(state, sessions)

    def add(self, entry: Entry) -> None:
        """See PublicationQueue."""
        assert isinstance(entry, AnnotatedEntry), entry
        if entry.notifier is not None:
            entry.vector = self._detection.accept(entry.run(), None)
        else:
            receipt = entry.receipts[0]
            assert isinstance(receipt, AnnotatedReceipt), receipt
            entry.vector, entry.tags = receipt.vector, receipt.tags
        super().add(entry)

    def assign(self, entry: Entry, destinations: int) -> list[Transfer]:
        """See PublicationQueue."""
        assert isinstance(entry, AnnotatedEntry), entry
        allowed = 0
        for route in self.routes:
            reached = destinations & route.destinations
            if reached and self._propagation.can_send(entry, entry.vector, route):
                allowed |= reached
        assigned = super().assign(entry, allowed)
        entry.unsent = destinations & ~allowed
        return assigned

    def on_confirmation(self, peer: BrokerNumber, message: PublicationConfirmation) -> None:
        """See PublicationQueue; also send publications that waited for this confirmation."""
        super().on_confirmation(peer, message)
        if self._propagation.blocks:
            self.reroute()

    def _list_unconfirmed(self) -> list[Entry]:
        entries = super()._list_unconfirmed()
        if self._stamped:
            entries.sort(key=_order)
        return entries

    def _list_staying(self) -> dict[BrokerNumber, int]:
        return {**super()._list_staying(), **self._propagation.list_staying()}

    def _take_back(self, entries: Sequence[Entry]) -> list[int]:
        homeless = super()._take_back(entries)
        self._propagation.begin(entries, self._routes)
        return homeless

    def send(self, hop: BrokerNumber, run: PublicationRun, transfers: Sequence[Transfer]) -> None:
        """See PublicationQueue."""
        entries = [annotation_of(transfer) for transfer in transfers]
        self._state.counters["publications_forwarded"] += len(run)
        onward = entries[0].path + self._state.neighbourhood.paths[hop][1:]
        vector = entries[0].vector
        if vector is not None:
            vector = self._propagation.vector_for(vector, hop, len(run))
        tags = join_tags([entry.tags for entry in entries])
        self._state.machine.send(hop, PublicationCopy(run, onward, vector, tags))

    def _group_by_source(self, transfers: Iterable[Transfer]) -> Iterable[list[Transfer]]:
        return pack_stamped(transfers) if self._stamped else super()._group_by_source(transfers)


class AnnotatedPublications(Publications):
    """The receipt of publications that carry more than their path."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
        sequences: SourceSequences,
    ) -> None:
        self._detection = make_detection(state, sequences)
        queue = AnnotatedQueue(state, sessions, partitions, table, sequences, self._detection)
        super().__init__(state, sessions, table, sequences, queue)
        self.straight = self.joining = None
        self._tagging = make_tagging(state, partitions, table)

    def publish(self, run: PublicationRun, client: ClientId, session: int) -> None:
        """See Publications."""
        path = (self._state.broker,)
        self._receive(run, AnnotatedReceipt(client, session, run.source, run.first, run.last, path))

    def _receipt(self, peer: BrokerNumber, message: PublicationCopy) -> Receipt:
        run, path, vector, tags = message.run, message.path, message.vector, message.tags
        check_vector(self._state, peer, run, path, vector)
        self._tagging.check(peer, tags, path)
        session = self._sessions.current(peer)
        return AnnotatedReceipt(
            peer, session, run.source, run.first, run.last, path, vector=vector, tags=tags
        )

    def _receive(self, run: PublicationRun, receipt: Receipt) -> None:
        if run.last - run.first >= LONGEST_SPAN:
            raise RemoteProtocolError(receipt.peer, f"{run.source} from {run.first} to {run.last}")
        super()._receive(run, receipt)

    def _last_duplicate(self, run: PublicationRun, receipt: Receipt) -> int:
        assert isinstance(receipt, AnnotatedReceipt), receipt
        return self._detection.old_until(run, receipt.path, receipt.vector)

    def _accept(self, run: PublicationRun, receipt: Receipt) -> None:
        assert isinstance(receipt, AnnotatedReceipt), receipt
        super()._accept(run, receipt)
        receipt.vector = self._detection.accept(run, receipt.vector)
        receipt.tags = self._tagging.tags_along(receipt.tags, receipt.path)

    def _find_withholding_tag(self, local: LocalSubscription, receipt: Receipt) -> Tag | None:
        assert isinstance(receipt, AnnotatedReceipt), receipt
        covered = super()._find_withholding_tag(local, receipt)
        return self._tagging.find_withholding_tag(local, receipt.path, receipt.tags, covered)


def publications_for(
    state: State,
    sessions: Sessions,
    partitions: PartitionTable,
    table: RoutingTable,
    sequences: SourceSequences,
) -> Publications:
    """Return the publications for `dedupe`, `legitimacy`, `tag_eval` and `switch`."""
    chosen = state.parameters
    if chosen.carries_vectors or chosen.tag_eval == "pt" or chosen.switch == "drain":
        return AnnotatedPublications(state, sessions, partitions, table, sequences)
    queue = PublicationQueue(state, sessions, partitions, table, sequences)
    return Publications(state, sessions, table, sequences, queue)


def annotation_of(transfer: Transfer) -> AnnotatedEntry:
    """Return the entry of a transfer of this queue."""
    entry = transfer.entry
    assert isinstance(entry, AnnotatedEntry), entry
    return entry


def _order(entry: Entry) -> int:
    assert isinstance(entry, AnnotatedEntry), entry
    return entry.order


def pack_stamped(transfers: Iterable[Transfer]) -> Iterator[list[Transfer]]:
    """Yield transfers in queue order, in frames with one vector each.

    Entries of one received frame stay together; frames of a source that are consecutive
    in every queue so far are joined.
    """
    frame: list[Transfer] = []
    size = last = 0
    for transfer in transfers:
        entry = annotation_of(transfer)
        run_bytes = entry.run().payload_bytes()
        if frame and entry.vector is not annotation_of(frame[-1]).vector:
            too_large = size + run_bytes > FRAME_PAYLOAD_BYTES
            if (
                too_large
                or entry.frame_first <= last
                or not _follows(entry, annotation_of(frame[-1]))
            ):
                yield frame
                frame, size, last = [], 0, 0
        frame.append(transfer)
        size += run_bytes
        last = max(last, entry.last)
    if frame:
        yield frame


def _follows(entry: AnnotatedEntry, before: AnnotatedEntry) -> bool:
    """Return True if every broker's stamps continue as the sequence numbers do."""
    if (entry.source, entry.path) != (before.source, before.path) or entry.notifier is not None:
        return False
    assert entry.vector is not None, f"{entry} has no vector"
    assert before.vector is not None, f"{before} has no vector"
    between = entry.vector.sequence - before.vector.sequence
    if between < 0 or len(entry.vector.stamps) != len(before.vector.stamps):
        return False
    return all(
        mine is theirs is None
        or (mine and theirs and mine == (theirs.incarnation, theirs.number + between))
        for mine, theirs in zip(entry.vector.stamps, before.vector.stamps, strict=True)
    )
