"""Tests of crashes at any moment of short histories of a log volume: no acknowledged loss."""

import errno
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from brokerd.errors import DiskFailed, LogDamaged, StorageCorrupt
from brokerd.protocols.interface import Append, Event, LogEnds, Persisted, Read
from brokerd.runtime.disk import DurableWrites, LogWriter
from brokerd.storage import log_volume
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import MARK_NAME, LogVolume
from tests.helpers.crash_states import Contents, CrashStates
from tests.helpers.memory_storage import Cut, MemoryFiles, Removed, Step
from tests.helpers.patience import PATIENCE_S

FOLDER = Path("/logs")
MARK = str(FOLDER / MARK_NAME)
LOGS = ("a", "b")
SEED = 7
LEAST_STATES = 60_000

Table = dict[str, tuple[int, tuple[bytes, ...]]]
"""The first index of every log, and the records from there on."""


def read_all(volume: LogVolume, ends: dict[str, tuple[int, int]]) -> Table:
    table: Table = {}
    for log, (first, end) in ends.items():
        records: list[bytes] = []
        while first + len(records) < end:
            records += volume.read(log, first + len(records), end, 1 << 20)
        table[log] = (first, tuple(records))
    return table


def recovered(files: MemoryFiles) -> tuple[Table, LogVolume]:
    volume = LogVolume(FOLDER, files=files)
    return read_all(volume, volume.begin(LOGS, recovering=True)), volume


@dataclass
class History:
    """A volume in memory, its plain table, and the table after every group.

    `acknowledged`: per group, the length of the trail when the group became durable.
    """

    segment_bytes: int
    most_bytes: int
    files: MemoryFiles = field(default_factory=MemoryFiles)
    table: Table = field(default_factory=lambda: dict.fromkeys(LOGS, (1, ())))
    tables: list[Table] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files.most_bytes = self.most_bytes
        self.tables.append(dict(self.table))
        self.acknowledged.append(0)
        self.restart()

    def restart(self) -> None:
        self.volume = LogVolume(FOLDER, self.segment_bytes, files=self.files)
        self.volume.begin(LOGS, recovering=True)

    def write(self, *entries: LogEntry) -> None:
        for entry in entries:
            first, records = self.table[entry.log]
            if entry.kind is EntryKind.APPENDED:
                records = (*records, b"".join(map(bytes, entry.content)))
            elif entry.kind is EntryKind.CHOPPED:
                first, records = entry.index, records[entry.index - first :]
            else:
                records = records[: entry.index - first]
            self.table[entry.log] = (first, records)
        self.tables.append(dict(self.table))
        self.volume.write(entries)
        self.acknowledged.append(len(self.files.trail))

    def acknowledged_at(self, moment: int) -> int:
        """Return the number of groups that were durable at this length of the trail."""
        return max(n for n, length in enumerate(self.acknowledged) if length <= moment)

    def entry(self, log: str, content: bytes, ahead: int = 0) -> LogEntry:
        first, records = self.table[log]
        return LogEntry(EntryKind.APPENDED, log, first + len(records) + ahead, [content])


def one(history: History) -> None:
    history.write(history.entry("a", b"one"))


def three_in_two_logs(history: History) -> None:
    entries = [history.entry("a", b"zero\0\0"), history.entry("a", bytes(9), 1)]
    history.write(*entries, history.entry("b", b""))


def over_sectors(history: History) -> None:
    history.write(history.entry("b", bytes(range(1, 251)) * 4))


def own_framing(history: History) -> None:
    """Write a record with the bytes that the log has on disk so far."""
    history.write(history.entry("a", b"".join(history.files.read_all().values())[-700:]))


def chop(history: History) -> None:
    changes = []
    for log, (first, records) in history.table.items():
        changes.append(LogEntry(EntryKind.CHOPPED, log, first + len(records)))
    history.write(*changes)


def truncate(history: History) -> None:
    first, records = history.table["a"]
    index = first + max(0, len(records) - 1)
    history.write(LogEntry(EntryKind.TRUNCATED, "a", index))


def restart(history: History) -> None:
    history.restart()


Operation = Callable[[History], None]
OPERATIONS: tuple[Operation, ...] = (
    *(one, three_in_two_logs, over_sectors, own_framing, chop, truncate, restart),
)
OF_AN_EMPTY_VOLUME = (chop, truncate, restart)
"""Operations that leave an empty volume empty: the longest histories skip them at the start."""
SHAPES = ((1 << 20, 1 << 20), (120, 1 << 20), (1 << 20, 300))
"""Bytes of a segment, and bytes that the file system writes at once."""


@dataclass
class Explored:
    """Counts of an exploration.

    Attributes:
        states: distinct states per history, or equal states with more acknowledged.
        one_bit_missing: a crash lost a single bit of a group, so that the group is
            indistinguishable from a damaged durable group; recovery refuses the group as damaged.
    """

    states: int = 0
    repaired: int = 0
    crashed_again: int = 0
    one_bit_missing: int = 0


def explore(longest: int, operations: tuple[Operation, ...], seen: Explored) -> None:
    """Run every history of up to `longest` operations, with crashes throughout the last."""
    for segment_bytes, most_bytes in SHAPES:
        for count in range(longest + 1):
            for performed in product(operations, repeat=count):
                if count > 2 and performed[0] in OF_AN_EMPTY_VOLUME:
                    continue
                history = History(segment_bytes, most_bytes)
                known: set[int] = set()
                began = 0
                for operation in performed:
                    began = len(history.files.trail)
                    operation(history)
                for moment, state in crashes(history.files.trail, began):
                    acknowledged = history.acknowledged_at(moment)
                    key = hash((acknowledged, *state.items()))
                    if key not in known:
                        known.add(key)
                        look(state, history, moment, seen)


def crashes(
    trail: list[Step], began: int, before: Contents | None = None
) -> Iterator[tuple[int, Contents]]:
    """Yield moments after step `began` of the trail, and the possible states after a crash."""
    states = CrashStates(before)
    for moment, step in enumerate(trail, 1):
        states.take(step)
        if moment > began:
            for state in states.all():
                yield moment, state


def look(state: Contents, history: History, moment: int, seen: Explored) -> None:
    """Recover, compare with the plain table, and continue; crash again during repairs."""
    seen.states += 1
    files = MemoryFiles(state)
    least = history.acknowledged_at(moment)
    try:
        kept, trail = compare(files, history, least, goes_on=seen.states % 8 == 0)
    except StorageCorrupt:
        assert missing_bits(state, history, moment) == 1
        seen.one_bit_missing += 1
        return
    if any(isinstance(step, Cut | Removed) for step in trail):
        seen.repaired += 1
        if seen.repaired % 32 == 1:
            for _, again in crashes(trail, 0, state):
                seen.crashed_again += 1
                compare(MemoryFiles(again), history, kept, kept, goes_on=False)


def missing_bits(state: Contents, history: History, moment: int) -> int:
    """Return the number of bits that differ from the written bytes, before any crash."""
    states = CrashStates()
    for step in history.files.trail[:moment]:
        states.take(step)
    written = states.everything()
    assert {path: len(data) for path, data in written.items()} == {
        path: len(data) for path, data in state.items()
    }
    return sum(
        (one ^ other).bit_count()
        for path, data in written.items()
        for one, other in zip(data, state[path], strict=True)
    )


def compare(
    files: MemoryFiles,
    history: History,
    least: int,
    most: int | None = None,
    *,
    goes_on: bool,
) -> tuple[int, list[Step]]:
    """Return the largest number of groups that fits the table, and the steps of recovery."""
    table, volume = recovered(files)
    trail = list(files.trail)
    fitting = [n for n, each in enumerate(history.tables) if each == table]
    fitting = [n for n in fitting if least <= n and (most is None or n <= most)]
    assert fitting, f"{table}\nis none of {history.tables[least:]}"
    if not goes_on:
        return fitting[-1], trail
    first, records = table["a"]
    volume.write([LogEntry(EntryKind.APPENDED, "a", first + len(records), [b"goes on"])])
    found, _ = recovered(files)
    assert found == {**table, "a": (first, (*records, b"goes on"))}
    return fitting[-1], trail


def test_no_crash_loses_an_acknowledged_publication(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """No half group and no foreign record appears, and no crash looks like damage."""
    seen = crash_everywhere(monkeypatch, OPERATIONS, 3)
    record_property(
        "measured",
        f"crash states of a log volume: {seen.states:,} in histories of up to 3 operations,"
        f" {seen.repaired:,} repaired, {seen.crashed_again:,} crashes in repairs,"
        f" {seen.one_bit_missing} like a changed bit, 0 acknowledged lost",
    )
    assert seen.states >= LEAST_STATES, seen
    assert seen.repaired > seen.states // 4
    assert seen.crashed_again
    assert seen.one_bit_missing <= seen.states // 1_000


def crash_everywhere(
    monkeypatch: pytest.MonkeyPatch, operations: tuple[Operation, ...], longest: int
) -> Explored:
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    seen = Explored()
    explore(longest, operations, seen)
    return seen


def test_every_changed_bit_is_detected(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The bits are 8 KiB in two segments, with the last group, which looks like a torn end.

    The machine has crashed, and the file of the mark is empty.
    """
    refused, harmless = change_bits(monkeypatch, 1)
    record_property("measured", f"changed bits of a log: {refused:,} refused, {harmless} harmless")
    assert refused + harmless >= 65_536


def two_segments() -> tuple[History, Contents]:
    history = History(segment_bytes=6_000, most_bytes=1 << 20)
    random = Random(SEED)
    while sum(map(len, history.files.read_all().values())) < 8 << 10:
        history.write(history.entry("a", random.randbytes(1_000)), history.entry("b", bytes(40)))
    return history, history.files.read_all()


def change_bits(monkeypatch: pytest.MonkeyPatch, step: int) -> tuple[int, int]:
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    history, sound = two_segments()
    sound[MARK] = b""
    refused, harmless = 0, 0
    for path, content in sound.items():
        whole = int.from_bytes(content, "big")
        for bit in range(0, 8 * len(content), step):
            changed = (whole ^ 1 << bit).to_bytes(len(content), "big")
            try:
                table, _ = recovered(MemoryFiles({**sound, path: changed}))
            except StorageCorrupt:
                refused += 1
                continue
            assert table == history.table, f"bit {bit} of {path}"
            harmless += 1
    return refused, harmless


def damage_the_last_group() -> tuple[int, int]:
    """Damage the last group by bytes, sectors or truncation; return counts of refused and accepted.

    The process has ended, but the machine has not.
    """
    _, sound = two_segments()
    path = max(each for each in sound if each != MARK)
    content, random = sound[path], Random(SEED)
    start = content.rindex(b"psl1")
    damaged = [content[:size] for size in range(start, len(content), 7)]
    for sector in range(start - start % 512 + 512, len(content), 512):
        damaged.append(content[:sector] + bytes(512) + content[sector + 512 :])
        damaged.append(content[:sector].ljust(len(content), b"\0"))
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(random.randrange(2, 9)):
            changed[random.randrange(start, len(content))] ^= random.randrange(1, 256)
        damaged.append(bytes(changed[: len(content)]))
    refused = 0
    for each in damaged:
        if each == content:
            continue
        try:
            recovered(MemoryFiles({**sound, path: each}))
        except StorageCorrupt:
            refused += 1
    return refused, len([each for each in damaged if each != content]) - refused


def test_damage_of_a_group_that_was_durable_is_no_torn_end(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    refused, taken_for_torn = damage_the_last_group()
    record_property("measured", f"damaged last groups of a log: {refused} refused, 0 dropped")
    assert refused > 300
    assert not taken_for_torn


def test_a_damaged_or_foreign_mark_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    history, sound = two_segments()
    mark = bytes(16) + (99).to_bytes(8, "big")
    other = {**sound, MARK: mark + zlib.crc32(mark).to_bytes(4, "big")}
    for contents in (other, {**sound, MARK: sound[MARK][:9]}, {**sound, MARK: bytes(28)}):
        files = MemoryFiles(contents)
        table, volume = recovered(files)
        assert table == history.table
        volume.write(
            [LogEntry(EntryKind.APPENDED, "a", table["a"][0] + len(table["a"][1]), [b"x"])]
        )
        volume.close()
        newest = max(each for each in files.read_all() if each != MARK)
        with pytest.raises(StorageCorrupt, match="was on disk"):
            recovered(MemoryFiles({**files.read_all(), newest: files.read_all()[newest][:-1]}))


def chopped_history(segment_bytes: int) -> History:
    """Return a volume with records before and behind chops, whose segments are partly removed."""
    history = History(segment_bytes, most_bytes=1 << 20)
    for number in range(3):
        history.write(history.entry("a", bytes([number]) * 30), history.entry("b", b"x"))
    for log in LOGS:
        history.write(LogEntry(EntryKind.CHOPPED, log, 3))
        history.write(history.entry(log, b"later"))
    return history


def without_damage(state: Contents) -> tuple[Table, MemoryFiles]:
    """Recover as a broker with an accepted loss does; return the table and the files."""
    files = MemoryFiles(state)
    volume = LogVolume(FOLDER, files=files)
    try:
        ends = volume.begin(LOGS, recovering=True)
    except LogDamaged:
        ends = volume.begin(LOGS, recovering=True, drops_damage=True)
    table = read_all(volume, ends)
    volume.accept_end()
    volume.close()
    return table, files


def test_a_crash_while_a_damaged_end_is_dropped_finds_the_damage_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next start drops the same, at whatever moment the crash came."""
    monkeypatch.setattr(log_volume.os, "urandom", Random(SEED).randbytes)
    states = 0
    for segment_bytes in (120, 300):
        sound = chopped_history(segment_bytes).files.read_all()
        for path in sorted(each for each in sound if each != MARK):
            data = sound[path]
            for place in (0, data.rindex(b"psl1") + 30):
                damaged = {**sound, path: data[:place] + b"?" + data[place + 1 :]}
                table, files = without_damage(damaged)
                known = set[int]()
                for _, state in crashes(files.trail, 0, damaged):
                    if (key := hash(tuple(state.items()))) not in known:
                        known.add(key)
                        found, again = without_damage(state)
                        assert found == table, (segment_bytes, path, place)
                        assert recovered(MemoryFiles(again.read_all()))[0] == table
                states += len(known)
    assert states > 100, states


def test_a_publication_waits_for_room_and_for_a_disk_that_hangs() -> None:
    """Later publications wait as well; none is reported as durable too early."""
    files = MemoryFiles()
    hangs, goes_on = threading.Event(), threading.Event()

    def before(operation: str) -> None:
        if operation == "sync" and hangs.is_set():
            goes_on.wait(PATIENCE_S)

    async def story() -> None:
        volume = LogVolume(FOLDER, files=files)
        ends = {log: LogEnds(*each) for log, each in volume.begin(LOGS, recovering=True).items()}
        told: list[Event] = []
        faults: list[str] = []
        writes = DurableWrites(record=lambda event, _: faults.append(event))
        writer = LogWriter(volume, ends, told.extend, writes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            writer.take(Append("a", ((b"one",),), 1))
            await writer.settle()
            files.room_bytes = 50
            writer.take(Append("a", ((bytes(500),),), 2))
            while "disk_full" not in faults:
                await trio.testing.wait_all_tasks_blocked()
            writer.take(Append("a", ((b"three",),), 3))
            assert told == [Persisted(1)]
            kept, _ = recovered(MemoryFiles(files.read_all()))
            assert kept["a"] == (1, (b"one",))
            hangs.set()
            files.before = before
            files.room_bytes = None
            while "disk_has_room" not in faults and not files.read_all():
                await trio.testing.wait_all_tasks_blocked()
            assert told == [Persisted(1)]
            goes_on.set()
            await writer.settle()
            assert told == [Persisted(1), Persisted(2), Persisted(3)]
            nursery.cancel_scope.cancel()

    trio.run(story, clock=None)
    table, _ = recovered(MemoryFiles(files.read_all()))
    assert table["a"] == (1, (b"one", bytes(500), b"three"))


@pytest.mark.parametrize("operation", ["append", "sync", "create", "sync_folder", "write_at"])
def test_an_input_output_error_ends_the_writer_and_nothing_is_called_durable(
    operation: str,
) -> None:
    files = MemoryFiles()
    volume = LogVolume(FOLDER, files=files)
    ends = {log: LogEnds(*each) for log, each in volume.begin(LOGS, recovering=True).items()}
    told: list[Event] = []

    def fail(name: str) -> None:
        if name == operation:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    files.before = fail
    writer = LogWriter(volume, ends, told.extend)
    writer.take(Append("a", ((b"one",),), 1))
    with pytest.raises(DiskFailed, match=os.strerror(errno.EIO)):
        trio.run(writer.run)
    assert told == []


def refuse_to_read(name: str) -> None:
    if name.startswith("read"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_log_that_cannot_be_read_is_not_begun_and_is_whole_when_it_can_be() -> None:
    history = History(1 << 20, 1 << 20)
    one(history)
    one(history)
    files = MemoryFiles(history.files.read_all(), before=refuse_to_read)
    with pytest.raises(OSError, match=r"/logs/00000001\.log: " + os.strerror(errno.EIO)):
        LogVolume(FOLDER, files=files).begin(LOGS, recovering=True)
    assert not any(isinstance(step, Cut | Removed) for step in files.trail), "it is not torn"
    table, _ = recovered(MemoryFiles(files.read_all()))
    assert table == history.table


def test_a_log_that_cannot_be_read_any_more_ends_its_writer() -> None:
    """Earlier acknowledged records stay; later records are lost."""
    files = MemoryFiles()
    volume = LogVolume(FOLDER, files=files)
    ends = {log: LogEnds(*each) for log, each in volume.begin(LOGS, recovering=True).items()}
    told: list[Event] = []
    writer = LogWriter(volume, ends, told.extend)
    writer.take(Append("a", ((b"one",),), 1))
    writer.take(Read("a", 1, 2))
    writer.take(Append("a", ((b"two",),), 2))
    files.before = refuse_to_read
    with pytest.raises(DiskFailed, match=r"/logs/00000001\.log: " + os.strerror(errno.EIO)):
        trio.run(writer.run)
    assert told == [Persisted(1)]
    table, _ = recovered(MemoryFiles(files.read_all()))
    assert table["a"] == (1, (b"one",))
