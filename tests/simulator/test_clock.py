"""Tests of the order of lanes under both schedules."""

from random import Random

import pytest

from brokerd.simulator.world.clock import AdversarialSchedule, Lane, Schedule, TimedSchedule


@pytest.fixture(params=["timed", "adversarial"])
def schedule(request: pytest.FixtureRequest) -> Schedule:
    return TimedSchedule() if request.param == "timed" else AdversarialSchedule(Random(5))


def _drain(schedule: Schedule) -> None:
    while schedule.step():  # type: ignore[attr-defined]
        pass


def test_a_lane_is_first_in_first_out_despite_unequal_delays(schedule: Schedule) -> None:
    lane = Lane(schedule)
    seen: list[int] = []
    for number, delay_ns in enumerate((30, 10, 20)):
        schedule.post(lane, delay_ns, seen.append, number)
    _drain(schedule)
    assert seen == [0, 1, 2]
    assert schedule.pending == 0


def test_a_held_lane_lets_nothing_out_until_the_last_hold_is_released(schedule: Schedule) -> None:
    lane = Lane(schedule)
    seen: list[int] = []
    lane.hold()
    schedule.post(lane, 1, seen.append, 0)
    lane.hold()
    _drain(schedule)
    lane.release()
    _drain(schedule)
    assert seen == []
    assert schedule.pending == 0
    lane.release()
    assert schedule.pending == 1
    _drain(schedule)
    assert seen == [0]


def test_truncated_events_never_occur_and_later_events_do(schedule: Schedule) -> None:
    lane = Lane(schedule)
    seen: list[int] = []
    for number in range(4):
        schedule.post(lane, 1, seen.append, number)
    dropped = lane.truncate(1)
    assert [arguments for _, arguments in dropped] == [(1,), (2,), (3,)]
    schedule.post(lane, 1, seen.append, 9)
    _drain(schedule)
    assert seen == [0, 9]
    assert schedule.pending == 0


def test_the_timed_schedule_runs_the_earliest_event_and_the_first_among_equals() -> None:
    schedule = TimedSchedule()
    seen: list[str] = []
    schedule.at(20, seen.append, "late")
    schedule.post(Lane(schedule), 10, seen.append, "first")
    schedule.post(Lane(schedule), 10, seen.append, "second")
    schedule.run_until(15)
    assert (seen, schedule.now_ns) == (["first", "second"], 15)
    schedule.run_until(20)
    assert seen[-1] == "late"


def test_the_adversary_tries_every_order_of_two_lanes() -> None:
    seen = set()
    for seed in range(20):
        schedule = AdversarialSchedule(Random(seed))
        order: list[str] = []
        for name in ("a", "b"):
            schedule.post(Lane(schedule), 0, order.append, name)
        _drain(schedule)
        seen.add("".join(order))
    assert seen == {"ab", "ba"}


def test_the_adversary_fires_timers_in_their_order_and_no_distant_ones() -> None:
    schedule = AdversarialSchedule(Random(1))
    seen: list[str] = []
    schedule.at(7, seen.append, "second")
    schedule.at(5, seen.append, "first")
    schedule.at(10**18, seen.append, "never")
    assert not schedule.step()
    assert schedule.fire()
    assert (seen, schedule.now_ns) == (["first"], 5)
    assert schedule.fire()
    assert not schedule.fire()
    assert seen == ["first", "second"]


def test_lanes_held_by_name_let_nothing_out_later_ones_neither() -> None:
    schedule = AdversarialSchedule(Random(1))
    seen: list[str] = []
    schedule.post(Lane(schedule, "a>b"), 0, seen.append, "old session")
    assert schedule.hold("a>b")
    assert not schedule.hold("a>b")
    schedule.post(Lane(schedule, "a>b"), 0, seen.append, "new session")
    schedule.post(Lane(schedule, "b>a"), 0, seen.append, "the other way")
    assert not schedule.take("a>b")
    _drain(schedule)
    assert seen == ["the other way"]
    assert schedule.release("a>b")
    assert not schedule.release("a>b")
    assert schedule.take("a>b#1")
    _drain(schedule)
    assert seen == ["the other way", "new session", "old session"]


def test_an_event_dropped_from_a_held_lane_does_not_occur_after_its_release() -> None:
    schedule = AdversarialSchedule(Random(1))
    lane = Lane(schedule, "a>b")
    schedule.hold("a>b")
    schedule.post(lane, 0, pytest.fail, "it was dropped")
    lane.truncate(0)
    schedule.release("a>b")
    assert not schedule.step()
    assert schedule.pending == 0


def test_a_lane_is_found_again_by_its_drawn_name() -> None:
    schedule = AdversarialSchedule(Random(3))
    for number in range(6):
        schedule.post(Lane(schedule, "same"), 0, int, number)
    lane = schedule.draw()
    assert lane is not None
    name = schedule.name_of(lane)
    assert name != "same", "another seed draws one that is not the first"
    assert schedule.take(name)
    assert not lane.queue
