"""Tests of the number of active sessions around failed brokers: it equals the paper's formula.

Paper: [DFT11] §II, §IV (bypassing), §IX-D, Fig. 12.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.overlay.generate import generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.strategies import trees


def sessions_after(topology, failed, seed):
    """Return the active sessions per live broker after all connection attempts."""
    cluster = SimulatedCluster(topology, "delta_tree", seed=seed).start()
    cluster.run_until_quiet()
    for broker in failed:
        cluster.broker(topology.brokers[broker]).kill()
    cluster.run_until_quiet()
    return {
        broker.number: broker.core.statistics()["sessions_active"]
        for broker in cluster.brokers
        if broker.alive
    }


@settings(max_examples=60)
@given(topology=trees(largest=12), data=st.data(), seed=st.integers(0, 1000))
def test_a_tree_of_any_shape_ends_with_the_sessions_of_the_formula(topology, data, seed):
    failed = data.draw(st.sets(st.integers(0, len(topology.brokers) - 1)))
    expected = Connectivity(topology).active_sessions(failed, topology.delta + 1)
    assert sessions_after(topology, sorted(failed), seed) == expected


@pytest.mark.parametrize("fanout", [3, 7])
def test_a_hundred_brokers_end_with_the_sessions_of_the_formula(fanout):
    seed = 12
    topology = generate_balanced_tree(100, fanout, 3)
    failed = Random(f"{seed}/{fanout}").sample(range(100), 15)
    expected = Connectivity(topology).active_sessions(failed, 4)
    assert sessions_after(topology, failed, seed) == expected, f"seed {seed}, failed {failed}"
    assert max(expected.values()) > fanout, "nobody had to bypass anything"
