"""Tests of two ways to detect duplicates: the limits of each.

Paper: [DFT11] §VII; PROTOCOL.md has the table of tolerated failures.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.units import SECOND_NS
from tests.helpers.cluster import STEADY, chain
from tests.helpers.delta_tree_bugs import Mutant

LINKS = Setting(delta=1, brokers=8, links_at_once=5, runs=0)
CRASHES = Setting(delta=1, brokers=8, links_at_once=1, elements_at_once=1, runs=0)
VECTOR = {"dedupe": "vector", "legitimacy": "hold"}
BOTH = {"dedupe": "both", "legitimacy": "hold"}


def run(seed: int, setting: Setting, *mutants: Mutant, **parameters: Any) -> SeedReport:
    """Run a seed without permanent failures, which may delay publications for ever."""
    plan = draw_plan(seed, "delta_tree", mutants=frozenset(mutants), setting=setting)
    parameters = {"publication_log": False, **parameters}
    changed = replace(plan.parameters, **parameters)
    return PlanRun(replace(plan, parameters=changed, broken=()), check_purity=False).report(
        seed, ""
    )


def first_failure(seeds: range, setting: Setting, *mutants: Mutant, **parameters: Any) -> str:
    """Return the first violated rule; "" if all rules hold."""
    for seed in seeds:
        report = run(seed, setting, *mutants, **parameters)
        if report.violations:
            return report.rule
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_vectors_bear_failing_links(seed: int) -> None:
    report = run(seed, LINKS, **VECTOR)
    assert not report.violations, report.describe()


@pytest.mark.parametrize("seed", range(4))
def test_both_duplicate_checks_agree_if_only_links_fail(seed: int) -> None:
    report = run(seed, LINKS, **BOTH)
    assert not report.violations, report.describe()


@pytest.mark.parametrize("seed", range(4))
def test_a_disagreement_of_duplicate_checks_names_a_restarted_broker(seed: int) -> None:
    """By source, all publications arrive; the oracle rejects a disagreement without a restart."""
    report = run(seed, CRASHES, **BOTH)
    assert not report.violations, report.describe()


def test_disagreements_are_counted() -> None:
    counted = [run(seed, CRASHES, **BOTH).counters["dedupe_disagreements"] for seed in range(4)]
    assert sum(counted) > 0


@pytest.mark.parametrize("seed", range(4))
def test_draining_bears_failing_links_and_brokers(seed: int) -> None:
    report = run(seed, CRASHES, switch="drain")
    assert not report.violations, report.describe()


def test_vectors_do_not_bear_restarts() -> None:
    assert first_failure(range(20), CRASHES, **VECTOR)


def test_vectors_without_legitimate_propagation_do_not_bear_failing_links() -> None:
    assert first_failure(range(54, 114), LINKS, dedupe="vector")


def test_vectors_of_delta_plus_1_do_not_bear_failing_links() -> None:
    """The vectors cover the publications that a broker holds, but not those in flight."""
    assert first_failure(range(60), LINKS, Mutant.SHORT_VECTORS, **VECTOR)


def test_vectors_without_sending_again_lose_publications() -> None:
    assert first_failure(range(10), LINKS, Mutant.NO_RESEND_ON_ACTIVATION, **VECTOR)


def _only_common_broker_restarts(**parameters: Any) -> list[int]:
    """Send two copies of n=1 whose only common broker b2 restarts between them.

    The window of b5 is b2, b3, b4. The first copy passes around b3, the second around b4, and b3
    returns only after b2 has lost the record of n=1.
    """
    cluster, s = _line_of_five(**parameters)
    cluster.broker("b3").kill()
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)
    cluster.run_for(0.1)
    assert [publication.sequence for publication in s.received] == [1]
    cluster.broker("b2").kill()
    cluster.broker("b3").start()
    cluster.broker("b4").kill()
    cluster.broker("b2").start()
    return _end(cluster, s)


def _window_restarts_one_by_one(**parameters: Any) -> list[int]:
    """Restart one broker at a time, until no broker in b5's window has a record of n=1."""
    cluster, s = _line_of_five(**parameters)
    cluster.publish("b1", n=1)
    cluster.run_for(0.1)
    assert [publication.sequence for publication in s.received] == [1]
    for name in ("b2", "b3", "b4"):
        cluster.broker(name).restart()
        cluster.run_for(3)
    return _end(cluster, s)


def _line_of_five(**parameters: Any) -> tuple[SimulatedCluster, Subscription]:
    """Start b1 to b5 with a slow subscriber at b5, which delays all confirmations."""
    names = [f"b{number}" for number in range(1, 6)]
    chosen = DeltaTreeParameters(delta=1, **parameters)
    cluster = SimulatedCluster(chain(*names), network=STEADY, parameters=chosen).start()
    s = cluster.subscribe("b5", "true", "s")
    cluster.client("p-b1", "b1", publishes=True)
    cluster.run_until_quiet()
    s.client.take_after_ns = 30 * SECOND_NS
    return cluster, s


def _end(cluster: SimulatedCluster, s: Subscription) -> list[int]:
    cluster.run_for(40)
    for broker in cluster.brokers:
        if not broker.alive:
            broker.start()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    return [publication.sequence for publication in s.received]


STORIES = {
    "the only common broker": _only_common_broker_restarts,
    "one by one": _window_restarts_one_by_one,
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
@pytest.mark.parametrize("way", ["source", "both"])
def test_scenario_27_by_source_restarts_between_two_copies_do_no_harm(
    story: Callable[..., list[int]], way: str
) -> None:
    assert story(dedupe=way) == [1]


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_scenario_27_by_vector_restarts_between_two_copies_make_a_duplicate(
    story: Callable[..., list[int]],
) -> None:
    with pytest.raises(InvariantViolated, match="delivered again: b5 to s/1: 1 of"):
        story(**VECTOR)
