"""The segments of a log volume: sealed groups of entries, and their state in memory."""

import hashlib
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, count, repeat
from operator import itemgetter
from typing import Final

SALT_BYTES: Final = 16
MAGIC: Final = b"psl1"
OLD_MAGICS: Final = (b"psb1", b"psb2")
SEGMENT: Final = struct.Struct(f">4s{SALT_BYTES}sI")  # magic, salt, CRC-32 of the salt
_GROUP: Final = struct.Struct(">4sQII")  # magic, number, bytes of the body, CRC-32 of the body
SEAL_BYTES: Final = 8
HEAD_BYTES: Final = _GROUP.size + SEAL_BYTES
_ENTRY: Final = struct.Struct(">BBQI")  # kind, bytes of the log's name, index, bytes of the content
_NEXT: Final = struct.Struct(">Q")

Buffer = bytes | memoryview


class EntryKind(IntEnum):
    """The kinds of entries; every kind defines the meaning of `index`."""

    APPENDED = 1
    """`index` is that of this record."""
    CHOPPED = 2
    """`index` is the first that is left."""
    TRUNCATED = 3
    """`index` is the next; all records from there on are dropped."""
    ENDS = 4
    """`index` is the first that is left; `content` is the next."""


@dataclass(slots=True)
class LogEntry:
    """One change of one log, with the content in pieces.

    An entry is never changed. The class is not frozen because there is an entry per record, and
    frozen objects take three times as long to make.
    """

    kind: EntryKind
    log: str
    index: int
    content: Sequence[Buffer] = ()

    def content_bytes(self) -> int:
        return sum(map(len, self.content))


@dataclass(frozen=True, slots=True)
class LogRun:
    """Records of one log that were appended together, equivalent to an entry per record.

    Attributes:
        first: index of the first record.
        records: every record in pieces; at least one record.
    """

    log: str
    first: int
    records: Sequence[Sequence[Buffer]]

    def content_bytes(self) -> int:
        """Return the size of all records."""
        return sum(map(len, chain.from_iterable(self.records)))


@dataclass(frozen=True, slots=True)
class Group:
    """A whole group as stored on disk, checked."""

    number: int
    body: memoryview

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.body)


def ends_entry(log: str, first: int, next_index: int) -> LogEntry:
    """Return the entry that records the ends of a log."""
    return LogEntry(EntryKind.ENDS, log, first, (_NEXT.pack(next_index),))


def next_of(entry: LogEntry) -> int:
    """Return the next index of a log, from an entry with its ends."""
    (found,) = _NEXT.unpack(entry.content[0])
    return int(found)


def pack_segment(salt: bytes) -> bytes:
    """Return the first bytes of a segment."""
    return SEGMENT.pack(MAGIC, salt, zlib.crc32(salt))


def salt_of(data: bytes) -> bytes:
    """Return the salt at the start of a segment; empty if there is no salt.

    Raises:
        ValueError: the segment has another format; the text names it.
    """
    if data.startswith(OLD_MAGICS):
        raise ValueError("written by an earlier version of brokerd")
    if len(data) >= SEGMENT.size:
        magic, salt, checksum = SEGMENT.unpack_from(data)
        if magic == MAGIC and zlib.crc32(salt) == checksum:
            return bytes(salt)
    return b""


def pack_group(entries: Iterable[LogEntry | LogRun], number: int, salt: bytes) -> bytes:
    pieces: list[Buffer] = []
    for entry in entries:
        name = entry.log.encode()
        if isinstance(entry, LogRun):
            pieces += _pieces_of_run(entry, name)
        else:
            size = entry.content_bytes()
            pieces += (_ENTRY.pack(entry.kind, len(name), entry.index, size), name, *entry.content)
    body = b"".join(pieces)
    head = _GROUP.pack(MAGIC, number, len(body), zlib.crc32(body))
    return head + _seal(head, salt) + body


def _pieces_of_run(run: LogRun, name: bytes) -> Iterator[Buffer]:
    """Return the bytes of an entry per record, in pieces."""
    records = run.records
    sizes = [len(each[0]) if len(each) == 1 else sum(map(len, each)) for each in records]
    kind, name_size = repeat(EntryKind.APPENDED), repeat(len(name))
    heads = map(_ENTRY.pack, kind, name_size, count(run.first), sizes)
    if {*map(len, records)} == {1}:
        contents = chain.from_iterable(records)
        return chain.from_iterable(zip(heads, repeat(name), contents, strict=False))
    return chain.from_iterable(
        [(head, name, *each) for head, each in zip(heads, records, strict=True)]
    )


def body_bytes(head: bytes) -> int:
    """Return the number of bytes that follow the head of a group."""
    size: int = _GROUP.unpack_from(head)[2]
    return size


def read_checksum(head: bytes) -> int:
    """Return the CRC-32 that the body of a group should have, as stored in the head."""
    checksum: int = _GROUP.unpack_from(head)[3]
    return checksum


def head_at(data: bytes, position: int, salt: bytes) -> bool:
    """Return True if the head of a group begins at `position`, with any body."""
    head = data[position : position + _GROUP.size]
    return head.startswith(MAGIC) and data[position + _GROUP.size : position + HEAD_BYTES] == _seal(
        head, salt
    )


def group_at(data: bytes, position: int, salt: bytes) -> Group | None:
    """Return the whole group that begins at `position`, or None."""
    start = position + HEAD_BYTES
    if len(data) < start:
        return None
    # The seal is checked first: the cost does not depend on the claimed size of the body.
    if not head_at(data, position, salt):
        return None
    _, number, size, checksum = _GROUP.unpack_from(data, position)
    body = memoryview(data)[start : start + size]
    return Group(number, body) if len(body) == size and zlib.crc32(body) == checksum else None


def has_later_group(data: bytes, position: int, salt: bytes, number: int) -> bool:
    """Return True if a whole group with a number above `number` begins behind `position`."""
    found = data.find(MAGIC, position + 1)
    while found >= 0:
        group = group_at(data, found, salt)
        if group is not None and group.number > number:
            return True
        found = data.find(MAGIC, found + 1)
    return False


def entries_of(body: memoryview) -> Iterator[LogEntry]:
    """Yield the entries of a group; contents are slices.

    Raises:
        ValueError: the group is whole, but its body contains no valid entries.
    """
    position = 0
    while position < len(body):
        try:
            kind, name_size, index, size = _ENTRY.unpack_from(body, position)
        except struct.error as error:
            raise ValueError(str(error)) from error
        start = position + _ENTRY.size
        position = start + name_size + size
        if position > len(body):
            raise ValueError(f"an entry of {size} bytes")
        name = bytes(body[start : start + name_size]).decode()
        yield LogEntry(EntryKind(kind), name, index, (body[start + name_size : position],))


def _seal(head: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=SEAL_BYTES, key=salt).digest()


def is_one_bit_off(data: bytes, position: int, salt: bytes) -> bool:
    """Return True if a group would begin at `position` with one bit changed.

    None begins there as is.
    """
    head = data[position : position + HEAD_BYTES]
    if len(head) < HEAD_BYTES:
        return False
    if not head_at(data, position, salt):
        if not head[-SEAL_BYTES:].strip(b"\0"):
            return False  # torn: no single bit explains that
        rest = data[position + HEAD_BYTES :]
        return any(group_at(other + rest, 0, salt) for other in _with_one_bit_changed(head))
    body = data[position + HEAD_BYTES : position + HEAD_BYTES + body_bytes(head)]
    if len(body) < body_bytes(head):
        return False
    assert group_at(data, position, salt) is None, position
    return _is_of_one_bit(zlib.crc32(body) ^ read_checksum(head), len(body))


def _with_one_bit_changed(head: bytes) -> list[bytes]:
    number = int.from_bytes(head, "big")
    return [(number ^ 1 << bit).to_bytes(HEAD_BYTES, "big") for bit in range(8 * HEAD_BYTES)]


def _is_of_one_bit(difference: int, size: int) -> bool:
    """Return True if a change of one bit in `size` bytes changes their CRC by this difference."""
    for _ in range(size):
        if difference in _OF_THE_LAST_BYTE:
            return True
        row = _ROW_OF[difference >> 24]
        difference = (difference ^ _TABLE[row]) << 8 & 0xFFFF_FFFF | row
    return False


_TABLE: Final = tuple(zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256))
"""The difference of the CRC, for each change of the last byte."""
_ROW_OF: Final = {value >> 24: row for row, value in enumerate(_TABLE)}
_OF_THE_LAST_BYTE: Final = frozenset(_TABLE[1 << bit] for bit in range(8))


_PLACE_EVERY_BYTES: Final = 64 << 10


@dataclass(slots=True)
class LogState:
    """The state of one log.

    Attributes:
        places: (index, segment, byte) of groups, far apart, and the index of their first record; a
            search for a record starts at the last place that is not behind the record.
        stale: (group, first, end) of truncated records in groups before that group.
    """

    first: int = 1
    next: int = 1
    places: list[tuple[int, int, int]] = field(default_factory=list)
    stale: list[tuple[int, int, int]] = field(default_factory=list)

    def add_place(self, index: int, segment: int, byte: int) -> None:
        if self.places:
            _, last_segment, last_byte = self.places[-1]
            if last_segment == segment and byte - last_byte < _PLACE_EVERY_BYTES:
                return
        self.places.append((index, segment, byte))

    def chop(self, first: int) -> None:
        self.first = first
        del self.places[: max(0, bisect_right(self.places, first, key=itemgetter(0)) - 1)]
        self.stale = [row for row in self.stale if row[2] > first]

    def truncate(self, group: int, next_index: int) -> None:
        self.stale.append((group, next_index, self.next))
        self.next = next_index
        while self.places and self.places[-1][0] >= next_index:
            self.places.pop()

    def is_stale(self, group: int, index: int) -> bool:
        return any(group < before and first <= index < end for before, first, end in self.stale)


@dataclass(slots=True)
class SegmentState:
    """A segment: its salt, and the highest index of each log with records in the segment.

    Attributes:
        identity: device and inode of the file.
    """

    salt: bytes
    identity: tuple[int, int]
    highest: dict[str, int] = field(default_factory=dict)
