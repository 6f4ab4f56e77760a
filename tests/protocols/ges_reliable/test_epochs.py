"""An epoch log that is read from disk equals the log that wrote it, after any history."""

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import SourceId
from brokerd.model.losses import (
    LINEAGE_BITS,
    has_marker,
    last_lost_position,
    loss_marker,
    lost_range,
)
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.ges_reliable.epochs import EpochLog, Frontier
from brokerd.protocols.ges_reliable.state import LogAppend, LogRelease
from brokerd.protocols.interface import Chop, LogEnds, Read, RecordsRead
from tests.model.test_publication import contents

STORAGE, ROOT = 7, 5
SOURCES = SourceId(1, 0, 1), SourceId(1, 1, 1)
PAGE = 2


def published(source: SourceId, first: int, last: int) -> PublicationRun:
    """Return publications of one source; payloads tell source and number."""
    numbers = range(first, last + 1)
    payload = b"".join(b"%d.%03d" % (source.publisher, number) for number in numbers)
    return PublicationRun(source, numbers, (b"a",), bytes(len(numbers)), 5, (payload,))


class Disk:
    """A disk that outlives the logs on it; writes become durable one by one, in order."""

    def __init__(self, *, is_root: bool = True) -> None:
        self.is_root = is_root
        self.rows: dict[str, dict[str, Any]] = {}
        self.records: list[bytes] = []
        self.first = 1
        self.waiting: deque[Any] = deque()
        self.start()

    def start(self) -> EpochLog:
        """Start a storage on what is on the disk, and read the log."""
        self.waiting.clear()
        self.log = EpochLog(STORAGE, 9, is_root=self.is_root)
        ends = LogEnds(self.first, self.first + len(self.records))
        self.take(self.log.recover({table: dict(rows) for table, rows in self.rows.items()}, ends))
        self.write()
        assert self.log.is_read
        return self.log

    def take(self, effects: Iterable[Any]) -> None:
        self.waiting.extend(effects)

    def write(self, most: int = 1 << 30) -> None:
        """Perform effects, in order."""
        while self.waiting and most:
            most -= 1
            match self.waiting.popleft():
                case LogAppend(record, event):
                    self.records.append(b"".join(map(bytes, record)))
                    self.log.on_appended(event)
                case LogRelease(changes, first):
                    for change in changes:
                        before = self.rows.setdefault(change.table, {}).get(change.key, 0)
                        assert change.value >= before, f"{change} takes {before} back"
                        self.rows[change.table][change.key] = change.value
                    self.take(self.log.on_released(first))
                case Chop(_, first):
                    assert self.first < first <= self.first + len(self.records)
                    self.records[: first - self.first] = []
                    self.first = first
                case Read(_, first, end):
                    page = self.records[first - self.first :][: min(PAGE, end - first)]
                    self.take(self.log.on_records(RecordsRead("storage", first, tuple(page))))


def state(log: EpochLog, released: int) -> dict[str, Any]:
    """Return epochs, numbers of sources, and the publications that are still needed."""
    return {
        "epochs": (log.assigned, log.durable),
        "reached": [each for each in log.reached() if each[0] in SOURCES],
        "stored": {source: log.stored(source) for source in SOURCES},
        "events": [
            (event.root, contents(event.run), [each.source for each in event.run.origins])
            for event in log.after(released)
        ],
    }


def check_restart(disk: Disk) -> None:
    """Restart on the same disk, and compare everything that is still needed."""
    disk.write()
    before = disk.log
    held = [*before.after(0)]
    assert before.retained() == sum(len(event.run) for event in held)
    assert before.retained_bytes == sum(event.run.payload_bytes() for event in held)
    needed = [event for event in held if event.run.last > before.released]
    assert held == needed
    assert len(disk.records) == len(needed), "the disk has what is not needed"
    released, expected = before.released, state(before, before.released)
    after = disk.start()
    assert state(after, released) == expected
    assert disk.rows.get("released", {}).get("", 0) <= after.released <= released
    assert after.retained_bytes == before.retained_bytes
    disk.take(after.release(released))
    disk.write()


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_is_read_equals_the_log_that_wrote_it(seed: int) -> None:
    random = Random(seed)
    disk = Disk()
    published_through = dict.fromkeys(SOURCES, 0)
    for _ in range(60):
        act, source = random.randrange(6), random.choice(SOURCES)
        log = disk.log
        if act < 2:
            first = published_through[source] + 1 - random.choice((0, 0, 1, 2))
            last = max(first, 1) + random.randrange(3)
            disk.take(log.store(published(source, max(first, 1), last), random.choice((3, 4))))
            published_through[source] = max(published_through[source], last)
        elif act == 2:
            disk.write(random.randrange(3))
            on_disk = max((n for event in log.after(0) for n in event.run.sequences), default=0)
            assert log.durable >= on_disk
            assert log.released <= log.durable <= log.assigned
        elif act == 3:
            disk.take(log.release(random.randint(log.released, log.durable)))
        elif act == 4:
            disk.write()
            assert log.durable == log.assigned
            assert all(log.stored(each) == published_through[each] for each in SOURCES)
        else:
            check_restart(disk)
    check_restart(disk)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_release_of_repeated_publications_decreases_no_frontier(restarts: bool) -> None:
    """The disk checks the rows: a number before a loss marker of the publisher may be the last."""
    disk, source = Disk(), SOURCES[0]
    for number in (1, 2):
        disk.take(disk.log.store(published(source, number, number), ROOT))
    disk.write()
    for effects in (disk.log.announce_loss(1), disk.log.repeat()):
        disk.take(effects)
    disk.write()
    behind = disk.log.lost_through
    log = disk.start() if restarts else disk.log
    for epoch in (2, behind + 1):
        disk.take(log.release(epoch))
        disk.write()
    assert disk.start().stored(source) == 2


def from_root(*numbers: tuple[int, int]) -> PublicationRun:
    """Return publications of the first source as another storage has them: (number, epoch)."""
    root = EpochLog(ROOT, 0)
    return merge_runs(
        [
            root._placed(range(epoch, epoch + 1), published(SOURCES[0], number, number))
            for number, epoch in numbers
        ]
    )


def test_a_storage_keeps_the_epochs_of_another_and_may_have_read_further() -> None:
    disk = Disk(is_root=False)
    disk.take(disk.log.keep(from_root((1, 3), (2, 4), (3, 9)), ROOT))
    disk.log.reach(12)
    assert (disk.log.assigned, disk.log.durable) == (12, 0)
    disk.write()
    assert (disk.log.assigned, disk.log.durable) == (12, 12)
    assert [event.run.sequences[0] for event in disk.log.after(3)] == [4]
    disk.log.reach(10)
    assert (disk.log.assigned, disk.log.durable) == (12, 12)
    after = disk.start()
    assert (after.assigned, after.durable) == (9, 9)
    check_restart(disk)
    disk.take(disk.log.release(4))
    check_restart(disk)
    with pytest.raises(AssertionError, match="behind 9"):
        disk.take(disk.log.keep(from_root((3, 9)), ROOT))


@pytest.mark.parametrize(
    "kept, is_root",
    [
        ((0, 2), True),
        ((1, 2), True),
        ((1, 0), True),
        ((0, 0), True),
        ((1, 0), False),
        ((0, 0), False),
    ],
)
def test_a_record_that_does_not_follow_is_a_fault_of_the_disk(
    kept: tuple[int, int], is_root: bool
) -> None:
    """A storage with publications of another one has no others between its epochs."""
    disk = Disk(is_root=is_root)
    for number in (1, 2, 3):
        disk.take(disk.log.store(published(SOURCES[0], number, number), 3))
    disk.write()
    disk.records = [disk.records[place] for place in kept]
    with pytest.raises(StorageCorrupt, match="epoch"):
        disk.start()


def test_a_log_is_truncated_again_and_once_at_a_time() -> None:
    disk = Disk()
    for number in range(1, 9):
        disk.take(disk.log.store(published(SOURCES[0], number, number), 3))
    disk.write()
    for through in (2, 3, 5):
        disk.take(disk.log.release(through))
    assert len(disk.waiting) == 1, "two truncations at once"
    disk.write()
    assert len(disk.records) == 3
    for through in (6, 8):
        disk.take(disk.log.release(through))
        disk.write()
        assert len(disk.records) == 8 - through
    assert disk.rows["released"] == {"": 8}


LINEAGE = 7


def test_a_storage_continues_behind_a_loss_with_one_marker() -> None:
    disk = Disk()
    disk.take(disk.log.store(published(SOURCES[0], 1, 2), 3))
    disk.write()
    end = last_lost_position(LINEAGE)
    disk.take(disk.log.announce_loss(LINEAGE))
    assert not disk.log.is_announced
    disk.write()
    assert disk.log.is_announced
    assert (disk.log.assigned, disk.log.durable) == (end, end)
    (marker,) = (event for event in disk.log.after(2))
    assert has_marker(marker.run)
    assert lost_range(marker.run) == (SourceId(STORAGE, 0, 0), 3, end)
    assert [*disk.log.announce_loss(LINEAGE)] == []
    disk.take(disk.log.store(published(SOURCES[0], 3, 3), 3))
    check_restart(disk)
    assert disk.log.assigned == end + 1


@pytest.mark.parametrize("number", [0, LINEAGE << LINEAGE_BITS])
def test_the_marker_of_a_loss_is_no_publication_of_a_publisher(number: int) -> None:
    """A publisher that restarted after the loss lost its first publication."""
    disk, source = Disk(), SourceId(STORAGE, number, LINEAGE)
    disk.take(disk.log.announce_loss(LINEAGE))
    disk.write()
    for _ in range(2):
        assert disk.log.stored(source) == 0
        assert not disk.log.has(source, 1, 1)
        disk.start()
    disk.take(disk.log.store(published(source, 1, 1), 3))
    disk.write()
    assert disk.log.stored(source) == 1
    assert len([*disk.log.after(last_lost_position(LINEAGE))]) == 1


def lost(first: int, last: int) -> PublicationRun:
    """Return the marker of lost publications of the first source."""
    return loss_marker(SourceId(STORAGE, 0, LINEAGE), 1, SOURCES[0], first, last)


@pytest.mark.parametrize(
    "first, last, begins, reached",
    [
        (5, 7, None, 4), (4, 7, 4, 7), (3, 7, 4, 7), (1, 4, 4, 4), (1, 3, None, 3), (4, 4, 4, 4),
        (2, 9, 4, 11),
    ],
)  # fmt: skip
def test_a_marker_replaces_lost_publications_next_to_the_frontier(
    first: int, last: int, begins: int | None, reached: int
) -> None:
    """Publications up to 3 were taken, and 10 and 11 wait."""
    frontier = Frontier()
    frontier.take(published(SOURCES[0], 1, 3), 9)
    frontier.take(published(SOURCES[0], 10, 11), 9)
    parts = frontier.skip(lost(first, last), 3)
    if begins is None:
        assert parts == []
        assert frontier.reached == 3
        return
    assert has_marker(parts[0].run)
    assert lost_range(parts[0].run) == (SOURCES[0], begins, last)
    assert frontier.reached == reached
    assert len(parts) == 1 + (reached == 11)
    assert frontier.waiting() == (0 if reached == 11 else 2)


def test_a_frontier_has_what_it_took_and_what_waits_without_a_gap() -> None:
    frontier = Frontier()
    frontier.take(published(SOURCES[0], 1, 3), 9)
    frontier.take(published(SOURCES[0], 5, 6), 9)
    frontier.take(published(SOURCES[0], 7, 7), 9)
    for first, last, has in (
        (1, 3, True), (2, 4, False), (4, 4, False), (4, 5, False), (5, 7, True), (6, 7, True),
        (5, 8, False), (7, 7, True), (8, 8, False),
    ):  # fmt: skip
        assert frontier.has(first, last) == has, (first, last)
