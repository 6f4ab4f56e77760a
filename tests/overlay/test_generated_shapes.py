"""Tests of generated overlays at their bounds, and of radii and storages in them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ConfigError
from brokerd.overlay.generate import BLOCK_LIMIT, cells, chain, hierarchy, random_hierarchy
from brokerd.overlay.hierarchy import MAXIMUM_PARTS
from brokerd.overlay.topology import JoinedBroker
from brokerd.overlay.tree import PrimaryTree, graph_of
from brokerd.overlay.tree_section import MAXIMUM_DELTA, read_delta
from tests.helpers.strategies import trees

FILE = "t.toml"


@pytest.mark.parametrize("fanout", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_cells_form_a_balanced_tree(size: int, fanout: int) -> None:
    for brokers in range(1, 40):
        topology = cells(brokers, size, fanout)
        section = topology.to_mapping()["cells"]
        members = section["members"]
        order = [*members]
        rank = {"b1": -1, **{name: place for place, name in enumerate(order)}}
        parent: dict[str, str] = {}
        for pair in section["bundles"]:
            above, name = sorted(pair, key=lambda each: rank.get(each, brokers))
            assert name not in parent, "one parent each"
            parent[name] = above
        for place, cell in enumerate(order):
            assert len(members[cell]) == size
            above = "b1" if place < fanout else order[place // fanout - 1]
            assert parent[cell] == above
            leaves = [n for n, its in parent.items() if its == cell and n not in members]
            assert len(leaves) <= fanout or cell == order[-1]
        assert len(topology.brokers) == brokers
        single = [name for name in parent if name not in members]
        assert 1 + len(single) + size * len(order) == brokers, "every broker has its place"


def test_a_hierarchy_has_at_most_as_many_brokers_as_its_longest_addresses() -> None:
    largest = 2**MAXIMUM_PARTS
    section = hierarchy(largest, 2).to_mapping()["hierarchy"]
    assert {len(each.split(".")) for each in section["addresses"].values()} == {MAXIMUM_PARTS}
    with pytest.raises(ConfigError, match=f"brokers = {largest + 1}; .* at most {largest}"):
        hierarchy(largest + 1, 2)
    assert len(hierarchy(BLOCK_LIMIT + 1, BLOCK_LIMIT).brokers) == BLOCK_LIMIT + 1
    for fanout in (1, BLOCK_LIMIT + 1):
        with pytest.raises(ConfigError, match=f"fanout = {fanout}; a unit has from 2 to"):
            hierarchy(9, fanout)


def test_a_random_hierarchy_has_from_one_level_to_the_most() -> None:
    for levels in (1, MAXIMUM_PARTS):
        topology = random_hierarchy(6, levels, lambda limit: limit // 2)
        addresses = topology.to_mapping()["hierarchy"]["addresses"]
        assert {len(each.split(".")) for each in addresses.values()} == {levels}
    for levels in (0, MAXIMUM_PARTS + 1):
        with pytest.raises(ConfigError, match=f"levels = {levels}"):
            random_hierarchy(6, levels, lambda _: 0)


def test_each_unit_has_a_storage_of_its_own() -> None:
    """With fanout 2 and three levels the units of level 1 are pairs of clusters."""
    topology = hierarchy(8, 2)
    one = topology.with_role("b3", "1", FILE)
    with pytest.raises(ConfigError, match=r"b3 stores for .* already"):
        one.with_role("b4", "1", FILE)
    other = one.with_role("b6", "1", FILE).with_role("b4", "0", FILE)
    assert other.overlay().role(other.number_of("b6")).endswith("storage of level 1")
    again = one.with_role("b3", "retired", FILE).with_role("b4", "1", FILE)
    assert again.overlay().role(again.number_of("b4")).endswith("storage of level 1")


@pytest.mark.parametrize("joined", [
    JoinedBroker("n1", "b2", "127.0.0.1:1", "0.1"),
    JoinedBroker("n1", "b2", "127.0.0.1:1", "", ("b3",)),
])  # fmt: skip
def test_a_broker_joins_a_tree_with_one_link_and_without_an_address(joined: JoinedBroker) -> None:
    with pytest.raises(ConfigError, match="n1 joins a tree with one link, and without an address"):
        chain(3, 1).with_joined(joined, FILE)


@given(trees(), st.data())
def test_sessions_of_a_tree_are_between_brokers_within_delta_and_one_link(topology, data):
    tree = graph_of(topology, "")
    assert isinstance(tree, PrimaryTree)
    numbers = range(len(topology.brokers))
    near = {
        (a, b) for a in numbers for b in numbers if a != b
        if len(tree.path(a, b)) - 1 <= topology.delta + 1
    }  # fmt: skip
    for broker in numbers:
        known = tree.surroundings(broker)
        assert {*known.paths} == {b for a, b in near if a == broker} == {*tree.near(broker)}
    if topology.links:
        here, there = data.draw(st.sampled_from(topology.links))
        across = tree.pairs_across(here, there)
        assert len({*across}) == len(across)
        wanted = set()
        for a, b in near:
            path = tree.path(a, b)
            if (here, there) in {*pairwise(path)}:
                wanted.add((a, b))
        assert {*across} == wanted


def test_delta_is_from_none_to_the_most() -> None:
    for delta in (0, MAXIMUM_DELTA):
        assert read_delta({"delta": delta}, FILE).delta == delta
    for wrong in (-1, MAXIMUM_DELTA + 1, True):
        with pytest.raises(ConfigError, match="delta = "):
            read_delta({"delta": wrong}, FILE)


def test_leaves_have_one_link_and_inner_brokers_have_more() -> None:
    overlay = chain(4, 1).overlay()
    assert [overlay.role(number) for number in range(4)] == ["leaf", "inner", "inner", "leaf"]
