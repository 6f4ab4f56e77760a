"""The load of a link after an episode is judged like that of a new link."""

from random import Random

import pytest

from brokerd.protocols.ges.dissemination import UP
from brokerd.protocols.ges.messages import LoadAnswered, LoadProbe
from brokerd.protocols.ges.overload import LOAD, MOST_CHECKS_TO_FALL, LinkLoad
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

SLOW_NS = 100
CHECK_NS = 10_000
PEER = 7


class Factors:
    """The costs that a broker states, as the graph keeps them."""

    def __init__(self) -> None:
        self.stated: dict[int, int] = {}

    def factor(self, peer: int) -> int:
        return self.stated.get(peer, UP)

    def charge(self, peer: int, factor: int) -> None:
        self.stated[peer] = factor


class Measured:
    """A broker with one link that takes `round_trip_ns`, and what it says of that link."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[tuple[str, object]] = DeadlineQueue()
        self.factors = Factors()
        self.is_up = True
        self.round_trip_ns: int | None = 0
        self.answer_ns: int | None = None
        self.load = LinkLoad(
            1,
            self.machine,
            self.deadlines,  # type: ignore[arg-type]
            GesParameters(slow_link_ns=SLOW_NS, cost_check_ns=CHECK_NS),
            self.factors,  # type: ignore[arg-type]
            lambda: (PEER,) if self.is_up else (),
            lambda _: self.is_up,
        )

    def reconnect(self) -> None:
        self.is_up = False
        self.answer_ns = None
        self.load.went(PEER)
        self.is_up = True
        self.load.came(PEER)
        self._carry()

    def interval(self, *, sends: bool) -> tuple[int, int, bool]:
        """Let the time of a check pass; returns the factor, and the probes that were sent."""
        before = self.probes
        if sends:
            self.load.sent(PEER)
            self._carry()
        end_ns = self.machine.now_ns + CHECK_NS
        while True:
            due_ns = min(self.deadlines.earliest() or end_ns, self.answer_ns or end_ns)
            self.machine.now_ns = min(due_ns, end_ns)
            if due_ns >= end_ns:
                break
            if due_ns == self.answer_ns:
                self.answer_ns = None
                self.load.on_answered(PEER, LoadAnswered())
            else:
                self._check()
        self._check()
        return self.factors.factor(PEER), self.probes - before, (LOAD, 1) in self.deadlines

    def _check(self) -> None:
        if self.deadlines.due(self.machine.now_ns):
            self.load.check()
            self._carry()

    probes = 0

    def _carry(self) -> None:
        for effect in self.machine.effects:
            assert isinstance(effect, Send)
            assert effect == Send(PEER, LoadProbe())
            self.probes += 1
            if self.round_trip_ns is not None:
                self.answer_ns = self.machine.now_ns + self.round_trip_ns
        self.machine.effects.clear()


def episode(measured: Measured, random: Random) -> None:
    """Loads that come and go, answers that stay away, and sessions that end in between."""
    for _ in range(random.randrange(4, 30)):
        measured.round_trip_ns = random.choice((1, 1, 250, 900, 3_000, None))
        for _ in range(random.choice((1, 2, 3, 8))):
            measured.interval(sends=random.random() < 0.8)
        if measured.round_trip_ns is None or random.random() < 0.3:
            measured.reconnect()
    measured.round_trip_ns = 1
    measured.reconnect()


LOADS = (250,) * 4 + (1,) * 5 + (900,) * 3 + (1,) * 12 + (250, 1, 250, 1, 1)


@pytest.mark.parametrize("seed", range(100))
def test_a_link_after_an_episode_becomes_dear_and_cheap_like_a_new_one(seed: int) -> None:
    old, new = Measured(), Measured()
    episode(old, Random(seed))
    for _ in range(4 * MOST_CHECKS_TO_FALL):
        old.interval(sends=True)
    assert old.factors.factor(PEER) == UP
    for _ in range(MOST_CHECKS_TO_FALL + 1):
        old.interval(sends=False)
    assert old.interval(sends=False) == (UP, 0, False)
    for place, round_trip_ns in enumerate(LOADS):
        for each in (old, new):
            each.round_trip_ns = round_trip_ns
        assert old.interval(sends=True) == new.interval(sends=True), (place, round_trip_ns)


@pytest.mark.parametrize("seed", range(30))
def test_measurements_of_a_session_end_with_it(seed: int) -> None:
    """A load that was found once before the end of a session is found twice after it."""
    random = Random(seed)
    measured = Measured()
    for _ in range(random.randrange(1, 4)):
        measured.round_trip_ns = random.choice((250, 900, None))
        measured.interval(sends=True)
        measured.reconnect()
        assert measured.factors.factor(PEER) == UP
    measured.round_trip_ns = 250
    factors = [measured.interval(sends=True)[0] for _ in range(2)]
    assert factors == [UP, 4 * UP], "two checks of the new session"
