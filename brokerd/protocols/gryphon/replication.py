"""Copies of brokers' states at other brokers: their contents, and the brokers that keep them.

A broker with clients numbers its writes, and sends each to its replicas. A replica appends the
writes to a log of its own, `copies`, and acknowledges what is durable. A copy is whole once all of
the owner's rows and records have arrived; a copy that is not whole is none, so a replica that lost
its disk counts again after it was filled only.

Entries of the log: a snapshot describes a whole copy, with the places of its records; a live write
changes the copy of the same term; a staged record belongs to a copy that is not whole yet, and
matters once a snapshot names its place.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
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
from brokerd.protocols.interface import Change, Chop, Effect, LogEnds, LogRecord, Read

REPLICATION: Final = "replication"
"""Rows about the copies: the lineages of this broker, and the offsets of its restored logs."""

COPIES_LINEAGE: Final = "copies"
"""Key of the lineage of this broker with which its copies of other states were made."""

SNAPSHOT_BYTES: Final = 1 << 20
"""Least bytes of live writes of a copy after which a snapshot replaces them."""

PLACES_PER_READ: Final = 64
"""Entries of the log of copies that one read covers while a copy is sent back."""

RowKey = tuple[str, str]


class WriteKind(IntEnum):
    """The kinds of writes in messages."""

    BEGIN = 0
    """A new copy begins; the present one stays until the new one is whole."""
    KEEP = 1
    """Records [first, end) of a log in the present copy belong to the new copy, too."""
    RECORDS = 2
    """Records of a log, from index `first` on."""
    ROWS = 3
    """Changes of rows."""
    CHOP = 4
    """Records of a log below index `first` are released."""
    TRUNCATE = 5
    """Records of a log from index `first` on are dropped."""
    ENDS = 6
    """A log of the new copy extends from `first` to `end`."""
    END = 7
    """The new copy is whole; `first` is the owner's lineage."""


_KINDS: Final = len(WriteKind)


def majority_of(replicas: int) -> int:
    """Return the number of disks that an acknowledged write is on."""
    return replicas // 2 + 1


def replicas_of(
    broker: BrokerNumber, neighbours: Sequence[BrokerNumber], replicas: int
) -> tuple[BrokerNumber, ...]:
    """Return the replicas of a broker: the next neighbours by number, cyclically."""
    after = [each for each in neighbours if each > broker]
    before = [each for each in neighbours if each < broker]
    return tuple([*sorted(after), *sorted(before)][: replicas - 1])


# ---------------------------------------------------------------- rows


def pack_row(table: str, key: str, value: Any) -> bytes:
    """Return a row as bytes; a value of None deletes it."""
    return json.dumps([table, key, _plain(value)], separators=(",", ":")).encode()


def unpack_row(packed: bytes) -> tuple[str, str, Any]:
    """Return the table, key and value of a row.

    Raises:
        ValueError: the bytes are no row.
    """
    try:
        table, key, value = json.loads(packed)
        found = _stored(value)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no row: {error}") from None
    if not (isinstance(table, str) and isinstance(key, str)):
        raise ValueError("a row without a key")
    return table, key, found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _stored(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return [_stored(each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- entries of the log


class _EntryKind(IntEnum):
    SNAPSHOT = 0
    LIVE = 1
    STAGED = 2
    DROPPED = 3


_HEAD: Final = struct.Struct(">BQQQB")
# kind of entry, owner, term, position, kind of write
_WRITE: Final = struct.Struct(">HQQI")
# bytes of the log's name, first, end, items
_SIZE: Final = struct.Struct(">I")


def _pack_entry(
    kind: _EntryKind, owner: BrokerNumber, term: int, position: int, write: CopyWrite
) -> LogRecord:
    name = write.log.encode()
    head = _HEAD.pack(kind, owner, term, position, write.kind)
    sizes = b"".join([_SIZE.pack(len(each)) for each in write.items])
    body = _WRITE.pack(len(name), write.first, write.end, len(write.items))
    return (head + body + name + sizes, *write.items)


def _unpack_entry(record: bytes) -> tuple[_EntryKind, BrokerNumber, int, int, CopyWrite]:
    kind, owner, term, position, written = _HEAD.unpack_from(record)
    size, first, end, count = _WRITE.unpack_from(record, _HEAD.size)
    at = _HEAD.size + _WRITE.size
    log = record[at : at + size].decode()
    at += size
    lengths = [each[0] for each in _SIZE.iter_unpack(record[at : at + count * _SIZE.size])]
    at += count * _SIZE.size
    items = []
    for length in lengths:
        items.append(record[at : at + length])
        at += length
    write = CopyWrite(written, log, first, end, tuple(items))
    return _EntryKind(kind), owner, term, position, write


# ---------------------------------------------------------------- copies


class Span(NamedTuple):
    """Records [first, end) of an owner's log, in the entry at a place of the log of copies."""

    first: int
    end: int
    place: int


@dataclass(slots=True)
class LogCopy:
    """The copy of a log: records from index `first` up to, and without, `next`."""

    first: int = 1
    next: int = 1
    spans: deque[Span] = field(default_factory=deque)

    def append(self, first: int, count: int, place: int) -> None:
        """Add records behind the last one."""
        if not self.spans and self.first == self.next:
            self.first = self.next = first
        assert first == self.next, f"records from {first} on, after {self.next - 1}"
        self.next = first + count
        self.spans.append(Span(first, self.next, place))

    def chop(self, first: int) -> None:
        """Release records below an index."""
        self.first = max(self.first, first)
        self.next = max(self.next, self.first)
        while self.spans and self.spans[0].end <= self.first:
            self.spans.popleft()

    def truncate(self, end: int) -> None:
        """Drop records from an index on."""
        self.next = min(self.next, end)
        while self.spans and self.spans[-1].first >= end:
            self.spans.pop()
        if self.spans and self.spans[-1].end > end:
            self.spans.append(self.spans.pop()._replace(end=end))

    def kept(self, first: int, end: int) -> "LogCopy":
        """Return the copy of records [first, end) alone."""
        found = LogCopy(self.first, self.next, deque(self.spans))
        found.truncate(end)
        found.chop(first)
        return found


@dataclass(slots=True)
class StateCopy:
    """The copy of one broker's state.

    Attributes:
        term: the incarnation of the owner that the copy is of.
        position: the number of the last write in it.
        lineage: the lineage that the owner's core has.
        rows: the rows, packed.
        logs: the logs by name.
        place: the place of its last snapshot.
        live_bytes: bytes of the writes behind the snapshot.
        snapshot_bytes: size of the snapshot.
    """

    term: int
    position: int = 0
    lineage: int = 0
    rows: dict[RowKey, bytes] = field(default_factory=dict)
    logs: dict[str, LogCopy] = field(default_factory=dict)
    place: int = 0
    live_bytes: int = 0
    snapshot_bytes: int = 0

    def apply(self, write: CopyWrite, place: int) -> None:
        """Apply a write in the entry at a place."""
        kind = write.kind
        if kind == WriteKind.ROWS:
            for each in write.items:
                table, key, value = unpack_row(each)
                if value is None:
                    self.rows.pop((table, key), None)
                else:
                    self.rows[table, key] = each
            return
        log = self.logs.setdefault(write.log, LogCopy())
        if kind == WriteKind.RECORDS:
            log.append(write.first, len(write.items), place)
        elif kind == WriteKind.CHOP:
            log.chop(write.first)
        else:
            log.truncate(write.first)

    def first_place(self) -> int:
        """Return the first place that the copy needs."""
        starts = [log.spans[0].place for log in self.logs.values() if log.spans]
        return min([self.place, *starts])

    def snapshot(self, place: int) -> CopyWrite:
        """Return the description of the copy, for the entry at a place."""
        self.place, self.live_bytes = place, 0
        logs = {
            name: [log.first, log.next, [[*span] for span in log.spans]]
            for name, log in self.logs.items()
        }
        head = json.dumps([self.lineage, logs]).encode()
        items = (head, *self.rows.values())
        self.snapshot_bytes = sum(map(len, items))
        return CopyWrite(WriteKind.END, "", 0, 0, items)

    @staticmethod
    def of_snapshot(term: int, position: int, write: CopyWrite, place: int) -> "StateCopy":
        """Return the copy that an entry describes."""
        lineage, logs = json.loads(write.items[0])
        copy = StateCopy(term, position, lineage, place=place)
        copy.snapshot_bytes = sum(map(len, write.items))
        for name, (first, end, spans) in logs.items():
            copy.logs[name] = LogCopy(first, end, deque(Span(*each) for each in spans))
        for each in write.items[1:]:
            table, key, _ = unpack_row(each)
            copy.rows[table, key] = each
        return copy


def replay(entries: Iterable[tuple[int, bytes]]) -> dict[BrokerNumber, StateCopy]:
    """Return the whole copies in a log of copies, by owner.

    Args:
        entries: places and contents, in order.
    """
    copies: dict[BrokerNumber, StateCopy] = {}
    for place, entry in entries:
        replay_entry(copies, place, entry)
    return copies


def replay_entry(copies: dict[BrokerNumber, StateCopy], place: int, entry: bytes) -> None:
    """Apply an entry of the log of copies."""
    kind, owner, term, position, write = _unpack_entry(entry)
    if kind == _EntryKind.SNAPSHOT:
        copies[owner] = StateCopy.of_snapshot(term, position, write, place)
        return
    if kind == _EntryKind.DROPPED:
        copies.pop(owner, None)
    copy = copies.get(owner)
    if kind == _EntryKind.LIVE and copy is not None and copy.term == term:
        copy.apply(write, place)
        copy.position = max(copy.position, position)
        copy.live_bytes += len(entry)


# ---------------------------------------------------------------- a replica


@dataclass(slots=True)
class _Transfer:
    """A copy on its way back to its owner.

    Attributes:
        spans: records that are not sent, with their logs.
        reading: first place of the entries that are being read; 0 for none.
    """

    copy: StateCopy
    spans: deque[tuple[str, Span]]
    reading: int = 0


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
        """Read the copies, or drop them; `is_read` is set after the last page.

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
        """Return the state of a broker's copy, for its owner; term 0 without a whole copy."""
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
            RemoteProtocolError: the writes are not the next ones of the copy.
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
            _check_order(owner, staged or StateCopy(term), message.writes)
            return
        if staged is None and (copy is None or copy.term != term):
            raise RemoteProtocolError(owner, "a live write without a copy")
        if staged is not None:
            if kinds[-1:] != [WriteKind.END] or WriteKind.BEGIN in kinds:
                raise RemoteProtocolError(owner, "a live write in an unfinished copy")
            return
        assert copy is not None
        if message.position != copy.position + bool(kinds):
            raise RemoteProtocolError(
                owner, f"write {message.position} after write {copy.position}"
            )
        if any(kind not in _LIVE for kind in kinds):
            raise RemoteProtocolError(owner, f"writes of kinds {kinds} in a whole copy")
        _check_order(owner, copy, message.writes)

    def on_writes(
        self, owner: BrokerNumber, message: CopyWrites
    ) -> tuple[list[LogRecord], CopyAck]:
        """Take writes; return the entries to append, and the acknowledgement once they are durable.

        `check` has passed. The owner receives the acknowledgement if it waits.
        """
        entries: list[LogRecord] = []
        staged = self._staged.get(owner)
        for write in message.writes:
            place = self._next + len(entries)
            if staged is None and write.kind != WriteKind.BEGIN:
                present = self.whole[owner]
                entry = _pack_entry(_EntryKind.LIVE, owner, message.term, message.position, write)
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
        """Add a write to a copy that is not whole yet; return that copy, None once it is whole."""
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
                entries.append(_pack_entry(_EntryKind.STAGED, owner, message.term, 0, write))
            staged.apply(write, place)
        return staged

    def _snapshot(self, owner: BrokerNumber, copy: StateCopy, place: int) -> LogRecord:
        write = copy.snapshot(place)
        return _pack_entry(_EntryKind.SNAPSHOT, owner, copy.term, copy.position, write)

    def drop(self, owner: BrokerNumber) -> list[LogRecord]:
        """Drop the copy of a broker that was decommissioned; return the entry to append."""
        self._staged.pop(owner, None)
        copy = self.whole.pop(owner, None)
        if copy is None:
            return []
        self._next += 1
        write = CopyWrite(WriteKind.BEGIN, "", 0, 0, ())
        return [_pack_entry(_EntryKind.DROPPED, owner, copy.term, copy.position, write)]

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
        """Begin to send a copy back to its owner.

        Raises:
            RemoteProtocolError: there is no whole copy of that term.
        """
        copy = self.whole.get(owner)
        if copy is None or copy.term != term:
            raise RemoteProtocolError(owner, f"a request for a copy of term {term}")
        spans = deque([(name, span) for name, log in copy.logs.items() for span in log.spans])
        self._transfers[owner] = _Transfer(copy, spans)
        return CopyWrites(owner, term, 0, True, (CopyWrite(WriteKind.BEGIN, "", 0, 0, ()),))

    def send_next(self, owner: BrokerNumber) -> CopyWrites | Read | None:
        """Return the next read for a copy on its way, its end, or None without such a copy."""
        transfer = self._transfers.get(owner)
        if transfer is None or transfer.reading:
            return None
        if not transfer.spans:
            del self._transfers[owner]
            return _end_of(owner, transfer.copy)
        place = transfer.reading = transfer.spans[0][1].place
        return Read(COPIES, place, min(place + PLACES_PER_READ, self._next))

    def on_places(
        self, owner: BrokerNumber, first: int, records: Sequence[bytes]
    ) -> CopyWrites | None:
        """Return the records of a copy on its way that a page has; None if it is not on its way."""
        transfer = self._transfers.get(owner)
        if transfer is None or transfer.reading != first:
            return None
        transfer.reading = 0
        writes = []
        while transfer.spans:
            log, span = transfer.spans[0]
            if not first <= span.place < first + len(records):
                break
            transfer.spans.popleft()
            write = _unpack_entry(records[span.place - first])[4]
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
        if write.kind >= _KINDS:
            raise ValueError(f"kind {write.kind}")
        if write.kind == WriteKind.ROWS:
            for each in write.items:
                unpack_row(each)


def _check_order(owner: BrokerNumber, copy: StateCopy, writes: Iterable[CopyWrite]) -> None:
    """Check that records follow the last ones of their logs.

    Raises:
        RemoteProtocolError: records are missing or repeated.
    """
    following = {name: log.next for name, log in copy.logs.items() if log.first < log.next}
    for write in writes:
        if write.kind == WriteKind.RECORDS:
            expected = following.get(write.log, write.first)
            if write.first != expected:
                raise RemoteProtocolError(
                    owner, f"record {write.first} of log {write.log}, not {expected}"
                )
            following[write.log] = write.first + len(write.items)
        elif write.kind == WriteKind.CHOP:
            if write.first > following.get(write.log, write.first):
                del following[write.log]
        elif write.kind in (WriteKind.TRUNCATE, WriteKind.KEEP):
            following.pop(write.log, None)


def _end_of(owner: BrokerNumber, copy: StateCopy) -> CopyWrites:
    """Return the rows and the end of a copy."""
    writes = end_writes(
        copy.rows.values(),
        {name: LogEnds(log.first, log.next) for name, log in copy.logs.items()},
        copy.lineage,
    )
    return CopyWrites(owner, copy.term, copy.position, True, tuple(writes))


def end_writes(
    rows: Iterable[bytes], logs: Mapping[str, LogEnds], lineage: int
) -> Iterator[CopyWrite]:
    """Yield the writes that make a copy whole."""
    yield CopyWrite(WriteKind.ROWS, "", 0, 0, tuple(rows))
    for name, ends in logs.items():
        yield CopyWrite(WriteKind.ENDS, name, ends.first, ends.next, ())
    yield CopyWrite(WriteKind.END, "", lineage, 0, ())


def rows_write(changes: Sequence[Change]) -> CopyWrite:
    """Return changes of rows as a write."""
    rows = tuple([pack_row(each.table, each.key, each.value) for each in changes])
    return CopyWrite(WriteKind.ROWS, "", 0, 0, rows)
