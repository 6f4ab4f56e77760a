"""The copies of other brokers' states at a replica.

A replica appends an owner's writes to the log `copies`, and acknowledges durable writes. An owner
with lost state receives the whole copy back.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.definition import COPIES
from brokerd.protocols.gryphon.messages import (
    CopyEnds,
    CopyState,
    CopyStored,
    CopyWrite,
    CopyWrites,
)
from brokerd.protocols.gryphon.replication import (
    EntryKind,
    LogCopy,
    Span,
    StateCopy,
    WriteKind,
    end_writes,
    pack_entry,
    replay_entry,
    unpack_entry,
    unpack_row,
)
from brokerd.protocols.interface import Chop, Effect, LogEnds, LogRecord, Read

SNAPSHOT_BYTES: Final = 1 << 20
"""Least bytes of live writes of a copy after which a snapshot replaces them."""

FILL_WINDOW: Final = 4
"""Messages with a copy that a receiver has not acknowledged, at most."""

PLACES_PER_READ: Final = 64
"""Entries of the log of copies that one read covers while a copy is sent back."""


@dataclass(slots=True)
class _Transfer:
    """A copy on the way back to the owner.

    Attributes:
        spans: records that are not sent, with their logs.
        reading: first place of the entries that are being read; 0 for none.
        in_flight: messages that the owner has not acknowledged; the first begins the copy.
    """

    copy: StateCopy
    spans: deque[tuple[str, Span]]
    reading: int = 0
    in_flight: int = 1


class CopyAck(NamedTuple):
    """An acknowledgement to send once everything that was appended is durable."""

    owner: BrokerNumber
    message: CopyStored


class Copies:
    """The copies of other brokers' states at this broker.

    Args:
        owners: the brokers that this broker is a replica of.

    Attributes:
        is_read: the copies of earlier incarnations are complete in memory.
        whole: the whole copies by owner.
    """

    def __init__(self, owners: Sequence[BrokerNumber]) -> None:
        self.owners = tuple(owners)
        self.is_read = False
        self.whole: dict[BrokerNumber, StateCopy] = {}
        self._staged: dict[BrokerNumber, StateCopy] = {}
        self._transfers: dict[BrokerNumber, _Transfer] = {}
        self._first = self._next = 1

    def recover(self, ends: LogEnds, *, is_valid: bool) -> list[Effect]:
        """Read or drop the copies; `is_read` is set after the last page.

        Args:
            is_valid: the disk has not lost state since the copies were made.
        """
        self._first, self._next = ends.first, ends.next
        if ends.first == ends.next:
            self.is_read = True
            return []
        if is_valid:
            return [Read(COPIES, ends.first, ends.next)]
        self.is_read = True
        self._first = ends.next
        return [Chop(COPIES, ends.next)]

    def on_page(self, first: int, records: Sequence[bytes]) -> list[Effect]:
        """Replay a page of the log; return the next read."""
        for place, entry in enumerate(records, first):
            replay_entry(self.whole, place, entry)
        following = first + len(records)
        if following < self._next:
            return [Read(COPIES, following, self._next)]
        self.is_read = True
        return self._chop()

    def state_of(self, owner: BrokerNumber) -> CopyState:
        """Return the state of a broker's copy, for the owner; term 0 without a whole copy."""
        self._staged.pop(owner, None)
        self._transfers.pop(owner, None)
        copy = self.whole.get(owner)
        if copy is None:
            return CopyState(owner, 0, 0, ())
        logs = tuple([CopyEnds(name, log.first, log.next) for name, log in copy.logs.items()])
        return CopyState(owner, copy.term, copy.position, logs)

    def check(self, owner: BrokerNumber, term: int, message: CopyWrites) -> None:
        """Check a message of an owner, before any change.

        Args:
            term: the incarnation of the owner in this session.

        Raises:
            RemoteProtocolError: the writes do not follow the copy.
        """
        copy, staged = self.whole.get(owner), self._staged.get(owner)
        if owner not in self.owners:
            raise RemoteProtocolError(owner, "writes for a copy that is not kept here")
        if message.term != term or (copy is not None and copy.term > term):
            known = copy.term if copy is not None else 0
            raise RemoteProtocolError(owner, f"writes of term {message.term}, after {known}")
        try:
            _check_writes(message.writes)
        except ValueError as error:
            raise RemoteProtocolError(owner, f"a write of no valid content: {error}") from None
        kinds = [write.kind for write in message.writes]
        if message.position == 0:
            if WriteKind.BEGIN in kinds[1:] or (staged is None) != (kinds[:1] == [0]):
                raise RemoteProtocolError(owner, "a part of a copy that has not begun")
            _check_order(owner, staged or StateCopy(term), copy, message.writes)
            return
        if staged is None and (copy is None or copy.term != term):
            raise RemoteProtocolError(owner, "a live write without a copy")
        if staged is not None:
            if kinds[-1:] != [WriteKind.END] or WriteKind.END in kinds[:-1]:
                raise RemoteProtocolError(owner, "a live write in an unfinished copy")
            if WriteKind.BEGIN in kinds:
                raise RemoteProtocolError(owner, "a copy that begins in another one")
            _check_order(owner, staged, copy, message.writes)
            return
        assert copy is not None
        if message.position != copy.position + bool(kinds):
            raise RemoteProtocolError(
                owner, f"write {message.position} after write {copy.position}"
            )
        if any(kind not in _LIVE for kind in kinds):
            raise RemoteProtocolError(owner, f"writes of kinds {kinds} in a whole copy")
        _check_order(owner, copy, None, message.writes)

    def on_writes(
        self, owner: BrokerNumber, message: CopyWrites
    ) -> tuple[list[LogRecord], CopyAck]:
        """Take writes; return the entries to append, and the acknowledgement for later.

        `check` has passed. The owner receives the acknowledgement on request.
        """
        entries: list[LogRecord] = []
        staged = self._staged.get(owner)
        for write in message.writes:
            place = self._next + len(entries)
            if staged is None and write.kind != WriteKind.BEGIN:
                present = self.whole[owner]
                entry = pack_entry(EntryKind.LIVE, owner, message.term, message.position, write)
                entries.append(entry)
                present.live_bytes += sum(map(len, entry))
                present.apply(write, place)
            else:
                staged = self._stage(owner, message, write, place, entries)
        copy = self.whole.get(owner)
        is_whole = copy is not None and copy.term == message.term and message.position > 0
        if copy is not None and is_whole:
            copy.position = message.position
            if copy.live_bytes > max(SNAPSHOT_BYTES, copy.snapshot_bytes):
                entries.append(self._snapshot(owner, copy, self._next + len(entries)))
        self._next += len(entries)
        return entries, CopyAck(owner, CopyStored(owner, message.term, message.position))

    def _stage(
        self,
        owner: BrokerNumber,
        message: CopyWrites,
        write: CopyWrite,
        place: int,
        entries: list[LogRecord],
    ) -> StateCopy | None:
        """Add a write to an unfinished copy; return the copy, None once the copy is whole."""
        if write.kind == WriteKind.BEGIN:
            staged = self._staged[owner] = StateCopy(message.term)
            return staged
        staged = self._staged[owner]
        if write.kind == WriteKind.KEEP:
            whole = self.whole.get(owner)
            known = whole.logs.get(write.log) if whole is not None else None
            staged.logs[write.log] = (known or LogCopy()).kept(write.first, write.end)
        elif write.kind == WriteKind.ENDS:
            log = staged.logs.setdefault(write.log, LogCopy(write.first, write.first))
            log.chop(write.first)
            log.truncate(write.end)
        elif write.kind == WriteKind.END:
            del self._staged[owner]
            staged.position, staged.lineage = message.position, write.first
            self.whole[owner] = staged
            entries.append(self._snapshot(owner, staged, place))
            return None
        else:
            if write.kind == WriteKind.RECORDS:
                entries.append(pack_entry(EntryKind.STAGED, owner, message.term, 0, write))
            staged.apply(write, place)
        return staged

    def _snapshot(self, owner: BrokerNumber, copy: StateCopy, place: int) -> LogRecord:
        write = copy.snapshot(place)
        return pack_entry(EntryKind.SNAPSHOT, owner, copy.term, copy.position, write)

    def drop(self, owner: BrokerNumber) -> list[LogRecord]:
        """Drop the copy of a broker that was decommissioned; return the entry to append."""
        self._staged.pop(owner, None)
        copy = self.whole.pop(owner, None)
        if copy is None:
            return []
        self._next += 1
        write = CopyWrite(WriteKind.BEGIN, "", 0, 0, ())
        return [pack_entry(EntryKind.DROPPED, owner, copy.term, copy.position, write)]

    def release(self) -> list[Effect]:
        """Return the release of entries that no copy needs."""
        return self._chop()

    def _chop(self) -> list[Effect]:
        places = [copy.first_place() for copy in self.whole.values()]
        for copy in self._staged.values():
            places += [log.spans[0].place for log in copy.logs.values() if log.spans]
        first = min(places, default=self._next)
        if first <= self._first:
            return []
        self._first = first
        return [Chop(COPIES, first)]

    # ------------------------------------------------------------ sending a copy back

    def on_request(self, owner: BrokerNumber, term: int) -> CopyWrites:
        """Begin to send a copy back to the owner.

        Raises:
            RemoteProtocolError: there is no whole copy of that term.
        """
        copy = self.whole.get(owner)
        if copy is None or copy.term != term:
            raise RemoteProtocolError(owner, f"a request for a copy of term {term}")
        spans = deque([(name, span) for name, log in copy.logs.items() for span in log.spans])
        self._transfers[owner] = _Transfer(copy, spans)
        return CopyWrites(owner, term, 0, True, (CopyWrite(WriteKind.BEGIN, "", 0, 0, ()),))

    def on_stored(self, owner: BrokerNumber) -> None:
        """Record that the owner has stored a part of the copy."""
        transfer = self._transfers.get(owner)
        if transfer is not None:
            transfer.in_flight = max(0, transfer.in_flight - 1)

    def send_next(self, owner: BrokerNumber) -> CopyWrites | Read | None:
        """Return the next read of a transfer, or the end of the copy.

        Returns:
            None without a transfer, during a read, and while the window is full.
        """
        transfer = self._transfers.get(owner)
        if transfer is None or transfer.reading or transfer.in_flight >= FILL_WINDOW:
            return None
        if not transfer.spans:
            del self._transfers[owner]
            return _end_of(owner, transfer.copy)
        place = transfer.reading = transfer.spans[0][1].place
        return Read(COPIES, place, min(place + PLACES_PER_READ, self._next))

    def on_places(
        self, owner: BrokerNumber, first: int, records: Sequence[bytes]
    ) -> CopyWrites | None:
        """Return the records of a transfer that a page has; None without a transfer."""
        transfer = self._transfers.get(owner)
        if transfer is None or transfer.reading != first:
            return None
        transfer.reading = 0
        transfer.in_flight += 1
        writes = []
        while transfer.spans:
            log, span = transfer.spans[0]
            if not first <= span.place < first + len(records):
                break
            transfer.spans.popleft()
            write = unpack_entry(records[span.place - first])[4]
            start = max(span.first, transfer.copy.logs[log].first)
            items = write.items[start - write.first : span.end - write.first]
            writes.append(CopyWrite(WriteKind.RECORDS, log, start, 0, items))
        return CopyWrites(owner, transfer.copy.term, 0, True, tuple(writes))

    # ------------------------------------------------------------ for people

    def describe(self) -> dict[str, Any]:
        """Return the copies for JSON, by owner."""
        return {
            str(owner): {
                "term": copy.term,
                "position": copy.position,
                "rows": len(copy.rows),
                "records": sum(log.next - log.first for log in copy.logs.values()),
            }
            for owner, copy in self.whole.items()
        }


_LIVE: Final = (WriteKind.RECORDS, WriteKind.ROWS, WriteKind.CHOP, WriteKind.TRUNCATE)


def _check_writes(writes: Iterable[CopyWrite]) -> None:
    """Check the contents of writes.

    Raises:
        ValueError: an unknown kind, or a row that is none.
    """
    for write in writes:
        if write.kind >= len(WriteKind):
            raise ValueError(f"kind {write.kind}")
        if write.kind == WriteKind.ROWS:
            for each in write.items:
                unpack_row(each)


class _Extent(NamedTuple):
    """The records [first, next) of a log while writes are checked; empty ones begin anywhere."""

    first: int = 1
    next: int = 1
    has_records: bool = False

    @classmethod
    def of(cls, log: LogCopy | None) -> "_Extent":
        return cls() if log is None else cls(log.first, log.next, bool(log.spans))

    def chopped(self, first: int) -> "_Extent":
        first = max(self.first, first)
        return _Extent(first, max(self.next, first), self.has_records and self.next > first)

    def truncated(self, end: int) -> "_Extent":
        return _Extent(self.first, min(self.next, end), self.has_records and end > self.first)


def _check_order(
    owner: BrokerNumber, copy: StateCopy, before: StateCopy | None, writes: Iterable[CopyWrite]
) -> None:
    """Check that records follow the last records of their logs.

    Args:
        before: the copy of an earlier term, which has the records that the owner keeps.

    Raises:
        RemoteProtocolError: records are missing or repeated, or released before their log begins.
    """
    extents: dict[str, _Extent] = {}
    for write in writes:
        name = write.log
        if write.kind in (WriteKind.BEGIN, WriteKind.ROWS, WriteKind.END):
            continue
        extent = extents.get(name) or _Extent.of(copy.logs.get(name))
        if write.kind == WriteKind.KEEP:
            kept = _Extent.of(before.logs.get(name) if before is not None else None)
            extent = kept.truncated(write.end).chopped(write.first)
        elif write.kind == WriteKind.ENDS:
            known = name in extents or name in copy.logs
            extent = extent if known else _Extent(write.first, write.first)
            extent = extent.chopped(write.first).truncated(write.end)
        elif write.kind == WriteKind.CHOP:
            extent = extent.chopped(write.first)
        elif write.kind == WriteKind.TRUNCATE:
            extent = extent.truncated(write.first)
        else:
            is_new = not extent.has_records and extent.first == extent.next
            if write.first != extent.next and not is_new:
                raise RemoteProtocolError(
                    owner, f"record {write.first} of log {name}, not {extent.next}"
                )
            first = write.first if is_new else extent.first
            extent = _Extent(first, write.first + len(write.items), True)
        if extent.next < extent.first:
            raise RemoteProtocolError(owner, f"log {name} of {tuple(extent)}")
        extents[name] = extent


def _end_of(owner: BrokerNumber, copy: StateCopy) -> CopyWrites:
    """Return the rows and the end of a copy."""
    writes = end_writes(
        copy.rows.values(),
        {name: LogEnds(log.first, log.next) for name, log in copy.logs.items()},
        copy.lineage,
    )
    return CopyWrites(owner, copy.term, copy.position, True, tuple(writes))
