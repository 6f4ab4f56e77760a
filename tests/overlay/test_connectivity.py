"""Tests of failed brokers in trees, against a walk over all pairs and against given numbers."""

from itertools import combinations, groupby
from math import ceil, sqrt
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.overlay.generate import chain, generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.overlay.tree_section import TreeSection
from tests.helpers.strategies import trees

SEED = 2011


@st.composite
def broken_trees(draw):
    topology = draw(trees(largest=12))
    return topology, draw(st.sets(st.integers(0, len(topology.brokers) - 1)))


def longest_run(path, failed):
    return max((len([*run]) for dead, run in groupby(path, failed.__contains__) if dead), default=0)


@given(broken_trees(), st.integers(0, 4))
def test_pairs_are_disconnected_by_more_than_delta_failures_in_a_row(case, delta):
    topology, failed = case
    tree = PrimaryTree(topology)
    live = [broker for broker in range(len(topology.brokers)) if broker not in failed]
    pairs = [*combinations(live, 2)]
    cut_off = [pair for pair in pairs if longest_run(tree.path(*pair), failed) > delta]
    connectivity = Connectivity(topology)
    assert connectivity.live_pairs(failed) == len(pairs)
    assert connectivity.count_disconnected_pairs(failed, delta) == len(cut_off)


@given(broken_trees(), st.integers(0, 4))
def test_active_sessions_lead_to_live_brokers_with_only_failed_ones_between(case, radius):
    topology, failed = case
    tree = PrimaryTree(topology)
    live = [broker for broker in range(len(topology.brokers)) if broker not in failed]
    expected = {
        broker: sum(
            1 <= tree.distance(broker, other) <= radius
            and failed.issuperset(tree.path(broker, other)[1:-1])
            for other in live
        )
        for broker in live
    }
    assert Connectivity(topology).active_sessions(failed, radius) == expected


@given(trees(), st.integers(0, 4))
def test_neighbourhoods_have_the_sizes_of_those_that_brokers_are_given(topology, radius):
    tree = PrimaryTree(topology)
    sizes = [len(tree.ball(broker, radius)) for broker in range(len(topology.brokers))]
    assert Connectivity(topology).neighbourhood_sizes(radius) == sizes


def test_being_connected_is_not_handed_on():
    """a-x-m-z-c with b beside m; m, x and z have failed.

    Two failed brokers lie between a and b, two between b and c, but three between a and c: with δ =
    2, both a and c reach b but not each other. A count of connected parts would be wrong.
    """
    topology = Topology(
        "t", TreeSection(2), tuple("axmzcb"), ((0, 1), (1, 2), (2, 3), (3, 4), (2, 5))
    )
    connectivity = Connectivity(topology)
    assert [connectivity.count_disconnected_pairs([1, 2, 3], delta) for delta in (1, 2, 3)] == [
        3,
        1,
        0,
    ]


def test_a_chain_falls_into_two_parts_only_beyond_delta():
    ten = Connectivity(chain(10, 0))
    assert [ten.count_disconnected_pairs([4, 5], delta) for delta in (0, 1, 2)] == [16, 16, 0]


# Paper: [DFT11] §IX-A, Fig. 9, in percent of live pairs, δ = 0, 1, 2, 3; computed apart from
# this code, the mean of 100 draws per point.
DISCONNECTED_PERCENT = {
    (3, 10): (9.8, 0.03, 0, 0),
    (3, 16): (23.7, 0.05, 0, 0),
    (3, 30): (29.1, 0.5, 0.01, 0),
    (3, 60): (51.4, 3.6, 0.2, 0),
    (3, 100): (72.5, 10.1, 1.3, 0.3),
    (7, 10): (5.2, 0.04, 0, 0),
    (7, 16): (7.9, 0.04, 0, 0),
    (7, 30): (20.6, 0.3, 0, 0),
    (7, 60): (30.6, 1.5, 0.04, 0),
    (7, 100): (46.3, 4.6, 0.4, 0.05),
}


@pytest.mark.parametrize("fanout", [3, 7])
def test_a_thousand_brokers_lose_as_many_pairs_as_was_computed_before(fanout):
    """Two means of 100 draws may differ by four standard errors of their difference."""
    connectivity = Connectivity(generate_balanced_tree(1000, fanout, 3))
    for count in (10, 16, 30, 60, 100):
        random = Random(f"{SEED}/{fanout}/{count}")
        draws = [random.sample(range(1000), count) for _ in range(100)]
        for delta, expected in enumerate(DISCONNECTED_PERCENT[fanout, count]):
            percent = [
                100
                * connectivity.count_disconnected_pairs(failed, delta)
                / connectivity.live_pairs(failed)
                for failed in draws
            ]
            # The rarer, the more a mean hangs on single draws that cut off much.
            slack = 4 * sqrt(2) * stdev(percent) / 10 + 0.25 * (delta > 0)
            found = fmean(percent)
            assert abs(found - expected) <= slack, (
                f"seed {SEED}, fan-out {fanout}, {count} failed, δ = {delta}: "
                f"{found:.3f} % against {expected} % ± {slack:.3f}"
            )


# Paper: [DFT11] §IX-C, Fig. 11: smallest, median, 90th percentile, largest.
NEIGHBOURHOODS = {
    3: [(1, 1, 3, 3), (3, 3, 9, 9), (5, 5, 21, 21), (7, 9, 29, 45)],
    7: [(1, 1, 7, 7), (3, 7, 13, 49), (9, 13, 49, 301), (27, 49, 85, 999)],
}


@pytest.mark.parametrize("fanout", [3, 7])
def test_a_thousand_brokers_have_the_neighbourhoods_computed_before(fanout):
    connectivity = Connectivity(generate_balanced_tree(1000, fanout, 3))
    for delta, expected in enumerate(NEIGHBOURHOODS[fanout]):
        sizes = connectivity.neighbourhood_sizes(delta + 1)
        found = (min(sizes), quantile(sizes, 0.5), quantile(sizes, 0.9), max(sizes))
        assert found == expected, f"fan-out {fanout}, δ = {delta}"


# Paper: [DFT11] §IX-D, Fig. 12, δ = 3: mean, then median, 90th and 99th percentile.
ACTIVE_SESSIONS = {
    (3, 0): (2.00, 1, 3, 3),
    (3, 16): (2.01, 2, 3, 4),
    (3, 60): (2.06, 2, 3, 4),
    (7, 0): (2.00, 1, 7, 7),
    (7, 16): (2.08, 1, 7, 7),
    (7, 60): (2.32, 1, 7, 12),
}


@pytest.mark.parametrize("fanout, count", ACTIVE_SESSIONS)
def test_a_thousand_brokers_have_the_sessions_computed_before(fanout, count):
    connectivity = Connectivity(generate_balanced_tree(1000, fanout, 3))
    random = Random(f"{SEED}/{fanout}/{count}")
    sessions = []
    for _ in range(20 if count else 1):
        sessions += connectivity.active_sessions(random.sample(range(1000), count), 4).values()
    found = tuple(quantile(sessions, share) for share in (0.5, 0.9, 0.99))
    mean, *expected = ACTIVE_SESSIONS[fanout, count]
    assert found == tuple(expected), f"seed {SEED}"
    assert fmean(sessions) == pytest.approx(mean, abs=0.03), f"seed {SEED}"


def quantile(values, share):
    """Return the smallest value that at least this share of all values does not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]
