"""Publications that carry more than their path: sequence vectors, and tags of partitions.

A broker has `Annotations` if any of `dedupe`, `legitimacy`, `tag_eval` and `switch` differs from
profile "robust". The receipt of publications and their queue use them.

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

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, PartitionId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import (
    Path,
    PublicationCopy,
    PublicationTag,
    SequenceVector,
    Tag,
)
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.queue_entries import (
    FRAME_PAYLOAD_BYTES,
    Annotation,
    Entry,
    Receipt,
    Route,
    Transfer,
)
from brokerd.protocols.delta_tree.regions import path_distance
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, State
from brokerd.protocols.delta_tree.vectors import Propagation, VectorDetection, check_vector

PublicationTags = tuple[PublicationTag, ...]


class Annotations:
    """The vectors and tags of a broker's publications.

    Attributes:
        propagation: the publications that wait although a hop exists.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
    ) -> None:
        chosen = state.parameters
        self._sequences = state.sequences
        self._detection = VectorDetection(state) if chosen.carries_vectors else None
        self._tagging = Tagging(state, partitions, table) if chosen.tag_eval == "pt" else None
        self.propagation = Propagation(state, sessions)

    # ------------------------------------------------------------ receipt

    def last_duplicate(self, run: PublicationRun, receipt: Receipt) -> int:
        """Return the sequence number up to which the run's publications are duplicates."""
        if self._detection is None:
            return self._sequences.received(run.source)
        return self._detection.old_until(run, receipt.path, receipt.annotation.vector)

    def accept(self, run: PublicationRun, receipt: Receipt) -> None:
        """Add this broker's stamps and tags to first copies, which are about to be queued."""
        vector, tags = receipt.annotation.vector, receipt.annotation.tags
        if self._detection is not None:
            vector = self._detection.accept(run, vector)
        if self._tagging is not None:
            tags = self._tagging.tags_along(tags, receipt.path)
        receipt.annotation = Annotation(vector, tags)

    def find_withholding_tag(
        self, local: LocalSubscription, receipt: Receipt, covered: Tag | None
    ) -> Tag | None:
        """Return the tag for which a frame is withheld from a subscription, if any.

        Args:
            covered: the tag that covers the path of its publications.
        """
        if self._tagging is None:
            return covered
        tags = receipt.annotation.tags
        return self._tagging.find_withholding_tag(local, receipt.path, tags, covered)

    # ------------------------------------------------------------ queue

    def annotate(self, entry: Entry) -> None:
        """Set the annotation of a new entry: that of its frame, or of a new notifier."""
        if entry.notifier is None:
            entry.annotation = entry.receipts[0].annotation
        elif self._detection is not None:
            entry.annotation = Annotation(self._detection.accept(entry.run(), None))

    def select_sendable(self, entry: Entry, destinations: int, routes: Sequence[Route]) -> int:
        """Return the home brokers to which an entry may be sent now, as a bit set."""
        allowed = 0
        for route in routes:
            reached = destinations & route.destinations
            if reached and self.propagation.can_send(entry, route):
                allowed |= reached
        return allowed

    def sort(self, entries: list[Entry]) -> None:
        """Sort entries by the place of their frames in the queue, if vectors are in use."""
        if self._detection is not None:
            entries.sort(key=_order)

    def pack(self, transfers: Iterable[Transfer]) -> Iterator[list[Transfer]] | None:
        """Return transfers in frames with one vector each; None if vectors are not in use."""
        return pack_stamped(transfers) if self._detection is not None else None

    def annotation_for(
        self, hop: BrokerNumber, publications: int, transfers: Sequence[Transfer]
    ) -> Annotation:
        """Return the annotation that a frame of transfers carries to a hop."""
        vector = transfers[0].entry.annotation.vector
        if vector is not None:
            vector = self.propagation.vector_for(vector, hop, publications)
        return Annotation(vector, join_tags([each.entry.annotation.tags for each in transfers]))


def make_annotations(
    state: State,
    sessions: Sessions,
    partitions: PartitionTable,
    table: RoutingTable,
) -> Annotations | None:
    """Return the annotations for `dedupe`, `legitimacy`, `tag_eval` and `switch`, if any."""
    chosen = state.parameters
    if chosen.carries_vectors or chosen.tag_eval == "pt" or chosen.switch == "drain":
        return Annotations(state, sessions, partitions, table)
    return None


def check_annotation(state: State, peer: BrokerNumber, message: PublicationCopy) -> None:
    """Check the vector and the tags of received publications.

    Raises:
        RemoteProtocolError: they are about other brokers, or present without use; the fault of the
            peer that sent them.
    """
    check_vector(state, peer, message.run, message.path, message.vector)
    if message.tags and state.parameters.tag_eval != "pt":
        raise RemoteProtocolError(peer, "tagged publications, in a profile without")
    for tag in message.tags:
        expected = tag_for(tag.partition, message.path, message.path)
        if tag != expected or tag.partition.number < 1:
            raise RemoteProtocolError(peer, f"is not from {tuple(tag)}"[:300])


class Tagging:
    """The tags that one broker adds to publications, and withholding by tags."""

    def __init__(self, state: State, partitions: PartitionTable, table: RoutingTable) -> None:
        self._state = state
        self._partitions = partitions
        self._table = table
        self._trail = 3 * state.parameters.delta + 1

    def tags_along(self, given: PublicationTags, path: Path) -> PublicationTags:
        """Return the tags of publications along `path` (source … here), with this broker's."""
        found = {tag.place: tag for tag in given}
        near = path[-self._trail - 1 :]
        for partition in self._known():
            tag = tag_for(partition, path, near)
            if tag is not None:
                found.setdefault(tag.place, tag)
        return tuple(found.values()) if len(found) > len(given) else given

    def _known(self) -> Iterable[PartitionId]:
        yield from self._partitions
        for row in self._table.tagged.values():
            for tag in row.tags:
                detector = tag.path[: tag.path.index(tag.detector) + 1]
                if path_distance(detector, row.path) <= self._partitions.reach:
                    yield tag.partition

    def find_withholding_tag(
        self, local: LocalSubscription, path: Path, given: PublicationTags, covered: Tag | None
    ) -> Tag | None:
        """Return the tag for which tagged publications are withheld from a subscription.

        A disagreement of path and tags is recorded in the event log.

        Args:
            covered: the tag that covers their path.
        """
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


def pack_stamped(transfers: Iterable[Transfer]) -> Iterator[list[Transfer]]:
    """Yield transfers in queue order, in frames with one vector each.

    Entries of one received frame stay together; frames of a source that are consecutive
    in every queue so far are joined.
    """
    frame: list[Transfer] = []
    size = last = 0
    for transfer in transfers:
        entry = transfer.entry
        run_bytes = entry.run().payload_bytes()
        if frame and entry.annotation.vector is not frame[-1].entry.annotation.vector:
            too_large = size + run_bytes > FRAME_PAYLOAD_BYTES
            if too_large or entry.frame_first <= last or not _follows(entry, frame[-1].entry):
                yield frame
                frame, size, last = [], 0, 0
        frame.append(transfer)
        size += run_bytes
        last = max(last, entry.last)
    if frame:
        yield frame


def _follows(entry: Entry, before: Entry) -> bool:
    """Return True if every broker's stamps continue as the sequence numbers do."""
    if (entry.source, entry.path) != (before.source, before.path) or entry.notifier is not None:
        return False
    vector, earlier = _vector_of(entry), _vector_of(before)
    between = vector.sequence - earlier.sequence
    if between < 0 or len(vector.stamps) != len(earlier.stamps):
        return False
    return all(
        mine is theirs is None
        or (mine and theirs and mine == (theirs.incarnation, theirs.number + between))
        for mine, theirs in zip(vector.stamps, earlier.stamps, strict=True)
    )


def _vector_of(entry: Entry) -> SequenceVector:
    vector = entry.annotation.vector
    assert vector is not None, f"{entry} has no vector"
    return vector


def _order(entry: Entry) -> int:
    """Return the place of an entry's frame in the queue of this broker."""
    vector = _vector_of(entry)
    own = vector.stamps[0]
    assert own is not None, f"{entry} has no stamp of this broker"
    return own.number + entry.frame_first - vector.sequence
