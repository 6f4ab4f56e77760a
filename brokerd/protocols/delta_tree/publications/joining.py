"""Joining what stays: many small entries of one source become few large ones.

Publications that come one by one, and are not done soon, would cost several times their bytes:
entry, receipt, transfers, deliveries, and the read that each came in. What has been in the queue
since the last look is joined here, as if it had come in one frame: entries that wait for the same
brokers and clients become one, and so do their receipts, transfers and deliveries. The bytes of
each publication are there once, in a piece of bounded size.

An entry is done as a whole, so what was joined is confirmed as a whole. Nothing is joined that
would make one home broker, or one client, wait for another one.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.config import MILLISECOND_NS
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.joined_runs import JOINED_BYTES, JOINED_PUBLICATIONS, RunJoiner
from brokerd.protocols.delta_tree.publications.deliveries import WithholdingWindows
from brokerd.protocols.delta_tree.publications.entries import Entry, Receipt, Transfer
from brokerd.protocols.delta_tree.publications.queue import PublicationQueue
from brokerd.protocols.parts.clients.outlets import Wholes


@dataclass(frozen=True)
class JoiningBounds:
    """When is looked, and how much is joined.

    Attributes:
        fewest: publications in the queue up to which nobody looks.
        interval_ns: from one look to the next one, at least.
        looked_at_ns: for each entry that is looked at, likewise.
        window: so many publications are looked at together.
        publications: so many become one entry, or one delivery, at most.
        payload_bytes: likewise.
    """

    fewest: int = 1_024
    interval_ns: int = 250 * MILLISECOND_NS
    looked_at_ns: int = 50_000
    window: int = 4_096
    publications: int = JOINED_PUBLICATIONS
    payload_bytes: int = JOINED_BYTES


class Joining:
    """Joins what stays in one broker's queue."""

    def __init__(
        self,
        queue: PublicationQueue,
        windows: WithholdingWindows[Entry],
        bounds: JoiningBounds | None = None,
    ) -> None:
        self.bounds = bounds or JoiningBounds()
        self._queue = queue
        self._windows = windows
        self._runs = RunJoiner()
        self._wholes = Wholes(
            _part_of, Entry.run, _count_out, self.bounds.publications, self.bounds.payload_bytes
        )
        self._newest: dict[SourceId, int] = {}
        self._not_before_ns = 0
        queue.look_above = self.bounds.fewest

    def watch(self, now_ns: int) -> None:
        """To be called whenever the queue has changed."""
        queue, fewest = self._queue, self.bounds.fewest
        publications = queue.publications
        if publications > queue.look_above:
            if now_ns < self._not_before_ns:
                queue.look_above = publications + fewest // 16
                return
            looked_at = self._look()
            queue.look_above = publications + max(fewest // 2, looked_at // 4)
            self._not_before_ns = now_ns + max(
                self.bounds.interval_ns, looked_at * self.bounds.looked_at_ns
            )
        elif publications < queue.look_above // 2 and queue.look_above > fewest:
            queue.look_above = max(fewest, publications + fewest // 2)

    def _look(self) -> int:
        """Join what was there when it looked before; how many entries were looked at."""
        queue = self._queue
        looked_at = len(queue.entries)
        stayed: dict[SourceId, list[Entry]] = {}
        for source, entries in queue.entries.items():
            old = entries.stayed(self._newest.get(source, 0))
            looked_at += len(old)
            if sum(self._is_small(entry) for entry in old) > 1:
                stayed[source] = old
        if stayed:
            audiences = self._windows.audiences()
            looked_at += len(audiences)
            changes = [self._join_source(*each, audiences) for each in stayed.items()]
            if any(changes):
                self._windows.join(self._wholes)
        self._newest = {source: entries.newest() for source, entries in queue.entries.items()}
        return looked_at

    def _is_small(self, entry: Entry) -> bool:
        """Whether it is to be joined to others, if there are any."""
        if entry.notifier is not None or 2 * entry.publications >= self.bounds.publications:
            return False
        if any(transfer.left is not None for transfer in entry.transfers.values()):
            return False
        return 2 * entry.run().payload_bytes() < self.bounds.payload_bytes

    def _join_source(
        self, source: SourceId, old: list[Entry], audiences: Mapping[Entry, tuple[ClientId, ...]]
    ) -> bool:
        """Whether any of the entries, which are all that stayed of a source, were joined."""
        groups = list(self._groups(old, audiences))
        if len(groups) == len(old):
            return False
        entries = [self._joined(group) if len(group) > 1 else group[0] for group in groups]
        entries.sort(key=_first)
        _number_frames(entries)
        queue = self._queue
        queue.entries[source].replace_stayed(self._newest[source], entries)
        transfers: dict[BrokerNumber, list[Transfer]] = {}
        for group in groups:
            if len(group) > 1 and (whole := group[0].part_of) is not None:
                for hop, transfer in whole.transfers.items():
                    transfers.setdefault(hop, []).append(transfer)
        for hop, new in transfers.items():
            queue.replace_sent(hop, source, new)
        return True

    def _groups(
        self, old: list[Entry], audiences: Mapping[Entry, tuple[ClientId, ...]]
    ) -> Iterator[list[Entry]]:
        """All of the entries, those together that are to be one."""
        window: dict[Any, list[Entry]] = {}
        publications = 0
        for entry in old:
            is_small = self._is_small(entry)
            if not is_small or publications + entry.publications > self.bounds.window:
                yield from self._parts(window, is_closed=True)
                window, publications = {}, 0
            if is_small:
                window.setdefault(_waits_for(entry, audiences), []).append(entry)
                publications += entry.publications
            else:
                yield [entry]
        yield from self._parts(window, is_closed=False)

    def _parts(self, window: Mapping[Any, list[Entry]], is_closed: bool) -> Iterator[list[Entry]]:
        """What is in a window, in groups of bounded size.

        Where more may follow, nothing is joined that would not at least double its size: no
        publication is copied more often than there are doublings.
        """
        for alike in window.values():
            for group in self._of_bounded_size(alike):
                sizes = [entry.publications for entry in group]
                if is_closed or sum(sizes) >= 2 * max(sizes):
                    yield group
                else:
                    yield from [[entry] for entry in group]

    def _of_bounded_size(self, entries: list[Entry]) -> Iterator[list[Entry]]:
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

    def _joined(self, group: list[Entry]) -> Entry:
        """One entry for several that wait for the same; they are parts of it since."""
        some = group[0]
        run = self._runs.joined([entry.run() for entry in group])
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
            if not self._queue.is_heard(receipt):
                continue
            before = joined[-1] if joined else receipt
            if before is not receipt and _are_alike(before, receipt):
                before.add(receipt)
            else:
                joined.append(receipt)
        return joined


def _waits_for(entry: Entry, audiences: Mapping[Entry, tuple[ClientId, ...]]) -> Hashable:
    """What differs between entries that must not wait for one another."""
    hops = sorted(
        (hop, transfer.session, transfer.destinations) for hop, transfer in entry.transfers.items()
    )
    return entry.path, entry.unsent, tuple(hops), audiences.get(entry, ())


def _are_alike(one: Receipt, other: Receipt) -> bool:
    """Whether both are for one peer, and wait for one and the same entry only."""
    return (
        one.remaining == other.remaining == 1
        and (one.peer, one.session, one.path) == (other.peer, other.session, other.path)
        and one.source == other.source
    )


def _number_frames(entries: list[Entry]) -> None:
    """Let entries that interleave be as of one frame, and those of different ones not overlap."""
    start = 0
    through = 0
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


def _part_of(entry: Entry) -> Entry | None:
    """The entry that stands for it, if it was joined to others."""
    whole = entry.part_of
    while whole is not None and whole.part_of is not None:
        whole = whole.part_of
    return whole


def _count_out(entry: Entry, deliveries: int) -> None:
    entry.deliveries -= deliveries
    assert entry.deliveries > 0, f"{entry.deliveries} deliveries of what is not done"
