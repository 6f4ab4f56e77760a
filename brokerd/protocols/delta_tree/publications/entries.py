"""What the publication queue holds: entries, what was sent of them, and who waits for them."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.broker.state import Path
from brokerd.protocols.delta_tree.messages import RecoveryNotifier
from brokerd.protocols.parts.selection import RunSelection

FRAME_PAYLOAD_BYTES = 256 << 10


@dataclass(slots=True, frozen=True)
class Route:
    """A hop in use, and the home brokers reached through it, as a bit set."""

    hop: BrokerNumber
    session: int
    destinations: int


@dataclass(slots=True, eq=False)
class Receipt:
    """A frame of publications that its sender wants confirmed.

    `remaining` counts the queue entries that must be done first: those made of the frame, and
    those that were pending when it brought the same publications again. `path`: the
    publications' source broker … here. `more`: first and last of whatever else is confirmed with
    it, in a receipt that stands for many.
    """

    peer: Peer
    session: int
    source: SourceId
    first: int
    last: int
    path: Path
    remaining: int = 0
    more: "array[int] | None" = None

    def ranges(self) -> list[tuple[int, int]]:
        """What is confirmed, as (first, last)."""
        more = self.more
        if more is None:
            return [(self.first, self.last)]
        return [(self.first, self.last), *zip(more[::2], more[1::2], strict=True)]

    def add(self, other: "Receipt") -> None:
        """Stand for a later one, too."""
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
    """One entry as it was sent to one hop on one session.

    Attributes:
        destinations: home brokers it is for, as a bit set.
        first, last: what the hop has not confirmed lies between.
        left: exactly that, once a confirmation has covered a part; None while it is all.
    """

    entry: "Entry"
    hop: BrokerNumber
    session: int
    destinations: int
    first: int
    last: int
    left: PublicationRun | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """Publications of one source with one audience, until that has all of them.

    Attributes:
        selection, places: which publications of which frame, if these are not all it is.
        frame_first: the first sequence of what was new in that frame.
        first, last, publications: their extent and number.
        path: source broker … here.
        receipts: frames that wait for this entry.
        unsent: home brokers to which no hop leads at present, as a bit set.
        transfers: hop → what was sent to it and is not confirmed.
        deliveries: how many deliveries to local clients are not acknowledged.
        notifier: what the entry is instead of publications, if it is that.
        whole: the publications, where they are a run of their own.
        clients: who gets it here.
        serial: how many deliveries had been made before those of it.
        part_of: the entry that it was joined to others in, which stands for it since.
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

    def run(self) -> PublicationRun:
        """The publications themselves."""
        if self.whole is not None:
            return self.whole
        assert self.selection is not None, f"{self.source} {self.first} of no frame"
        return self.selection.having(self.places)

    def let_go_of_frame(self) -> None:
        """Keep no more of the frame than these publications, where they are a part of it."""
        assert self.selection is not None, f"{self.source} {self.first} of no frame"
        self.whole = self.selection.made(self.places)
        if self.whole is not None:
            self.selection = None


class SourceQueue:
    """The entries of one source that are not done, in the order of their frames.

    Frames follow one another without overlap; entries of one frame may interleave. Where vectors
    have taken an old frame for a new one that is not so, and everything is looked at.
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
        """Where the newest frame begins."""
        return self._frame_firsts[-1]

    def unsettled(self, through: int) -> int:
        """How many entries of frames that begin up to `through` have not been settled."""
        if not self._in_order:
            return 0
        return max(0, bisect_right(self._frame_firsts, through) - self._settled)

    def next_unsettled(self, through: int, publications: int) -> list[Entry]:
        """The first of those, whole frames, with so many publications or some more."""
        firsts, end = self._frame_firsts, self._settled
        last = bisect_right(firsts, through)
        while end < last and (publications > 0 or firsts[end] == firsts[end - 1]):
            publications -= self._entries[end].publications
            end += 1
        return self._entries[self._settled : end]

    def settle(self, count: int, entries: Sequence[Entry], settled: int) -> None:
        """Put entries in place of so many unsettled ones, of which they hold what is not done.

        So many of the new ones are settled.
        """
        start, end = self._settled, self._settled + count
        self._living += len(entries) - sum(not each.done for each in self._entries[start:end])
        self._entries[start:end] = entries
        self._frame_firsts[start:end] = [entry.frame_first for entry in entries]
        self._settled += settled
        self._done_in_front = 0

    def end(self, entry: Entry) -> None:
        """The entry is done; forget it."""
        entry.done = True
        self._living -= 1
        if self._living < len(self._entries) // 2:
            self._settled = sum(not entry.done for entry in self._entries[: self._settled])
            self._entries = [entry for entry in self._entries if not entry.done]
            self._frame_firsts = [entry.frame_first for entry in self._entries]
            self._done_in_front = 0

    def done_below(self) -> int:
        """All publications numbered below are done; some more may be. The queue is not empty."""
        while self._entries[self._done_in_front].done:
            self._done_in_front += 1
        return self._frame_firsts[self._done_in_front]

    def between(self, first: int, last: int) -> list[Entry]:
        """The entries that may hold a publication numbered in [first, last]."""
        firsts = self._frame_firsts
        found = self._entries
        if self._in_order:
            start = bisect_right(firsts, first)
            if start:
                start = bisect_left(firsts, firsts[start - 1])
            found = found[start : bisect_right(firsts, last)]
        return [e for e in found if not e.done and e.last >= first and e.first <= last]


def pack_frames(transfers: Iterable[Transfer]) -> Iterable[list[Transfer]]:
    """Transfers of one source, by first sequence, packed into frames of bounded size.

    Entries that interleave, which were made of one received frame, stay in one frame: were
    they sent one after the other, the second would be taken for old.
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
