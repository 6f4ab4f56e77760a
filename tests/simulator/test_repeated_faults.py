"""Tests of faults that repeat for the same targets in one world."""

from collections import Counter
from random import Random

import pytest

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.planning import draw
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.planning.faults import draw_repeats
from brokerd.simulator.search.swarm import run_seed
from brokerd.simulator.world.faults import LOST, OLD_MESSAGE, PARTITION, STAGES

PLANS = 120
HEAL = 10_000


def _repeats(plan: Plan) -> Counter[str]:
    """Return, by kind, the number of a plan's faults that repeat for a target after the end."""
    found: Counter[str] = Counter()
    over: dict[tuple[str, tuple[str, ...]], int] = {}
    for move in plan.moves:
        if type(move) is FaultInjection and move.kind not in (LOST, OLD_MESSAGE):
            key = move.kind, move.on
            found[move.kind] += key in over and over[key] <= move.when
            over[key] = max([move.when, *move.stages, over.get(key, 0)])
    return found


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_a_third_of_the_plans_repeats_faults_for_the_same_targets(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_repeats = [_repeats(draw_plan(seed, protocol)) for seed in range(PLANS)]
    monkeypatch.setattr(draw, "draw_repeats", lambda *_: [])
    by_chance = [_repeats(draw_plan(seed, protocol)) for seed in range(PLANS)]
    pairs = zip(with_repeats, by_chance, strict=True)
    assert sum(some.total() > few.total() for some, few in pairs) >= PLANS * 0.3
    found = sum(with_repeats, Counter[str]())
    assert {"kill", "freeze_then_thaw", "cut", "blackhole", "suspect", "slow_client"} <= {*found}


@pytest.mark.parametrize("kind", [kind for kind in STAGES if kind not in (LOST, OLD_MESSAGE)])
def test_every_kind_of_fault_may_repeat_after_its_end(kind: str) -> None:
    stages = tuple(range(110, 110 + STAGES[kind] - 1))
    fault = FaultInjection(100, kind, ("b1", "b2"), stages)
    drawn = [draw_repeats(Random(seed), [fault], HEAL) for seed in range(40)]
    repeats = [move for moves in drawn for move in moves]
    assert len(repeats) > 5
    last = max([100, *stages])
    for move in repeats:
        assert isinstance(move, FaultInjection)
        assert (move.kind, move.on) == (kind, fault.on)
        assert move.when > last
        assert [at - move.when for at in move.stages] == [at - 100 for at in stages]


def test_a_fault_that_only_healing_ends_does_not_repeat() -> None:
    cut_off = FaultInjection(100, PARTITION, ("b1", "b2"), ())
    assert not any(draw_repeats(Random(seed), [cut_off], HEAL) for seed in range(40))


def test_repeated_faults_land() -> None:
    seed = next(
        seed for seed in range(1, 60) if sum(_repeats(draw_plan(seed, "gryphon")).values()) > 8
    )
    report = run_seed(seed, "gryphon")
    assert not report.violations, report.describe()
    landed = sum(count for name, count in report.counters.items() if name.startswith("fault_"))
    assert landed > 8
