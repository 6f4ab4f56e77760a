"""Copies of brokers' states at other brokers: contents and encoding.

A broker with clients numbers all writes, and sends the writes to the replicas. A replica appends
the writes to the log `copies`, and acknowledges durable writes. A copy is whole once all of
the owner's rows and records have arrived; a copy that is not whole is none, so a replica that lost
its disk counts again after it was filled only.

Entries of the log: a snapshot describes a whole copy, with the places of all records; a live write
changes the copy of the same term; a staged record belongs to a copy that is not whole yet, and
matters once a snapshot names the place.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.messages import CopyWrite
from brokerd.protocols.interface import Change, LogEnds, LogRecord

REPLICATION: Final = "replication"
"""Rows about the copies: the lineages of this broker, and the offsets of its restored logs."""

COPIES_LINEAGE: Final = "copies"
"""Key of the lineage of this broker with which its copies of other states were made."""

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
    """Return a row as bytes; a value of None deletes the row."""
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


class EntryKind(IntEnum):
    """The kinds of entries in the log of copies."""

    SNAPSHOT = 0
    LIVE = 1
    STAGED = 2
    DROPPED = 3


_HEAD: Final = struct.Struct(">BQQQB")
# kind of entry, owner, term, position, kind of write
_WRITE: Final = struct.Struct(">HQQI")
# bytes of the log's name, first, end, items
_SIZE: Final = struct.Struct(">I")


def pack_entry(
    kind: EntryKind, owner: BrokerNumber, term: int, position: int, write: CopyWrite
) -> LogRecord:
    """Return an entry of the log of copies."""
    name = write.log.encode()
    head = _HEAD.pack(kind, owner, term, position, write.kind)
    sizes = b"".join([_SIZE.pack(len(each)) for each in write.items])
    body = _WRITE.pack(len(name), write.first, write.end, len(write.items))
    return (head + body + name + sizes, *write.items)


def unpack_entry(record: bytes) -> tuple[EntryKind, BrokerNumber, int, int, CopyWrite]:
    """Return the kind, owner, term, position and write of an entry."""
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
    return EntryKind(kind), owner, term, position, write


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
        """Add records at the end."""
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
    """The copy of a broker's state.

    Attributes:
        term: the incarnation of the owner that the copy is of.
        position: the number of the last write.
        lineage: the lineage that the owner's core has.
        rows: the rows, packed.
        logs: the logs by name.
        place: the place of the last snapshot.
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
    kind, owner, term, position, write = unpack_entry(entry)
    if kind == EntryKind.SNAPSHOT:
        copies[owner] = StateCopy.of_snapshot(term, position, write, place)
        return
    if kind == EntryKind.DROPPED:
        copies.pop(owner, None)
    copy = copies.get(owner)
    if kind == EntryKind.LIVE and copy is not None and copy.term == term:
        copy.apply(write, place)
        copy.position = max(copy.position, position)
        copy.live_bytes += len(entry)


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
