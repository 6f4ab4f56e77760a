"""The load of a link after an episode is judged like the load of a new link."""

from collections.abc import Sequence
from random import Random

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import Peer
from brokerd.protocols.ges.confirmations import Confirmations, PendingVersion
from brokerd.protocols.ges.dissemination import DEAREST, UP
from brokerd.protocols.ges.messages import LoadProbe, ProfileReached
from brokerd.protocols.ges.overload import LOAD, MOST_CHECKS_TO_FALL, LinkLoad
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.ges.state import CostChange, Neighbours
from brokerd.protocols.ges.units import Place
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

SLOW_NS = 100
CHECK_NS = 10_000
PEER = 7


class Measured:
    """A broker with a link of `round_trip_ns`, and the reported cost of the link."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self.neighbours = Neighbours(Place((0, 0)), {PEER: (0, 1)}, {PEER: None})
        self.round_trip_ns: int | None = 0
        self.answer_ns: int | None = None
        parameters = GesParameters(slow_link_ns=SLOW_NS, cost_check_ns=CHECK_NS)
        self.load = LinkLoad(1, self.neighbours, self.deadlines, parameters)

    @property
    def factor(self) -> int:
        return self.neighbours.factors.get(PEER, UP)

    def reconnect(self) -> None:
        self.answer_ns = None
        self.load.on_session_lost(PEER)
        self._carry(self.load.on_session(PEER, self.now_ns))

    def interval(self, *, sends: bool) -> tuple[int, int, bool]:
        """Let the time of a check pass; return the factor, the probe count and a pending check."""
        before = self.probes
        if sends:
            self._carry(self.load.sent(PEER, self.now_ns))
        end_ns = self.now_ns + CHECK_NS
        while True:
            due_ns = min(self.deadlines.earliest() or end_ns, self.answer_ns or end_ns)
            self.now_ns = min(due_ns, end_ns)
            if due_ns >= end_ns:
                break
            if due_ns == self.answer_ns:
                self.answer_ns = None
                self.load.on_answered(PEER, self.now_ns)
            else:
                self._check()
        self._check()
        return self.factor, self.probes - before, (LOAD, 1) in self.deadlines

    def _check(self) -> None:
        if self.deadlines.due(self.now_ns):
            self._carry(self.load.check(self.now_ns))

    probes = 0

    def _carry(self, outcomes: Sequence[Send | CostChange]) -> None:
        for effect in outcomes:
            if isinstance(effect, CostChange):
                continue
            assert effect == Send(PEER, LoadProbe())
            self.probes += 1
            if self.round_trip_ns is not None:
                self.answer_ns = self.now_ns + self.round_trip_ns


def episode(measured: Measured, random: Random) -> None:
    """Play changing loads, missing answers and session losses at random."""
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
    assert old.factor == UP
    for _ in range(MOST_CHECKS_TO_FALL + 1):
        old.interval(sends=False)
    assert old.interval(sends=False) == (UP, 0, False)
    for place, round_trip_ns in enumerate(LOADS):
        for each in (old, new):
            each.round_trip_ns = round_trip_ns
        assert old.interval(sends=True) == new.interval(sends=True), (place, round_trip_ns)


@pytest.mark.parametrize("seed", range(30))
def test_measurements_of_a_session_end_with_it(seed: int) -> None:
    """A load that was measured once before a session ended is measured twice after it."""
    random = Random(seed)
    measured = Measured()
    for _ in range(random.randrange(1, 4)):
        measured.round_trip_ns = random.choice((250, 900, None))
        measured.interval(sends=True)
        measured.reconnect()
        assert measured.factor == UP
    measured.round_trip_ns = 250
    factors = [measured.interval(sends=True)[0] for _ in range(2)]
    assert factors == [UP, 4 * UP], "two checks of the new session"


@pytest.mark.parametrize(
    "round_trips_ns, factors",
    [
        ((150, 900), (1, 2)),
        ((900, 150), (1, 2)),
        ((900, 900), (1, 8)),
        ((900, 900, 250, 250, 250, 1, 1, 1), (1, 8, 8, 8, 4, 4, 4, 1)),
        ((900, 900, 250, 1, 250), (1, 8, 8, 8, 4)),
    ],
)
def test_a_cost_follows_the_least_change_that_all_checks_called_for(
    round_trips_ns: Sequence[int], factors: Sequence[int]
) -> None:
    """After each change the checks begin anew."""
    measured, found = Measured(), []
    load, now_ns = measured.load, 0
    load.sent(PEER, now_ns)
    for round_trip_ns in round_trips_ns:
        load.on_answered(PEER, now_ns + round_trip_ns)
        now_ns += CHECK_NS
        load.check(now_ns)
        load.sent(PEER, now_ns)
        found.append(measured.factor)
    assert found == [*factors]


@pytest.mark.parametrize(
    "took_ns, factor",
    [(1, 1), (SLOW_NS, 1), (SLOW_NS + 1, 2), (2 * SLOW_NS, 2), (2 * SLOW_NS + 1, 4),
     (4 * SLOW_NS, 4), (9_999, DEAREST)],
)  # fmt: skip
def test_the_cost_of_a_link_is_the_least_factor_that_its_round_trip_keeps(
    took_ns: int, factor: int
) -> None:
    measured = Measured()
    measured.round_trip_ns = took_ns
    for _ in range(4):
        found, _, _ = measured.interval(sends=True)
    assert found == factor * UP


def test_a_link_without_traffic_is_checked_until_its_probe_is_answered() -> None:
    measured = Measured()
    measured.round_trip_ns = None
    measured.interval(sends=True)
    for _ in range(4):
        factor, probes, is_checked = measured.interval(sends=False)
        assert (probes, is_checked) == (0, True), "one probe is on its way"
    assert factor > UP


def test_each_rise_is_counted_and_one_soon_after_a_fall_twice() -> None:
    measured = Measured()
    for rises in (1, 2, 3):
        measured.round_trip_ns = 900
        while measured.factor == UP:
            measured.interval(sends=True)
        counters = measured.load.counters
        assert (counters["costs_raised"], counters["costs_raised_again"]) == (rises, rises - 1)
        measured.round_trip_ns = 1
        while measured.factor > UP:
            measured.interval(sends=True)
        assert counters["costs_lowered"] == rises


def test_a_link_has_one_probe_between_two_checks() -> None:
    measured = Measured()
    load, now_ns = measured.load, 0
    for _ in range(3):
        sent = [load.sent(PEER, now_ns + later_ns) for later_ns in range(3)]
        assert [len(each) for each in sent] == [1, 0, 0]
        load.on_answered(PEER, now_ns + 5)
        assert load.sent(PEER, now_ns + 6) == []
        now_ns += CHECK_NS
        assert measured.deadlines.due(now_ns) == [(LOAD, 1)], "since the first publication"
        assert load.check(now_ns) == []


def test_only_a_probe_has_an_answer_and_only_one() -> None:
    load = Measured().load
    for peer in (PEER, 3):
        with pytest.raises(RemoteProtocolError):
            load.on_answered(peer, 0)
    load.sent(PEER, 0)
    load.on_answered(PEER, 5)
    with pytest.raises(RemoteProtocolError):
        load.on_answered(PEER, 6)


def test_after_each_soon_rise_twice_as_many_checks_must_call_for_a_fall() -> None:
    measured = Measured()
    found = []
    for _ in range(7):
        measured.round_trip_ns = 900
        while measured.factor == UP:
            measured.interval(sends=True)
        measured.round_trip_ns, checks = 1, 0
        while measured.factor > UP:
            measured.interval(sends=True)
            checks += 1
        found.append(checks)
    late = 1  # the last probe of the load is answered behind its end
    assert found == [late + checks for checks in (3, 6, 12, 24, 48, 48, 48)]


@pytest.mark.parametrize("slow_broker_ns", [0, 50])
@pytest.mark.parametrize("is_dear", [False, True])
def test_all_links_are_compared_while_one_is_dear_and_slow_brokers_end(
    slow_broker_ns: int, is_dear: bool
) -> None:
    """Links 3 and 5 have a session, and carry nothing; link 6 has none."""
    peers: dict[int, tuple[int, ...]] = {each: (0, each) for each in (PEER, 3, 5, 6)}
    near = Neighbours(Place((0, 0)), peers, dict.fromkeys((PEER, 3, 5)))
    deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
    parameters = GesParameters(
        slow_link_ns=SLOW_NS, cost_check_ns=CHECK_NS, slow_broker_ns=slow_broker_ns
    )
    load = LinkLoad(1, near, deadlines, parameters)
    load.sent(PEER, 0)
    load.on_answered(PEER, 1)
    if is_dear:
        near.factors[PEER] = 4
    probed = [each.peer for each in load.check(CHECK_NS) if isinstance(each, Send)]
    wanted = [PEER, 3, 5] if slow_broker_ns else [PEER]
    assert probed == (wanted if is_dear else [])
    assert (LOAD, 1) in deadlines


@pytest.mark.parametrize("losses", [1, 2, 4])
def test_a_complete_confirmation_is_repeated_like_one_before_any_loss(
    losses: int,
) -> None:
    origin, farther = 9, 2
    confirmations = Confirmations(1, Neighbours(Place((0, 0)), {PEER: (0, 1)}, {PEER: None}))

    def confirm(number: int, *, is_complete: bool) -> object:
        after, version = (1, number - 1), (1, number)
        waiting = PendingVersion(after, version, PEER, {farther: None}, {}, 0)
        confirmations.add(origin, waiting)
        reached = ProfileReached(origin, after, version, is_complete)
        assert confirmations.on_reached(farther, reached, 0) == [Send(PEER, reached)]
        (again,) = confirmations.confirm_known(PEER, origin, (1, 1))
        assert isinstance(again, Send)
        return again.message

    for number in range(1, losses + 1):
        assert confirm(number, is_complete=False) == ProfileReached(origin, (0, 0), (1, 1), False)
    assert confirm(losses + 1, is_complete=True) == ProfileReached(origin, (0, 0), (1, 1), True)
