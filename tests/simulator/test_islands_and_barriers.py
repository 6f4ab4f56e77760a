"""Tests of islands and barriers per path: the tags of a subscription, by brute force.

Random trees have random dead brokers when a subscription is made. The tags must cover exactly the
unreachable brokers.

Paper: [DFT11] §III lines 320-336.
"""

from collections.abc import Collection
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.model.identity import BrokerNumber, PartitionId
from brokerd.overlay.generate import random_tree
from brokerd.protocols.delta_tree.regions import covers
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

TREES = {
    "seed": st.integers(0, 10_000),
    "brokers": st.integers(4, 9),
    "delta": st.integers(1, 2),
}


def around_dead_brokers(
    seed: int, brokers: int, delta: int, strict: bool = True
) -> tuple[SimulatedCluster, set[int], int]:
    """Return a cluster with dead brokers, and a home with a subscription started around them.

    A bug does not stop the run at the first complaint of the simulation.
    """
    random = Random(seed)
    topology = random_tree(brokers, delta, random.randrange)
    cluster = SimulatedCluster(topology, network=STEADY, strict=strict).start()
    cluster.run_until_quiet()
    home = random.randrange(brokers)
    dead = {n for n in range(brokers) if n != home and random.random() < 0.4}
    for number in sorted(dead):
        cluster.brokers[number].kill()
    cluster.run_until_quiet()
    subscription = cluster.subscribe(topology.brokers[home], "true", "s")
    cluster.run_until_quiet()
    assert subscription.started
    return cluster, dead, home


def out_of_reach(cluster: SimulatedCluster, dead: set[int], home: int) -> set[int]:
    """Return the dead brokers, and the brokers without a chain of bypasses along the path."""
    radius = cluster.topology.delta + 1
    found = set(dead)
    for broker in range(len(cluster.brokers)):
        here = 0
        path = cluster.tree.path(home, broker)
        for place in range(1, len(path)):
            if path[place] not in dead:
                here = place
            elif place - here >= radius:
                found.add(broker)  # so many dead brokers in a row that nobody gets past
    return found


def covered(cluster: SimulatedCluster, home: int) -> set[int]:
    """Return the brokers whose sources the subscription does not receive."""
    (row,) = cluster.brokers[home].protocol._subscriptions.table.rows.values()  # type: ignore[attr-defined]
    return {
        broker
        for broker in range(len(cluster.brokers))
        if covers(row.tags, cluster.tree.path(home, broker))
    }


@settings(max_examples=60)
@given(**TREES)
def test_tags_cover_exactly_brokers_on_a_partition_and_behind_barriers(
    seed: int, brokers: int, delta: int
) -> None:
    cluster, dead, home = around_dead_brokers(seed, brokers, delta)
    assert covered(cluster, home) == out_of_reach(cluster, dead, home)


def kind_on(
    partition: PartitionId, path: tuple[BrokerNumber, ...], reached: Collection[BrokerNumber]
) -> str:
    """Return the kind of a partition on a path from its detector; empty off the path.

    Args:
        reached: brokers that the detector has active sessions with.
    """
    if path[: len(partition.nodes) + 1] != (partition.detector, *partition.nodes):
        return ""
    behind = path[len(partition.nodes) + 1 :]
    return "island" if any(broker in behind for broker in reached) else "barrier"


@settings(max_examples=60)
@given(**TREES)
def test_a_partition_is_a_barrier_on_paths_without_reached_brokers_behind(
    seed: int, brokers: int, delta: int
) -> None:
    cluster, dead, _ = around_dead_brokers(seed, brokers, delta)
    radius = delta + 1
    for broker in cluster.brokers:
        if broker.number in dead:
            continue
        nodes = broker.protocol._sessions.nodes.values()  # type: ignore[attr-defined]
        reached = [node.broker for node in nodes if node.active]
        for partition in broker.protocol._partitions:  # type: ignore[attr-defined]
            if partition.detector != broker.number:
                continue
            for end in range(brokers):
                path = cluster.tree.path(broker.number, end)
                kind = kind_on(partition, path, reached)
                if partition.nodes[-1] not in path:
                    assert not kind
                    continue
                behind = path[len(partition.nodes) + 1 : radius + 1]
                bypassed = any(number not in dead for number in behind)
                assert kind == ("island" if bypassed else "barrier"), (partition, path)


@pytest.mark.parametrize("mutant", [Mutant.ISLANDS_AS_BARRIERS, Mutant.EVERY_PARTITION_TAGGED])
def test_an_island_treated_as_a_barrier_is_safe_but_withholds_more(mutant: Mutant) -> None:
    """Over the same forty trees, no subscription receives a forbidden publication."""
    withheld = {True: 0, False: 0}
    for seed in range(40):
        for wrong in (False, True):
            with plant_mutants([mutant] if wrong else []):
                cluster, dead, home = around_dead_brokers(seed, 8, 1, strict=not wrong)
            out = covered(cluster, home)
            assert out >= out_of_reach(cluster, dead, home)
            assert not cluster.oracle.violations
            withheld[wrong] += len(out)
    assert withheld[True] > withheld[False]
