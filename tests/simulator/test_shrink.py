"""Tests of shrinking: failing seeds become short stories."""

from dataclasses import replace
from functools import cache

import pytest

from brokerd.simulator.anchors import Edit
from brokerd.simulator.named_bugs import NamedBug, plant
from brokerd.simulator.search.moves import FaultInjection, LaneChoice
from brokerd.simulator.search.plan import read_plan, with_settings
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.shrink import ShrunkPlan, shrink
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed
from tests.helpers.delta_tree_bugs import Mutant


@cache
def shrunk(seed: int, mutant: Mutant) -> ShrunkPlan:
    """Return the shrunk first failure of this mutant from a seed on, in the same layer."""
    options = SwarmOptions(mutants=frozenset((mutant,)))
    while not run_seed(seed, "delta_tree", options).violations:
        seed += 2
    found = shrink(plan_of(seed, "delta_tree", options))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "seed, mutant",
    [
        (0, Mutant.START_BEFORE_CONFIRMED),
        (1, Mutant.RESEND_AFTER_NEWER),
        (13, Mutant.RESTARTED_IS_EDGE),
        (1, Mutant.CONFIRM_COVERS_PENDING),
        (15, Mutant.NO_UPSTREAM_COPY),
        (2, Mutant.NO_TAGS_UNREACHABLE_DONE),
    ],
    ids=lambda value: str(value),
)
def test_a_bug_is_shown_by_a_few_faults_brokers_and_publications(seed: int, mutant: Mutant) -> None:
    """At most 3, 5 and 20; the printed plan shows the same failure."""
    found = shrunk(seed, mutant)
    assert found.is_small(), found.plan.size()
    again = PlanRun(read_plan(found.describe("A seed"))).report(-1, "")
    assert again.rule == found.report.rule
    assert again.digest == found.report.digest


def test_a_shrunk_adversarial_plan_lists_its_deciding_messages() -> None:
    found = shrunk(15, Mutant.NO_UPSTREAM_COPY)
    assert found.plan.adversarial
    assert not found.plan.drawn
    taken = [move for move in found.plan.moves if type(move) is LaneChoice]
    assert 0 < len(taken) < 60


def test_shrinking_yields_the_same_plan_again() -> None:
    of = (1, Mutant.CONFIRM_COVERS_PENDING)
    assert shrunk(*of) == shrunk.__wrapped__(*of)


def test_a_budget_that_is_spent_leaves_the_smallest_so_far() -> None:
    options = SwarmOptions(mutants=frozenset((Mutant.CONFIRM_ON_RECEIPT,)))
    plan = plan_of(1, "delta_tree", options)
    found = shrink(plan, most_runs=12)
    assert found is not None
    assert found.runs == 12
    assert found.report.violations
    assert found.plan.publications < plan.publications


def test_a_seed_without_a_violation_is_not_shrunk() -> None:
    assert shrink(plan_of(1, "delta_tree")) is None


@pytest.mark.parametrize(
    "kind, on, moved",
    [
        ("restored", ("b2", "copy"), ("b1", "copy")),
        ("kill_for_good", ("b2",), ("b1",)),
        ("lost", ("b3", "b2"), ("b3", "b1")),
        ("kill", ("b2",), ("b1",)),
    ],
)
def test_a_plan_without_a_broker_has_no_fault_of_the_broker(
    kind: str, on: tuple[str, ...], moved: tuple[str, ...]
) -> None:
    fault = FaultInjection(0, kind, tuple(on), (1, 2))
    assert fault.without_broker("b2", "") is None
    assert fault.without_broker("b2", "b1") == replace(fault, on=tuple(moved))
    assert fault.without_broker("b4", "") == fault


def test_a_shrunk_plan_keeps_the_settings_of_its_user() -> None:
    setting = "audit_interval_ns=7000000000"
    small = with_settings(shrunk(1, Mutant.CONFIRM_COVERS_PENDING).plan, [setting])
    found = shrink(small, settings=[setting])
    assert found is not None
    assert found.plan.parameters.audit_interval_ns == 7_000_000_000


def test_only_the_low_limits_that_a_failure_needs_stay() -> None:
    """A bug that merges runs shows only if few runs are permitted."""
    needed = ("brokerd.protocols.gryphon.knowledge._SCATTERED", 1)
    others = (
        ("brokerd.protocols.gryphon.pubend._LOGGED_RECORDS", 1),
        ("brokerd.matching.memo.AT_ONCE", 2),
    )
    bug = NamedBug(
        "drops-what-it-condenses",
        "Nothing is lost where runs become fewer.",
        (
            Edit(
                "brokerd/protocols/gryphon/knowledge.py",
                "RetainedEvents.condense",
                "found += _dense_run(group)",
                "",
                occurrence=2,
            ),
        ),
    )
    plan = replace(plan_of(4, "gryphon"), limits=(others[0], needed, others[1]))
    with plant([bug]):
        found = shrink(plan, most_runs=40)
    assert found is not None
    assert found.plan.limits == (needed,)
