"""State of a volume: its logs and segments in memory, and the mark of its last durable group."""

import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final

from brokerd.storage.files import Files, is_no_room
from brokerd.storage.log_groups import SALT_BYTES

_PLACE_EVERY_BYTES: Final = 64 << 10

NAME: Final = "synced"
_MARK: Final = struct.Struct(f">{SALT_BYTES}sQ")  # salt of the segment, number of the group
_CHECKSUM: Final = struct.Struct(">I")
MARK_BYTES: Final = _MARK.size + _CHECKSUM.size


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
    """A segment: its salt, and the highest index of each log with records in the segment."""

    salt: bytes
    highest: dict[str, int] = field(default_factory=dict)


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
