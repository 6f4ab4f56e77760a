"""Tests of the simulated network, which keeps exactly the promises of the real network."""

from random import Random
from typing import Any

import pytest

from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import AdversarialSchedule, Schedule, TimedSchedule
from brokerd.simulator.world.network import (
    LinkFaults,
    Network,
    freeze_endpoint,
    kill_endpoint,
    thaw_endpoint,
)
from brokerd.simulator.world.sessions import Endpoint, NetworkParameters, SessionEnd

MILLISECOND = 1_000_000


class Diary(Endpoint):
    """An endpoint that records events."""

    def __init__(self, key: Peer) -> None:
        super().__init__(key)
        self.alive = True
        self.entries: list[tuple[Any, ...]] = []

    def on_established(self, end: SessionEnd, incarnation: int) -> None:
        self.entries.append(("established", end.peer, end.number))

    def on_lost(self, end: SessionEnd, reason: LossReason) -> None:
        self.entries.append(("lost", end.peer, end.number, reason))

    def open_failed(self, peer: Peer, reason: str) -> None:
        self.entries.append(("open_failed", peer, reason))

    def message_arrived(self, end: SessionEnd, message: Any) -> None:
        self.entries.append(("message", end.peer, end.number, message))

    def heard(self) -> list[Any]:
        """Return the received messages, in order."""
        return [entry[3] for entry in self.entries if entry[0] == "message"]


class World:
    """A network of diaries."""

    def __init__(self, schedule: Schedule, seed: int = 1, **parameters: Any) -> None:
        self.schedule = schedule
        self.network = Network(schedule, Random(seed), NetworkParameters(**parameters))
        self.link_faults = LinkFaults(self.network)
        self.diaries = {number: Diary(number) for number in range(3)}
        self.network.endpoints.update(self.diaries)

    def run(self, milliseconds: int = 5_000) -> None:
        assert isinstance(self.schedule, TimedSchedule)
        self.schedule.run_until(self.schedule.now_ns + milliseconds * MILLISECOND)

    def connect(self, a: int = 0, b: int = 1) -> tuple[Diary, Diary]:
        self.network.open(self.diaries[a], b)
        self.run(50)
        for diary in (self.diaries[a], self.diaries[b]):
            assert diary.entries.pop()[0] == "established"
        return self.diaries[a], self.diaries[b]


@pytest.fixture
def world() -> World:
    return World(TimedSchedule())


def test_a_session_is_up_at_both_ends_and_carries_messages_in_order(world: World) -> None:
    one, other = world.connect()
    for number in range(50):
        world.network.send(one, 1, number)
        world.network.send(other, 0, -number)
    world.run()
    assert other.heard() == list(range(50))
    assert one.heard() == [-number for number in range(50)]


def test_a_second_open_is_ignored_while_a_session_is_open_or_opening(world: World) -> None:
    world.network.open(world.diaries[0], 1)
    world.network.open(world.diaries[0], 1)
    world.run()
    world.network.open(world.diaries[0], 1)
    world.run()
    assert [entry[0] for entry in world.diaries[0].entries] == ["established"]


def test_two_that_open_at_once_get_one_session(world: World) -> None:
    world.network.open(world.diaries[0], 1)
    world.network.open(world.diaries[1], 0)
    world.run()
    assert world.diaries[0].entries == [("established", 1, 1)]
    assert world.diaries[1].entries == [("established", 0, 1)]


def test_an_open_to_the_dead_is_refused_and_to_the_unreachable_times_out(world: World) -> None:
    world.diaries[1].alive = False
    world.link_faults.cut(0, 2)
    world.network.open(world.diaries[0], 1)
    world.network.open(world.diaries[0], 2)
    world.run()
    assert world.diaries[0].entries == [
        ("open_failed", 1, "refused"),
        ("open_failed", 2, "timed out"),
    ]


def test_a_cut_loses_messages_in_flight_and_is_reported_once_per_end(world: World) -> None:
    one, other = world.connect()
    world.network.send(one, 1, "lost")
    world.link_faults.cut(0, 1)
    world.network.send(one, 1, "lost too")
    world.run()
    assert one.entries == [("lost", 1, 1, "silent")]
    assert other.entries == [("lost", 0, 1, "silent")]


def test_a_link_that_was_cut_for_a_moment_does_not_resume_its_session(world: World) -> None:
    one, other = world.connect()
    world.link_faults.cut(0, 1)
    world.link_faults.heal(0, 1)
    world.network.send(one, 1, "into a dead session")
    world.run()
    assert other.heard() == []
    assert [entry[0] for entry in one.entries] == ["lost"]
    assert [entry[0] for entry in other.entries] == ["lost"]


def test_the_deaf_end_detects_a_one_way_cut_and_notifies_the_other(world: World) -> None:
    one, other = world.connect()
    world.link_faults.cut(0, 1, "out")
    world.network.send(other, 0, "still passes")
    world.run()
    assert other.entries == [("lost", 0, 1, "silent")]
    assert one.entries == [("message", 1, 1, "still passes"), ("lost", 1, 1, "closed_by_peer")]


def test_a_black_hole_healed_in_time_loses_nothing(world: World) -> None:
    one, other = world.connect()
    world.link_faults.blackhole(0, 1)
    world.network.send(one, 1, "late")
    world.run(400)
    assert other.entries == []
    world.link_faults.heal(0, 1)
    world.run()
    assert other.entries == [("message", 0, 1, "late")]
    assert one.entries == []


def test_a_lasting_black_hole_ends_the_session_at_both_ends(world: World) -> None:
    one, other = world.connect()
    world.link_faults.blackhole(0, 1)
    world.run()
    assert one.entries == [("lost", 1, 1, "silent")]
    assert other.entries == [("lost", 0, 1, "silent")]


def test_an_absorbed_link_passes_heartbeats_and_releases_frames_in_order(world: World) -> None:
    one, other = world.connect()
    world.link_faults.absorb(0, 1)
    for number in range(3):
        world.network.send(one, 1, number)
    world.run()
    assert other.entries == []
    world.link_faults.heal(0, 1)
    world.run()
    assert other.heard() == [0, 1, 2]


def test_absorbed_messages_are_lost_with_a_cut(world: World) -> None:
    one, other = world.connect()
    world.link_faults.absorb(0, 1)
    world.network.send(one, 1, "absorbed")
    world.run()
    world.link_faults.cut(0, 1)
    world.link_faults.heal(0, 1)
    world.run()
    assert other.heard() == []
    assert other.entries == [("lost", 0, 1, "silent")]


def test_a_death_is_reported_and_may_destroy_a_suffix_of_the_messages() -> None:
    """A prefix arrives, without a gap."""
    lengths = set()
    for seed in range(20):
        world = World(TimedSchedule(), seed=seed)
        one, other = world.connect()
        for number in range(5):
            world.network.send(one, 1, number)
        one.alive = False
        kill_endpoint(world.network, one)
        world.run()
        heard = other.heard()
        assert heard == list(range(len(heard)))
        assert other.entries[-1] == ("lost", 0, 1, "closed_by_peer")
        lengths.add(len(heard))
    assert len(lengths) > 2


def test_a_thawed_end_receives_earlier_messages_and_then_the_closed_session(world: World) -> None:
    one, other = world.connect()
    freeze_endpoint(world.network, other)
    world.network.send(one, 1, "before")
    world.run()
    assert one.entries == [("lost", 1, 1, "silent")]
    assert other.entries == []
    thaw_endpoint(world.network, other)
    world.run()
    assert other.entries[-1] == ("lost", 0, 1, "closed_by_peer")


def test_a_new_session_ends_the_old_one_that_the_far_end_still_believes_in(world: World) -> None:
    one, other = world.connect()
    world.link_faults.cut(0, 1, "out")  # what 0 says does not arrive, its close neither
    world.network.close(one, 1, "closed_by_us")
    world.link_faults.heal(0, 1)
    world.network.open(one, 1)
    world.run(50)
    assert one.entries == [("lost", 1, 1, "closed_by_us"), ("established", 1, 2)]
    assert other.entries == [("lost", 0, 1, "closed_by_peer"), ("established", 0, 2)]


def test_messages_of_a_closed_session_are_kept_for_misdelivery() -> None:
    world = World(TimedSchedule(), keep_old_messages=True, lost_on_close=False)
    one, _other = world.connect()
    world.network.send(one, 1, "old")
    world.network.close(world.diaries[1], 0, "closed_by_us")
    world.run()
    kept = [(old.peer, old.session, old.message) for old in world.network.transmission.old_messages]
    assert kept == [(0, 1, "old")]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_each_end_sees_sessions_one_after_another(seed: int) -> None:
    """An end sees a session's start, its messages in order without a gap, and its loss."""
    random = Random(seed)
    schedule = AdversarialSchedule(random)
    world = World(schedule, seed=seed)
    sent: dict[tuple[int, int], int] = {}
    for _ in range(600):
        a, b = random.sample(range(3), 2)
        one = world.diaries[a]
        match random.randrange(12):
            case 0:
                world.network.open(one, b)
            case 1:
                world.link_faults.cut(a, b, random.choice(("both", "out")))
            case 2:
                world.link_faults.heal(a, b)
            case 3:
                world.link_faults.blackhole(a, b)
            case 4 if b in one.ends:
                world.network.suspect(one.ends[b])
            case 5:
                (thaw_endpoint if one.frozen else freeze_endpoint)(world.network, one)
            case 6 | 7:
                sent[a, b] = sent.get((a, b), 0) + 1
                world.network.send(one, b, sent[a, b])
            case _:
                schedule.step()
    for diary in world.diaries.values():
        for peer in range(3):
            _check_life(diary, peer)


def _check_life(diary: Diary, peer: int) -> None:
    current, last, established = 0, 0, 0
    for what, whom, *rest in diary.entries:
        if whom != peer or what == "open_failed":
            continue
        if what == "established":
            assert not current, f"{diary.key} has a second session with {peer}"
            assert rest[0] > established, "a session number came again"
            current = established = rest[0]
            last = 0
        elif what == "lost":
            assert rest[0] == current, f"{diary.key} loses {rest[0]}, has {current}"
            current = 0
        else:
            number, message = rest
            assert number == current, f"{diary.key} hears on {number}, has {current}"
            # Sent while no session was up, or swallowed before it was: only between sessions.
            assert not last or message == last + 1, f"{diary.key} hears {message} after {last}"
            last = message
