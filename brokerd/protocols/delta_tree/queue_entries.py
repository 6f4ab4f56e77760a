"""The contents of the publication queue: entries, their transfers, and receipts of senders."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import (
    Path,
    PublicationTag,
    RecoveryNotifier,
    SequenceVector,
)
from brokerd.protocols.parts.selection import RunSelection

FRAME_PAYLOAD_BYTES = 256 << 10


@dataclass(slots=True, frozen=True)
class Route:
    """A hop in use, and the home brokers reached through it, as a bit set."""

    hop: BrokerNumber
    session: int
    destinations: int


@dataclass(slots=True, frozen=True)
class Annotation:
    """The data of publications beside their path.

    Attributes:
        vector: the stamps, if vectors are in use; with this broker's stamp first once queued.
        tags: tags of the partitions of the publications, if home brokers evaluate tags.
    """

    vector: SequenceVector | None = None
    tags: tuple[PublicationTag, ...] = ()


PLAIN: Final = Annotation()


@dataclass(slots=True, eq=False)
class Receipt:
    """A frame of publications with a pending confirmation to its sender.

    `remaining` counts the queue entries that must be done first: entries made of the frame, and
    entries that were pending when the frame repeated their publications. `path`: the
    publications' source broker … here. `more`: first and last of further ranges to confirm, in a
    receipt that replaces several receipts. `annotation`: of the publications.
    """

    peer: Peer
    session: int
    source: SourceId
    first: int
    last: int
    path: Path
    remaining: int = 0
    more: "array[int] | None" = None
    annotation: Annotation = PLAIN

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges to confirm, as (first, last)."""
        more = self.more
        if more is None:
            return [(self.first, self.last)]
        return [(self.first, self.last), *zip(more[::2], more[1::2], strict=True)]

    def add(self, other: "Receipt") -> None:
        """Add the ranges of a later receipt."""
        for first, last in other.ranges():
            if self.more is None and first == self.last + 1:
                self.last = last
            elif self.more is None:
                self.more = array("q", (first, last))
            elif first == self.more[-1] + 1:
                self.more[-1] = last
            else:
                self.more.extend((first, last))


@dataclass(slots=True, eq=False)
class Transfer:
    """One entry as sent to a hop on a session.

    Attributes:
        destinations: home brokers of the transfer, as a bit set.
        first, last: the bounds of the unconfirmed publications.
        remainder: the unconfirmed publications after a partial confirmation; None before.
    """

    entry: "Entry"
    hop: BrokerNumber
    session: int
    destinations: int
    first: int
    last: int
    remainder: PublicationRun | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """Publications of a source with one audience, until all of the audience has confirmed.

    Attributes:
        selection, places: the publications' places in their frame, if a part of the frame.
        frame_first: the first sequence number of the new publications in that frame.
        first, last, publications: their extent and number.
        path: source broker … here.
        receipts: frames that wait for this entry.
        unsent: home brokers without a hop at present, as a bit set.
        transfers: hop → unconfirmed transfer.
        deliveries: number of unacknowledged deliveries to local clients.
        notifier: the recovery notifier, in an entry without publications.
        whole: the publications, if they are a run of their own.
        clients: the local clients in the audience.
        serial: number of earlier deliveries.
        part_of: the joined entry that has replaced this entry.
        annotation: of the publications.
    """

    source: SourceId
    selection: RunSelection | None
    places: tuple[int, ...]
    frame_first: int
    first: int
    last: int
    publications: int
    path: Path
    receipts: list[Receipt]
    unsent: int = 0
    transfers: dict[BrokerNumber, Transfer] = field(default_factory=dict)
    deliveries: int = 0
    done: bool = False
    notifier: RecoveryNotifier | None = None
    whole: PublicationRun | None = None
    clients: tuple[ClientId, ...] = ()
    serial: int = 0
    part_of: "Entry | None" = None
    annotation: Annotation = PLAIN

    def run(self) -> PublicationRun:
        if self.whole is not None:
            return self.whole
        assert self.selection is not None, f"{self.source} {self.first} of no frame"
        return self.selection.select(self.places)

    def release_frame(self) -> None:
        """Release the rest of the frame, if the entry is a part of it."""
        assert self.selection is not None, f"{self.source} {self.first} of no frame"
        self.whole = self.selection.find_made(self.places)
        if self.whole is not None:
            self.selection = None


class SourceQueue:
    """The entries of a source that are not done, in the order of their frames.

    Frames follow one another without overlap; entries of a frame may interleave. If vectors
    have accepted an old frame as a new one, the order is lost, and searches visit all entries.
    """

    __slots__ = (
        *("_done_in_front", "_entries", "_frame_firsts", "_in_order", "_living"),
        "_settled",
    )

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._frame_firsts: list[int] = []
        self._in_order = True
        self._living = 0
        self._done_in_front = 0
        self._settled = 0

    def __len__(self) -> int:
        return self._living

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for entry in self._entries if not entry.done])

    def append(self, entry: Entry) -> None:
        """Add an entry of the newest frame."""
        if self._frame_firsts and entry.frame_first < self._frame_firsts[-1]:
            self._in_order = False
        self._entries.append(entry)
        self._frame_firsts.append(entry.frame_first)
        self._living += 1

    def newest(self) -> int:
        """Return the first sequence number of the newest frame."""
        return self._frame_firsts[-1]

    def count_unsettled(self, through: int) -> int:
        """Return the number of unsettled entries in frames that begin up to `through`."""
        if not self._in_order:
            return 0
        return max(0, bisect_right(self._frame_firsts, through) - self._settled)

    def next_unsettled(self, through: int, publications: int) -> list[Entry]:
        """Return the first unsettled entries, in whole frames, with enough publications."""
        firsts, end = self._frame_firsts, self._settled
        last = bisect_right(firsts, through)
        while end < last and (publications > 0 or firsts[end] == firsts[end - 1]):
            publications -= self._entries[end].publications
            end += 1
        return self._entries[self._settled : end]

    def settle(self, count: int, entries: Sequence[Entry], settled: int) -> None:
        """Replace `count` unsettled entries by entries with their unfinished publications.

        The first `settled` new entries count as settled.
        """
        start, end = self._settled, self._settled + count
        self._living += len(entries) - sum(not each.done for each in self._entries[start:end])
        self._entries[start:end] = entries
        self._frame_firsts[start:end] = [entry.frame_first for entry in entries]
        self._settled += settled
        self._done_in_front = 0

    def end(self, entry: Entry) -> None:
        """Mark an entry as done, and remove it."""
        entry.done = True
        self._living -= 1
        if self._living < len(self._entries) // 2:
            self._settled = sum(not entry.done for entry in self._entries[: self._settled])
            self._entries = [entry for entry in self._entries if not entry.done]
            self._frame_firsts = [entry.frame_first for entry in self._entries]
            self._done_in_front = 0

    def first_open(self) -> int:
        """Return a number below which all publications are done. The queue must not be empty."""
        while self._entries[self._done_in_front].done:
            self._done_in_front += 1
        return self._frame_firsts[self._done_in_front]

    def between(self, first: int, last: int) -> list[Entry]:
        """Return the entries that may hold a publication numbered in [first, last]."""
        firsts = self._frame_firsts
        found = self._entries
        if self._in_order:
            start = bisect_right(firsts, first)
            if start:
                start = bisect_left(firsts, firsts[start - 1])
            found = found[start : bisect_right(firsts, last)]
        return [e for e in found if not e.done and e.last >= first and e.first <= last]


def pack_frames(transfers: Iterable[Transfer]) -> Iterable[list[Transfer]]:
    """Yield transfers of a source, by first sequence number, in frames of bounded size.

    Interleaving entries, which were made of a single received frame, stay in a single frame: sent
    in two frames, the second entry would count as old.
    """
    frame: list[Transfer] = []
    size = 0
    last = 0
    for transfer in transfers:
        run = transfer.entry.run()
        if frame and run.first > last and size + run.payload_bytes() > FRAME_PAYLOAD_BYTES:
            yield frame
            frame, size = [], 0
        frame.append(transfer)
        size += run.payload_bytes()
        last = max(last, run.last)
    if frame:
        yield frame
