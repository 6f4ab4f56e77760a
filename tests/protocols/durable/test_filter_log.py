"""The log of matches compared with a history that is kept per subscription.

Paper: [DS03] §4.2.
"""

from random import Random

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.protocols.durable.catchup import Batch, BatchReader
from brokerd.protocols.durable.filtering_subsystem import (
    NO_RECORD,
    PAGE_RECORDS,
    FilterLog,
    MatchRecord,
)
from brokerd.protocols.interface import LogEnds, RecordsRead
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.memory_log import MemoryLog

MUTANTS = bugs_of("durable")

NAME = "matches"


class Twin:
    """A log of matches in memory and a simple model of the log.

    The model keeps a list of ticks per subscription, and the tick of the last truncation.
    """

    def __init__(self, page: int = 1_000, cached_pages: int = 64) -> None:
        self.cached_pages = cached_pages
        self.disk = MemoryLog(NAME, page)
        self.log = FilterLog(NAME, cached_pages)
        self.history: dict[int, list[int]] = {}
        self.written: list[int] = []
        self.chopped = 0

    def write(self, tick: int, subscriptions: list[int]) -> None:
        if not self.written or tick > self.written[-1]:
            self.written.append(tick)
            for each in subscriptions:
                self.history.setdefault(each, []).append(tick)
        self.disk.do(self.log.write([tick], subscriptions))

    def chop(self, through: int) -> None:
        gone = [tick for tick in self.written if tick <= through]
        self.chopped = max([self.chopped, *gone])
        self.disk.do(self.log.chop(through))

    def restart(self, keep_through: int) -> None:
        """Restart with the contents of the disk, and drop all records after a tick."""
        self.disk.answers()  # discarded
        self.log = FilterLog(NAME, self.cached_pages)
        self.disk.do(self.log.recover(self.disk.ends, keep_through, self.chopped))
        while not self.log.is_read:
            for event in self.disk.answers():
                self.disk.do(self.log.on_records(event))
        self.written = [tick for tick in self.written if tick <= keep_through]
        for ticks in self.history.values():
            ticks[:] = [tick for tick in ticks if tick <= keep_through]

    def batch(self, reader: BatchReader, after: int, through: int, position: int) -> Batch:
        reader.begin(after, through, position)
        while True:
            found, effects = reader.step()
            if found is not None:
                return found
            self.disk.do(effects)
            for event in self.disk.answers():
                self.disk.do(self.log.on_records(event))

    def expected(self, subscription: int, after: int, through: int, position: int, most: int):
        newest = self.written[-1] if self.written else self.chopped
        limit = max(after, self.chopped)
        upto = min(through, max(position, newest))
        ticks = [t for t in self.history.get(subscription, ()) if limit < t <= upto]
        if len(ticks) > most:
            ticks, upto = ticks[:most], ticks[most] - 1
        return Batch(after, limit, tuple(ticks), max(upto, limit))


def one_history(seed: int) -> None:
    """Run writes, truncations, restarts and complete catch-ups in a random order."""
    random = Random(seed)
    twin = Twin(page=random.choice((1, 3, 1_000)), cached_pages=random.choice((1, 2, 64)))
    position = 0
    for _ in range(random.randint(3, 12)):
        for _ in range(random.randint(0, 60)):
            position += random.randint(1, 4)
            if random.random() < 0.7:
                chosen = [each for each in range(5) if random.random() < 0.4]
                if chosen:
                    twin.write(position, chosen)
        if twin.written and random.random() < 0.3:
            twin.write(random.choice(twin.written), [random.randrange(5)])
        if random.random() < 0.4:
            twin.chop(random.randint(0, position))
        if random.random() < 0.2:
            keep = random.randint(twin.chopped, max(twin.chopped, position))
            twin.restart(keep)
            position = keep
        catch_up(twin, random, position)


def catch_up(twin: Twin, random: Random, position: int) -> None:
    subscription, most = random.randrange(6), random.randint(1, 50)
    reader = BatchReader(twin.log, subscription, most)
    after = random.randint(0, position)
    through = position + random.choice((0, 0, 5))
    while True:
        found = twin.batch(reader, after, through, position)
        full = twin.expected(subscription, after, through, position, most)
        if found != full:
            # A batch may end early at a mark, and then equals the history up to the mark.
            assert full.ticks[: len(found.ticks)] == found.ticks, f"{found} and {full}"
            assert after < found.upto <= full.upto, f"{found} and {full}"
            assert found.unknown_through == full.unknown_through, f"{found} and {full}"
            assert all(tick > found.upto for tick in full.ticks[len(found.ticks) :]), found
            assert len(found.ticks) == most or found.upto == full.upto, f"{found} and {full}"
        if found.upto <= after or found.upto >= position:
            return
        after = found.upto


SEEDS = range(1, 101)


def test_batches_equal_those_of_a_history_per_subscription() -> None:
    for seed in SEEDS:
        one_history(seed)


@pytest.mark.parametrize(
    "name",
    ["previous-of-another", "chopped-is-silent", "newest-in-place-of-oldest", "written-twice"],
)
def test_a_named_bug_is_seen(name: str) -> None:
    with plant([MUTANTS[name]]):
        for seed in SEEDS:
            try:
                one_history(seed)
            except (AssertionError, StorageCorrupt, ValueError):
                return
    pytest.fail(f"{name} survived {SEEDS}")


def test_the_papers_example() -> None:
    """[DS03] Fig. 2: s3 requests 1 to 10, receives 1 and 4, and 6 to 10 are unknown."""
    twin = Twin()
    s1, s2, s3 = 1, 2, 3
    for tick, subscriptions in ((1, [s1, s3]), (3, [s1, s2]), (4, [s2, s3]), (5, [s1])):
        twin.write(tick, subscriptions)
    found = twin.batch(BatchReader(twin.log, s3, 100), 0, 10, 5)
    assert found == Batch(0, 0, ticks=(1, 4), upto=5)
    index_of_tick_1 = 1
    fourth = MatchRecord.unpack(twin.disk.records[2])
    assert (fourth.tick, fourth.before(s3)) == (4, index_of_tick_1)
    assert MatchRecord.unpack(twin.disk.records[0]).before(s3) == NO_RECORD


@pytest.mark.parametrize("count", [1, 2, 25])
def test_a_record_has_the_size_of_the_paper(count: int) -> None:
    twin = Twin()
    twin.write(7, list(range(count)))
    assert [len(record) for record in twin.disk.records] == [8 + 16 * count]


def test_25_subscribers_cost_a_25th_of_logging_events_for_each() -> None:
    """[DS03] §5.1.2: every event of 418 bytes goes to 25 of 100 subscribers."""
    assert 25 < 25 * 418 / (8 + 16 * 25) < 26


def test_a_backlog_is_walked_a_few_times_however_small_the_batches_are() -> None:
    """A walk from the newest record for every batch would cost 200 times as much."""
    twin = Twin()
    backlog, most = 8_000, 20
    for tick in range(1, backlog + 1):
        twin.write(tick, [1])
    reader = BatchReader(twin.log, 1, most)
    after, seen = 0, []
    while after < backlog:
        found = twin.batch(reader, after, backlog, backlog)
        seen += found.ticks
        after = found.upto
    assert seen == list(range(1, backlog + 1))
    assert reader.visited <= 3 * backlog + 2 * most


def test_simultaneous_catch_ups_read_the_disk_once() -> None:
    twin = Twin(cached_pages=1_000)
    records = 20 * PAGE_RECORDS
    for tick in range(1, records + 1):
        twin.write(tick, list(range(10)))
    twin.restart(records)
    twin.log._pages.clear()  # as after many reads of other pages
    twin.disk.reads = 0
    readers = [BatchReader(twin.log, each, 5_000) for each in range(10)]
    for reader in readers:
        reader.begin(0, records, records)
    done: dict[BatchReader, Batch] = {}
    while len(done) < len(readers):
        for reader in readers:
            if reader not in done:
                found, effects = reader.step()
                twin.disk.do(effects)
                if found is not None:
                    done[reader] = found
        for event in twin.disk.answers():
            twin.disk.do(twin.log.on_records(event))
    assert all(batch.ticks == tuple(range(1, records + 1)) for batch in done.values())
    assert twin.disk.reads <= 21


def test_records_after_the_last_commit_are_dropped_and_rewritten() -> None:
    """The stream sends these ticks again, so old records would duplicate or hide matches."""
    twin = Twin()
    for tick in (10, 20, 30):
        twin.write(tick, [1])
    twin.restart(keep_through=20)
    assert twin.log.last_tick == 20
    twin.write(30, [1, 2])
    found = twin.batch(BatchReader(twin.log, 2, 10), 20, 30, 30)
    assert found.ticks == (30,)
    assert twin.batch(BatchReader(twin.log, 1, 10), 0, 30, 30).ticks == (10, 20, 30)


def test_a_record_that_is_none_is_refused_with_its_place() -> None:
    log = FilterLog(NAME)
    log.recover(LogEnds(4, 5), 100, 0)
    with pytest.raises(StorageCorrupt, match="log matches, record 4: 9 bytes"):
        log.on_records(RecordsRead(NAME, 4, (b"123456789",)))
