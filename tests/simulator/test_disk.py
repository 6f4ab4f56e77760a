"""The simulated disk keeps transactions in order, and loses what was not durable."""

from random import Random

from brokerd.protocols.interface import Change
from brokerd.simulator.world.clock import SECOND_NS, TimedSchedule
from brokerd.simulator.world.disk import SimulatedDisk


class Desk:
    """A disk, and what it has said."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = TimedSchedule()
        self.told: list[int] = []
        self.disk = SimulatedDisk(0, self.schedule, Random(seed), 2_000_000, self.told.append)

    def commit(self, value: int, token: int | None) -> None:
        self.disk.commit(
            (Change("table", f"key{value}", value), Change("table", "last", value)), token
        )

    def wait(self) -> None:
        self.schedule.run_until(self.schedule.now_ns + SECOND_NS)


def test_nothing_is_answered_before_it_is_durable() -> None:
    desk = Desk()
    desk.commit(1, 7)
    assert desk.told == []
    desk.wait()
    assert desk.told == [7]
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


def test_tuples_come_back_as_lists_and_a_value_of_none_deletes() -> None:
    desk = Desk()
    desk.disk.commit((Change("table", "key", ((1, "a"), [b"b"])),), 1)
    desk.disk.commit((Change("table", "gone", 1),), 2)
    desk.disk.commit((Change("table", "gone", None),), 3)
    desk.wait()
    assert desk.disk.recovered() == {"table": {"key": [[1, "a"], [b"b"]]}}
