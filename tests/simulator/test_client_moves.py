"""Tests of clients that move between brokers, and brokers that join and leave, under load."""

import os
import re

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.move import PlanError
from brokerd.simulator.search.plan import read_plan, write_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import is_long
from brokerd.simulator.search.seed_report import total
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed, run_swarm
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle
from brokerd.units import MILLISECOND_NS
from tests.helpers.cluster import STEADY, chain
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

CORES = os.cpu_count() or 1
MOVES = SwarmOptions(moves=True)
SEEDS = [seed for seed in range(1, 21) if not is_long(seed)]


def _chain(most: int = 1_000) -> SimulatedCluster:
    cluster = SimulatedCluster(
        chain("b1", "b2", "b3", "b4"),
        network=STEADY,
        seed=3,
        parameters=DeltaTreeParameters(delta=1, client_subscriptions=most),
    )
    return cluster.start()


def _move_among_publications(line_ms: int, most: int = 1_000) -> None:
    """Move a subscriber from b4, behind a slow link, to b2."""
    cluster = _chain(most)
    subscriber = cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.link("b3", "b4").delay(40 * MILLISECOND_NS)
    arrived: list[str] = []

    def over(name: str, all_delivered: bool) -> bool:
        assert all_delivered
        arrived.append(name)
        return True

    sent: list[PublicationHandle] = []
    for number in range(200):
        sent.append(cluster.publish("b1", n=number))
        if number == 10:
            cluster.population.move(subscriber.client.name, "b2", over)
            cluster.link("s1.-b2", "b2").delay(line_ms * MILLISECOND_NS)
        cluster.run_for(0.005)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    old, new = subscriber.client, cluster.clients[arrived[0]]
    numbers = [sequence for _, sequence in [*old.received[1], *new.received[1]]]
    assert numbers == [published.sequence for published in sent]
    assert old.detached
    assert old.received[1], "it moved before anything came"
    assert new.received[1], "it moved when all was over"


@pytest.mark.parametrize("line_ms", [0, 100])
def test_a_moving_client_receives_each_publication_once_and_in_order(line_ms: int) -> None:
    _move_among_publications(line_ms)


def test_a_client_at_its_subscription_limit_can_move() -> None:
    """The mark at the old broker counts as one more subscription."""
    _move_among_publications(0, most=1)


@pytest.mark.parametrize(
    "line_ms, mutant, rule",
    [
        (0, Mutant.MOVE_WITHOUT_MARK, "gap"),
        (100, Mutant.MOVE_BEFORE_START, "gap"),
        (0, Mutant.MOVE_FORGETS_POSITIONS, "which it had before it moved"),
    ],
)
def test_a_move_that_leaves_a_step_out_is_seen(line_ms: int, mutant: Mutant, rule: str) -> None:
    with pytest.raises(InvariantViolated, match=rule), plant_mutants([mutant]):
        _move_among_publications(line_ms)


def test_a_client_that_leaves_a_dead_broker_continues_at_the_next() -> None:
    cluster = _chain()
    subscriber = cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.broker("b4").kill()
    cluster.run_for(2)
    arrived: list[str] = []

    def over(name: str, all_delivered: bool) -> bool:
        assert not all_delivered
        arrived.append(name)
        return False

    cluster.population.move(subscriber.client.name, "b2", over)
    cluster.run_for(2)
    (name,) = arrived
    cluster.publish("b1", n=1)
    cluster.run_for(1)
    assert [sequence for _, sequence in cluster.clients[name].received[1]] == [1]
    cluster.broker("b4").start()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert cluster.statistics()["queue_publications"] == 0


def test_a_gap_in_the_stream_of_a_moved_client_is_detected() -> None:
    cluster = _chain()
    subscriber = cluster.subscribe("b4")
    cluster.run_until_quiet()
    sent = [cluster.publish("b1", n=number) for number in range(5)]
    cluster.run_until_quiet()
    assert subscriber.received == sent
    moved: list[str] = []
    cluster.population.move("s1-b4", "b2", lambda name, _: bool(moved.append(name)) or True)
    cluster.run_until_quiet()
    cluster.publish("b1", n=5)
    new = cluster.clients[moved[0]]
    source = cluster.clients["p-b1"].core.source
    new.core.progress._received.advance(1, source, 6)  # it drops one unseen
    cluster.publish("b1", n=6)
    with pytest.raises(InvariantViolated, match=r"gap: s1\.-b2/1 got"):
        cluster.run_until_quiet()


def test_swarms_with_moving_clients_and_changing_brokers_keep_all_promises() -> None:
    reports = []
    for report in run_swarm(SEEDS, "delta_tree", CORES, MOVES):
        assert not report.violations, report.describe()
        assert "--moves" in report.command
        reports.append(report)
    ledger = total(reports)
    for what in ("clients_moved", "clients_moved_without_a_step"):
        assert ledger[what] >= len(SEEDS), f"too little of {what} in {ledger}"
    assert ledger["brokers_joined"] >= len(SEEDS) // 2, ledger
    assert ledger["brokers_departed"] >= len(SEEDS) // 8, ledger
    assert ledger["faults_landed"] > 10 * len(SEEDS), ledger


def test_clients_move_even_if_brokers_cannot_join_or_leave() -> None:
    """Protocols with few promises may lose publications but must not fail."""
    reports = list(run_swarm(SEEDS[:12], "best_effort", options=MOVES))
    assert {report.rule for report in reports} <= {"", "gap", "incomplete", "duplicate"}
    ledger = total(reports)
    assert ledger["clients_moved"] >= 12, ledger
    assert ledger["brokers_joined"] == 0
    untroubled = SwarmOptions(moves=True, faults=False)
    for report in run_swarm(SEEDS[:4], "best_effort", options=untroubled):
        assert not report.violations, report.describe()
    texts = (write_plan(plan_of(seed, "delta_tree", MOVES)) for seed in SEEDS)
    text = next(text for text in texts if " join " in text)
    text = text.replace("protocol delta_tree", "protocol best_effort")
    # Parameters and limits of another protocol.
    text = re.sub(r"^(core|lowered) .*\n", "", text, flags=re.MULTILINE)
    with pytest.raises(PlanError, match="no broker can join where the protocol is best_effort"):
        read_plan(text)


@pytest.mark.parametrize("seed", [4, 5])
def test_the_plan_of_a_seed_with_moves_is_the_same_when_read_again(seed: int) -> None:
    plan = plan_of(seed, "delta_tree", MOVES)
    text = write_plan(plan)
    assert " move " in text
    assert read_plan(text) == plan


def test_moves_leave_the_seeds_without_them_as_they_were() -> None:
    seeds = [seed for seed in range(40) if seed % 3]
    for seed in seeds:
        without, plan = plan_of(seed, "delta_tree"), plan_of(seed, "delta_tree", MOVES)
        kept = [move for move in plan.moves if move in without.moves]
        assert kept == list(without.moves)


@pytest.mark.parametrize(
    "protocol, seed",
    [("ges_reliable", 2), ("ges_reliable", 3), ("multi_proxy", 4), ("delta_tree", 11)],
)
def test_clients_of_each_protocol_move_as_its_library_has_them_move(
    protocol: str, seed: int
) -> None:
    """All clients used to move as those of a tree, and received publications again."""
    report = run_seed(seed, protocol, MOVES)
    assert not report.violations, report.describe()
    assert report.counters["clients_moved"] or report.counters["clients_reattached"]


def test_no_broker_is_decommissioned_that_a_client_without_subscriptions_moves_to() -> None:
    """Seed 71004094: the client waited for ever for a broker that had been decommissioned."""
    text = """
simulation timed
protocol multi_proxy
brokers e1 e2 x1 s1
overlay bipartite {"edges": ["e1", "e2"], "proxies": ["x1"], "servers": ["s1"]}
limits failed=1 links=1
core topic_attribute=kind
chance 1
at 0.1 subscribe s1-e1 kind = 'a'
at 0.5 unsubscribe s1-e1 1
at 1 fault kill_for_good e2 then 3 5
at 2 move s1-e1 e2
heal 6
end 6
"""
    report = PlanRun(read_plan(text)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["clients_moved"] == 1
    assert not report.counters["brokers_decommissioned"]
