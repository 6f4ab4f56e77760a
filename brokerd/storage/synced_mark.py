"""The mark of the last durable group of a volume, for the process that starts next.

A torn end and damage of the last group look alike: both have a wrong checksum. They differ in
whether that group was ever reported durable. So behind each durable group, its number is written
into a file of its own, over the number before, and no operation waits for that write: after a crash
of the process the mark is exact, after a crash of the machine it may be behind, and it is never
ahead.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

from brokerd.storage.files import Files
from brokerd.storage.log_groups import SALT_BYTES
from brokerd.storage.room import is_no_room

NAME: Final = "synced"
_MARK: Final = struct.Struct(f">{SALT_BYTES}sQ")  # salt of the segment, number of the group
_CHECKSUM: Final = struct.Struct(">I")
MARK_BYTES: Final = _MARK.size + _CHECKSUM.size


class SyncedMark:
    """The mark of the volume in a folder; the mark of another volume has no effect."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / NAME
        self._file = -1

    def group(self, salt: bytes) -> int:
        """Return the last group of a segment that the mark shows durable; 0 if there is none."""
        marked, number = self.newest()
        return number if marked == salt else 0

    def newest(self) -> tuple[bytes, int]:
        """Return the salt of a segment and its last group in the mark; 0 if there is no mark."""
        if NAME not in self._files.names(self._path.parent):
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
        names = self._files.names(self._path.parent)
        if NAME not in names or len(self._files.read(self._path)) != MARK_BYTES:
            if NAME in names:
                self._files.remove(self._path)
            file = self._files.create(self._path)
            try:
                self._files.append(file, bytes(MARK_BYTES))
                self._files.sync(file)
            finally:
                self._files.close(file)
        self._file = self._files.open(self._path, change=True)

    def write(self, salt: bytes, number: int) -> None:
        """Record that this group of a segment is durable, and all groups before.

        Raises:
            OSError: for other reasons than lack of room; without room the mark stays behind, and
                nothing is lost.
        """
        mark = _MARK.pack(salt, number)
        try:
            self._files.write_at(self._file, mark + _CHECKSUM.pack(zlib.crc32(mark)), 0)
        except OSError as error:
            if not is_no_room(error):
                raise

    def remove(self) -> None:
        """Remove the mark together with the volume."""
        if NAME in self._files.names(self._path.parent):
            self._files.remove(self._path)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1


def _checksum_of(data: bytes) -> int:
    (found,) = _CHECKSUM.unpack_from(data, _MARK.size)
    return int(found)
