"""The mark of the last durable write of a file, in a small file of its own.

A damaged end of a log, or of the journal of a database, looks like an end that a crash tore off.
The mark distinguishes the two: a write at or before the mark was durable, and is not torn. The mark
is written after the write is durable, and never waits for the disk. After a power failure it may be
behind, and then proves less.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

from brokerd.storage.files import Files, is_no_room

TAG_BYTES: Final = 16
_MARK: Final = struct.Struct(f">{TAG_BYTES}sQ")  # tag of the marked file, number of the write
_CHECKSUM: Final = struct.Struct(">I")
MARK_BYTES: Final = _MARK.size + _CHECKSUM.size


class SyncedMark:
    """The mark in a file; a damaged mark, or the mark of another tag, has no effect.

    Args:
        path: path of the mark.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file = -1

    def number(self, tag: bytes) -> int:
        """Return the number of the last write of a tag that the mark shows durable, or 0."""
        marked, number = self.newest()
        return number if marked == tag else 0

    def newest(self) -> tuple[bytes, int]:
        """Return the tag and the number in the mark; (b"", 0) if there is no valid mark."""
        if not self._exists():
            return b"", 0
        data = self._files.read(self._path)
        if len(data) != MARK_BYTES or zlib.crc32(data[: _MARK.size]) != _checksum_of(data):
            return b"", 0
        marked, number = _MARK.unpack_from(data)
        return bytes(marked), int(number)

    def open(self) -> None:
        """Open the file for writing; a new name is durable with the next sync of its folder."""
        if self._file >= 0:
            return
        exists = self._exists()
        if not exists or len(self._files.read(self._path)) != MARK_BYTES:
            if exists:
                self._files.remove(self._path)
            file = self._files.create(self._path)
            try:
                self._files.append(file, bytes(MARK_BYTES))
                self._files.sync(file)
            finally:
                self._files.close(file)
        self._file = self._files.open(self._path, change=True)

    def write(self, tag: bytes, number: int) -> None:
        """Record that this write of a tag is durable, and all writes before.

        Raises:
            OSError: for other reasons than lack of room; without room the mark stays behind, and
                nothing is lost.
        """
        mark = _MARK.pack(tag, number)
        try:
            self._files.write_at(self._file, mark + _CHECKSUM.pack(zlib.crc32(mark)), 0)
        except OSError as error:
            if not is_no_room(error):
                raise

    def remove(self) -> None:
        """Remove the mark together with the marked file."""
        if self._exists():
            self._files.remove(self._path)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1

    def _exists(self) -> bool:
        return self._path.name in self._files.names(self._path.parent)


def _checksum_of(data: bytes) -> int:
    (found,) = _CHECKSUM.unpack_from(data, _MARK.size)
    return int(found)
