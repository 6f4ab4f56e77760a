"""Swarms of durable: no violations, full coverage of all rules, and named bugs found."""

import pytest

from brokerd.protocols.durable.checks.feeding import FeedingChecks
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.simulator.checks.marks import compute_coverage, describe_coverage
from brokerd.simulator.checks.protocol_checks import marks_of, planning_of
from brokerd.simulator.named_bugs import bugs_of
from brokerd.simulator.search.adversary import AdversaryOptions, run_adversary
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from tests.helpers.seeds import seeds_of_the_mix

MUTANTS = bugs_of("durable")

SEEDS = seeds_of_the_mix(40, long=0)
"""Seeds without long runs, although some bugs appear in one seed of twenty or fewer.

Campaigns run the long seeds, which take ten times as long.
"""
BY_SEEDS = {
    "released-before-written": 2,
    "silence-covers-events-in-flight": 4,
    "restart-forgets-where-streams-are": 6,
    "silence-is-announced-once": 24,
}
"""Named bugs that no story finds, with the first seed that finds them."""


def test_a_swarm_finds_no_violation_and_reaches_every_mark() -> None:
    reports = [run_seed(seed, "durable") for seed in SEEDS]
    failed = [(report.seed, report.violations) for report in reports if report.violations]
    assert not failed
    marks = compute_coverage(marks_of("durable"), reports)
    assert all(row.is_enough for row in marks), describe_coverage(marks)
    assert sum(report.counters["at_risk"] for report in reports) > 100


def test_an_adversary_without_a_clock_breaks_nothing() -> None:
    options = AdversaryOptions(protocol="durable")
    reports = [run_adversary(seed, options) for seed in range(1, 4)]
    assert not [(report.seed, report.violations) for report in reports if report.violations]


def test_planned_turns_allow_for_small_catch_up_batches() -> None:
    """Seed 585156: 269 publications in batches of 16 over four links; no subscriber was stalled."""
    turns = planning_of("durable").turns
    few = DurableParameters(catchup_batch=16, live_limit=20)
    assert turns(few, 269) >= 269 // 16 * (2 * 4 + 2 * 4)
    assert turns(DurableParameters(catchup_batch=5_000, live_limit=16), 269) == turns(few, 269)
    assert turns(DurableParameters(catchup_batch=5_000, live_limit=16_384), 269) == 0


WAITS_FOR_SILENCE = """
simulation timed
protocol durable
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
limits failed=1 links=1
core silence_interval_ns=20000000000 max_retain_ns=200000000
chance 1
publisher p0-b1
at 0.1 subscribe s1-b2 kind = 'a'
at 0.1 subscribe s2-b2 kind = 'b'
at 1 publish p0-b1 SENT
heal 1.3
end 1.3
""".replace("SENT", " ".join(["a,10,3"] * 200))


def test_state_kept_for_pending_silence_is_not_counted_as_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 667677: pubends had released for age, so the run was over before silence was due."""
    report = PlanRun(read_plan(WAITS_FOR_SILENCE)).report(-1, "")
    assert not report.violations
    assert report.counters["simulated_ms"] > 20_000, "the silence was waited for"
    monkeypatch.setattr(FeedingChecks, "list_pending", lambda *_: [])
    report = PlanRun(read_plan(WAITS_FOR_SILENCE)).report(-1, "")
    assert report.rule == "growth"
    assert "FilterLog" in report.violations[0]


@pytest.mark.drawn("durable")
@pytest.mark.parametrize("name", [*BY_SEEDS])
def test_a_named_bug_is_seen(name: str) -> None:
    assert name in MUTANTS
    options = SwarmOptions(mutants=frozenset((name,)), check_purity=False)
    assert run_seed(BY_SEEDS[name], "durable", options).violations
