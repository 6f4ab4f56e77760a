"""Tests of graphs under old, repeated and ended statements, and under link failures."""

from dataclasses import replace
from random import Random

import pytest

from bench.papers.ges.routing import RoutingError, check_graphs, flood
from brokerd.overlay.generate import random_hierarchy
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.messages import DOWN
from brokerd.protocols.ges.units import Place


def drawn(seed):
    random = Random(f"breaking {seed}")
    topology = random_hierarchy(random.randint(4, 30), random.randint(2, 4), random.randrange)
    return flood(topology, random, (1, 2, 4, 8)), random


@pytest.mark.parametrize("seed", range(1, 7))
def test_link_changes_in_connected_units_reach_all_graphs(seed):
    """Links that no unit needs fail, and other links change their cost."""
    found, random = drawn(seed)
    for _ in range(12):
        link = random.choice(sorted(found.up))
        if link in replace(found.section, links=tuple(found.up)).critical_links():
            found.charge(*link, random.choice((1, 2, 4, 8)))
        else:
            found.disconnect(*link)
        for _ in range(random.randrange(20)):
            found.step()
    found.settle()
    check_graphs(found)


def test_a_graph_that_lacks_a_link_is_seen():
    found, _ = drawn(1)
    del found.up[sorted(found.up)[0]]
    with pytest.raises(RoutingError, match="broker"):
        check_graphs(found)


def pair():
    """Return the views of two brokers of a cluster; the second receives statements of the first."""
    here, there = Place((0, 0)), Place((0, 1))
    return GraphView(0, here, 1), GraphView(1, there, 1), here, there


def test_a_connection_exists_while_both_ends_report_it():
    one, other, here, there = pair()
    up = one.state(1, there.address, 1)
    assert other.learn(up)
    assert not other.edges
    other.state(0, here.address, 1)
    assert other.near((0, 0)) == {(0, 1): 1}
    other.state(0, here.address, DOWN)
    assert not other.edges


def test_an_outdated_statement_changes_nothing():
    one, other, here, there = pair()
    other.state(0, here.address, 1)
    up, down = one.state(1, there.address, 1), one.state(1, there.address, DOWN)
    assert other.learn(down)
    assert not other.learn(up)
    assert not other.learn(down)
    assert not other.edges


def test_a_restarted_broker_supersedes_its_earlier_statements():
    one, other, here, there = pair()
    other.state(0, here.address, 1)
    for _ in range(5):
        other.learn(one.state(1, there.address, DOWN))
    again = GraphView(0, here, 2)
    assert other.learn(again.state(1, there.address, 4))
    assert other.near((0, 1)) == {(0, 0): 4}


def test_the_dearer_of_two_opinions_counts():
    one, other, here, there = pair()
    other.state(0, here.address, 8)
    other.learn(one.state(1, there.address, 2))
    assert other.near((0, 0)) == {(0, 1): 8}


def test_a_statement_from_outside_a_unit_is_ignored_inside_it():
    outside = GraphView(2, Place((1, 0, 0)), 1)
    inside = GraphView(0, Place((0, 0, 0)), 1)
    said = outside.state(5, (0, 1, 0), 1)
    assert said.low_end == (1, 0, 0)
    assert said.high_end == (0,)
    assert not inside.learn(said)


def test_a_departure_report_with_outside_addresses_removes_the_connection():
    """Broker b1 restarted and has b3 of its cluster from outside statements only; b0 has more."""
    knows, forgot = GraphView(0, Place((0, 0, 0)), 1), GraphView(1, Place((0, 0, 1)), 1)
    there, beyond = GraphView(3, Place((0, 0, 2)), 1), GraphView(7, Place((0, 1, 0)), 1)
    said = there.state(7, (0, 1, 0), 1)
    assert knows.learn(said)
    ends = {"low_end": (0, 0, 2), "high_end": (0, 1)}
    assert knows.learn(replace(beyond.state(3, (0, 0, 2), 1), **ends))
    assert knows.near((0, 0, 2)) == {(0, 1): 1}
    outside = replace(said, low_end=(0, 0))
    assert forgot.is_only_outside(outside)
    assert not knows.is_only_outside(outside)
    gone = forgot.state_for_unknown(outside)
    assert not forgot.is_only_outside(outside)
    assert knows.learn(gone)
    assert not knows.edges
