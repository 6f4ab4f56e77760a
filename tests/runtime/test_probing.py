"""Tests of the peers that a broker tries to reach, and of the frequency."""

from collections.abc import Callable
from typing import Any

import trio
from trio.testing import MockClock

from brokerd.runtime.probing import PeerProbes

NOBODY = "nobody listens"


class Around:
    """The surroundings of a broker: running brokers, sessions, and times of dials."""

    def __init__(self, *up: int) -> None:
        self.up = {*up}
        self.sessions: list[int | str] = ["a client"]
        self.faults: list[object] = []
        self.dialled: list[tuple[float, int]] = []
        self.began = 0.0

    def session_peers(self) -> list[int | str]:
        return self.sessions

    async def probe(self, peer: int) -> str | None:
        self.dialled.append((trio.current_time(), peer))
        await trio.sleep(0)
        return None if peer in self.up else NOBODY


def tried(
    around: Around, *peers: int, happens: Callable[[float, PeerProbes], None], seconds: int = 20
) -> PeerProbes:
    """Probe the peers for a while, and call `happens` at every whole second."""
    links: Any = around
    probes = PeerProbes(links, peers, is_near=lambda peer: peer >= 10)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probes.run)
            for second in range(seconds):
                happens(second, probes)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    clock = MockClock(autojump_threshold=0)
    around.began = clock.current_time()
    trio.run(story, clock=clock)
    return probes


def times(around: Around, peer: int) -> list[float]:
    return [round(when - around.began, 2) for when, whom in around.dialled if whom == peer]


def test_a_reached_peer_is_dialled_once_and_an_absent_peer_ever_more_rarely() -> None:
    around = Around(1)
    probes = tried(around, 1, 2, happens=lambda *_: None)
    assert times(around, 1) == [0]
    assert times(around, 2) == [0, 0.25, 0.75, 1.75, 3.75, 7.75, 11.75, 15.75, 19.75]
    assert probes.missing() == {2: NOBODY}


def test_a_peer_that_reached_this_broker_is_dialled_at_once() -> None:
    around = Around()

    def comes_up(second: float, probes: PeerProbes) -> None:
        if second == 5:
            around.up.add(1)
            probes.on_reached(1)

    probes = tried(around, 1, 2, happens=comes_up)
    assert [when for when in times(around, 1) if when >= 4] == [5]
    assert 5 not in times(around, 2)
    assert probes.missing() == {2: NOBODY}


def test_a_nearby_peer_that_reached_this_broker_is_not_dialled() -> None:
    around = Around()
    probes = tried(around, 10, happens=lambda second, probes: probes.on_reached(10))
    assert len(around.dialled) <= 1
    assert not probes.missing()


def test_a_nearby_peer_is_dialled_while_a_fault_is_active() -> None:
    around = Around(10)
    around.faults.append("a cut")
    around.up.clear()

    def comes_up(second: float, probes: PeerProbes) -> None:
        if second == 5:
            probes.on_reached(10)

    assert tried(around, 10, happens=comes_up).missing() == {10: NOBODY}
    assert 5 in times(around, 10)


def test_a_peer_with_a_session_is_not_dialled() -> None:
    around = Around()

    def opens(second: float, probes: PeerProbes) -> None:
        if second == 5:
            around.sessions.append(1)
            probes.on_reached(1)

    assert not tried(around, 1, happens=opens).missing()
    assert max(times(around, 1)) < 5


def test_a_joined_broker_is_dialled_and_a_departed_one_is_not_missing() -> None:
    around = Around(3)

    def changes(second: float, probes: PeerProbes) -> None:
        if second == 5:
            probes.keep((1, 3))

    probes = tried(around, 1, 2, happens=changes)
    assert probes.missing() == {1: NOBODY}
    assert times(around, 3) == [5]


def test_peers_that_are_missing_later_are_dialled_as_often_as_the_first_ones() -> None:
    """Waits have grown while the first peer was missing."""
    around = Around()

    def happens(second: float, probes: PeerProbes) -> None:
        if second == 9:
            around.up.add(1)
            probes.on_reached(1)
        if second == 10:
            probes.keep([1, 2])

    tried(around, 1, happens=happens)
    later = times(around, 2)
    assert [round(when - later[0], 2) for when in later][:4] == [0, 0.25, 0.75, 1.75]
