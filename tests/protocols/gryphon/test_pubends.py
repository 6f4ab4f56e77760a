"""The pubends of a broker on objects: ticks and numbers survive a restart; no tick is reused."""

from collections import deque
from collections.abc import Iterable
from random import Random

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon import pubend as pubend_module
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.knowledge import ticks_in
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import (
    Acceptance,
    ExpectedSilence,
    LogAppend,
    LogRelease,
    PermanentSilence,
    Pubends,
    Reservation,
    TickClock,
)
from brokerd.protocols.interface import Chop, LogEnds, Read, RecordsRead
from brokerd.simulator.checks.growth import sizes_of
from brokerd.units import MICROSECOND_NS
from tests.model.test_publication import contents

BROKER, PUBENDS, PAGE = 3, 2, 2
LEASE_TICKS = 2_000_000
SOURCES = SourceId(BROKER, 0, 1), SourceId(BROKER, 1, 1), SourceId(BROKER, 2, 1)


def published(source: SourceId, first: int, count: int = 1) -> PublicationRun:
    """Return publications of one source; payloads tell source and number."""
    payload = b"".join(b"%d.%03d" % (source.publisher, n) for n in range(first, first + count))
    return PublicationRun(source, range(first, first + count), (b"a",), bytes(count), 5, (payload,))


class Disk:
    """A disk that outlives the pubends on it, and writes on request."""

    def __init__(self, *, silence_percent: int = 0) -> None:
        self.parameters = GryphonParameters(pubends=PUBENDS, silence_percent=silence_percent)
        self.rows: dict[str, dict[str, int]] = {}
        self.records: list[bytes] = []
        self.first = 1
        self.now_ns = 0
        self.waiting: deque[LogAppend] = deque()
        self.events: dict[int, dict[int, bytes]] = {pubend: {} for pubend in range(PUBENDS)}
        self.silent = [0] * PUBENDS
        self.start()

    def start(self, wall_ns: int = 0) -> Pubends:
        """Start a broker on what is on the disk, and read the log."""
        self.waiting.clear()
        self.pubends = Pubends(BROKER, self.parameters)
        ends = LogEnds(self.first, self.first + len(self.records))
        effects = self.pubends.recover(self.rows, ends, self.now_ns, wall_ns)
        self.restored: dict[int, dict[int, bytes]] = {pubend: {} for pubend in range(PUBENDS)}
        while effects:
            (read,) = effects
            assert isinstance(read, Read)
            page = self.records[read.first - self.first :][:PAGE]
            event = RecordsRead("events", read.first, tuple(page))
            for run in self.pubends.on_records(event):
                self.restored[run.source.publisher].update(self.ticks(run))
            effects = self.pubends.next_page(event)
        assert self.pubends.is_read
        self.pubends.begin(self.now_ns)
        return self.pubends

    @staticmethod
    def ticks(run: PublicationRun) -> dict[int, bytes]:
        return {tick: bytes(payload) for tick, _, payload in contents(run)}

    def publish(self, run: PublicationRun) -> Acceptance:
        accepted = self.pubends.accept(run, lambda: None)
        while self.pubends.can_log:
            self.waiting.append(self.pubends.log_next(self.now_ns))
        return accepted

    def write(self, most: int = 1 << 30) -> None:
        """Make records durable, in order, with the reservations that they need."""
        while self.waiting and most:
            most -= 1
            logged = self.waiting.popleft()
            self.records.append(b"".join(map(bytes, logged.entry)))
            run, silent = self.pubends.on_logged(logged)
            events = self.events[logged.pubend]
            assert run.first > max(events, default=0)
            assert run.first > self.silent[logged.pubend], "an event where silence was announced"
            events.update(self.ticks(run))
            assert silent >= run.last
            self.silent[logged.pubend] = silent
            if logged.lease:
                self.take(self.pubends.reserve(logged.lease))

    def take(self, facts: Iterable[Reservation | PermanentSilence]) -> None:
        """Write reservations, and check permanent silence."""
        for fact in facts:
            if isinstance(fact, Reservation):
                assert fact.tick > self.rows.get("reserved", {}).get("", 0)
                self.rows["reserved"] = {"": fact.tick}
                self.take(self.pubends.on_written(fact, self.now_ns))
                continue
            pubend, permanent = fact.stream.publisher, fact.through
            assert not any(n.pubend == pubend and n.first <= permanent for n in self.waiting)
            self.silent[pubend] = max(self.silent[pubend], permanent)

    def release(self, pubend: int, through: int) -> None:
        releases = self.pubends.release(pubend, through)
        while releases:
            (release,) = releases
            for change in release.rows:
                before = self.rows.setdefault(change.table, {}).get(change.key, 0)
                assert change.value >= before, f"{change} takes {before} back"
                self.rows[change.table][change.key] = change.value
            assert self.first < release.first <= self.first + len(self.records)
            self.records[: release.first - self.first] = []
            self.first = release.first
            again = self.pubends.release(pubend, self.pubends.released(pubend))
            assert again == [], "two truncations at once"
            chop, *releases = self.pubends.on_written(release, self.now_ns)
            assert chop == Chop(LOG, release.first)


def restart(disk: Disk, wall_ns: int) -> None:
    """Restart, and compare numbers, events and ticks with those before."""
    durable = {source: disk.pubends.durable(source) for source in SOURCES}
    released = [disk.pubends.released(pubend) for pubend in range(PUBENDS)]
    after = disk.start(wall_ns)
    assert {source: after.durable(source) for source in SOURCES} == durable
    for pubend in range(PUBENDS):
        needed = {t: p for t, p in disk.events[pubend].items() if t > released[pubend]}
        assert {t: p for t, p in disk.restored[pubend].items() if t > released[pubend]} == needed
        assert after.restored_tick(pubend) >= max(disk.events[pubend], default=0)
        assert after.released(pubend) <= released[pubend]
        listed = dict(after.sources(after.stream(pubend)))
        assert listed == {
            source: n for source, n in durable.items() if n and after.pubend_of(source) == pubend
        }
        after.release(pubend, released[pubend])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("silence_percent", [0, 80])
def test_pubends_that_are_read_equal_those_that_wrote(seed: int, silence_percent: int) -> None:
    random = Random(seed)
    disk = Disk(silence_percent=silence_percent)
    for _ in range(60):
        disk.now_ns += random.choice((0, 1, 40)) * MICROSECOND_NS
        act, source = random.randrange(6), random.choice(SOURCES)
        stored = disk.pubends.durable(source)
        if act < 2:
            first = stored + 1 - random.choice((0, 0, min(stored, 2)))
            run = published(source, first, random.randint(1, 3))
            known = max(
                (n.run.last for n in disk.waiting if n.run.source == source), default=stored
            )
            accepted = disk.publish(run)
            assert (accepted is Acceptance.STORED) == (run.last <= stored)
            assert (accepted is Acceptance.REPEATED) == (stored < run.last <= known)
        elif act == 2:
            disk.write(random.randrange(3))
        elif act == 3:
            disk.write()
            pubend = random.randrange(PUBENDS)
            events = [t for t in disk.events[pubend] if t > disk.pubends.released(pubend)]
            disk.release(pubend, random.choice([*events, disk.pubends.released(pubend)]))
        elif act == 4:
            pubend = random.randrange(PUBENDS)
            through = disk.pubends.tick(disk.now_ns) + random.randrange(9)
            disk.take(disk.pubends.assign_silence(pubend, through, disk.now_ns))
            disk.take(disk.pubends.permanent_silence(pubend))
        else:
            restart(disk, random.choice((0, disk.now_ns)))


@pytest.mark.parametrize("kept", [(1, 0), (0, 0), (2, 1)])
def test_a_record_that_does_not_follow_is_a_fault_of_the_disk(kept: tuple[int, int]) -> None:
    disk = Disk()
    for number in (1, 2, 3):
        disk.publish(published(SOURCES[0], number))
    disk.write()
    disk.records = [disk.records[place] for place in kept]
    with pytest.raises(StorageCorrupt, match="tick"):
        disk.start()


@pytest.mark.parametrize("reserved_past, is_silent", [(-1, False), (0, True), (1, True)])
def test_silence_behind_an_event_is_announced_within_the_reservation(
    reserved_past: int, is_silent: bool
) -> None:
    disk = Disk(silence_percent=100)
    logged = None
    for number in range(1, 9):
        disk.now_ns += 50_000 * MICROSECOND_NS
        disk.publish(published(SOURCES[0], number))
        logged = disk.waiting[-1]
        if number < 8:
            disk.write()
    assert logged is not None
    assert logged.silent > logged.first, "no silence is expected"
    disk.pubends.reserved = logged.silent + reserved_past
    run, silent = disk.pubends.on_logged(logged)
    assert silent == (logged.silent if is_silent else run.last)


def test_ticks_of_lost_events_are_excluded_once() -> None:
    disk = Disk()
    disk.now_ns = 500 * MICROSECOND_NS
    disk.pubends.on_written(Reservation(90), 0)
    disk.publish(published(SOURCES[0], 1))
    (logged,) = disk.waiting
    assert logged.first < 600, "an ordinary reservation excludes nothing"
    (tick,) = disk.pubends.exclude_past(disk.now_ns)
    assert (disk.pubends.is_reserving, tick >= 500) == (True, True)
    disk.pubends.on_written(Reservation(tick + 1_000), 0)
    assert not disk.pubends.is_reserving
    for source in SOURCES[:2]:
        disk.publish(published(source, 2))
        assert disk.waiting[-1].first == tick + 1_001
    disk.pubends.on_written(Reservation(tick + 5_000), 0)
    disk.publish(published(SOURCES[0], 3))
    assert disk.waiting[-1].first == tick + 1_002


def test_a_clock_is_ahead_of_the_last_tick_of_all_pubends() -> None:
    clock = TickClock()
    clock.start(0, 0)
    clock.advance_past(0, 100)
    assert clock.tick(0) == 101
    disk = Disk()
    disk.rows["released"] = {"0": 900, "1": 20}
    assert disk.start().tick(disk.now_ns) == 901


def test_a_reservation_on_disk_is_not_written_again() -> None:
    disk = Disk()
    disk.rows["reserved"] = {"": 500}
    assert (disk.start().reserve(500), disk.pubends.reserved) == ([], 500)
    assert len(disk.pubends.reserve(501)) == 1


def test_silence_is_assigned_once_and_reserved_only_with_silence() -> None:
    disk = Disk()
    assert disk.pubends.assign_silence(0, 70, 0) == [Reservation(70 + LEASE_TICKS)]
    assert disk.pubends.is_assigned(0, 70)
    assert disk.pubends.assign_silence(0, 70, 0) == []
    disk.publish(published(SOURCES[0], 1))
    assert disk.waiting[-1].lease == 0, "no silence follows the event"


def test_the_log_is_truncated_once_at_a_time() -> None:
    disk = Disk()
    for number in (1, 2):
        disk.publish(published(SOURCES[0], number))
    first, second = (each.first for each in disk.waiting)
    disk.write()
    disk.write()
    (release,) = disk.pubends.release(0, first)
    assert disk.pubends.release(0, second) == []
    chop, later = disk.pubends.on_written(release, 0)
    assert chop == Chop("events", 2)
    assert isinstance(later, LogRelease)


def test_a_released_event_is_not_restored_and_one_of_no_pubend_is_refused() -> None:
    disk = Disk()
    disk.publish(published(SOURCES[0], 1))
    (logged,) = disk.waiting
    disk.write()
    disk.rows["released"] = {"0": logged.first}
    disk.start()
    assert disk.restored[0] == {}
    disk.records = [(PUBENDS).to_bytes(4) + record[4:] for record in disk.records]
    with pytest.raises(StorageCorrupt, match=f"of pubend {PUBENDS} of broker {BROKER}"):
        disk.start()


def test_adjacent_records_share_an_entry_of_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubend_module, "_LOGGED_RECORDS", 1)
    monkeypatch.setattr(pubend_module, "_LOGGED_TOGETHER", 2)
    disk = Disk()
    for number in range(1, 6):
        disk.publish(published(SOURCES[0], number))
    ticks = [logged.first for logged in disk.waiting]
    disk.write()
    assert sizes_of(disk.pubends)["Pubends._logged"] == 3, "1, 2 and 3, 4 and 5"
    chopped = []
    for tick in ticks:
        for release in disk.pubends.release(0, tick):
            chopped += [each.first for each in disk.pubends.on_written(release, 0)]
    assert chopped == [2, 4, 6]


@pytest.mark.parametrize("events", [1, 4, 100])
def test_expected_silence_is_of_one_event_however_many_arrive_together(events: int) -> None:
    second_ns = 10**9
    expected = ExpectedSilence(
        GryphonParameters(silence_percent=100, silence_limit_ns=60 * second_ns)
    )
    assert expected.ticks_after(1, 0) == 0
    first = expected.ticks_after(events, events * second_ns)
    assert first == ticks_in(second_ns) - 1
    assert expected.ticks_after(events, 2 * events * second_ns) == first
