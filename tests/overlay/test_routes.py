"""Routes, against all paths there are, walked one by one."""

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.overlay.generate import cells, chain, hierarchy
from brokerd.overlay.routes import Bundle, Route, is_open
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from tests.helpers.strategies import bipartites, cell_topologies, hierarchies, trees


def simple_paths(links, start, end, lost):
    """All paths over links between brokers that are not lost, no broker twice."""
    walks = [(start,)] if start not in lost else []
    for walk in walks:
        if walk[-1] == end:
            yield walk
            continue
        for a, b in links:
            for here, there in ((a, b), (b, a)):
                if here == walk[-1] and there not in lost and there not in walk:
                    walks.append((*walk, there))


def remaining(topology, lost_links):
    return [link for link in topology.links if link not in lost_links]


@st.composite
def cases(draw, topologies):
    topology = draw(topologies)
    brokers = st.integers(0, len(topology.brokers) - 1)
    lost = draw(st.sets(brokers, max_size=len(topology.brokers) // 2))
    links = st.sampled_from(topology.links) if topology.links else st.nothing()
    lost_links = draw(st.sets(links)) if topology.links else set()
    return topology, draw(brokers), draw(brokers), lost, lost_links


ALL_KINDS = st.one_of(trees(), cell_topologies(), hierarchies(), bipartites())


@given(cases(trees()))
def test_a_tree_has_one_way(case):
    topology, origin, home, lost, lost_links = case
    route = topology.overlay().route(origin, home)
    expected = any(simple_paths(remaining(topology, lost_links), origin, home, lost))
    assert is_open(route, lost, lost_links) == expected
    assert [step for step in route.steps if isinstance(step, int)] == list(
        PrimaryTree(topology).path(origin, home)
    )


@given(cases(cell_topologies()))
def test_a_bundle_is_open_while_one_of_its_links_is_and_one_step_sideways_reaches_it(case):
    topology, origin, home, lost, lost_links = case
    cell_of = topology.section.cell_of

    def allowed(path):
        visits = [(cell, len([*run])) for cell, run in groupby(path, cell_of)]
        return len({cell for cell, _ in visits}) == len(visits) and max(n for _, n in visits) < 3

    paths = simple_paths(remaining(topology, lost_links), origin, home, lost)
    route = topology.overlay().route(origin, home)
    assert is_open(route, lost, lost_links) == any(map(allowed, paths))


@given(cases(hierarchies()))
def test_a_route_of_a_hierarchy_leaves_each_unit_once_and_passes_no_divided_one(case):
    topology, origin, home, lost, lost_links = case
    addresses = topology.section.addresses
    links = remaining(topology, lost_links)

    def connected(unit):
        """Itself and each unit in it, by what remains in it."""
        inside = [n for n, found in enumerate(addresses) if found[: len(unit)] == unit]
        live = [n for n in inside if n not in lost]
        outside = {n for n in range(len(addresses)) if n not in inside} | lost
        deeper = {addresses[n][: len(unit) + 1] for n in live if len(unit) < len(addresses[n]) - 1}
        return all(any(simple_paths(links, live[0], n, outside)) for n in live) and all(
            map(connected, deeper)
        )

    def allowed(path):
        for length in range(len(addresses[0])):
            units = [unit for unit, _ in groupby(addresses[n][:length] for n in path)]
            if len({*units}) < len(units):
                return False
            for before, unit, after in zip(units, units[1:], units[2:], strict=False):
                is_passed = length and before[:-1] == unit[:-1] == after[:-1]
                if is_passed and not connected(unit):
                    return False
        return True

    route = topology.overlay().route(origin, home)
    assert is_open(route, lost, lost_links) == any(
        map(allowed, simple_paths(links, origin, home, lost))
    )


@given(cases(bipartites()))
def test_topics_are_reached_over_any_proxy_and_owned_by_any_server(case):
    topology, origin, home, lost, lost_links = case
    links = remaining(topology, lost_links)
    sides = topology.section

    def is_linked(a, b):
        return (min(a, b), max(a, b)) in links and not {a, b} & lost

    def reaches(server, broker):
        """Over one link to a proxy, over two to anybody else; also from a server and back."""
        if broker in sides.proxies:
            return is_linked(server, broker)
        return any(is_linked(proxy, server) and is_linked(proxy, broker) for proxy in sides.proxies)

    if origin in sides.servers:
        expected = reaches(origin, home)
    elif home in sides.servers:
        expected = reaches(home, origin)
    else:
        expected = any(reaches(owner, origin) and reaches(owner, home) for owner in sides.servers)
    route = topology.overlay().route(origin, home)
    assert is_open(route, lost, lost_links) == expected


@given(cases(ALL_KINDS))
def test_every_route_is_open_until_something_is_lost_and_needs_both_its_ends(case):
    topology, origin, home, lost, lost_links = case
    route = topology.overlay().route(origin, home)
    assert is_open(route)
    assert not is_open(route, [origin])
    assert not is_open(route, [home])
    back = topology.overlay().route(home, origin)
    assert is_open(route, lost, lost_links) == is_open(back, lost, lost_links)


@given(cases(st.one_of(trees(), cell_topologies(), bipartites())), st.data())
def test_losing_more_opens_no_route_of_bundles(case, data):
    """Of a hierarchy it may: what remains of a unit may be connected without what was cut off."""
    topology, origin, home, lost, lost_links = case
    more = data.draw(st.sets(st.integers(0, len(topology.brokers) - 1)))
    route = topology.overlay().route(origin, home)
    if not is_open(route, lost, lost_links):
        assert not is_open(route, lost | more, lost_links)


@given(trees())
def test_single_brokers_as_cells_are_a_tree(topology):
    pairs = [[topology.brokers[a], topology.brokers[b]] for a, b in topology.links]
    values = {**topology.to_mapping(), "kind": ["tree", "cells"], "cells": {"bundles": pairs}}
    both = Topology.from_mapping(values, "both")
    assert sorted(both.overlay("cells").links) == sorted(topology.links)
    everybody = range(len(topology.brokers))
    for origin in everybody:
        for lost in everybody:
            route = both.overlay("cells").route(origin, 0)
            assert is_open(route, [lost]) == is_open(both.overlay().route(origin, 0), [lost])


@given(ALL_KINDS)
def test_a_broker_may_know_whom_it_is_linked_to_and_they_it(topology):
    overlay = topology.overlay()
    around = [overlay.surroundings(broker) for broker in range(len(topology.brokers))]
    for broker, near in enumerate(topology.neighbours()):
        assert {*near} <= {*around[broker]}
        assert broker not in around[broker]
        assert list(around[broker]) == sorted(around[broker])
        assert all(broker in around[other] for other in around[broker])


def test_the_figure_of_cells_loses_no_stream_with_one_broker_of_each_cell():
    """b1 above cells {b2, b3} and {b7, b8}; b4 to b6 and b9, b10 below."""
    topology = cells(10, 2, 3)
    overlay = topology.overlay()
    route = overlay.route(0, 8)
    assert is_open(route, lost_brokers=[6])
    assert not is_open(route, lost_brokers=[6, 7])
    # b1-b7 and b8-b9 alone: sideways from b7 to b8.
    assert is_open(route, lost_links=[(0, 7), (6, 8)])
    assert not is_open(route, lost_links=[(0, 7), (6, 8), (6, 7)])
    assert len(topology.links) == 16


def test_a_hierarchy_goes_around_a_gatekeeper_by_the_other_one():
    topology = hierarchy(8, 2)
    route = topology.overlay().route(0, 7)
    gatekeepers = [link for link in topology.links if topology.section.link_level(*link) == 2]
    assert gatekeepers == [(0, 4), (3, 7)]
    assert is_open(route, lost_links=gatekeepers[:1])
    assert not is_open(route, lost_links=gatekeepers)


def test_a_topic_whose_owner_is_known_needs_that_one():
    """b0 and b1 are proxies, b2 and b3 servers."""
    section = {"proxies": ["b0", "b1"], "servers": ["b2", "b3"], "edges": ["b4", "b5"]}
    values = {"schema": "pubsubctl/topology/2", "name": "t", "kind": "bipartite"}
    brokers = [f"b{number}" for number in range(6)]
    topology = Topology.from_mapping({**values, "brokers": brokers, "bipartite": section}, "t")
    overlay = topology.overlay()
    by_owner = overlay.route(4, 2).then(overlay.route(2, 5))
    assert is_open(overlay.route(4, 5), lost_brokers=[2, 0])
    assert not is_open(by_owner, lost_brokers=[2, 0])
    assert is_open(by_owner, lost_brokers=[3, 0])


def test_a_route_goes_on_only_from_where_it_ends():
    overlay = chain(4, 1).overlay()
    whole = overlay.route(0, 2).then(overlay.route(2, 3))
    assert whole == overlay.route(0, 3)
    assert whole.steps == (0, (0, 1), 1, (1, 2), 2, (2, 3), 3)
    with pytest.raises(AssertionError, match="a route to 2 goes on from 1"):
        overlay.route(0, 2).then(overlay.route(1, 3))
    with pytest.raises(AssertionError, match="ends of"):
        Route((0, Bundle(((0, 1),))))


def test_a_lost_link_may_be_named_from_either_end():
    path = chain(3, 1).overlay().route(0, 2)
    assert all(not is_open(path, lost_links=[link]) for link in pairwise((2, 1, 0)))
