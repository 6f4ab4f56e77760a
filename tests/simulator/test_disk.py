"""Tests of the simulated disk: transactions stay in order, and volatile changes are lost."""

from random import Random

import pytest

from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    Event,
    LogEnds,
    Persisted,
    Read,
    RecordsRead,
    Truncate,
)
from brokerd.simulator.world.clock import TimedSchedule
from brokerd.simulator.world.disk import SimulatedDisk
from brokerd.units import SECOND_NS


class Desk:
    """A disk and its replies."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = TimedSchedule()
        self.told: list[Event] = []
        self.disk = SimulatedDisk(
            0, self.schedule, Random(seed), 2_000_000, ("a", "b"), self.told.append
        )

    def commit(self, value: int, token: int | None) -> None:
        self.disk.commit(
            (Change("table", f"key{value}", value), Change("table", "last", value)), token
        )

    def append(self, log: str, token: int | None, *records: bytes) -> None:
        self.disk.log(Append(log, tuple((record,) for record in records), token))

    def read(self, log: str) -> list[bytes]:
        """Return all records of a log, page after page."""
        ends, found = self.disk.ends()[log], []
        while ends.first + len(found) < ends.next:
            self.disk.log(Read(log, ends.first + len(found), ends.next))
            self.told.clear()
            self.wait()
            (event,) = self.told
            assert isinstance(event, RecordsRead)
            assert event.first == ends.first + len(found)
            found += event.records
        return found

    def wait(self) -> None:
        self.schedule.run_until(self.schedule.now_ns + SECOND_NS)


def test_nothing_is_answered_before_it_is_durable() -> None:
    desk = Desk()
    desk.commit(1, 7)
    assert desk.told == []
    desk.wait()
    assert desk.told == [Persisted(7)]
    desk.disk.crash()
    assert desk.disk.recovered() == {"table": {"key1": 1, "last": 1}}


def test_a_lazy_commit_is_durable_when_a_later_one_is() -> None:
    desk = Desk()
    desk.commit(1, None)
    desk.commit(2, 7)
    while not desk.told:
        desk.schedule.step()
    desk.disk.crash()
    assert desk.disk.recovered()["table"] == {"key1": 1, "key2": 2, "last": 2}


def test_a_crash_keeps_some_from_the_front_and_never_one_behind_a_lost_one() -> None:
    kept = set()
    for seed in range(40):
        desk = Desk(seed)
        for value in (1, 2, 3):
            desk.commit(value, None if value < 3 else 9)
        desk.disk.crash()
        rows = desk.disk.recovered().get("table", {})
        last = rows.get("last", 0)
        assert rows == {
            **{f"key{value}": value for value in range(1, last + 1)},
            **({"last": last} if last else {}),
        }
        kept.add(last)
        desk.wait()
        assert desk.told == [], "the dead incarnation was answered"
    assert kept == {0, 1, 2, 3}


def test_tuples_are_recovered_as_lists_and_a_value_of_none_deletes() -> None:
    desk = Desk()
    desk.disk.commit((Change("table", "key", ((1, "a"), [b"b"])),), 1)
    desk.disk.commit((Change("table", "gone", 1),), 2)
    desk.disk.commit((Change("table", "gone", None),), 3)
    desk.wait()
    assert desk.disk.recovered() == {"table": {"key": [[1, "a"], [b"b"]]}}


def test_log_changes_are_durable_in_order_and_confirmed_on_request() -> None:
    desk = Desk()
    desk.append("a", None, b"one", b"two")
    desk.disk.log(Chop("a", 2))
    desk.append("b", 5, b"first")
    assert desk.disk.ends() == {"a": LogEnds(), "b": LogEnds()}
    desk.wait()
    assert desk.told == [Persisted(5)]
    assert desk.disk.ends() == {"a": LogEnds(2, 3), "b": LogEnds(1, 2)}
    desk.append("a", None, b"three")
    desk.wait()
    desk.disk.log(Truncate("a", 3))
    desk.append("a", 6, b"new", b"newer")
    desk.wait()
    assert desk.told == [Persisted(5), Persisted(6)]
    assert desk.read("a") == [b"two", b"new", b"newer"]


def test_a_core_has_to_read_on_behind_a_page() -> None:
    desk = Desk()
    desk.append("a", 1, *(bytes([n]) for n in range(40)))
    desk.wait()
    assert desk.read("a") == [bytes([n]) for n in range(40)]


def test_a_crash_keeps_whole_appends_from_the_front_and_answers_nothing() -> None:
    kept = set()
    for seed in range(40):
        desk = Desk(seed)
        desk.append("a", 1, b"one", b"two")
        desk.append("b", None, b"first")
        desk.append("a", 2, b"three")
        desk.disk.crash()
        assert desk.told == []
        kept.add(tuple(ends.next for ends in desk.disk.ends().values()))
        desk.wait()
        assert desk.told == [], "the dead incarnation was answered"
    assert kept == {(1, 1), (3, 1), (3, 2), (4, 2)}


def test_a_crash_revokes_accesses_to_the_lost_part_of_a_log() -> None:
    desk = Desk()
    desk.append("a", 1, b"one")
    desk.wait()
    for _ in range(20):
        desk.append("a", 2, b"two")
        desk.disk.crash()
    last = desk.disk.ends()["a"].next
    with pytest.raises(AssertionError, match="Read"):
        desk.disk.log(Read("a", 1, last + 1))
    with pytest.raises(AssertionError, match="Chop"):
        desk.disk.log(Chop("a", last + 1))
