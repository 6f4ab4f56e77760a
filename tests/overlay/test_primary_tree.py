"""Tests of paths and neighbourhoods, against a general graph search."""

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ConfigError
from brokerd.overlay.generate import chain, generate_balanced_tree, random_tree, star
from brokerd.overlay.tree import PrimaryTree
from tests.helpers.strategies import trees


def distances(topology, start):
    """Return the distances of a breadth-first search over the links."""
    found = {start: 0}
    queue = deque([start])
    while queue:
        broker = queue.popleft()
        for a, b in topology.links:
            for here, there in ((a, b), (b, a)):
                if here == broker and there not in found:
                    found[there] = found[broker] + 1
                    queue.append(there)
    return found


@given(topology=trees(), data=st.data())
def test_a_path_follows_links_and_is_the_shortest(topology, data):
    brokers = st.integers(0, len(topology.brokers) - 1)
    start, end = data.draw(brokers), data.draw(brokers)
    path = PrimaryTree(topology).path(start, end)
    assert (path[0], path[-1]) == (start, end)
    assert len(path) - 1 == distances(topology, start)[end]
    steps = [(min(step), max(step)) for step in pairwise(path)]
    assert all(step in topology.links for step in steps)


@given(topology=trees(), radius=st.integers(0, 4), data=st.data())
def test_a_neighbourhood_is_everything_within_its_radius(topology, radius, data):
    center = data.draw(st.integers(0, len(topology.brokers) - 1))
    tree = PrimaryTree(topology)
    near = {b: d for b, d in distances(topology, center).items() if 0 < d <= radius}
    neighbourhood = tree.neighbourhood(center, radius)
    assert {b: len(path) - 1 for b, path in neighbourhood.paths.items()} == near
    assert list(near.values()) == sorted(near.values())
    for broker, path in neighbourhood.paths.items():
        assert path == tree.path(center, broker)
        assert neighbourhood.direction(broker) == path[1]
        assert path[-2] not in neighbourhood.beyond(broker)
        assert all(tree.distance(center, far) == len(path) for far in neighbourhood.beyond(broker))


def test_the_balanced_tree_has_the_neighbourhoods_the_paper_reports():
    """At fan-out 3 no neighbourhood reaches 100 brokers; at 7 and δ = 3 almost all brokers do.

    Paper: [DFT11] §IX-C, Fig. 11.
    """
    largest = {}
    for fanout in (3, 7):
        tree = PrimaryTree(generate_balanced_tree(1000, fanout, 3))
        largest[fanout] = max(len(tree.ball(broker, 4)) for broker in range(1000))
        degrees = [len(near) for near in tree.topology.neighbours()]
        assert max(degrees) == fanout
    assert largest == {3: 45, 7: 999}


def test_generated_shapes_match_their_names():
    assert chain(4, 1).links == ((0, 1), (1, 2), (2, 3))
    assert star(4, 1).links == ((0, 1), (0, 2), (0, 3))
    draws = iter([0, 1, 0])
    assert random_tree(4, 1, lambda n: next(draws)).links == ((0, 1), (1, 2), (0, 3))


@pytest.mark.parametrize("brokers", [0, -1, 10_001])
def test_an_impossible_number_of_brokers_is_refused(brokers):
    with pytest.raises(ConfigError, match="from 1 to 10000"):
        chain(brokers, 1)


def test_a_fanout_that_makes_no_tree_is_refused():
    with pytest.raises(ConfigError, match="fanout = 1"):
        generate_balanced_tree(5, 1, 1)
