"""Two ways of telling duplicates, where each of them holds and where it does not.

Paper: [DFT11] §VII; the table of which way bears what is in PROTOCOL.md.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import PlanRun
from brokerd.simulator.world.cluster import SimulatedCluster, Subscription
from brokerd.units import SECOND_NS
from tests.helpers.cluster import STEADY, chain
from tests.helpers.delta_tree_bugs import Mutant

LINKS = Setting(delta=1, brokers=8, links_at_once=5, runs=0)
CRASHES = Setting(delta=1, brokers=8, links_at_once=1, elements_at_once=1, runs=0)
VECTOR = {"dedupe": "vector", "legitimacy": "hold"}
BOTH = {"dedupe": "both", "legitimacy": "hold"}


def run(seed: int, setting: Setting, *mutants: Mutant, **parameters: Any) -> SeedReport:
    """One seed, with nothing broken for ever: what is held might wait as long."""
    plan = draw_plan(seed, "delta_tree", mutants=frozenset(mutants), setting=setting)
    parameters = {"publication_log": False, **parameters}
    changed = replace(plan.parameters, **parameters)
    return PlanRun(replace(plan, parameters=changed, broken=()), check_purity=False).report(
        seed, ""
    )


def first_failure(seeds: range, setting: Setting, *mutants: Mutant, **parameters: Any) -> str:
    """The rule that is broken first; "" when none is."""
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
    """Decided by source all is well; the oracle refuses a disagreement without a restart."""
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
    """Long enough for the publications that a broker holds, too short for those on their way."""
    assert first_failure(range(60), LINKS, Mutant.SHORT_VECTORS, **VECTOR)


def test_vectors_without_sending_again_lose_publications() -> None:
    assert first_failure(range(10), LINKS, Mutant.NO_RESEND_ON_ACTIVATION, **VECTOR)


def _only_common_broker_restarts(**parameters: Any) -> list[int]:
    """Two copies of n=1 have only b2 in common, and b2 restarts between them.

    The window of b5 is b2, b3, b4. The first copy goes past b3, the second one past b4, and b3
    comes back only when b2 has forgotten that it has sent n=1 before.
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
    """Never more than one broker is down, but nobody in b5's window remembers n=1 in the end."""
    cluster, s = _line_of_five(**parameters)
    cluster.publish("b1", n=1)
    cluster.run_for(0.1)
    assert [publication.sequence for publication in s.received] == [1]
    for name in ("b2", "b3", "b4"):
        cluster.broker(name).restart()
        cluster.run_for(3)
    return _end(cluster, s)


def _line_of_five(**parameters: Any) -> tuple[SimulatedCluster, Subscription]:
    """b1 to b5; a subscriber at b5 that takes its time, so that nothing is confirmed before."""
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
