"""A topic log that is read from disk equals the log that wrote it, after any history."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import SourceId
from brokerd.model.losses import LINEAGE_BITS, has_marker, last_lost_position, lost_range
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Append, Chop, Commit, LogEnds, Read, RecordsRead
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import LOG, Part
from brokerd.protocols.multi_proxy.topic_log import PlacedRun, TopicLog
from brokerd.protocols.parts.event_machine import Durability, EventMachine
from tests.model.test_publication import contents

SERVER, OTHER = 1, 2
SOURCES = SourceId(5, 0, 1), SourceId(5, 1, 1)
ELSEWHERE = SourceId(6, 2, 1)
"""The source of publications at the other server."""
TOPICS = range(3)
PAGE = 2


def published(source: SourceId, first: int, count: int = 1) -> PublicationRun:
    """Return publications of one source; payloads tell source and number."""
    payload = b"".join(b"%d.%03d" % (source.publisher, n) for n in range(first, first + count))
    return PublicationRun(source, range(first, first + count), (b"a",), bytes(count), 5, (payload,))


class Disk:
    """A disk that outlives the topic logs on it, and writes on request."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.records: list[bytes] = []
        self.first = 1
        self.start()

    def start(self) -> TopicLog:
        """Start a server on what is on the disk, and read the log."""
        self.machine = EventMachine()  # type: ignore[abstract]
        self.durability = Durability(self.machine)
        self.log = TopicLog(SERVER, self.durability)
        ends = LogEnds(self.first, self.first + len(self.records))
        self.log.recover({table: dict(rows) for table, rows in self.rows.items()}, ends)
        self.write()
        assert self.log.is_read
        return self.log

    def write(self) -> None:
        """Perform all effects, in order."""
        while self.machine.effects:
            effect = self.machine.effects.pop(0)
            match effect:
                case Commit(changes, token):
                    for change in changes:
                        rows = self.rows.setdefault(change.table, {})
                        rows.pop(change.key, None)
                        if change.value is not None:
                            rows[change.key] = change.value
                    self.durability.on_persisted(token)
                case Append(_, records, token):
                    self.records += [b"".join(map(bytes, record)) for record in records]
                    self.durability.on_persisted(token)
                case Chop(_, first):
                    assert self.first <= first <= self.first + len(self.records)
                    self.records[: first - self.first] = []
                    self.first = first
                case Read(_, first, end):
                    page = self.records[first - self.first :][: min(PAGE, end - first)]
                    self.log.on_records(RecordsRead(LOG, first, tuple(page)))

    def put(self, topic: int, previous: int, run: PublicationRun) -> None:
        """Append publications as a server does."""
        placed = self.log.put(topic, previous, run)
        if isinstance(placed, PlacedRun):
            self.append(placed)

    def append(self, placed: PlacedRun) -> None:
        self.durability.append(LOG, placed.record, lambda: self.log.store(placed))

    def carry(self, other: "Disk", number: int, released: int = 0) -> PublicationRun | None:
        """Append publications of the other server, and the numbers of their sources."""
        other.write()
        theirs, part = other.log.topic(number), Part(OTHER, number)
        run = theirs.after(max(released, self.log.part(part).assigned), 9)
        if run is not None:
            self.log.carry(part, released, run)
            self.durability.commit(self.log.put_through(number, theirs.stored), lambda: None)
        return run


def state(log: TopicLog, released: dict[Part, int]) -> dict[Part, Any]:
    """Return positions, numbers of sources, and retained publications of each part."""
    return {
        topic.part: (
            topic.assigned, topic.durable,
            {source: n for source, n in topic.put.items() if n and source.broker != SERVER},
            {source: n for source, n in topic.stored.items() if n and source.broker != SERVER},
            [each for run in topic.runs for each in contents(run) if each[0] > needed_from],
        )
        for topic in log
        for needed_from in [released[topic.part]]
        if topic.assigned or topic.put
    }  # fmt: skip


def check_restart(disk: Disk) -> None:
    """Restart on the same disk, and compare everything that is still needed."""
    disk.write()
    before = disk.log
    released = {topic.part: topic.released for topic in before}
    expected = state(before, released)
    assert before.logged_bytes == sum(map(len, disk.records))
    after = disk.start()
    assert state(after, released) == expected
    for key, through in disk.rows.get("released", {}).items():
        assert after._make_key(key).released >= through, "released publications are back"
    assert all(topic.released <= released[topic.part] for topic in after)
    assert after.logged_bytes == sum(map(len, disk.records)) <= before.logged_bytes
    for topic in after:
        topic.is_here = before.holds(topic.part)
        if released[topic.part]:
            after.release(topic, max(topic.released, released[topic.part]))
    disk.write()


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_is_read_equals_the_log_that_wrote_it(seed: int) -> None:
    random = Random(seed)
    disk = Disk()
    numbers = {(topic, source): 0 for topic in TOPICS for source in SOURCES}
    carried: dict[Part, list[tuple[int, bytes]]] = {}
    at_other = Disk()  # the other server, which assigns the positions of carried publications
    for _ in range(50):
        act, number = random.randrange(8), random.choice(TOPICS)
        source, count = random.choice(SOURCES), random.randint(1, 4)
        key = (number, source)
        if act < 3:
            begin = numbers[key] + 1 - random.choice((0, 0, min(2, numbers[key])))
            run = published(source, begin, count)
            disk.put(number, begin - 1, run)
            numbers[key] = max(numbers[key], run.last)
        elif act == 3:
            last = at_other.log.topic(number).put.get(ELSEWHERE, 0)
            at_other.put(number, last, published(ELSEWHERE, last + 1, count))
            if disk.carry(at_other, number) is not None:
                runs = at_other.log.topic(number).runs
                carried[Part(OTHER, number)] = [each for run in runs for each in contents(run)]
        elif act == 4:
            disk.write()
            topic = random.choice([*disk.log] or [disk.log.topic(0)])
            disk.log.release(topic, random.randint(topic.released, topic.durable))
        elif act == 5:
            disk.write()
        elif act == 6:
            through = numbers[key] = numbers[key] + random.choice((0, 3))
            rows = disk.log.put_through(number, {source: through})
            disk.durability.commit(rows, lambda: None)
        else:
            check_restart(disk)
        if act in (5, 7):
            for (topic_number, each), last in numbers.items():
                assert disk.log.topic(topic_number).stored.get(each, 0) >= 0
                assert disk.log.topic(topic_number).put.get(each, 0) >= last
            for part, rows_there in carried.items():
                topic = disk.log.part(part)
                mine = [each for run in topic.runs for each in contents(run)]
                assert [each for each in mine if each[0] > topic.released] == [
                    each for each in rows_there if topic.released < each[0] <= topic.durable
                ]


def test_numbers_of_a_source_never_decrease_after_those_of_another_server() -> None:
    """Its own record becomes durable after a transfer has brought later numbers."""
    disk = Disk()
    disk.put(0, 0, published(SOURCES[0], 1, 4))
    rows = disk.log.put_through(0, {SOURCES[0]: 7})
    disk.write()
    disk.durability.commit(rows, lambda: None)
    disk.write()
    repeated = published(SOURCES[0], 5, 3)
    assert disk.log.put(0, 4, repeated) == 7, "the repeated publish is never answered"
    disk.log.release(disk.log.topic(0), 4)
    check_restart(disk)
    assert disk.log.put(0, 4, repeated) == 7


def test_a_part_that_begins_behind_released_publications_is_read_from_there() -> None:
    disk, other = Disk(), Disk()
    other.put(0, 0, published(SOURCES[0], 1, 6))
    run = disk.carry(other, 0, released=4)
    assert run is not None
    disk.write()
    for _ in range(2):
        topic = disk.log.part(Part(OTHER, 0))
        assert (topic.assigned, topic.durable, topic.released) == (6, 6, 4)
        check_restart(disk)
    disk.log.carry(Part(OTHER, 0), 5, run)
    assert disk.machine.effects == [], "it has these publications"


def test_carried_numbers_of_sources_are_those_of_the_own_part() -> None:
    """A publisher that publishes again after the move is recognised, also after a restart."""
    disk, other = Disk(), Disk()
    other.put(0, 0, published(SOURCES[0], 1, 6))
    assert disk.carry(other, 0) is not None
    disk.write()
    disk.rows.clear()  # the record alone has the numbers, too
    log = disk.start()
    assert log.put(0, 5, published(SOURCES[0], 6)) == 6


def test_a_record_that_does_not_follow_is_a_fault_of_the_disk() -> None:
    for kept in ((0, 2), (1, 2), (1, 0), (0, 0)):
        disk = Disk()
        for number in (1, 2, 3):
            disk.put(0, number - 1, published(SOURCES[0], number))
        disk.write()
        records = disk.records
        disk.records = [records[place] for place in kept]
        with pytest.raises(StorageCorrupt, match="position"):
            disk.start()


LINEAGE = 7


def lossy(disk: Disk) -> Iterator[PlacedRun]:
    """Yield the markers of a loss, and append them."""
    for placed in disk.log.announce_loss(LINEAGE):
        disk.append(placed)
        disk.write()
        yield placed


def test_all_topics_of_a_server_continue_behind_a_loss_and_parts_of_others_do_not() -> None:
    disk, other = Disk(), Disk()
    other.put(1, 0, published(SOURCES[1], 1, 2))
    assert disk.carry(other, 1) is not None
    disk.put(0, 0, published(SOURCES[0], 1, 3))
    disk.write()
    end = last_lost_position(LINEAGE)
    (placed,) = (each for each in lossy(disk) if each.topic.part == Part(SERVER, 0))
    assert has_marker(placed.run)
    assert lost_range(placed.run) == (SourceId(SERVER, 0, 0), 4, end)
    assert (placed.topic.assigned, placed.topic.durable) == (end, end)
    disk.put(0, 3, published(SOURCES[0], 4, 2))
    disk.put(2, 0, published(SOURCES[1], 1, 1))
    disk.write()
    for _ in range(2):
        log = disk.log
        assert log.topic(0).assigned == end + 2
        assert log.topic(2).assigned == end + 1
        assert log.part(Part(OTHER, 1)).assigned == 2
        check_restart(disk)
        disk.log.lost_through = end
    assert [*disk.log.announce_loss(LINEAGE)] == [], "each topic is behind the loss"


@pytest.mark.parametrize("number", [0, LINEAGE << LINEAGE_BITS])
def test_the_marker_of_a_loss_is_no_publication_of_a_publisher(number: int) -> None:
    """A publisher that restarted after the loss lost its first publication."""
    disk, source = Disk(), SourceId(SERVER, number, LINEAGE)
    disk.put(0, 0, published(SOURCES[0], 1))
    disk.write()
    assert [*lossy(disk)]
    disk.start()
    assert isinstance(disk.log.put(0, 0, published(source, 1)), PlacedRun)


def test_the_oldest_records_are_released_first_and_the_newest_stays() -> None:
    disk = Disk()
    for number in (1, 2, 3, 4):
        disk.put(0, number - 1, published(SOURCES[0], number))
    disk.write()
    sizes = [*map(len, disk.records)]
    found: Callable[[int], list[int]] = lambda most: [last for _, last in disk.log.beyond(most)]  # noqa: E731
    total = sum(sizes)
    assert found(total) == []
    assert found(total - 1) == [1]
    assert found(total - sizes[0]) == [1]
    assert found(total - sizes[0] - 1) == [1, 2]
    assert found(0) == [1, 2, 3]
    disk.log.topic(0).is_frozen = True
    assert found(0) == []
    disk.log.topic(0).is_frozen = False
    disk.log.topic(0).is_here = False
    assert found(0) == []


@pytest.mark.parametrize("sequence", [4, 7])
def test_a_durable_number_of_a_source_never_decreases(sequence: int) -> None:
    """A topic returns from a server that has an earlier number, which is written all the same."""
    disk = Disk()
    disk.put(0, 0, published(SOURCES[0], 1, 5))
    disk.write()
    for through in (sequence, 2):
        disk.durability.commit(disk.log.put_through(0, {SOURCES[0]: through}), lambda: None)
    disk.write()
    assert disk.log.topic(0).stored[SOURCES[0]] == max(5, sequence)
    disk.log.release(disk.log.topic(0), 5)
    check_restart(disk)


@pytest.mark.parametrize("seed", range(20))
def test_old_publications_of_a_topic_are_those_of_a_plain_list(seed: int) -> None:
    random, topic = Random(seed), Topic(Part(1, 0))
    kept: list[tuple[int, int]] = []
    for now_ns in range(40):
        if random.random() < 0.6:
            count = random.randint(1, 4)
            positions = range(topic.durable + 1, topic.durable + 1 + count)
            topic.retain(
                PublicationRun(SOURCES[0], positions, (b"a",), bytes(count), 0, ()), now_ns
            )
            kept.append((positions[-1], now_ns))
        else:
            topic.release(random.randint(topic.released, topic.durable))
        kept = [each for each in kept if each[0] > topic.released]
        for before_ns in range(-1, now_ns + 2):
            old = [last for last, since_ns in kept if since_ns <= before_ns]
            assert topic.old_through(before_ns) == max(old, default=topic.released)
