"""EntryMerge of entries that stay in the queue: many small entries of a source become few.

Single publications that stay for long would cost several times their bytes: an entry, a receipt,
transfers, deliveries, and the read of their arrival. Entries that have stayed since the last
look are joined here, as after an arrival in a single frame: entries that wait for the same
brokers and clients are joined, with receipts, transfers and deliveries. The bytes of
a publication are stored once, in a piece of bounded size.

An entry is done as a whole, so joined publications are confirmed as a whole. Entries are not joined
if a home broker, or a client, would then wait for another.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from brokerd.model.identity import SourceId
from brokerd.model.joined_runs import JOINED_BYTES, JOINED_PUBLICATIONS, RunJoiner
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.home_subscriptions import WithholdingWindows
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt, Transfer
from brokerd.units import MILLISECOND_NS

FEWEST = 1_024


STEP = 64


@dataclass(frozen=True)
class MergeBounds:
    """The times and the limits of joining.

    Attributes:
        fewest: number of publications in the queue up to which nothing is joined.
        step: number of arrivals between two looks.
        interval_ns: age of entries that count as staying.
        window: approximate number of entries joined in one look, which delays all other work.
        crowd: number of staying entries above which few of a source are joined, too.
        few: least number of entries of a source, including a joined one.
        publications: greatest number in a joined entry or delivery.
        payload_bytes: likewise.
    """

    fewest: int = field(default_factory=lambda: FEWEST)
    step: int = field(default_factory=lambda: STEP)
    interval_ns: int = 250 * MILLISECOND_NS
    window: int = 128
    crowd: int = 4_096
    few: int = 8
    publications: int = JOINED_PUBLICATIONS
    payload_bytes: int = JOINED_BYTES


class JoinedEntries:
    """The joined entries of a queue, for deliveries of their parts; see Wholes."""

    def __init__(self, bounds: MergeBounds) -> None:
        self.publications = bounds.publications
        self.payload_bytes = bounds.payload_bytes

    def part_of(self, entry: Entry) -> Entry | None:
        whole = entry.part_of
        while whole is not None and whole.part_of is not None:
            whole = whole.part_of
        return whole

    def run(self, entry: Entry) -> PublicationRun:
        return entry.run()

    def count_out(self, entry: Entry, deliveries: int) -> None:
        entry.deliveries -= deliveries
        assert entry.deliveries > 0, f"{entry.deliveries} deliveries of what is not done"


class EntryMerge:
    """The joining of staying entries in a broker's queue."""

    def __init__(
        self,
        queue: PublicationQueue,
        windows: WithholdingWindows,
        counters: Mapping[str, int],
    ) -> None:
        self.bounds = MergeBounds()
        self._queue = queue
        self._windows = windows
        self._counters = counters
        self._runs = RunJoiner()
        self._wholes = JoinedEntries(self.bounds)
        self._stayed: dict[SourceId, int] = {}
        self._newest: dict[SourceId, int] = {}
        self._due: list[SourceId] = []
        self._fewest_due = 0
        self._noted_ns = 0
        queue.merge_above = self.bounds.fewest

    def watch(self, now_ns: int) -> None:
        """Look at a queue with more than `merge_above` publications, if a look is due."""
        received = self._counters["publications_received"]
        if received >= self._queue.merge_at:
            self._look(now_ns)
            self._queue.merge_at = received + self.bounds.step

    def _look(self, now_ns: int) -> None:
        """Join some of the entries that have stayed for an interval or two."""
        of_sources = self._queue.entries
        if now_ns - self._noted_ns >= self.bounds.interval_ns:
            self._noted_ns, self._stayed = now_ns, self._newest
            self._newest = {source: entries.newest() for source, entries in of_sources.items()}
            self._find_due()
        left = self.bounds.window
        while self._due and left > 0:
            source = self._due[-1]
            entries = of_sources.get(source)
            if entries is None or entries.count_unsettled(self._stayed[source]) < self._fewest_due:
                self._due.pop()
            else:
                left -= self._settle(source)

    def _find_due(self) -> None:
        """Record the sources with enough staying entries.

        The threshold is lower if there are many sources.
        """
        bounds, of_sources = self.bounds, self._queue.entries
        stayed = {
            source: of_sources[source].count_unsettled(through)
            for source, through in self._stayed.items()
            if source in of_sources
        }
        is_crowded = sum(stayed.values()) > max(bounds.crowd, bounds.few * len(stayed))
        self._fewest_due = bounds.few if is_crowded else bounds.window
        self._due = [source for source, count in stayed.items() if count >= self._fewest_due]

    def _settle(self, source: SourceId) -> int:
        """Join the oldest staying entries of a source; return their number."""
        queue = self._queue
        of_source = queue.entries[source]
        old = of_source.next_unsettled(self._stayed[source], self.bounds.window)
        groups: dict[Hashable, list[Entry]] = {}
        entries: list[Entry] = []
        for entry in old:
            if entry.done:
                continue
            if self._is_small(entry):
                groups.setdefault(_waits_for(entry), []).append(entry)
            else:
                entries.append(entry)
        joined: list[Entry] = []
        for alike in groups.values():
            for group in self._split_by_size(alike):
                if len(group) > 1:
                    joined.append(self._join(group))
                else:
                    entries.append(group[0])
        entries += joined
        entries.sort(key=_first)
        if old:
            _number_frames(entries, old[0].frame_first)
        of_source.settle(
            len(old), entries, self._count_settled(entries) if joined else len(entries)
        )
        for whole in joined:
            for hop, transfer in whole.transfers.items():
                queue.replace_sent(hop, source, transfer)
        clients = dict.fromkeys([name for whole in joined for name in whole.clients])
        serials = old[0].serial, max(entry.serial + 4 * len(entry.clients) for entry in old)
        for client in clients:
            self._windows.join(client, source, serials, self._wholes)
        return len(old)

    def _count_settled(self, entries: list[Entry]) -> int:
        """Return the number of entries before the last small ones, which may be joined again."""
        count = len(entries)
        while count and self._is_small(entries[count - 1]):
            count -= 1
        return count

    def _is_small(self, entry: Entry) -> bool:
        """Return True if an entry may be joined to other entries."""
        if entry.notifier is not None or 2 * entry.publications >= self.bounds.publications:
            return False
        if any(transfer.remainder is not None for transfer in entry.transfers.values()):
            return False
        return 2 * entry.run().payload_bytes() < self.bounds.payload_bytes

    def _split_by_size(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        group: list[Entry] = []
        publications = payload_bytes = 0
        for entry in entries:
            size_bytes = entry.run().payload_bytes()
            if group and (
                publications + entry.publications > self.bounds.publications
                or payload_bytes + size_bytes > self.bounds.payload_bytes
            ):
                yield group
                group, publications, payload_bytes = [], 0, 0
            group.append(entry)
            publications += entry.publications
            payload_bytes += size_bytes
        yield group

    def _join(self, group: list[Entry]) -> Entry:
        """Return a joined entry for entries that wait for the same, which become parts."""
        some = group[0]
        run = self._runs.join([entry.run() for entry in group])
        whole = Entry(
            some.source,
            None,
            (),
            min(entry.frame_first for entry in group),
            run.first,
            run.last,
            len(run),
            some.path,
            self._join_receipts(group),
            some.unsent,
            deliveries=sum(entry.deliveries for entry in group),
            whole=run,
            clients=some.clients,
            serial=some.serial,
        )
        for hop, transfer in some.transfers.items():
            whole.transfers[hop] = Transfer(
                whole, hop, transfer.session, transfer.destinations, run.first, run.last
            )
        for entry in group:
            entry.part_of = whole
            entry.whole = entry.selection = None
            entry.transfers, entry.receipts = {}, []
        return whole

    def _join_receipts(self, group: list[Entry]) -> list[Receipt]:
        counts: dict[Receipt, int] = {}
        for entry in group:
            for receipt in entry.receipts:
                counts[receipt] = counts.get(receipt, 0) + 1
        joined: list[Receipt] = []
        for receipt, count in counts.items():
            receipt.remaining -= count - 1
            if not self._queue.has_receiver(receipt):
                continue
            before = joined[-1] if joined else receipt
            if before is not receipt and _is_alike(before, receipt):
                before.add(receipt)
            else:
                joined.append(receipt)
        return joined


def _waits_for(entry: Entry) -> Hashable:
    """Return a key that differs between entries that must not wait for one another.

    Clients acknowledge in order: entries for the same clients with the same number of open
    deliveries wait for the same acknowledgements.
    """
    hops = sorted(
        (hop, transfer.session, transfer.destinations) for hop, transfer in entry.transfers.items()
    )
    return entry.path, entry.unsent, tuple(hops), entry.clients, entry.deliveries


def _is_alike(one: Receipt, other: Receipt) -> bool:
    """Return True if both receipts are for a peer, and wait for the same single entry."""
    return (
        one.remaining == other.remaining == 1
        and (one.peer, one.session, one.path) == (other.peer, other.session, other.path)
        and one.source == other.source
    )


def _number_frames(entries: list[Entry], first: int) -> None:
    """Assign interleaving entries to a frame, and separate the frames of other entries."""
    start = 0
    through = first - 1
    while start < len(entries):
        end, last = start + 1, entries[start].last
        while end < len(entries) and entries[end].first <= last:
            last = max(last, entries[end].last)
            end += 1
        of_frame = entries[start:end]
        first = max(through + 1, min(entry.frame_first for entry in of_frame))
        for entry in of_frame:
            entry.frame_first = first
        start, through = end, last


def _first(entry: Entry) -> int:
    return entry.first
