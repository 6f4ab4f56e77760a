"""Publications that carry more than their path: sequence vectors, and tags of partitions.

The classes here replace the plain queue and publications if any of `dedupe`, `legitimacy`,
`tag_eval` and `switch` differs from profile "robust".

Paper: [DFT11] §VI-§VII.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.as_published.propagation import Propagation
from brokerd.protocols.delta_tree.as_published.publication_tags import (
    PublicationTags,
    join_tags,
    make_tagging,
)
from brokerd.protocols.delta_tree.as_published.vectors import (
    LONGEST_SPAN,
    DuplicateDetection,
    check_vector,
    make_detection,
)
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    SequenceVector,
    Tag,
)
from brokerd.protocols.delta_tree.partitions.partition_table import PartitionTable
from brokerd.protocols.delta_tree.publications.arrivals import Publications
from brokerd.protocols.delta_tree.publications.duplicates import SourceSequences
from brokerd.protocols.delta_tree.publications.entries import (
    FRAME_PAYLOAD_BYTES,
    Entry,
    Receipt,
    Transfer,
)
from brokerd.protocols.delta_tree.publications.queue import PublicationQueue
from brokerd.protocols.delta_tree.sessions.sessions import Sessions
from brokerd.protocols.delta_tree.subscriptions.routing_table import (
    LocalSubscription,
    RoutingTable,
)


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
