"""The two stores of one broker, and the possible contents of both after a crash.

The logs and the rows of a broker are written in parallel, by independent threads. While a group of
records and a transaction are both in flight, a crash may leave either in any state.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    Commit,
    Effect,
    Event,
    LogEffect,
    LogEnds,
    Persisted,
    Started,
    Truncate,
)
from brokerd.protocols.parts.bounds import LogBounds
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume
from brokerd.storage.sqlite_store import SqliteMetaStore
from tests.helpers.crash_states import Contents, CrashStates
from tests.helpers.memory_storage import MemoryFiles, Step
from tests.helpers.recorded_sqlite import recorded_sqlite

FOLDER = Path("/logs")
SEGMENT_BYTES = 1_500
"""So few bytes that segments end, and are removed, in a short story."""

Rows = Mapping[str, Mapping[str, Any]]
Logs = Mapping[str, tuple[int, tuple[bytes, ...]]]
"""By log: the first index, and the records from there on."""


States = Mapping[int, int]
"""Numbers of states with distinct bytes → numbers of the contents that a starting broker reads."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A step of a broker: an event, its effects, and the time."""

    now_ns: int
    event: Event
    effects: tuple[Effect, ...]


@dataclass(slots=True)
class Group:
    """Changes that were written together.

    Attributes:
        began: after this step the group may be in flight to the disk.
        ended: after this step the broker has confirmed this group, and thus all earlier groups.
        is_restart: whether a new incarnation has begun before the group.
    """

    changes: list[Any]
    began: int
    ended: int
    is_restart: bool = False


class _ChangesInFlight:
    """Changes of one store in flight, split into as many groups as possible."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._waiting: list[tuple[int, Any, int | None]] = []

    def take(self, step: int, change: Any, token: int | None) -> None:
        self._waiting.append((step, change, token))

    def durable(self, step: int, token: int) -> None:
        """Complete all changes through the one with this token."""
        places = [n for n, (*_, each) in enumerate(self._waiting) if each == token]
        if places:
            self._close(places[0] + 1, step)

    def restart(self, step: int) -> None:
        """Complete all changes in flight."""
        self._close(len(self._waiting), step)
        self.groups.append(Group([], step, step, is_restart=True))

    def _close(self, count: int, step: int) -> None:
        """Make a group of each step's changes, which may be written before later changes."""
        closed, self._waiting = self._waiting[:count], self._waiting[count:]
        for began, changes in groupby(closed, key=itemgetter(0)):
            self.groups.append(Group([change for _, change, _ in changes], began, step))


def list_groups(steps: Sequence[Taken]) -> tuple[list[Group], list[Group]]:
    """Return the groups of a broker's logs, and of the rows."""
    logs, rows = _ChangesInFlight(), _ChangesInFlight()
    for number, step in enumerate(steps):
        if isinstance(step.event, Started):
            logs.restart(number)
            rows.restart(number)
        elif isinstance(step.event, Persisted):
            logs.durable(number, step.event.token)
            rows.durable(number, step.event.token)
        for effect in step.effects:
            if isinstance(effect, Append | Chop | Truncate):
                token = effect.token if isinstance(effect, Append) else None
                logs.take(number, effect, token)
            elif isinstance(effect, Commit):
                rows.take(number, effect.changes, effect.token)
    return logs.groups, rows.groups


@dataclass
class Window:
    """One group, in flight or complete.

    Attributes:
        during: possible states after a crash while the group is in flight.
        behind: possible states once the group is complete and no other is in flight.
    """

    began: int
    ended: int
    during: States
    behind: States


@dataclass
class Store:
    """The possible remains of one of two stores after crashes.

    Attributes:
        found: different contents, as a starting broker reads them.
        refused: states that look like a changed bit, indistinguishable from damage.
    """

    windows: list[Window] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)
    refused: int = 0
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _seen: dict[Hashable, tuple[int, int]] = field(default_factory=dict)

    @property
    def states(self) -> int:
        """Return the number of distinct states."""
        return len(self._seen)

    def look(
        self, states: Iterable[Contents], read: Callable[[Contents], tuple[Hashable, Any]]
    ) -> States:
        """Read each state as a starting broker does; equal bytes once."""
        looked: dict[int, int] = {}
        for state in states:
            key = tuple(sorted(state.items()))
            if key not in self._seen:
                self._seen[key] = len(self._seen), self._read(state, read)
            number, found = self._seen[key]
            if found >= 0:
                looked[number] = found
        return looked

    def _read(self, state: Contents, read: Callable[[Contents], tuple[Hashable, Any]]) -> int:
        try:
            key, content = read(state)
        except StorageCorrupt:
            self.refused += 1
            return -1
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(content)
        return self._numbers[key]

    def at(self, step: int) -> Iterator[tuple[int, States]]:
        """Yield the possible states after a step, with a number for the changes in flight."""
        for number, window in enumerate(self.windows):
            if window.began <= step < window.ended:
                yield 2 * number, window.during
            elif window.ended <= step and self._is_last(number, step):
                yield 2 * number + 1, window.behind

    def _is_last(self, number: int, step: int) -> bool:
        return all(step < later.ended for later in self.windows[number + 1 :])


def crashed_logs(groups: Sequence[Group], names: Iterable[str]) -> Store:
    """Return the logs of a broker, in a volume in memory, with a crash at each moment."""
    files, store, states = MemoryFiles(), Store(), CrashStates()
    wanted = tuple(names)
    volume, bounds, chopped, taken = _open(files, wanted), LogBounds({}), {}, 0

    def read(state: Contents) -> tuple[Hashable, Logs]:
        reopened = LogVolume(FOLDER, SEGMENT_BYTES, files=MemoryFiles(state))
        table: dict[str, tuple[int, tuple[bytes, ...]]] = {}
        for log, (first, end) in reopened.begin(wanted, recovering=True).items():
            records: list[bytes] = []
            while first + len(records) < end:
                records += reopened.read(log, first + len(records), end, 1 << 20)
            table[log] = first, tuple(records)
        return tuple(table.items()), table

    def read_or_see_why(state: Contents) -> tuple[Hashable, Logs]:
        try:
            return read(state)
        except StorageCorrupt:
            assert _changed_bits(states.everything(), state) == 1
            raise

    for group in groups:
        if group.is_restart:
            volume.close()
            volume = _open(files, wanted)
            ends = volume.begin(wanted, recovering=True)
            bounds = LogBounds({log: LogEnds(*each) for log, each in ends.items()})
        entries = _entries(group.changes, bounds, chopped)
        if entries:
            volume.write(entries)
        during = chain(states.all(), _walk(states, files.trail[taken:]))
        looked = store.look(during, read_or_see_why)
        taken = len(files.trail)
        behind = store.look(states.all(), read_or_see_why)
        store.windows.append(Window(group.began, group.ended, looked, behind))
    volume.close()
    return store


def _changed_bits(written: Contents, left: Contents) -> int:
    """Return the number of changed bits if all files are complete, else a large number."""
    if {path: len(data) for path, data in written.items()} != {
        path: len(data) for path, data in left.items()
    }:
        return 1 << 30
    pairs = [pair for path, data in written.items() for pair in zip(data, left[path], strict=True)]
    return sum((one ^ other).bit_count() for one, other in pairs)


def _open(files: MemoryFiles, names: Iterable[str]) -> LogVolume:
    volume = LogVolume(FOLDER, SEGMENT_BYTES, files=files)
    volume.begin(names, recovering=True)
    return volume


def _entries(
    effects: Iterable[LogEffect], bounds: LogBounds, chopped: dict[str, int]
) -> list[LogEntry]:
    """Return one group of a log writer: chops are written with records, and wait for some."""
    entries = []
    for effect in effects:
        if isinstance(effect, Append):
            for index, record in enumerate(effect.records, bounds.append(effect)):
                entries.append(LogEntry(EntryKind.APPENDED, effect.log, index, record))
        elif isinstance(effect, Chop):
            if bounds.chop(effect):
                chopped[effect.log] = effect.first
        elif isinstance(effect, Truncate) and bounds.truncate(effect):
            entries.append(LogEntry(EntryKind.TRUNCATED, effect.log, effect.next))
    if entries:
        entries += [LogEntry(EntryKind.CHOPPED, log, first) for log, first in chopped.items()]
        chopped.clear()
    return entries


def _walk(states: CrashStates, trail: Iterable[Step]) -> Iterator[Contents]:
    for step in trail:
        states.take(step)
        yield from states.all()


def crashed_rows(groups: Sequence[Group], folder: Path, of_a_moment: int, random: Random) -> Store:
    """Return the rows of a broker, in SQLite, with a crash at each moment; a sample of states."""
    written, again = folder / "written", folder / "again"
    written.mkdir()
    again.mkdir()
    path, lengths = written / "meta.sqlite3", []
    with recorded_sqlite(str(path)) as recording:
        store = None
        for group in groups:
            if group.is_restart:
                if store is not None:
                    store.close()
                store = SqliteMetaStore(path)
                store.begin("d")
            assert store is not None, "a broker starts first"
            rows: dict[tuple[str, str], Change] = {}
            for changes in group.changes:
                rows |= {(each.table, each.key): each for each in changes}
            if rows:
                store.commit([(each.table, each.key, each.value) for each in rows.values()])
            lengths.append(len(recording.trail))
        assert store is not None, "a broker starts first"
        store.close()

    def read(state: Contents) -> tuple[Hashable, Rows]:
        for left in again.iterdir():
            left.unlink()
        for name, content in state.items():
            (again / Path(name).name).write_bytes(content)
        reopened = SqliteMetaStore(again / "meta.sqlite3", fsync=False)
        try:
            rows = reopened.begin("d").rows
        finally:
            reopened.close()
        return repr(rows), rows

    states, found, taken = CrashStates(folders=[str(written)]), Store(), 0
    for group, length in zip(groups, lengths, strict=True):
        during = states.some(random, of_a_moment)
        for step in recording.trail[taken:length]:
            states.take(step)
            during += states.some(random, of_a_moment)
        taken = length
        behind = found.look(states.some(random, of_a_moment), read)
        found.windows.append(Window(group.began, group.ended, found.look(during, read), behind))
    return found


def crashes(steps: int, logs: Store, rows: Store) -> Iterator[tuple[int, States, States]]:
    """Yield the possible joint states of two stores, after the last step that permits the pair."""
    last: dict[tuple[int, int], tuple[int, States, States]] = {}
    for step in range(steps):
        for log_window, log_states in logs.at(step):
            for row_window, row_states in rows.at(step):
                last[log_window, row_window] = step, log_states, row_states
    yield from last.values()
