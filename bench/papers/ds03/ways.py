"""Ways for a subscribers' broker to keep what somebody may have missed, all durable once a second.

Each keeps which events were for which subscribers, on the file system in a folder, and gives what
was for one of them back; some keep the events as well.

Paper: [DS03] §5.1.2.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from brokerd.protocols.durable.batch_read import BatchReader
from brokerd.protocols.durable.filter_log import FilterLog
from brokerd.protocols.interface import Append, Chop, LogEffect, RecordsRead
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume

WORD: Final = 8
_PAGE_BYTES: Final = 1 << 20
_ALL: Final = 1 << 40

Wanted = Mapping[int, Sequence[int]]
"""Of each of some events, which go by ticks, the subscribers that it is for."""


class Way(ABC):
    """One way, in a folder of its own; ticks only go up.

    Attributes:
        syncs: how often it has waited for the disk.
    """

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self.folder = folder
        self.subscribers = subscribers
        self.syncs = 0

    @abstractmethod
    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """Keep some events: they are durable when this returns."""

    @abstractmethod
    def drop(self, through: int) -> None:
        """Nobody will ask for what is up to here; that it is gone may wait for what comes next."""

    @abstractmethod
    def missed(self, subscriber: int, after: int) -> list[int]:
        """The ticks of the events behind `after` that are for a subscriber, lowest first."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""


class _OnVolume(Way):
    """In logs of one volume, as a broker writes them: one group a second."""

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
        """See Way."""
        self._volume.close()


class Matches(_OnVolume):
    """The log of matches of durable: per event a tick and, per subscriber, the record before."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self._log = FilterLog("matches")
        super().__init__(folder, subscribers)

    def _names(self) -> list[str]:
        return [self._log.name]

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """See Way."""
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
        """See Way."""
        for effect in self._log.chop(through):
            assert isinstance(effect, Chop), f"{effect}"
            self._chops.append(LogEntry(EntryKind.CHOPPED, effect.log, effect.first))

    def missed(self, subscriber: int, after: int) -> list[int]:
        """See Way."""
        reader = BatchReader(self._log, subscriber, _ALL)
        reader.begin(after, _ALL, 0)
        while True:
            batch, effects = reader.step()
            if batch is not None:
                return [*batch.ticks]
            self._read(effects)

    def _read(self, effects: list[LogEffect]) -> None:
        """Answer what is asked of the log, as a log writer does."""
        while effects:
            read = effects.pop()
            assert not isinstance(read, Append | Chop), f"{read}"
            first, end = getattr(read, "first"), getattr(read, "end")  # noqa: B009
            records = self._volume.read(read.log, first, end, _PAGE_BYTES)
            effects += self._log.on_records(RecordsRead(read.log, first, tuple(records)))


class EventsPerSubscriber(_OnVolume):
    """A log of events for each subscriber, on the same volume: what the paper compares with."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        self._ticks: dict[int, list[int]] = {each: [] for each in subscribers}
        self._first = dict.fromkeys(subscribers, 1)
        super().__init__(folder, subscribers)

    def _names(self) -> list[str]:
        return [f"events.{each}" for each in self._ticks]

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """See Way."""
        entries = []
        for tick, subscribers in wanted.items():
            event = (events[tick],)
            for each in subscribers:
                index = self._first[each] + len(self._ticks[each])
                self._ticks[each].append(tick)
                entries.append(LogEntry(EntryKind.APPENDED, f"events.{each}", index, event))
        self._write(entries)

    def drop(self, through: int) -> None:
        """See Way."""
        for each, ticks in self._ticks.items():
            gone = sum(tick <= through for tick in ticks)
            if gone:
                self._first[each] += gone
                del ticks[:gone]
                entry = LogEntry(EntryKind.CHOPPED, f"events.{each}", self._first[each])
                self._chops.append(entry)

    def missed(self, subscriber: int, after: int) -> list[int]:
        """See Way."""
        first = self._first[subscriber]
        end = first + len(self._ticks[subscriber])
        ticks: list[int] = []
        name = f"events.{subscriber}"
        while first < end:
            records = self._volume.read(name, first, end, _PAGE_BYTES)
            ticks += [int.from_bytes(each[:WORD], "big") for each in records]
            first += len(records)
        return [tick for tick in ticks if tick > after]


class _InSqlite(Way):
    """In SQLite, a transaction a second, as safe as a broker's rows (WAL, synchronous = FULL)."""

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
        """See Way."""
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
        """See Way."""
        self._dropped = through

    def missed(self, subscriber: int, after: int) -> list[int]:
        """See Way."""
        name = self.tables[0].partition(" ")[0]
        rows = self._connection.execute(
            f"SELECT tick FROM {name} WHERE subscriber = ? AND tick > ? ORDER BY tick",
            (subscriber, after),
        )
        return [tick for (tick,) in rows]

    def close(self) -> None:
        """See Way."""
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
    """Each event once, and a row for each subscriber; rows of one second lie side by side."""

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


class _InFiles(Way):
    """In plain files, each synced once a second; a new one for each part of the time."""

    PARTS: Final = 5
    """So many seconds are in one file, which goes when all of it has been dropped."""

    def __init__(self, folder: Path, subscribers: Sequence[int]) -> None:
        super().__init__(folder, subscribers)
        self._parts: list[tuple[Path, int]] = []
        self._seconds = 0
        self._open: dict[int, int] = {}

    def _append(self, pieces: Mapping[int, bytes], last: int) -> None:
        """Append to the file of each of these subscribers."""
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
        """See Way."""
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
        """See Way."""
        self._close()


class FilePerSubscriber(_InFiles):
    """The events of each subscriber in a file of its own."""

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """See Way."""
        by_subscriber: dict[int, list[bytes]] = {}
        for tick, those in wanted.items():
            for each in those:
                by_subscriber.setdefault(each, []).append(events[tick])
        self._size = len(next(iter(events.values())))
        self._append({each: b"".join(some) for each, some in by_subscriber.items()}, max(events))

    def missed(self, subscriber: int, after: int) -> list[int]:
        """See Way."""
        ticks = [
            int.from_bytes(content[place : place + WORD], "big")
            for content in self._contents(subscriber)
            for place in range(0, len(content), self._size)
        ]
        return [tick for tick in ticks if tick > after]


class FileOnce(_InFiles):
    """Each event once in one file, with the subscribers that it is for: as little as can be."""

    def write(self, events: Mapping[int, bytes], wanted: Wanted) -> None:
        """See Way."""
        pieces = []
        for tick, those in wanted.items():
            event = events[tick]
            pieces += [_word(WORD * (1 + len(those)) + len(event)), _word(len(those))]
            pieces += [*map(_word, those), event]
        self._append({0: b"".join(pieces)}, max(events))

    def missed(self, subscriber: int, after: int) -> list[int]:
        """See Way."""
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


WAYS: Final[Mapping[str, type[Way]]] = {
    "matches": Matches,
    "events_per_subscriber": EventsPerSubscriber,
    "sqlite_per_subscriber": SqlitePerSubscriber,
    "sqlite_once": SqliteOnce,
    "file_per_subscriber": FilePerSubscriber,
    "file_once": FileOnce,
}
"""By name; the first is ours."""
