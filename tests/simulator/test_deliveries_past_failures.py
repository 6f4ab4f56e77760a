"""Tests of deliveries past permanently dead brokers, of which at most δ are consecutive.

Paper: [DFT11] §IV (bypassing), §IX-B, Fig. 10.
"""

from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.overlay.generate import generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.tree import PrimaryTree
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.strategies import trees


def deliveries_past(topology, failed, seed):
    """Return pairs of publisher and receiver; all match all, and publish after the failures."""
    cluster = SimulatedCluster(topology, "delta_tree", seed=seed).start()
    for broker in topology.brokers:
        cluster.client(f"p-{broker}", broker, publishes=True)
        cluster.subscribe(broker, "true", client=f"s-{broker}")
    cluster.run_until_quiet()
    names = [topology.brokers[broker] for broker in failed]
    for name in names:
        cluster.broker(name).kill()
    live = [name for name in topology.brokers if name not in names]
    for name in live:
        cluster.publish(name)
    cluster.run_for(30)
    return {
        (source.broker, topology.number_of(name))
        for name in live
        for source, _ in cluster.clients[f"s-{name}"].received[1]
    }


@settings(max_examples=40)
@given(topology=trees(largest=9), data=st.data(), seed=st.integers(0, 1000))
def test_brokers_communicate_exactly_across_at_most_delta_dead_in_a_row(topology, data, seed):
    failed = data.draw(st.sets(st.integers(0, len(topology.brokers) - 1)))
    tree = PrimaryTree(topology)
    live = [broker for broker in range(len(topology.brokers)) if broker not in failed]
    runs = {
        (a, b): [len([*dead]) for is_dead, dead in groupby(tree.path(a, b), failed.__contains__)
                 if is_dead]
        for a in live for b in live
    }  # fmt: skip
    expected = {pair for pair, dead in runs.items() if max(dead, default=0) <= topology.delta}
    assert deliveries_past(topology, sorted(failed), seed) == expected


@pytest.mark.parametrize("delta", [0, 1, 3])
def test_fifty_brokers_with_a_sixth_dead_deliver_over_all_remaining_routes(delta):
    seed = 10
    topology = generate_balanced_tree(50, 3, delta)
    failed = Random(f"{seed}").sample(range(50), 8)
    graph = Connectivity(topology)
    connected = graph.live_pairs(failed) - graph.count_disconnected_pairs(failed, delta)
    found = deliveries_past(topology, failed, seed)
    assert len(found) == 2 * connected + 42, f"seed {seed}, failed {failed}"
