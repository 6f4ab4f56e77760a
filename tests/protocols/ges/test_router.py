"""Packets reach every interested broker once, no other broker, and never loop."""

import itertools
from pathlib import Path
from random import Random

import pytest

from bench.papers.ges.routing import Routing, RoutingError, check, flood, measure
from brokerd.overlay.generate import random_hierarchy
from brokerd.protocols.ges.connectivity_graph import link_cost
from brokerd.protocols.ges.messages import Target
from pubsubctl.deployment.topologies import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "bench" / "topologies"


def t22(name):
    return load_topology(TOPOLOGIES / f"{name}.toml")


@pytest.mark.parametrize("seed", range(1, 16))
def test_on_random_hierarchies_graphs_and_ways_are_those_of_brute_force(seed):
    assert check(seed).events == 20


@pytest.mark.parametrize("name, everybody, one", [("t22-hi", 21, 6), ("t22-lo", 22, 10)])
def test_the_reference_topology_uses_the_computed_number_of_links(name, everybody, one):
    routing = Routing(flood(t22(name), Random(1)))
    assert routing.publish(21, range(22)) == everybody
    assert routing.publish(21, [9]) == one


def test_lower_interest_uses_the_computed_fraction_of_links():
    """The results are within 1 % of the values computed for the reference topology."""
    found = {
        (row.pattern, row.match_percent): row.transmissions
        for row in measure(t22("t22-hi"), 300, seed=1)
    }
    each = [found["each client", match] for match in (100, 25, 10, 0)]
    assert each == pytest.approx([21.0, 18.5, 14.1, 6.0], rel=0.01)
    assert found["each broker", 10] == pytest.approx(8.4, rel=0.02)


def test_costs_grow_with_the_level_left_and_with_that_of_the_link():
    costs = [[link_cost(level, link) for link in range(4)] for level in range(4)]
    assert all(a < b for row in costs for a, b in itertools.pairwise(row))
    assert all(a < b for row in zip(*costs, strict=True) for a, b in itertools.pairwise(row))


def test_a_broker_that_gets_nothing_is_seen():
    routing = Routing(flood(t22("t22-hi"), Random(1)))
    router = routing._routers[8]
    router.route = lambda targets, interested: type(router).route(router, [], interested)
    with pytest.raises(RoutingError, match="got it, not"):
        routing.publish(21, range(22))


def test_a_broken_route_is_replaced_by_another_route():
    """Broker n9 is on the route from n7 to n4 when its cluster loses the link to n4."""
    found = flood(t22("t22-hi"), Random(1))
    found.disconnect(3, 8)
    found.settle()
    routing = Routing(found)
    way = ((0, 0, 1, 0), (0, 0, 2))
    routed = routing._routers[8].route([Target(0, (0, 0, 2, 0), (), (way,), 0)], lambda unit: ())
    [(peer, [target])] = routed.hops.items()
    assert (peer, target.reroutes) == (6, 1)
    assert not routed.lost


def test_a_target_rerouted_too_often_is_lost():
    found = flood(t22("t22-hi"), Random(1))
    found.disconnect(3, 8)
    found.settle()
    way = ((0, 0, 1, 0), (0, 0, 2))
    target = Target(0, (0, 0, 2, 0), (), (way,), 4)
    routed = Routing(found)._routers[8].route([target], lambda unit: ())
    assert [lost.reroutes for lost in routed.lost] == [5]
    assert not routed.hops


def test_the_lowest_broker_decides_in_a_single_cluster():
    topology = random_hierarchy(9, 1, Random(3).randrange)
    routing = Routing(flood(topology, Random(3)))
    assert routing.publish(5, range(9)) >= 8
    assert routing.publish(5, []) <= 8
