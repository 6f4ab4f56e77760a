"""Tests of timeliness: a rule detects late repairs by an audit or a slow retry."""

from dataclasses import replace

import pytest

from brokerd.protocols.delta_tree.partition_tags import Notifiers
from brokerd.simulator.checks.liveness import bounds_of
from brokerd.simulator.search.plan import Plan, read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.swarm import plan_of
from brokerd.units import SECOND_NS

STORY = """
simulation timed
protocol delta_tree delta=1
brokers b1 b2 b3 b4
links b1-b2 b2-b3 b3-b4
limits failed=1 links=1
core audit_interval_ns=20000000000
chance 1
publisher p0-b4
at 0.5 fault kill b4
at 2 subscribe s1-b1 true
heal 5
end 5
"""
"""A subscription at the other end of the line while b4 is dead; then b4 returns."""


def _plan(audit_interval_ns: int) -> Plan:
    plan = read_plan(STORY)
    return replace(plan, parameters=replace(plan.parameters, audit_interval_ns=audit_interval_ns))


def _lose_first_notifier(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    lost: list[object] = []
    notify = Notifiers.notify

    def lose_one(self: Notifiers, row: object, replacement: object) -> None:
        if lost:
            notify(self, row, replacement)  # type: ignore[arg-type]
        else:
            lost.append(replacement)

    monkeypatch.setattr(Notifiers, "notify", lose_one)
    return lost


def test_a_gate_opens_without_an_audit() -> None:
    report = PlanRun(_plan(1_000_000 * SECOND_NS)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["notifiers_sent"] == 1


def test_a_gate_that_only_an_audit_opens_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = _lose_first_notifier(monkeypatch)
    report = PlanRun(_plan(20 * SECOND_NS), check_purity=False).report(-1, "")
    assert lost
    assert report.rule == "gate late", report.describe()


def test_an_early_audit_hides_a_lost_notifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For this reason a third of the seeds have no audit."""
    lost = _lose_first_notifier(monkeypatch)
    report = PlanRun(_plan(SECOND_NS), check_purity=False).report(-1, "")
    assert lost
    assert not report.violations, report.describe()


def test_time_limits_grow_with_the_delays_of_a_plan() -> None:
    plan = _plan(SECOND_NS)
    bounds = bounds_of(plan)
    assert SECOND_NS < bounds.sessions_ns < bounds.gates_ns < bounds.everything_ns
    assert bounds.everything_ns < 20 * SECOND_NS + plan.parameters.client_linger_ns
    session = replace(plan.network.session, connect_timeout_ns=30 * SECOND_NS)
    slower = bounds_of(replace(plan, network=replace(plan.network, session=session)))
    assert slower.gates_ns - bounds.gates_ns >= 28 * SECOND_NS


def test_a_third_of_the_seeds_have_no_audit() -> None:
    plans = [plan_of(seed, "delta_tree") for seed in range(300)]
    without = [plan for plan in plans if plan.parameters.audit_interval_ns > 1_000 * SECOND_NS]
    assert 70 < len(without) < 130
    assert 30 < sum(plan.adversarial for plan in without) < 100
