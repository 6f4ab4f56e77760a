"""Methods of storage for the events that durable subscribers miss, durable once per second.

A method stores the events of each subscriber in a folder, and returns the missed events of a
subscriber. Some methods store the contents as well.

Paper: [DS03] §5.1.2.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from brokerd.protocols.durable.catchup import BatchReader
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.interface import Append, Chop, LogEffect, RecordsRead
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume

WORD: Final = 8
_PAGE_BYTES: Final = 1 << 20
_ALL: Final = 1 << 40

Wanted = Mapping[int, Sequence[int]]
"""The subscribers of each event, by tick."""


class StorageMethod(ABC):
    """A method of storage, in a folder of its own; ticks ascend.

    Attributes:
        syncs: number of waits for the disk.
    """

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self.folder = folder
        self.subscribers = subscribers
        self.syncs = 0

    @abstractmethod
    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """Store events. The events are durable on return."""

    @abstractmethod
    def drop(self, through: int) -> None:
        """Drop events up to a tick; the removal may wait for the next write."""

    @abstractmethod
    def missed(self, subscriber: int, after: int) -> list[int]:
        """Return the ticks of a subscriber's events behind `after`, in ascending order."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class _OnVolume(StorageMethod):
    """Storage in logs of one volume, as in a broker: a group per second."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        super().__init__(folder, subscribers)
        self._volume = LogVolume(folder / "logs")
        self._volume.begin(self._names(), recovering=False)
        self._chops: list[LogEntry] = []

    @abstractmethod
    def _names(self) -> list[str]: ...

    def _write(self, entries: list[LogEntry]) -> None:
        self._volume.write([*entries, *self._chops])
        self._chops = []
        self.syncs += 1

    def close(self) -> None:
        self._volume.close()


class Matches(_OnVolume):
    """The log of matches of durable: per event a tick and, per subscriber, the record before."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self._log = FilterLog("matches")
        super().__init__(folder, subscribers)

    def _names(self) -> list[str]:
        return [self._log.name]

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        entries = []
        index = self._log.next
        for tick, subscribers in wanted.items():
            for effect in self._log.write((tick,), subscribers):
                assert isinstance(effect, Append), f"{effect}"
                for record in effect.records:
                    entries.append(LogEntry(EntryKind.APPENDED, effect.log, index, record))
                    index += 1
        self._write(entries)

    def drop(self, through: int) -> None:
        for effect in self._log.chop(through):
            assert isinstance(effect, Chop), f"{effect}"
            self._chops.append(LogEntry(EntryKind.CHOPPED, effect.log, effect.first))

    def missed(self, subscriber: int, after: int) -> list[int]:
        reader = BatchReader(self._log, subscriber, _ALL)
        reader.begin(after, _ALL, 0)
        while True:
            batch, effects = reader.step()
            if batch is not None:
                return [*batch.ticks]
            self._read(effects)

    def _read(self, effects: list[LogEffect]) -> None:
        """Answer read requests of the log, as a log writer does."""
        while effects:
            read = effects.pop()
            assert not isinstance(read, Append | Chop), f"{read}"
            first, end = getattr(read, "first"), getattr(read, "end")  # noqa: B009
            records = self._volume.read(read.log, first, end, _PAGE_BYTES)
            effects += self._log.on_records(RecordsRead(read.log, first, tuple(records)))


class EventsPerSubscriber(_OnVolume):
    """A log of events for each subscriber, on the same volume: the paper's comparison."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self._ticks: dict[int, list[int]] = {each: [] for each in subscribers}
        self._first = dict.fromkeys(subscribers, 1)
        super().__init__(folder, subscribers)

    def _names(self) -> list[str]:
        return [f"events.{each}" for each in self._ticks]

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        entries = []
        for tick, subscribers in wanted.items():
            event = (events[tick],)
            for each in subscribers:
                index = self._first[each] + len(self._ticks[each])
                self._ticks[each].append(tick)
                entries.append(LogEntry(EntryKind.APPENDED, f"events.{each}", index, event))
        self._write(entries)

    def drop(self, through: int) -> None:
        for each, ticks in self._ticks.items():
            dropped = sum(tick <= through for tick in ticks)
            if dropped:
                self._first[each] += dropped
                del ticks[:dropped]
                entry = LogEntry(EntryKind.CHOPPED, f"events.{each}", self._first[each])
                self._chops.append(entry)

    def missed(self, subscriber: int, after: int) -> list[int]:
        first = self._first[subscriber]
        end = first + len(self._ticks[subscriber])
        ticks: list[int] = []
        name = f"events.{subscriber}"
        while first < end:
            records = self._volume.read(name, first, end, _PAGE_BYTES)
            ticks += [int.from_bytes(each[:WORD], "big") for each in records]
            first += len(records)
        return [tick for tick in ticks if tick > after]


class _InSqlite(StorageMethod):
    """Storage in SQLite, a transaction per second, as safe as a broker's rows (WAL, FULL)."""

    tables: Sequence[str]

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        super().__init__(folder, subscribers)
        self._connection = sqlite3.connect(folder / "rows.sqlite3", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        for table in self.tables:
            self._connection.execute(f"CREATE TABLE {table} STRICT, WITHOUT ROWID")
        self._dropped = 0

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._insert(events, wanted)
        for table in self.tables:
            name = table.partition(" ")[0]
            self._connection.execute(f"DELETE FROM {name} WHERE tick <= ?", (self._dropped,))
        self._connection.execute("COMMIT")
        self.syncs += 1

    @abstractmethod
    def _insert(self, events: Mapping[int, bytes], wanted: Wanted) -> None: ...

    def drop(self, through: int) -> None:
        self._dropped = through

    def missed(self, subscriber: int, after: int) -> list[int]:
        name = self.tables[0].partition(" ")[0]
        rows = self._connection.execute(
            f"SELECT tick FROM {name} WHERE subscriber = ? AND tick > ? ORDER BY tick",
            (subscriber, after),
        )
        return [tick for (tick,) in rows]

    def close(self) -> None:
        self._connection.close()


class SqlitePerSubscriber(_InSqlite):
    """A row with the event for each subscriber."""

    tables = (
        "missed (tick INTEGER, subscriber INTEGER, event BLOB, PRIMARY KEY (tick, subscriber))",
    )

    def _insert(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        self._connection.executemany(
            "INSERT INTO missed VALUES (?, ?, ?)",
            ((tick, each, events[tick]) for tick, those in wanted.items() for each in those),
        )


class SqliteOnce(_InSqlite):
    """A row per event, and a row per subscriber; rows of the same second are adjacent."""

    tables = (
        "matches (tick INTEGER, subscriber INTEGER, PRIMARY KEY (tick, subscriber))",
        "events (tick INTEGER PRIMARY KEY, event BLOB)",
    )

    def _insert(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        self._connection.executemany("INSERT INTO events VALUES (?, ?)", events.items())
        self._connection.executemany(
            "INSERT INTO matches VALUES (?, ?)",
            ((tick, each) for tick, those in wanted.items() for each in those),
        )


class _InFiles(StorageMethod):
    """Storage in plain files, fsynced once per second; a new file for each part of the time."""

    PARTS: Final = 5
    """Seconds per file, which is removed when all seconds have been dropped."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        super().__init__(folder, subscribers)
        self._parts: list[tuple[Path, int]] = []
        self._seconds = 0
        self._open: dict[int, int] = {}

    def _append(self, pieces: Mapping[int, bytes], last: int) -> None:
        """Append to the files of the subscribers."""
        if self._seconds % self.PARTS == 0:
            self._close()
            part = self.folder / f"{self._seconds:06d}"
            part.mkdir()
            self._parts.append((part, last))
        self._seconds += 1
        part = self._parts[-1][0]
        self._parts[-1] = part, last
        for each, content in pieces.items():
            if each not in self._open:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._open[each] = os.open(part / str(each), flags, 0o600)
            written = os.write(self._open[each], content)
            assert written == len(content), f"{written} of {len(content)}"
            os.fdatasync(self._open[each])
            self.syncs += 1

    def drop(self, through: int) -> None:
        while len(self._parts) > 1 and self._parts[0][1] <= through:
            part, _ = self._parts.pop(0)
            for path in part.iterdir():
                path.unlink()
            part.rmdir()

    def _contents(self, name: int) -> Iterator[bytes]:
        for part, _ in self._parts:
            yield (part / str(name)).read_bytes()

    def _close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def close(self) -> None:
        self._close()


class FilePerSubscriber(_InFiles):
    """The events of each subscriber in a separate file."""

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        by_subscriber: dict[int, list[bytes]] = {}
        for tick, those in wanted.items():
            for each in those:
                by_subscriber.setdefault(each, []).append(events[tick])
        self._size = len(next(iter(events.values())))
        self._append({each: b"".join(some) for each, some in by_subscriber.items()}, max(events))

    def missed(self, subscriber: int, after: int) -> list[int]:
        ticks = [
            int.from_bytes(content[place : place + WORD], "big")
            for content in self._contents(subscriber)
            for place in range(0, len(content), self._size)
        ]
        return [tick for tick in ticks if tick > after]


class FileOnce(_InFiles):
    """All events in one file, with their subscribers: the least possible amount of data."""

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        pieces = []
        for tick, those in wanted.items():
            event = events[tick]
            pieces += [_word(WORD * (1 + len(those)) + len(event)), _word(len(those))]
            pieces += [*map(_word, those), event]
        self._append({0: b"".join(pieces)}, max(events))

    def missed(self, subscriber: int, after: int) -> list[int]:
        ticks = []
        for content in self._contents(0):
            place = 0
            while place < len(content):
                size, count = (_word_at(content, place + WORD * n) for n in range(2))
                begin = place + 2 * WORD
                those = [_word_at(content, begin + WORD * n) for n in range(count)]
                if subscriber in those:
                    ticks.append(_word_at(content, begin + WORD * count))
                place += WORD + size
        return [tick for tick in ticks if tick > after]


def _word(number: int) -> bytes:
    return number.to_bytes(WORD, "big")


def _word_at(content: bytes, place: int) -> int:
    return int.from_bytes(content[place : place + WORD], "big")


WAYS: Final[Mapping[str, type[StorageMethod]]] = {
    "matches": Matches,
    "events_per_subscriber": EventsPerSubscriber,
    "sqlite_per_subscriber": SqlitePerSubscriber,
    "sqlite_once": SqliteOnce,
    "file_per_subscriber": FilePerSubscriber,
    "file_once": FileOnce,
}
"""Methods by name; the first is the method of this project."""
