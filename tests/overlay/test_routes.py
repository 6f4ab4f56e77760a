"""Tests of routes, against a walk over all possible paths."""

from functools import cache
from itertools import combinations, groupby, pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.overlay.generate import cells, chain, hierarchy
from brokerd.overlay.routes import Bundle, Link, Route, Step, Unit, is_open, list_possible_elements
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from tests.helpers.strategies import bipartites, cell_topologies, hierarchies, trees


def simple_paths(links, start, end, lost):
    """Yield all simple paths between two brokers over links between live brokers."""
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
    lost = draw(st.sets(brokers, max_size=len(topology.brokers) // 3))
    links = st.sampled_from(topology.links) if topology.links else st.nothing()
    lost_links = draw(st.sets(links, max_size=len(topology.links) // 2))
    return topology, lost, lost_links


def agree(case, expected):
    """Check that every route is open exactly if `expected` is true of its ends."""
    topology, lost, lost_links = case
    for ends in product(range(len(topology.brokers)), repeat=2):
        found = is_open(topology.overlay().route(*ends), lost, lost_links)
        assert found == bool(expected(*ends)), f"{ends} without {lost} and {lost_links}"


ALL_KINDS = st.one_of(trees(), cell_topologies(), hierarchies(), bipartites())


@given(cases(trees()))
def test_a_tree_has_one_route(case):
    topology, lost, lost_links = case
    links = remaining(topology, lost_links)
    agree(case, lambda origin, home: any(simple_paths(links, origin, home, lost)))


@given(trees(), st.data())
def test_the_route_of_a_tree_is_its_path(topology, data):
    brokers = st.integers(0, len(topology.brokers) - 1)
    ends = data.draw(brokers), data.draw(brokers)
    route = topology.overlay().route(*ends)
    path = PrimaryTree(topology).path(*ends)
    assert route.steps[::2] == path
    assert route.steps[1::2] == tuple((min(link), max(link)) for link in pairwise(path))


@given(cases(cell_topologies()))
def test_a_bundle_is_open_while_a_link_of_it_or_of_a_peer_is_open(case):
    topology, lost, lost_links = case
    links = remaining(topology, lost_links)

    def allowed(path):
        visits = [(cell, len([*run])) for cell, run in groupby(path, topology.section.cell_of)]
        return len({cell for cell, _ in visits}) == len(visits) and max(n for _, n in visits) < 3

    agree(case, lambda *ends: any(map(allowed, simple_paths(links, *ends, lost))))


@settings(max_examples=200)
@given(cases(hierarchies()))
def test_a_route_of_a_hierarchy_leaves_each_unit_once_and_passes_no_divided_one(case):
    topology, lost, lost_links = case
    addresses = topology.section.addresses
    links = remaining(topology, lost_links)

    @cache
    def connected(unit):
        """Return true if the unit and the units inside are connected by the remaining links."""
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

    agree(case, lambda *ends: any(map(allowed, simple_paths(links, *ends, lost))))


@given(cases(bipartites()))
def test_topics_are_reached_over_any_proxy_and_owned_by_any_server(case):
    topology, lost, lost_links = case
    links = remaining(topology, lost_links)
    sides = topology.section

    def is_linked(a, b):
        return (min(a, b), max(a, b)) in links and not {a, b} & lost

    def reaches(server, broker):
        """Return true if one link leads to a proxy, or two to another broker, in either order."""
        if broker in sides.proxies:
            return is_linked(server, broker)
        return any(is_linked(proxy, server) and is_linked(proxy, broker) for proxy in sides.proxies)

    def expected(origin, home):
        if origin in sides.servers:
            return reaches(origin, home)
        if home in sides.servers:
            return reaches(home, origin)
        return any(reaches(owner, origin) and reaches(owner, home) for owner in sides.servers)

    agree(case, expected)


@given(cases(ALL_KINDS))
def test_every_route_is_open_until_something_is_lost_and_needs_both_its_ends(case):
    topology, lost, lost_links = case
    overlay = topology.overlay()
    for origin, home in product(range(len(topology.brokers)), repeat=2):
        route = overlay.route(origin, home)
        assert is_open(route)
        assert not is_open(route, [origin])
        assert not is_open(route, [home])
        back = overlay.route(home, origin)
        assert is_open(route, lost, lost_links) == is_open(back, lost, lost_links)


@given(cases(st.one_of(trees(), cell_topologies(), bipartites())), st.data())
def test_losing_more_opens_no_route_of_bundles(case, data):
    """A hierarchy is an exception: the rest of a unit may be connected without a lost part."""
    topology, lost, lost_links = case
    more = data.draw(st.sets(st.integers(0, len(topology.brokers) - 1)))
    for ends in product(range(len(topology.brokers)), repeat=2):
        route = topology.overlay().route(*ends)
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
def test_surroundings_are_symmetric_and_contain_all_neighbours(topology):
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


def test_a_hierarchy_bypasses_a_gatekeeper_over_the_other_gatekeeper():
    topology = hierarchy(8, 2)
    route = topology.overlay().route(0, 7)
    gatekeepers = [link for link in topology.links if topology.section.link_level(*link) == 2]
    assert gatekeepers == [(0, 4), (3, 7)]
    assert is_open(route, lost_links=gatekeepers[:1])
    assert not is_open(route, lost_links=gatekeepers)


def three_levels(addresses, links, without=""):
    """Return a hierarchy of brokers a, b, c, … with these addresses, and the lost links."""
    names = [chr(ord("a") + number) for number in range(len(addresses.split()))]
    section = {
        "addresses": dict(zip(names, addresses.split(), strict=True)),
        "links": [[*pair] for pair in (links + " " + without).split()],
    }
    values = {"schema": "pubsubctl/topology/2", "name": "t", "kind": "hierarchy"}
    topology = Topology.from_mapping({**values, "brokers": names, "hierarchy": section}, "t")
    overlay = topology.overlay()

    def reaches(origin, home):
        ends = topology.number_of(origin), topology.number_of(home)
        return is_open(overlay.route(*ends), (), topology.links[-len(without.split()) :])

    return reaches


def test_a_divided_unit_is_not_passed_but_reached_from_both_sides():
    """Clusters {a}, {b, c}, {d}: a-b c-d, a-c, with b-c lost."""
    reaches = three_levels("0.0 0.1 0.2 0.3", "ab ac", "bd cd")
    assert reaches("b", "c")  # in a cluster of single brokers nothing is divided
    reaches = three_levels("0.0 1.0 1.1 2.0", "ab ac bd", "bc")
    assert reaches("a", "b")
    assert reaches("a", "c")
    assert not reaches("a", "d")
    assert not reaches("b", "c")
    assert reaches("b", "d")


def test_a_route_does_not_reenter_its_first_cluster():
    """Clusters {a, b}, {c}, {d}: the route from a leads over c to b and on to d, with a-b lost."""
    reaches = three_levels("0.0 0.1 1.0 2.0", "ac cb bd", "ab")
    assert reaches("c", "b")
    assert not reaches("a", "b")
    assert not reaches("a", "d")
    assert not reaches("d", "a")


def test_a_unit_is_not_passed_while_one_in_it_is_divided():
    """Super-cluster 1 with clusters {b, c} and {d}, where d joins b and c; b-c is lost."""
    reaches = three_levels("0.0.0 1.0.0 1.0.1 1.1.0 2.0.0", "ab bd cd ce", "bc")
    assert reaches("a", "b")
    assert reaches("a", "d")
    assert not reaches("a", "c")
    assert not reaches("a", "e")
    whole = three_levels("0.0.0 1.0.0 1.0.1 1.1.0 2.0.0", "ab bd cd ce bc", "ad")
    assert whole("a", "e")
    # The cluster of two is named last: from the other one both of its halves can be reached.
    reaches = three_levels("0.0.0 1.0.0 1.1.0 1.1.1 2.0.0", "ac bc bd be", "cd")
    assert reaches("b", "c")
    assert reaches("b", "d")
    assert reaches("a", "b")
    assert not reaches("a", "e")


def test_a_route_by_owner_requires_the_owner():
    """b0 and b1 are proxies, b2 and b3 servers."""
    section = {"proxies": ["b0", "b1"], "servers": ["b2", "b3"], "edges": ["b4", "b5"]}
    values = {"schema": "pubsubctl/topology/2", "name": "t", "kind": "bipartite"}
    brokers = [f"b{number}" for number in range(6)]
    topology = Topology.from_mapping({**values, "brokers": brokers, "bipartite": section}, "t")
    overlay = topology.overlay()
    by_owner = overlay.route(4, 2).extend(overlay.route(2, 5))
    assert is_open(overlay.route(4, 5), lost_brokers=[2, 0])
    assert not is_open(by_owner, lost_brokers=[2, 0])
    assert is_open(by_owner, lost_brokers=[3, 0])


def test_a_route_is_extended_only_from_its_end():
    overlay = chain(4, 1).overlay()
    whole = overlay.route(0, 2).extend(overlay.route(2, 3))
    assert whole == overlay.route(0, 3)
    assert whole.steps == (0, (0, 1), 1, (1, 2), 2, (2, 3), 3)
    with pytest.raises(AssertionError, match="a route to 2 continues from 1"):
        overlay.route(0, 2).extend(overlay.route(1, 3))
    with pytest.raises(AssertionError, match="ends of"):
        Route((0, Bundle(((0, 1),))))


def test_a_lost_link_may_be_named_from_either_end():
    path = chain(3, 1).overlay().route(0, 2)
    assert all(not is_open(path, lost_links=[link]) for link in pairwise((2, 1, 0)))


# The design's 22 brokers in 9 clusters; its own figures, which were computed apart from this code.
ADDRESSES = {
    "0.0.0": (7, 8),
    "0.0.1": (9,),
    "0.0.2": (4, 5, 6),
    "0.1.0": (10, 11, 12),
    "0.1.1": (13,),
    "0.2.0": (14, 15),
    "1.0.0": (1, 2, 3),
    "1.1.0": (16, 17, 18),
    "1.2.0": (19, 20, 21, 22),
}
WITH_CLIQUES = "4-9 9-7 6-8 12-13 11-13 5-11 8-12 7-14 13-15 3-16 18-20 2-19 8-1 15-16"
WITH_LINES = "4-9 9-7 12-13 5-11 7-14 13-15 3-16 18-20 2-19 8-1 15-16"


def hierarchy_of_22(inside, between):
    links = [pair.split("-") for pair in between.split()]
    links += [pair for members in ADDRESSES.values() for pair in inside(map(str, members))]
    values = {"schema": "pubsubctl/topology/2", "name": "t22", "kind": "hierarchy"}
    section = {
        "addresses": {
            f"n{number}": f"{cluster}.{place}"
            for cluster, members in ADDRESSES.items()
            for place, number in enumerate(members)
        },
        "links": [[f"n{a}", f"n{b}"] for a, b in links],
        "storages": {"n1": 3, "n14": 3, "n19": 2},
    }
    brokers = [f"n{number}" for number in range(1, 23)]
    return Topology.from_mapping({**values, "brokers": brokers, "hierarchy": section}, "t22")


@pytest.mark.parametrize(
    "inside, between, links, fatal",
    [
        (lambda members: combinations(members, 2), WITH_CLIQUES, 34, 2),
        (pairwise, WITH_LINES, 24, 16),
    ],
)
def test_as_many_links_as_computed_divide_a_unit_of_the_22_brokers(inside, between, links, fatal):
    topology = hierarchy_of_22(inside, between)
    assert len(topology.links) == links
    overlay = topology.overlay()
    routes = [overlay.route(*ends) for ends in combinations(range(22), 2)]
    closing = [
        lost for lost in topology.links if not all(is_open(route, (), [lost]) for route in routes)
    ]
    assert len(closing) == fatal
    if fatal == 2:
        assert closing == [(6, 7), (13, 14)]


def test_the_kinds_of_one_file_stop_differently_after_one_loss():
    """In the figure of ten brokers, b1 is alone in a tree, and b2 is beside b1 in cells."""
    brokers = ["p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"]
    left = ["p1 b1", "b1 b2", "b1 s1", "b1 s2"]
    right = ["p1 b3", "b3 b4", "b3 s3", "b3 s4", "b3 s5"]
    inner = ["p1 left", "p1 right", *(f"left s{n}" for n in (1, 2))]
    addresses = {"p1": "0.0"} | {name: f"1.{n}" for n, name in enumerate(["b1", "b2", "s1", "s2"])}
    addresses |= {name: f"2.{n}" for n, name in enumerate(["b3", "b4", "s3", "s4", "s5"])}
    gateways = [["p1", f"b{n}"] for n in (1, 2, 3, 4)]
    clusters = [[name for name in brokers if addresses[name][0] == unit] for unit in "12"]
    values = {
        "schema": "pubsubctl/topology/2",
        "name": "ten",
        "kind": ["tree", "cells", "hierarchy", "bipartite"],
        "brokers": brokers,
        "links": [pair.split() for pair in (*left, *right)],
        "cells": {
            "bundles": [pair.split() for pair in (*inner, "right s3", "right s4", "right s5")],
            "members": {"left": ["b1", "b2"], "right": ["b3", "b4"]},
        },
        "hierarchy": {
            "addresses": addresses,
            "links": [*gateways, *(list(p) for unit in clusters for p in combinations(unit, 2))],
            "storages": {"p1": 1, "b1": 1, "b3": 1},
        },
        "bipartite": {
            "proxies": ["b1", "b3"],
            "servers": ["p1", "b2", "b4"],
            "edges": [f"s{n}" for n in (1, 2, 3, 4, 5)],
        },
    }
    topology = Topology.from_mapping(values, "ten")
    origin, home = topology.number_of("p1"), topology.number_of("s1")
    open_without = {
        lost: [
            kind
            for kind in topology.kinds
            if is_open(
                topology.overlay(kind).route(origin, home),
                [topology.number_of(name) for name in lost.split()],
            )
        ]
        for lost in ("b1", "b1 b2", "b1 b3")
    }
    assert open_without == {
        "b1": ["cells", "hierarchy", "bipartite"],
        "b1 b2": ["bipartite"],
        "b1 b3": ["cells", "hierarchy"],
    }


def passed_by_brute_force(route: Route) -> tuple[set[int], set[tuple[int, int]]]:
    """Return brokers and links of all simple paths from end to end over links of the route."""
    links = sorted({link for step in route.steps for link in links_in(step)})
    ways = [(a, b) for link in links for a, b in (link, link[::-1])]
    brokers: set[int] = {route.steps[0]} if route.steps[0] == route.steps[-1] else set()  # type: ignore[arg-type]
    passed: set[tuple[int, int]] = set()
    todo: list[tuple[int, ...]] = [(route.steps[0],)]  # type: ignore[arg-type]
    while todo:
        way = todo.pop()
        if way[-1] == route.steps[-1]:
            brokers |= {*way}
            passed |= {*pairwise(way)}
            continue
        todo += [(*way, b) for a, b in ways if a == way[-1] and b not in way]
    return brokers, passed


def links_in(step: Step) -> list[Link]:
    if isinstance(step, tuple):
        return [step]
    if isinstance(step, int):
        return []
    inner = step.units if isinstance(step, Unit) else ()
    return [*step.links, *(link for unit in inner for link in links_in(unit))]


@pytest.mark.parametrize("seed", range(60))
def test_a_route_passes_the_elements_of_all_possible_paths(seed: int) -> None:
    chance = Random(f"passed {seed}")
    count = chance.randint(2, 7)
    links = [(a, b) for a in range(count) for b in range(a + 1, count) if chance.random() < 0.45]
    links += [(a, a + 1) for a in range(count - 1) if (a, a + 1) not in links]
    origin, home = chance.sample(range(count), 2)
    for route in (
        Route((origin, Unit(tuple(range(count)), tuple(links)), home)),
        Route((origin, *(Bundle((link,)) for link in links), home)),
    ):
        brokers, links_passed = list_possible_elements(route)
        wanted_brokers, wanted_links = passed_by_brute_force(route)
        assert {*brokers} == wanted_brokers, (seed, links, origin, home)
        # Each link is one that is passed, if perhaps the other way only.
        assert {*links_passed} >= wanted_links
        assert {tuple(sorted(link)) for link in links_passed} == {
            tuple(sorted(link)) for link in wanted_links
        }
    assert list_possible_elements(Route((origin,))) == ((origin,), ())


def test_a_path_passes_all_its_elements_in_its_direction() -> None:
    route = Route((2, (0, 2), 0, (0, 1), 1))
    assert list_possible_elements(route)[0] == (0, 1, 2)
    assert {(2, 0), (0, 1)} <= {*list_possible_elements(route)[1]}
