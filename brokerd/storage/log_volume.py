"""Named logs on disk: durable records by index, kept until they are chopped.

All logs of a broker share one volume: segments `00000001.log`, `00000002.log`, … of groups; a group
contains entries of any logs that were written and made durable together. Chops and truncations are
entries of groups too. A segment is removed when all its records, and all records of earlier
segments, are chopped; the first group of each segment records the ends of every log, so that
indices continue.

A segment begins with a salt that is drawn for the segment and kept secret. Groups are numbered
through all segments, and the salt is the key of each group's seal: no content of a record can pass
for a group of this volume. `synced` records which groups were confirmed durable.

Paper: [DS03] §4.2, the log volume that its persistent filtering subsystem writes to.
"""

import errno
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

from brokerd.errors import LogDamaged, StorageCorrupt
from brokerd.storage.files import (
    DISK,
    Files,
    SyncedMark,
    is_no_room,
    is_out_of_descriptors,
    is_transient,
    name_error,
    name_errors,
)
from brokerd.storage.log_groups import (
    HEAD_BYTES,
    SALT_BYTES,
    SEGMENT,
    EntryKind,
    Group,
    LogEntry,
    LogRun,
    LogState,
    SegmentState,
    body_bytes,
    ends_entry,
    entries_of,
    group_at,
    has_later_group,
    is_one_bit_off,
    next_of,
    pack_group,
    pack_segment,
    salt_of,
)

SEGMENT_BYTES: Final = 16 << 20
MARK_NAME: Final = "synced"


class LogVolume:
    """The logs of one broker, in a folder of their own; used by one thread at a time.

    Args:
        fsync: True if a write waits for the disk; else written data survive the end of the process
            only.
        files: the file system that has the folder.

    Attributes:
        torn_bytes: bytes of a group that a crash had cut off, and that were removed.
        lost_groups: groups that were durable, in segments that are not in the folder.

    Raises:
        StorageCorrupt: the folder contains no volume, or a damaged volume.
        OSError: the disk failed; the broker must not continue.
    """

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        fsync: bool = True,
        files: Files = DISK,
    ) -> None:
        files.make_folder(folder)
        files.sync_folder(folder.parent)
        self._files = files
        self._fsync = fsync
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._logs: dict[str, LogState] = {}
        self._segments: dict[int, SegmentState] = {}
        self._segment = 0
        self._group = 1
        self._file = -1
        self._size = 0
        self._mark = SyncedMark(files, folder / MARK_NAME)
        self._has_unsynced_removal = False
        self._turn: list[int] = []
        self.torn_bytes = 0
        self.lost_groups = 0

    @property
    def groups(self) -> int:
        """The number of groups ever written; all of them are durable."""
        return self._group - 1

    # ------------------------------------------------------------ beginning

    def begin(
        self, names: Iterable[str], *, recovering: bool, drops_damage: bool = False
    ) -> dict[str, tuple[int, int]]:
        """Return the first and next index of each log; logs of an earlier deployment are removed.

        The end of the last group, if a crash cut it off, was never reported durable: the end is
        removed, and `torn_bytes` is its size. Nothing is written without `drops_damage`, so a full
        disk does not matter.

        Args:
            drops_damage: True removes everything from the first damage on; see `lost_groups`.

        Raises:
            LogDamaged: a log has damage that no crash causes.
        """
        self._logs, self._segments, self._segment, self._group = {}, {}, 0, 1
        self._turn = []
        if not recovering:
            self.clear()
        numbers, wanted = self._numbers(), list(names)
        for number in numbers:
            try:
                self._recover(number, is_first=number == numbers[0], is_last=number == numbers[-1])
            except LogDamaged as damage:
                if not drops_damage:
                    raise
                self._add_logs(wanted)  # all of them have their ends behind the damage
                self._drop(numbers[numbers.index(number) :], damage.position)
                break
        else:
            self.lost_groups = self._count_lost()
        self._add_logs(wanted)
        return {name: (log.first, log.next) for name, log in self._logs.items()}

    def _add_logs(self, wanted: Sequence[str]) -> None:
        """Add the logs that are not on disk yet.

        Raises:
            StorageCorrupt: there is another log on disk.
        """
        for name in self._logs:
            if name not in wanted:
                raise StorageCorrupt(f"{self._folder}: has a log {name!r}, but not in {wanted}")
        for name in wanted:
            self._logs.setdefault(name, LogState())

    def _count_lost(self) -> int:
        """Return the number of durable groups behind the last group; group numbers never repeat."""
        salt, durable = self._mark.newest()
        is_missing = all(salt != segment.salt for segment in self._segments.values())
        return max(0, durable - self.groups) if is_missing else 0

    def _drop(self, numbers: Sequence[int], position: int) -> None:
        """Remove the later segments, and the first of them from a position on.

        A segment is removed once all of its records are chopped. The damage may have destroyed the
        entry that chopped them, which is written again. The order is for crashes: first a segment
        behind all others, with that entry and the ends of all logs, then the removal of the later
        segments, then the change of the damaged one. Until that change the damaged segment is not
        the last, and the damage is found once more.
        """
        first, path = numbers[0], self._path(numbers[0])
        if self._file >= 0:  # an earlier attempt found no room
            self._files.close(self._file)
            self._file = -1
        keeps_start = position > SEGMENT.size
        if not keeps_start:
            self._segments.pop(first, None)
        self.lost_groups = self._count_lost()
        self._segment = numbers[-1]
        self._write_group(list(self._missing_chops()))
        for number in numbers[1:]:
            self._files.remove(self._path(number))
        self._files.sync_folder(self._folder)
        if keeps_start:
            file = self._files.open(path, change=True)
            try:
                self._files.cut(file, position)
                self._files.sync(file)
            finally:
                self._files.close(file)
        else:
            self._files.remove(path)
        self._files.sync_folder(self._folder)
        self._remove_chopped()

    def _missing_chops(self) -> Iterator[LogEntry]:
        """Yield an entry that removes the records of each log that are in no segment."""
        for name, log in self._logs.items():
            first = log.places[0][0] if log.places else log.next
            if first > log.first:
                yield LogEntry(EntryKind.CHOPPED, name, first)

    def accept_end(self) -> None:
        """Accept the present end of the log, even if later groups were durable."""
        self._mark.remove()
        if self._file >= 0 and self._fsync:
            self._mark.open()
        self._files.sync_folder(self._folder)
        self.lost_groups = 0

    @property
    def is_empty(self) -> bool:
        """True if the folder has neither a segment nor a mark."""
        return not self._numbers() and not any(self._mark.newest())

    def clear(self) -> None:
        """Remove the files of an earlier deployment; not for a volume that has begun."""
        for number in self._numbers():
            self._files.remove(self._path(number))
        self._mark.remove()
        self._files.sync_folder(self._folder)

    def _numbers(self) -> list[int]:
        """Return the numbers of the segments.

        Raises:
            StorageCorrupt: a file is named like a segment, and is none.
        """
        numbers = []
        for name in self._files.names(self._folder):
            stem = name.removesuffix(".log")
            if stem == name:
                continue
            if not (stem.isascii() and stem.isdigit() and self._path(int(stem)).name == name):
                raise StorageCorrupt(
                    f"{self._folder / name}: no name of a segment, as 00000001.log; move the file "
                    "out of the folder"
                )
            numbers.append(int(stem))
        return sorted(numbers)

    def _recover(self, number: int, *, is_first: bool, is_last: bool) -> None:
        path = self._path(number)
        with name_errors(path):
            data = self._files.read(path)
        salt = self._salt_of(path, data)
        if is_first and number > 1 and (not salt or group_at(data, SEGMENT.size, salt) is None):
            # Earlier segments are removed after this group is durable: no crash tears it off.
            position = SEGMENT.size if salt else 0
            self._segments[number] = SegmentState(salt, self._files.identity(path))
            raise LogDamaged(f"{path}: damaged at byte {position}", position)
        if not salt:
            self._remove_unborn(path, data, is_last=is_last)
            return
        self._segment = number
        self._segments[number] = SegmentState(salt, self._files.identity(path))
        position = SEGMENT.size
        if is_first and (first := group_at(data, position, salt)) is not None:
            self._group = first.number  # earlier segments are chopped, and removed
        while position < len(data):
            group = group_at(data, position, salt)
            if group is None:
                self._cut_off(path, data, position, is_last=is_last)
                break
            if group.number != self._group:
                raise StorageCorrupt(
                    f"{path}: group {group.number} at byte {position} in place of {self._group}"
                )
            try:
                self._apply(position, entries_of(group.body))
            except ValueError as error:
                raise StorageCorrupt(f"{path}: group at byte {position}: {error}") from error
            position += group.size
            self._group += 1
        else:
            self._check_end(path, position)

    def _salt_of(self, path: Path, data: bytes) -> bytes:
        """Return the salt of a segment; empty if a crash kept the salt from the disk."""
        try:
            salt = salt_of(data)
        except ValueError as error:
            raise StorageCorrupt(f"{path}: {error}") from error
        if not salt and len(data) > SEGMENT.size:
            raise LogDamaged(f"{path}: damaged at byte 0", 0)
        return salt

    def _remove_unborn(self, path: Path, data: bytes, *, is_last: bool) -> None:
        """Remove a segment that a crash ended before any entry was written."""
        if not is_last:
            raise LogDamaged(f"{path}: damaged at byte 0", 0)
        self.torn_bytes = len(data)
        self._files.remove(path)
        self._files.sync_folder(self._folder)

    def _cut_off(self, path: Path, data: bytes, position: int, *, is_last: bool) -> None:
        """Remove a torn end.

        Raises:
            LogDamaged: the end is damaged and not torn: a whole group follows, or one bit differs.
        """
        salt = self._segments[self._segment].salt
        if not is_last or has_later_group(data, position, salt, self._group):
            raise LogDamaged(f"{path}: damaged at byte {position}", position)
        if is_one_bit_off(data, position, salt):
            text = f"{path}: damaged at byte {position}: a bit has changed"
            raise LogDamaged(text, position)
        if self._fsync and not self._mark.exists:
            # The file is durable before the first group of a segment, so no crash removes it.
            text = f"{path}: damaged at byte {position}: the file {MARK_NAME} is missing"
            raise LogDamaged(text, position)
        self._check_end(path, position)
        self.torn_bytes = len(data) - position
        file = self._files.open(path, change=True)
        try:
            self._files.cut(file, position)
            self._files.sync(file)
        finally:
            self._files.close(file)

    def _check_end(self, path: Path, position: int) -> None:
        """Check that no group from `position` on was ever reported durable."""
        durable = self._mark.number(self._segments[self._segment].salt)
        if durable >= self._group:
            raise LogDamaged(
                f"{path}: damaged at byte {position}: group {self._group} of {durable} was on disk",
                position,
            )

    # ------------------------------------------------------------ writing

    def write(self, entries: Sequence[LogEntry | LogRun]) -> None:
        """Write entries as one group, which is durable when this returns.

        Raises:
            OSError: if the cause is a lack of room or of descriptors, nothing has changed.
        """
        self._write_group(entries)
        self._remove_chopped()

    def _write_group(self, entries: Sequence[LogEntry | LogRun]) -> None:
        self._ensure_segment()
        if self._size == SEGMENT.size:
            ends = [ends_entry(name, log.first, log.next) for name, log in self._logs.items()]
            entries = [*ends, *entries]
        group = pack_group(entries, self._group, self._segments[self._segment].salt)
        try:
            self._append(self._file, group)
        except OSError as error:
            if is_no_room(error):
                self._files.cut(self._file, self._size)
            raise name_error(error, self._path(self._segment)) from error
        if self._fsync:
            self._sync()
        if self._files.end_of(self._file) != self._size + len(group):
            raise self._replaced(self._path(self._segment))
        self._check_names()
        if self._fsync:
            self._mark.write(self._segments[self._segment].salt, self._group)
        self._apply(self._size, entries)
        self._size += len(group)
        self._group += 1

    def _check_names(self) -> None:
        """Check that the names of the present segment and of one other file are still this log's.

        A segment that is renamed, replaced or covered by a mount takes writes that no restart
        finds. The other files are checked in turn, so that a write costs two look-ups at most.

        Raises:
            StorageCorrupt: a name belongs to another file, or to none.
        """
        if not self._turn:
            self._turn = [*self._segments]
            if not self._mark.is_in_place:
                raise self._replaced(self._folder / MARK_NAME)
        for number in dict.fromkeys((self._segment, self._turn.pop())):
            path, segment = self._path(number), self._segments.get(number)
            if segment is not None and self._files.identity(path) != segment.identity:
                raise self._replaced(path)

    @staticmethod
    def _replaced(path: Path) -> StorageCorrupt:
        return StorageCorrupt(
            f"{path} was removed or replaced while this broker was running; nothing was "
            "acknowledged since. Put the newest copy of the state folder back"
        )

    def close(self) -> None:
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1
        self._mark.close()

    def _apply(self, byte: int, entries: Iterable[LogEntry | LogRun]) -> None:
        """Apply the newest group, which begins at this byte of the newest segment, to the state.

        Raises:
            ValueError: the group cannot follow the present state.
        """
        highest = self._segments[self._segment].highest
        for entry in entries:
            if isinstance(entry, LogRun):
                self._apply_run(byte, entry, highest)
                continue
            name, index = entry.log, entry.index
            if entry.kind is EntryKind.ENDS:
                log = self._logs.setdefault(name, LogState(index, next_of(entry)))
                is_due = (log.first, log.next) == (index, next_of(entry))
            elif (found := self._logs.get(name)) is None:
                raise ValueError(f"{entry.kind.name} {index} of a log {name!r} without ends")
            else:
                log = found
                if entry.kind is EntryKind.APPENDED:
                    is_due = index == log.next
                    log.add_place(index, self._segment, byte)
                    log.next = index + 1
                    highest[name] = index
                elif entry.kind is EntryKind.CHOPPED:
                    is_due = log.first <= index <= log.next
                    log.chop(index)
                else:
                    is_due = log.first <= index <= log.next
                    log.truncate(self._group, index)
                    self._lower_highest(name, index - 1)
            if not is_due:
                raise ValueError(f"{entry.kind.name} {index} of log {name!r}: {log}"[:300])

    def _apply_run(self, byte: int, run: LogRun, highest: dict[str, int]) -> None:
        log = self._logs.get(run.log)
        if log is None or run.first != log.next:
            raise ValueError(f"records from {run.first} on of log {run.log!r}: {log}"[:300])
        log.add_place(run.first, self._segment, byte)  # that of all in this group
        log.next = run.first + len(run.records)
        highest[run.log] = log.next - 1

    def _lower_highest(self, name: str, last: int) -> None:
        for segment in self._segments.values():
            if segment.highest.get(name, 0) > last:
                segment.highest[name] = last

    def _sync(self) -> None:
        try:
            self._files.sync(self._file)
        except OSError as error:
            # The content of the disk is unknown now: not even a full disk may be waited for.
            text = f"{self._path(self._segment)}: {error.strerror or error}"
            raise OSError(errno.EIO, text) from error

    def _ensure_segment(self) -> None:
        """Ensure that there is a segment with room; on a full disk, a full segment grows longer."""
        if self._file >= 0 and self._size < self._segment_bytes:
            return
        full = self._file
        try:
            self._open_segment()
        except OSError as error:
            if full < 0 or not is_transient(error):
                raise
        else:
            if full >= 0:
                self._files.close(full)

    def _open_segment(self) -> None:
        """Open a new segment for writing; on an error, nothing has changed."""
        number, salt = self._segment + 1, os.urandom(SALT_BYTES)
        file = self._files.create(self._path(number))
        try:
            self._append(file, pack_segment(salt))
            if self._fsync:
                self._files.sync(file)  # before groups, so a bad salt before them is damage
                self._mark.open()
            self._files.sync_folder(self._folder)
        except OSError as error:
            self._files.close(file)
            self._files.remove(self._path(number))
            raise name_error(error, self._path(number)) from error
        self._file, self._segment, self._size = file, number, SEGMENT.size
        self._segments[number] = SegmentState(salt, self._files.identity(self._path(number)))

    def _remove_chopped(self) -> None:
        """Remove segments in which all records are chopped, except the segment that is written to.

        Each removal is durable before the next: a crash must not restore the first of two segments.
        Without a free descriptor, a later write continues: the group itself is written by now.
        """
        try:
            self._sync_removal()
            self._remove_unneeded()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise

    def _remove_unneeded(self) -> None:
        for number in list(self._segments)[:-1]:
            highest = self._segments[number].highest
            if any(last >= self._logs[name].first for name, last in highest.items()):
                break
            self._files.remove(self._path(number))
            del self._segments[number]
            self._has_unsynced_removal = True
            self._sync_removal()

    def _sync_removal(self) -> None:
        """Make the last removal of a segment durable."""
        if self._has_unsynced_removal:
            self._files.sync_folder(self._folder)
            self._has_unsynced_removal = False

    # ------------------------------------------------------------ reading

    def read(self, name: str, first: int, end: int, limit_bytes: int) -> list[bytes]:
        """Return records from index `first` on.

        At least one, before `end`, about `limit_bytes` of them.

        Raises:
            StorageCorrupt: the stored records are missing or changed.
        """
        log = self._logs[name]
        assert log.first <= first < end <= log.next, f"{name!r} [{first}, {end}): {log}"[:300]
        _, segment, byte = log.places[bisect_right(log.places, first, key=itemgetter(0)) - 1]
        found: list[bytes] = []
        size_bytes = 0
        for group in self._groups_from(segment, byte):
            for entry in entries_of(group.body):
                if entry.log != name:
                    continue
                if entry.kind is EntryKind.TRUNCATED:
                    del found[max(0, entry.index - first) :]
                elif (
                    entry.kind is EntryKind.APPENDED
                    and entry.index == first + len(found) < end
                    and not log.is_stale(group.number, entry.index)
                ):
                    found.append(bytes(entry.content[0]))
                    size_bytes += len(found[-1])
            if found and size_bytes >= limit_bytes:
                while len(found) > 1 and size_bytes - len(found[-1]) >= limit_bytes:
                    size_bytes -= len(found.pop())
                break
            if first + len(found) == end:
                break
        if not found:
            raise StorageCorrupt(f"{self._folder}: record {first} of log {name!r} is not there")
        return found

    def _groups_from(self, segment: int, byte: int) -> Iterator[Group]:
        for number in [each for each in self._segments if each >= segment]:
            path, salt = self._path(number), self._segments[number].salt
            with name_errors(path):
                file = self._files.open(path)
            try:
                while True:
                    with name_errors(path):
                        head = self._files.read_at(file, HEAD_BYTES, byte)
                        if not head:
                            break
                        body = self._files.read_at(file, body_bytes(head), byte + HEAD_BYTES)
                    group = group_at(head + body, 0, salt)
                    if group is None:
                        raise StorageCorrupt(f"{path}: damaged at byte {byte}")
                    yield group
                    byte += group.size
            finally:
                self._files.close(file)
            byte = SEGMENT.size

    def _append(self, file: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._files.append(file, left) :]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.log"
