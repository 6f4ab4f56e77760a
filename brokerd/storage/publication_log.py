"""The publication log: publications that must not be lost, until everybody has them.

Segments `00000001.log`, `00000002.log`, … of groups; a group is what was written and made
durable at once. What is released is noted in later groups; a segment goes when everything in
it, and in all before it, is released.

A segment begins with a salt, drawn for it and told to nobody. Groups are numbered through all
segments, and the salt is the key of each group's seal: whatever a payload contains, it is taken
for no group of this log.
"""

import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.errors import StorageCorrupt
from brokerd.storage.room import is_no_room

SEGMENT_BYTES: Final = 16 << 20
SALT_BYTES: Final = 16
_MAGIC: Final = b"psb2"
_OLD_MAGIC: Final = b"psb1"
_SEGMENT: Final = struct.Struct(f">4s{SALT_BYTES}sI")  # magic, salt, CRC-32 of the salt
_GROUP: Final = struct.Struct(">4sQII")  # magic, number, bytes of the body, CRC-32 of the body
_SEAL_BYTES: Final = 8
_HEAD_BYTES: Final = _GROUP.size + _SEAL_BYTES
_ENTRY: Final = struct.Struct(">BHQI")  # kind, bytes of the key, number, bytes of the content
_CONTENT: Final = 1
_RELEASED: Final = 2

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Something to be kept.

    Attributes:
        key: whose it is; entries of one key have rising numbers.
        number: the highest that it holds.
        content: pieces; None releases everything of this key up to `number`.
    """

    key: bytes
    number: int
    content: Sequence[Buffer] | None


class PublicationLogFiles:
    """The log of one broker in a folder of its own; used by one thread at a time.

    Args:
        fsync: whether a write waits for the disk; without, it survives this process only.

    Raises:
        StorageCorrupt: what is in the folder is no log of ours, or a damaged one.
        OSError: the disk does not do what it should; the broker must not go on.
    """

    def __init__(
        self, folder: Path, segment_bytes: int = SEGMENT_BYTES, *, fsync: bool = True
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._fsync = fsync
        _sync_folder(folder.parent)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: dict[int, dict[bytes, int]] = {}
        self._released: dict[bytes, int] = {}
        self._segment = 0
        self._group = 1
        self._file = -1
        self._salt = b""
        self._size = 0
        self.torn_bytes = 0

    def begin(self, *, recovering: bool) -> list[LogEntry]:
        """What is in it and not released, in order; nothing, and gone, unless recovering.

        The end of the last group, if a crash cut it off, was never called durable: it is
        removed, and `torn_bytes` says how much that was. Nothing is written, so a full disk
        does not matter.
        """
        numbers = sorted(int(path.stem) for path in self._folder.glob("*.log"))
        if not recovering:
            for number in numbers:
                self._path(number).unlink()
            _sync_folder(self._folder)
            return []
        entries: list[LogEntry] = []
        for number in numbers:
            found = self._read(number, is_first=number == numbers[0], is_last=number == numbers[-1])
            entries.extend(entry for entry in found if entry.content is not None)
        return [entry for entry in entries if entry.number > self._released.get(entry.key, 0)]

    def write(self, entries: Sequence[LogEntry]) -> None:
        """Write entries as one group, which is durable when this returns.

        Raises:
            OSError: where there was no room (ENOSPC, EDQUOT), nothing has changed.
        """
        self._have_segment()
        pieces: list[Buffer] = []
        for entry in entries:
            content = entry.content or ()
            kind = _RELEASED if entry.content is None else _CONTENT
            size = sum(map(len, content))
            pieces += [_ENTRY.pack(kind, len(entry.key), entry.number, size), entry.key, *content]
        body = b"".join(pieces)
        head = _GROUP.pack(_MAGIC, self._group, len(body), zlib.crc32(body))
        group = head + _seal(head, self._salt) + body
        try:
            _write(self._file, group)
        except OSError as error:
            if is_no_room(error):
                os.ftruncate(self._file, self._size)
            raise
        if self._fsync:
            self._sync()
        self._size += len(group)
        self._group += 1
        for entry in entries:
            self._note(self._segment, entry)
        self._remove_what_is_released()

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # What is on disk now, nobody knows: not even a full disk may be waited for.
            raise OSError(errno.EIO, f"{self._folder}: {error}") from error

    def close(self) -> None:
        """Let go of the files."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _note(self, segment: int, entry: LogEntry) -> None:
        table = self._released if entry.content is None else self._segments[segment]
        table[entry.key] = max(table.get(entry.key, 0), entry.number)

    def _have_segment(self) -> None:
        """See that there is a segment with room; a full one grows longer on a full disk."""
        if self._file >= 0 and self._size < self._segment_bytes:
            return
        full = self._file
        try:
            self._open_segment()
        except OSError as error:
            if full < 0 or not is_no_room(error):
                raise
        else:
            if full >= 0:
                os.close(full)

    def _open_segment(self) -> None:
        """Go on in a new segment; where that fails, nothing has changed."""
        number, salt = self._segment + 1, os.urandom(SALT_BYTES)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._path(number), flags, 0o600)
        try:
            _write(file, _SEGMENT.pack(_MAGIC, salt, zlib.crc32(salt)))
            if self._fsync:
                os.fdatasync(file)  # before the first group, so a bad salt before groups is damage
            _sync_folder(self._folder)
        except OSError:
            os.close(file)
            self._path(number).unlink()
            raise
        self._file, self._segment, self._salt = file, number, salt
        self._segments[number] = {}
        self._size = _SEGMENT.size

    def _remove_what_is_released(self) -> None:
        removed = False
        for number in list(self._segments)[:-1]:
            highest = self._segments[number]
            if any(last > self._released.get(key, 0) for key, last in highest.items()):
                break
            self._path(number).unlink()
            del self._segments[number]
            removed = True
        if removed:
            _sync_folder(self._folder)
            living = {key for highest in self._segments.values() for key in highest}
            self._released = {k: last for k, last in self._released.items() if k in living}

    def _read(self, number: int, *, is_first: bool, is_last: bool) -> list[LogEntry]:
        path = self._path(number)
        data = path.read_bytes()
        salt = self._salt_of(path, data)
        if not salt:
            self._remove_unborn(path, data, is_last=is_last)
            return []
        entries: list[LogEntry] = []
        position = _SEGMENT.size
        if is_first and (first := _group_at(data, position, salt)) is not None:
            self._group = first.number  # those before it are released, and gone
        while position < len(data):
            group = _group_at(data, position, salt)
            if group is None:
                self._cut_off(path, data, position, salt, is_last=is_last)
                break
            if group.number != self._group:
                raise StorageCorrupt(
                    f"{path}: group {group.number} at byte {position} in place of {self._group}"
                )
            try:
                entries.extend(_entries(group.body))
            except (ValueError, struct.error) as error:
                raise StorageCorrupt(f"{path}: group at {position}: {error}") from error
            position += _HEAD_BYTES + len(group.body)
            self._group += 1
        self._segment = number
        self._segments[number] = {}
        for entry in entries:
            self._note(number, entry)
        return entries

    def _remove_unborn(self, path: Path, data: bytes, *, is_last: bool) -> None:
        """Remove a segment that a crash ended before anything could be in it."""
        if not is_last:
            raise StorageCorrupt(f"{path}: damaged at byte 0")
        self.torn_bytes = len(data)
        path.unlink()
        _sync_folder(self._folder)

    def _salt_of(self, path: Path, data: bytes) -> bytes:
        """The salt that a segment begins with; empty where a crash kept it from the disk."""
        if data.startswith(_OLD_MAGIC):
            raise StorageCorrupt(f"{path}: written by an earlier version of brokerd")
        if len(data) >= _SEGMENT.size:
            magic, salt, checksum = _SEGMENT.unpack_from(data)
            if magic == _MAGIC and zlib.crc32(salt) == checksum:
                return bytes(salt)
        if len(data) > _SEGMENT.size:
            raise StorageCorrupt(f"{path}: damaged at byte 0")
        return b""

    def _cut_off(
        self, path: Path, data: bytes, position: int, salt: bytes, *, is_last: bool
    ) -> None:
        """Remove a torn end; what is damaged before a whole group is no torn end."""
        follower = data.find(_MAGIC, position + 1)
        while follower >= 0 and not self._is_later_group(data, follower, salt):
            follower = data.find(_MAGIC, follower + 1)
        if follower >= 0 or not is_last:
            raise StorageCorrupt(f"{path}: damaged at byte {position}")
        self.torn_bytes = len(data) - position
        with path.open("r+b") as file:
            file.truncate(position)
            os.fsync(file.fileno())

    def _is_later_group(self, data: bytes, position: int, salt: bytes) -> bool:
        group = _group_at(data, position, salt)
        return group is not None and group.number > self._group

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.log"


@dataclass(frozen=True, slots=True)
class _Group:
    number: int
    body: memoryview


def _group_at(data: bytes, position: int, salt: bytes) -> _Group | None:
    """The whole group that begins there, if one does."""
    start = position + _HEAD_BYTES
    if len(data) < start:
        return None
    magic, number, size, checksum = _GROUP.unpack_from(data, position)
    head = data[position : position + _GROUP.size]
    # The seal first: it costs the same whatever size a payload pretends to have.
    if magic != _MAGIC or data[position + _GROUP.size : start] != _seal(head, salt):
        return None
    body = memoryview(data)[start : start + size]
    return _Group(number, body) if len(body) == size and zlib.crc32(body) == checksum else None


def _seal(head: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=_SEAL_BYTES, key=salt).digest()


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _entries(body: memoryview) -> Iterator[LogEntry]:
    position = 0
    while position < len(body):
        kind, key_size, number, size = _ENTRY.unpack_from(body, position)
        start = position + _ENTRY.size
        position = start + key_size + size
        if kind not in (_CONTENT, _RELEASED) or position > len(body):
            raise ValueError(f"an entry of kind {kind} with {size} bytes")
        content = [body[start + key_size : position]] if kind == _CONTENT else None
        yield LogEntry(bytes(body[start : start + key_size]), number, content)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
