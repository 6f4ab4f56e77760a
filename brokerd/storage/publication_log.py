"""The publication log: publications that must not be lost, until everybody has them.

Segments `00000001.log`, `00000002.log`, … of groups; a group is what was written and made
durable at once. What is released is noted in later groups; a segment goes when everything in
it, and in all before it, is released.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.errors import StorageCorrupt

SEGMENT_BYTES: Final = 16 << 20
_MAGIC: Final = b"psb1"
_GROUP: Final = struct.Struct(">4sII")  # magic, bytes of the body, CRC-32 of the body
_ENTRY: Final = struct.Struct(">BHQI")  # kind, bytes of the key, number, bytes of the content
_CONTENT: Final = 1
_RELEASED: Final = 2
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

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
        self._file = -1
        self._size = 0
        self.torn_bytes = 0

    def begin(self, *, recovering: bool) -> list[LogEntry]:
        """What is in it and not released, in order; nothing, and gone, unless recovering.

        The end of the last group, if a crash cut it off, was never called durable: it is
        removed, and `torn_bytes` says how much that was.
        """
        numbers = sorted(int(path.stem) for path in self._folder.glob("*.log"))
        entries: list[LogEntry] = []
        for number in numbers:
            if not recovering:
                self._path(number).unlink()
                continue
            found = self._read(number, is_last=number == numbers[-1])
            self._segments[number] = {}
            for entry in found:
                self._note(number, entry)
            entries.extend(entry for entry in found if entry.content is not None)
        self._open_segment(numbers[-1] + 1 if numbers else 1)
        return [entry for entry in entries if entry.number > self._released.get(entry.key, 0)]

    def write(self, entries: Sequence[LogEntry]) -> None:
        """Write entries as one group, which is durable when this returns.

        Raises:
            OSError: where there was no room (ENOSPC, EDQUOT), nothing has changed.
        """
        pieces: list[Buffer] = []
        for entry in entries:
            content = entry.content or ()
            kind = _RELEASED if entry.content is None else _CONTENT
            size = sum(map(len, content))
            pieces += [_ENTRY.pack(kind, len(entry.key), entry.number, size), entry.key, *content]
        body = b"".join(pieces)
        group = _GROUP.pack(_MAGIC, len(body), zlib.crc32(body)) + body
        left = memoryview(group)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            if error.errno in _NO_ROOM:
                os.ftruncate(self._file, self._size)
            raise
        if self._fsync:
            os.fdatasync(self._file)
        self._size += len(group)
        for entry in entries:
            self._note(max(self._segments), entry)
        if self._size >= self._segment_bytes:
            self._begin_next_segment()
        self._remove_what_is_released()

    def close(self) -> None:
        """Let go of the files."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _note(self, segment: int, entry: LogEntry) -> None:
        table = self._released if entry.content is None else self._segments[segment]
        table[entry.key] = max(table.get(entry.key, 0), entry.number)

    def _begin_next_segment(self) -> None:
        full = self._file
        try:
            self._open_segment(max(self._segments) + 1)
        except OSError as error:
            if self._file != full or error.errno not in _NO_ROOM:
                raise OSError(errno.EIO, f"{self._folder}: {error}") from error
            return  # what was written is durable; the segment grows a little longer
        os.close(full)

    def _open_segment(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path(number), flags, 0o600)
        _sync_folder(self._folder)
        self._segments[number] = {}
        self._size = 0

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

    def _read(self, number: int, *, is_last: bool) -> list[LogEntry]:
        path = self._path(number)
        data = path.read_bytes()
        entries: list[LogEntry] = []
        position = 0
        while position < len(data):
            body = _group_at(data, position)
            if body is None:
                self._cut_off(path, data, position, is_last=is_last)
                break
            try:
                entries.extend(_entries(body))
            except (ValueError, struct.error) as error:
                raise StorageCorrupt(f"{path}: group at {position}: {error}") from error
            position += _GROUP.size + len(body)
        return entries

    def _cut_off(self, path: Path, data: bytes, position: int, *, is_last: bool) -> None:
        """Remove a torn end; what is damaged before a whole group is no torn end."""
        follower = data.find(_MAGIC, position + 1)
        while follower >= 0 and _group_at(data, follower) is None:
            follower = data.find(_MAGIC, follower + 1)
        if follower >= 0 or not is_last:
            raise StorageCorrupt(f"{path}: damaged at byte {position}")
        self.torn_bytes = len(data) - position
        with path.open("r+b") as file:
            file.truncate(position)
            os.fsync(file.fileno())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.log"


def _group_at(data: bytes, position: int) -> memoryview | None:
    if len(data) - position < _GROUP.size:
        return None
    magic, size, checksum = _GROUP.unpack_from(data, position)
    start = position + _GROUP.size
    body = memoryview(data)[start : start + size]
    whole = magic == _MAGIC and len(body) == size and zlib.crc32(body) == checksum
    return body if whole else None


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
