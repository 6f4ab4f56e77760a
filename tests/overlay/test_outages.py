"""Property tests of outages of trees, against a walk of each publication."""

from itertools import combinations, pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.overlay.outage import (
    Outage,
    find_closed_route,
    find_reached_in_tree,
    longest_lost,
    open_routes,
    row_around,
)
from brokerd.overlay.routes import FailedElements, is_open
from brokerd.overlay.topology import Topology
from tests.helpers.strategies import trees


@st.composite
def outages(draw: st.DrawFn) -> tuple[Topology, Outage]:
    """Draw a tree and failures of every kind."""
    topology = draw(trees(9))
    numbers = range(len(topology.brokers))
    brokers = st.sets(st.sampled_from(numbers), max_size=2)
    pairs = [*combinations(numbers, 2)]
    cut = draw(st.sets(st.sampled_from(pairs), max_size=4)) if pairs else set()
    turned = [*permutations(numbers, 2)]
    absorbed = draw(st.sets(st.sampled_from(turned), max_size=3)) if turned else set()
    down, absorbing = draw(brokers), draw(brokers)
    return topology, Outage(*map(frozenset, (down, absorbing, cut, absorbed)))


def path_of(topology: Topology, origin: int, home: int) -> tuple[int, ...]:
    """Return the only path between two brokers of a tree."""
    waiting = [(origin,)]
    for path in waiting:
        if path[-1] == home:
            return path
        for near in topology.neighbours()[path[-1]]:
            if near not in path:
                waiting.append((*path, near))
    raise AssertionError(f"no path from {origin} to {home}")


def is_cut(
    topology: Topology, outage: Outage, a: int, b: int, *, radius: int, relays: bool
) -> bool:
    pair = (min(a, b), max(a, b))
    if pair not in outage.cut:
        return False
    for other in range(len(topology.brokers)) if relays else ():
        ways = [(min(end, other), max(end, other)) for end in pair]
        lengths = [len(path_of(topology, end, other)) - 1 for end in pair]
        is_near = other not in pair and max(lengths) <= radius
        if is_near and other not in outage.down | outage.absorbing and not {*ways} & outage.cut:
            return False
    return True


def arrives(
    topology: Topology, outage: Outage, origin: int, home: int, *, radius: int, relays: bool
) -> bool:
    """Follow a publication to the nearest live broker on its path, hop by hop."""
    path = path_of(topology, origin, home)
    if origin in outage.down or home in outage.absorbing:
        return False
    here = 0
    while path[here] != home:
        if path[here] in outage.absorbing:
            return False
        for there in range(here + 1, min(here + radius, len(path) - 1) + 1):
            ends = path[here], path[there]
            if path[there] in outage.down:
                continue
            if not is_cut(topology, outage, *ends, radius=radius, relays=relays):
                if ends in outage.absorbed:
                    return False
                here = there
                break
        else:
            return False
    return True


@settings(deadline=None, max_examples=60)
@given(outages(), st.integers(1, 3), st.booleans())
def test_a_publication_passes_failed_brokers_within_the_radius(drawn, radius, relays):
    topology, outage = drawn
    live = [number for number in range(len(topology.brokers)) if number not in outage.down]
    assert outage.live(topology) == tuple(live)
    found = find_reached_in_tree(topology, outage, radius, relays=relays)
    assert found == {
        home: frozenset(
            origin
            for origin in live
            if arrives(topology, outage, origin, home, radius=radius, relays=relays)
        )
        for home in live
    }


@settings(deadline=None, max_examples=40)
@given(outages())
def test_routes_are_open_without_failures_on_them(drawn):
    topology, outage = drawn
    links = {(min(pair), max(pair)) for pair in outage.cut | outage.absorbed}
    lost = outage.down | outage.absorbing
    live = outage.live(topology)

    def is_free(origin: int, home: int) -> bool:
        path = path_of(topology, origin, home)
        steps = {(min(a, b), max(a, b)) for a, b in pairwise(path)}
        return not {*path} & lost and not steps & links

    free = {home: frozenset(each for each in live if is_free(each, home)) for home in live}
    assert open_routes(topology, outage) == free
    elements = FailedElements(frozenset(lost), frozenset(links))
    closed = find_closed_route(topology, elements)
    left = [number for number in live if number not in outage.absorbing]
    shut = [(a, b) for a in left for b in left if a != b and not is_free(a, b)]
    assert closed == next(iter(shut), None)
    assert closed is None or not is_open(topology.overlay().route(*closed), lost, links)


@settings(deadline=None, max_examples=60)
@given(trees(9), st.data())
def test_the_longest_lost_path_is_the_longest_of_all_paths(topology, data):
    numbers = range(len(topology.brokers))
    lost = data.draw(st.sets(st.sampled_from(numbers)))
    paths = [path for a in lost for b in lost if {*(path := path_of(topology, a, b))} <= lost]
    found = longest_lost(topology, lost)
    assert len(found) == max(map(len, paths), default=0)
    assert not found or found in paths
    for broker in lost:
        near = [path for path in paths if {*path_of(topology, broker, path[0])} <= lost]
        around = row_around(topology, broker, lost)
        assert around in near
        assert len(around) == max(map(len, near))


def test_outages_are_joined_kind_by_kind():
    one = Outage(frozenset({1}), frozenset({2}), frozenset({(0, 3)}), frozenset({(3, 0)}))
    other = Outage(frozenset({4}), frozenset({5}), frozenset({(0, 6)}), frozenset({(6, 0)}))
    assert one | other == Outage(
        frozenset({1, 4}), frozenset({2, 5}), frozenset({(0, 3), (0, 6)}),
        frozenset({(3, 0), (6, 0)}),
    )  # fmt: skip
