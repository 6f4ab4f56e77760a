"""Tests of kinds of overlay in topology files: refusals, and files with several kinds."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ConfigError
from brokerd.overlay.generate import bipartite, cells, chain, hierarchy, random_hierarchy
from brokerd.overlay.kinds import KINDS
from brokerd.overlay.topology import SCHEMA, JoinedBroker, Topology, without_departed
from brokerd.protocols import registry
from brokerd.protocols.registry import (
    DEFINITIONS,
    check_runs_on,
    parameters_on,
    protocol_on,
    read_topology,
)
from tests.helpers.strategies import bipartites, cell_topologies, hierarchies, trees

FILE = "bench/topologies/t.toml"

SECTIONS = {
    "tree": {"delta": 1},
    "cells": {
        "bundles": [["ib", "p1"], ["ib", "s1"], ["ib", "s2"]],
        "members": {"ib": ["b1", "b2"]},
    },
    "hierarchy": {
        "links": [["p1", "b1"], ["p1", "b2"], ["b1", "s1"], ["s1", "s2"]],
        "addresses": {"p1": "0.0", "b1": "0.1", "b2": "0.2", "s1": "1.0", "s2": "1.1"},
        "storages": {"p1": 1, "s2": 1, "b1": 0},
    },
    "bipartite": {"proxies": ["b1", "b2"], "servers": ["p1"], "edges": ["s1", "s2"]},
}


def mapping(kind, **changes):
    """Return a file of one kind or several, with a changed section; None removes a key."""
    kinds = [kind] if isinstance(kind, str) else kind
    values = {
        "schema": "pubsubctl/topology/2",
        "name": "t",
        "kind": kind,
        "brokers": ["p1", "b1", "b2", "s1", "s2"],
        **deepcopy({name: SECTIONS[name] for name in kinds if name in SECTIONS}),
    }
    if "tree" in kinds:
        values["links"] = [["p1", "b1"], ["b1", "b2"], ["b1", "s1"], ["b2", "s2"]]
    for key, value in changes.items():
        section = values[kinds[0]]
        section.pop(key, None)
        if value is not None:
            section[key] = value
    return values


def refusal(values):
    with pytest.raises(ConfigError) as refused:
        Topology.from_mapping(values, FILE)
    assert str(refused.value).startswith(f"{FILE}: ")
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_reads_its_own_section(kind):
    topology = read_topology(mapping(kind), FILE)
    assert (topology.kind, topology.kinds) == (kind, (kind,))
    assert topology.section.to_mapping() == SECTIONS[kind]
    assert ("links" in topology.to_mapping()) == (kind == "tree")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"bundels": []}, "cells: unknown key 'bundels'; did you mean 'bundles'?"),
        ({"members": ["b1"]}, "cells.members: expected a table, got ['b1']"),
        ({"members": {"ib": "b1"}}, "cells.members.ib: expected a list of names, got 'b1'"),
        ({"members": {"ib": ["b1", "b3"]}}, "ib[1]: no broker called 'b3'; did you mean 'b"),
        ({"members": {"ib": [["b1"]]}}, "cells.members.ib[0]: no broker called ['b1']"),
        ({"members": {"ib": ["b1", "b1"]}}, "cells.members.ib[1] = 'b1' stands there twice"),
        ({"members": {"ib": []}}, "cells.members.ib = []: a cell has at least one broker"),
        ({"members": {"ib": ["b1", "b2"], "x": ["b2"]}}, "x: 'b2' is in ib already; a broker is"),
        ({"members": {"s1": ["b1", "b2"]}}, "'s1' is a broker; a cell of others needs another"),
        ({"members": None}, "bundles[0]: no cell called 'ib'"),
        ({"bundles": "p1-ib"}, "cells: bundles: expected a list of pairs, got 'p1-ib'"),
        ({"bundles": [["p1"]]}, "bundles[0] = ['p1'] is not a pair of cells"),
        ({"bundles": [["p1", "b1"]]}, "bundles[0]: no cell called 'b1'; did you mean 's1'?"),
        ({"bundles": [["ib", "ib"]]}, "bundles[0]: 'ib' is linked to itself"),
        ({"bundles": [["p1", "ib"], ["ib", "p1"]]}, "bundles[1]: ib-p1 stands there twice"),
        (
            {"bundles": [["p1", "ib"], ["ib", "s1"], ["s1", "p1"], ["ib", "s2"]]},
            "cells: bundles: p1-s1 closes a cycle; the tree of cells has none",
        ),
        ({"bundles": [["p1", "ib"], ["ib", "s1"]]}, "bundles: s2 not connected to ib"),
        ({"bundles": None}, "bundles: p1, s1, s2 not connected to ib"),
        (
            {"bundles": [["p1", "s1"], ["s1", "s2"], ["s2", "ib"]]},
            "ib is a leaf, where clients are, and has several brokers: b1, b2; one at most",
        ),
        ({"links": [["b1", "b2"]]}, "links[0]: b1-b2 is inside ib, where all are linked anyway"),
        (
            {"links": [["p1", "s1"]]},
            "links[0]: p1-s1 is in no bundle: there is no p1-s1; did you mean",
        ),
        (
            {"links": [["p1", "b1"], ["b2", "s2"]]},
            "cells: links: no link of the bundle ib-s1; at least one",
        ),
    ],
)
def test_cells_refuse(changes, message):
    assert message in refusal(mapping("cells", **changes))


def addresses(**changes):
    return {**SECTIONS["hierarchy"]["addresses"], **changes}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"adresses": {}}, "hierarchy: unknown key 'adresses'; did you mean 'addresses'?"),
        ({"addresses": None}, "hierarchy.addresses: 'p1' has no address"),
        ({"addresses": []}, "hierarchy.addresses: expected a table, got []"),
        ({"addresses": {"p1": "0.0"}}, "hierarchy.addresses: 'b1' has no address"),
        ({"addresses": addresses(s3="1.2")}, "addresses: no broker called 's3'; did you mean 's"),
        ({"addresses": addresses(s2="1.64")}, "s2 = '1.64': each part is from 0 to 63"),
        ({"addresses": addresses(s2="1.01")}, "s2 = '1.01': an address is 1 to 5 whole numbers"),
        ({"addresses": addresses(s2=1.1)}, "s2 = 1.1: an address is 1 to 5 whole numbers"),
        ({"addresses": addresses(s2="0.0.0.0.0.1")}, "s2 = '0.0.0.0.0.1': an address is 1 to 5"),
        ({"addresses": addresses(s2="1.1.0")}, "s2 has 3 parts, p1 has 2; all addresses have as"),
        ({"addresses": addresses(s2="1.0")}, "addresses: s2 and s1 both have '1.0'"),
        ({"links": [["p1", "b3"]]}, "links[0]: no broker called 'b3'; did you mean 'b"),
        (
            {"links": [["p1", "b1"], ["p1", "b2"], ["b1", "s1"], ["b2", "s2"]]},
            "hierarchy: links: s2 not connected to s1 by links inside 1.*",
        ),
        (
            {"links": [["p1", "b1"], ["p1", "b2"], ["s1", "s2"]]},
            "hierarchy: links: s1, s2 not connected to p1 by any link",
        ),
        ({"storages": {"p9": 1}}, "hierarchy.storages: no broker called 'p9'; did you mean 'p1'?"),
        ({"storages": {"p1": 2}}, "p1 = 2; a level, from 0 to 1 with addresses of 2 parts"),
        ({"storages": {"p1": True}}, "p1 = True; a level, from 0 to 1"),
        ({"storages": {"p1": 1, "b1": 1, "s1": 1}}, "storages: b1 and p1 both store for 0.*"),
        ({"storages": {"p1": 1}}, "1.* has no root storage; give a broker in it level 1, as in s1"),
        ({"max_links": [2, 1, 1]}, "max_links: [2, 1, 1] is no list of at most 2 numbers, one per"),
        ({"max_links": 3}, "max_links: 3 is no list of at most 2 numbers, one per level"),
        ({"max_links": [2, 0]}, "hierarchy.max_links[1] = 0; at least 1"),
        ({"max_links": [1]}, "links: p1 has 2 links of level 0; max_links allows 1"),
        ({"changes": {}}, "hierarchy.changes: expected a list, got {}"),
        (
            {"storages": {}, "changes": [["b1", 0]]},
            "changes[0]: there is no root storage that b1 could take from",
        ),
    ],
)
def test_a_hierarchy_refuses(changes, message):
    assert message in refusal(mapping("hierarchy", **changes))


ROOTS = {"p1": 1, "s1": 1}


@pytest.mark.parametrize(
    "changes, message",
    [
        (["b1"], "changes[0]: 'b1' is not [broker, level] or [broker, 'retired']"),
        ([["b7", 0]], "changes[0]: no broker called 'b7'; did you mean 'b"),
        ([["b1", 1]], "b1 = 1; a level from 0 to 0, since units of level 1 have their roots"),
        ([["b1", "0"]], "b1 = '0'; a level from 0 to 0"),
        ([["p1", 0]], "changes[0]: p1 is or was a storage; another broker of its unit can be"),
        ([["b1", 0], ["b1", 0]], "changes[1]: b1 is or was a storage"),
        ([["b1", "retired"]], "changes[0]: b1 is no storage; those are p1, s1"),
        ([["s1", "retired"]], "changes[0]: s1 is the root storage of its unit, which has to have"),
        ([["b1", 0], ["b1", "retired"], ["b1", "retired"]], "changes[2]: b1 is no storage"),
    ],
)
def test_an_impossible_storage_change_is_refused(changes, message):
    assert message in refusal(mapping("hierarchy", storages=ROOTS, changes=changes))


def test_added_and_retired_storages_preserve_the_identity_of_the_deployment():
    """The topology remains the same deployment, and survives a round trip through a file."""
    before = read_topology(mapping("hierarchy", storages=ROOTS), FILE)
    after = before.with_role("b1", "0", FILE).with_role("b1", "retired", FILE)
    assert Topology.from_mapping(after.to_mapping(), FILE) == after
    assert after.to_mapping()["hierarchy"]["changes"] == [["b1", 0], ["b1", "retired"]]
    assert after.follows(before)
    assert not before.follows(after)
    assert after.digest("ges_reliable", {}) == before.digest("ges_reliable", {})
    assert after.overlay().role(after.number_of("b1")).endswith("retired storage of level 0")
    with pytest.raises(ConfigError, match="in tree overlays no broker changes its role"):
        chain(3, 1).with_role("b1", "0", FILE)


def joining(row):
    return {**mapping("hierarchy", storages=ROOTS, max_links=[2, 1]), "joined": [row]}


@pytest.mark.parametrize(
    "row, message",
    [
        (
            ["n1", ["b1"], ""],
            "joined[0] = ['n1', ['b1'], ''] is not [name, linked to, address], or",
        ),
        (["n1", [], "", "0.7"], "is not [name, linked to, address], or in a hierarchy"),
        (["n1", ["b9"], "", ""], "no broker called 'b9' to link it to; did you mean"),
        (["n1", ["b1", "b1"], "", ""], "n1 is to be linked to b1 twice"),
        (["b1", ["b2"], "", ""], "a broker is or was called 'b1' already"),
        (["n1", ["b1"], "", "0.0"], "n1 = '0.0': p1 has it"),
        (["n1", ["b1"], "", "0.0.5"], "n1 = '0.0.5' has 3 parts, all others have 2"),
        (["n1", ["b1"], "", "0.64"], "each part is from 0 to 63"),
        (["n1", ["b1"], "", "5.0"], "n1 = '5.0': 5.* is new, and has no root storage; units that"),
        (["n1", ["b1"], "", "1.7"], "n1 = '1.7': n1 not connected to s1 by links inside 1.*"),
        (["n1", ["s1", "b1"], "", ""], "n1 = '1.2': b1 has 2 links of level 1; max_links allows 1"),
    ],
)
def test_a_broker_that_cannot_have_joined_a_hierarchy_is_refused(row, message):
    assert message in refusal(joining(row))


@pytest.mark.parametrize(
    "name, message",
    [
        ("n9", "no broker called 'n9'"),
        ("p1", "p1 is a storage, and has what others may not be done with; storages cannot leave"),
        ("b2", "b2 was a storage, and has what others"),
        ("s2", "without s2: n1 not connected to s1 by links inside 1.*"),
    ],
)
def test_a_broker_that_a_hierarchy_needs_cannot_leave(name, message):
    values = joining(["n1", ["s2"], "", ""])
    values["hierarchy"]["changes"] = [["b2", 0], ["b2", "retired"]]
    assert message in refusal({**values, "left": [name]})


def test_the_last_of_a_unit_cannot_leave_it():
    values = mapping("hierarchy", addresses=addresses(s2="2.0"), storages=None)
    values["hierarchy"]["links"] = [["p1", "b1"], ["p1", "b2"], ["b1", "s1"], ["b2", "s2"]]
    assert "s2 is the last broker of 2.*" in refusal({**values, "left": ["s2"]})


def test_brokers_of_a_hierarchy_join_and_leave_while_others_run():
    """The topology remains the same deployment through a file; addresses remain reserved."""
    before = read_topology(mapping("hierarchy", storages=ROOTS, max_links=[3]), FILE)
    joined = before.with_joined(JoinedBroker("n1", "b1", "h:1", "", ("s1",)), FILE)
    assert joined.joined[0].place == "0.3"
    grown = joined.with_role("n1", "0", FILE)
    shrunk = joined.without("n1", FILE)
    for after in (joined, grown, shrunk):
        assert Topology.from_mapping(after.to_mapping(), FILE) == after
        assert after.follows(before)
        assert not before.follows(after)
        assert after.digest("ges", {}) == before.digest("ges", {})
        again = Topology.from_mapping(after.as_it_is(), FILE)
        assert (again.present(), {*again.links}) == (after.present(), {*after.links})
    overlay = shrunk.overlay()
    assert not any(5 in link for link in overlay.links)
    assert all(5 not in overlay.surroundings(number) for number in range(5))
    assert overlay.role(5) == "0.3, has left"
    again = shrunk.with_joined(JoinedBroker("n2", "b1", "h:1"), FILE)
    assert again.joined[1].place == "0.4"
    with pytest.raises(ConfigError, match="n1 had this address and left; choose one"):
        shrunk.with_joined(JoinedBroker("n2", "b1", "h:1", "0.3"), FILE)
    with pytest.raises(ConfigError, match="n1 has left"):
        shrunk.with_role("n1", "0", FILE)


def test_a_cluster_has_no_more_numbers_than_64():
    topology = read_topology(mapping("hierarchy"), FILE)
    for number in range(61):
        topology = topology.with_joined(JoinedBroker(f"n{number}", "b1", ""), FILE)
    assert topology.joined[-1].place == "0.63"
    with pytest.raises(ConfigError, match=r"none of the 64 numbers in 0\.\* is free"):
        topology.with_joined(JoinedBroker("m", "b1", ""), FILE)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"proxys": []}, "bipartite: unknown key 'proxys'; did you mean 'proxies'?"),
        ({"proxies": None}, "bipartite: no proxies; no topic could be reached without"),
        ({"servers": []}, "bipartite: no servers; no topic could be reached without"),
        ({"proxies": "b1"}, "bipartite.proxies: expected a list of names, got 'b1'"),
        ({"servers": ["p2"]}, "bipartite.servers[0]: no broker called 'p2'; did you mean"),
        ({"servers": ["p1", "p1"]}, "bipartite.servers[1] = 'p1' stands there twice"),
        ({"servers": ["p1", "b2"]}, "bipartite.servers: 'b2' is one of the proxies already"),
        ({"edges": ["s1"]}, "bipartite: s2 in none of proxies, servers, edges"),
    ],
)
def test_a_bipartite_overlay_refuses(changes, message):
    assert message in refusal(mapping("bipartite", **changes))


@pytest.mark.parametrize(
    "values, message",
    [
        (mapping("cell"), "kind = 'cell'; one of tree, cells, hierarchy, bipartite; did you mean"),
        (mapping(["tree", "ring"]), "kind = 'ring'; one of tree, cells, hierarchy, bipartite"),
        (mapping([]), "kind = []; at least one of tree"),
        (mapping(["cells", "cells"]), "kind = ['cells', 'cells'] names 'cells' twice"),
        (mapping(["cells", "tree"]), "begin with a tree, as in ['tree', 'cells']"),
        (
            {**mapping("tree"), "cells": SECTIONS["cells"]},
            "[cells] is a section of another kind: kind = 'tree'; ['tree', 'cells'] carries both",
        ),
        (
            {**mapping("cells"), "tree": {"delta": 1}},
            "[tree] is a section of another kind: kind = 'cells'; ['tree', 'cells'] carries both",
        ),
        (
            {**mapping("cells"), "links": []},
            "links are those of a tree, and kind = 'cells'; what others are follows from [cells]",
        ),
        (
            {**mapping("cells"), "schema": "pubsubctl/topology/1", "cells": None},
            "unknown key 'cells'",
        ),
        (
            {
                "schema": "pubsubctl/topology/1",
                "name": "t",
                "kind": "cells",
                "brokers": ["p1"],
            },
            "schema = 'pubsubctl/topology/1' is of trees",
        ),
        (
            {**mapping("cells"), "joined": [["n1", "s1", ""]]},
            "'n1' cannot join or leave: the topology is of kind cells; only brokers of a tree or",
        ),
        (
            {**mapping(["tree", "cells"]), "left": ["s2"]},
            "'s2' cannot join or leave: the topology is of kind tree, cells",
        ),
    ],
)
def test_a_file_refuses_kinds_that_it_cannot_be_of(values, message):
    assert message in refusal(values)


def test_a_file_may_carry_all_kinds_over_the_same_brokers():
    topology = read_topology(mapping([*KINDS]), FILE)
    assert topology.kinds == (*KINDS,)
    assert topology.to_mapping() == mapping([*KINDS])
    assert topology.links == Topology.from_mapping(mapping("tree"), FILE).links
    for kind in KINDS:
        alone = Topology.from_mapping(mapping(kind), FILE)
        assert topology.overlay(kind) == alone.overlay()
        assert topology.digest("p", {}) != alone.digest("p", {})


def test_several_kinds_without_a_tree_have_the_links_of_the_first():
    topology = Topology.from_mapping(mapping(["bipartite", "cells"]), FILE)
    assert topology.links == topology.section.links
    assert Topology.from_mapping(topology.to_mapping(), FILE) == topology


@given(st.one_of(trees(), cell_topologies(), hierarchies(), bipartites()))
def test_a_topology_of_each_kind_survives_its_mapping(topology):
    assert Topology.from_mapping(topology.to_mapping(), FILE) == topology


def _drawn(brokers, levels, seed):
    return random_hierarchy(brokers, levels, Random(seed).randrange)


@given(
    st.one_of(
        st.builds(lambda *how: (cells, how), st.integers(1, 60), st.integers(1, 3), st.just(2)),
        st.builds(lambda *how: (hierarchy, how), st.integers(1, 60), st.integers(3, 5)),
        st.builds(lambda *how: (bipartite, how), st.integers(3, 60), st.integers(1, 2)),
        st.builds(lambda *how: (_drawn, how), st.integers(1, 60), st.integers(1, 4), st.integers()),
    )
)
def test_a_generated_topology_is_valid_and_deterministic(case):
    maker, (brokers, *shape) = case
    made = maker(brokers, *shape)
    assert made == maker(brokers, *shape)
    assert len(made.brokers) == brokers
    assert Topology.from_mapping(made.to_mapping(), FILE) == made


def test_made_cells_are_the_figure_of_the_paper():
    """One broker is above two cells of two, and five are below, with 16 links."""
    topology = cells(10, 2, 3)
    assert sorted(len(members) for members in topology.section.members) == [1] * 6 + [2] * 2
    assert len(topology.links) == 16


def test_made_cells_grow_in_depth():
    """b1 is above two cells of two, each of which is above two cells and two single brokers."""
    section = cells(61, 2, 2).section
    near = [0] * len(section.cells)
    for a, b in section.bundles:
        near[a] += 1
        near[b] += 1
    assert max(near) == 5


def test_servers_surround_each_other_without_a_link():
    """Servers transfer topics to each other."""
    topology = bipartite(4, 1)
    assert topology.overlay().surroundings(2) == (0, 1, 3)
    assert topology.neighbours()[2] == (0,)


@given(st.one_of(trees(), cell_topologies(), hierarchies(), bipartites()))
def test_a_topology_as_it_is_reads_as_the_same(topology):
    assert Topology.from_mapping(topology.as_it_is(), FILE) == topology


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: cells(5, 0, 3), "cell size = 0; at least 1"),
        (lambda: cells(5, 2, 0), "fanout = 0; at least 1"),
        (lambda: cells(0, 2, 3), "brokers = 0; from 1 to 10000"),
        (lambda: hierarchy(5, 1), "fanout = 1; a unit has from 2 to 64 members"),
        (lambda: hierarchy(33, 2), "brokers = 33; with fanout = 2 at most 32"),
        (lambda: _drawn(65, 1, 1), "brokers = 65; in 1 levels at most 64"),
        (lambda: _drawn(5, 6, 1), "levels = 6; an address has from 1 to 5 parts"),
        (lambda: bipartite(5, 5), "proxies = 5; from 1 to 4"),
        (lambda: bipartite(5, 0), "proxies = 0; from 1 to 4"),
        (lambda: bipartite(1, 1), "brokers = 1; proxies and servers are two at least"),
    ],
)
def test_an_impossible_generated_topology_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tree"])
def test_a_protocol_is_refused_where_it_does_not_run_and_those_that_do_are_named(kind):
    topology = read_topology(mapping(kind), FILE)
    others = registry.protocols_for(topology)
    for protocol, definition in DEFINITIONS.items():
        if definition.kind == kind:
            continue
        with pytest.raises(ConfigError) as refused:
            parameters_on(topology, protocol, FILE)
        assert str(refused.value) == (
            f"{FILE}: protocol {protocol!r} runs on kind {definition.kind!r}, and t is of kind "
            f"{kind}; protocols that run on it: {', '.join(others) or 'none'}"
        )
    with pytest.raises(ConfigError, match=f"kind = {kind!r} has no delta; this needs a tree"):
        assert topology.delta


def test_a_protocol_is_refused_where_it_cannot_run_on_this_one_of_its_kind(monkeypatch):
    topology = read_topology(mapping("cells"), FILE)
    running = protocol_on(topology).protocol
    assert running is not None
    assert running.name == "gryphon"

    def refuse(topology, where):
        raise ConfigError(f"{where}: not on {topology.name}")

    fussy = {
        name: replace(each, check_topology=refuse) if each.kind == "cells" else each
        for name, each in DEFINITIONS.items()
    }
    monkeypatch.setattr(DEFINITIONS, "_loaded", fussy)
    with pytest.raises(ConfigError, match=f"{FILE}: not on t"):
        check_runs_on(topology, "gryphon", FILE)
    assert protocol_on(topology).protocol is None


def test_a_protocol_runs_on_a_file_that_carries_its_kind():
    topology = read_topology(mapping(["tree", "cells"]), FILE)
    for protocol, definition in DEFINITIONS.items():
        if definition.kind != "tree":
            continue
        check_runs_on(topology, protocol, FILE)
        assert parameters_on(topology, protocol) == parameters_on(
            read_topology(mapping("tree"), FILE), protocol
        )


def test_brokers_join_and_leave_trees_only():
    with pytest.raises(ConfigError, match="'n1' cannot join or leave"):
        bipartite(3, 1).with_joined(JoinedBroker("n1", "b1", ""), FILE)
    with pytest.raises(ConfigError, match="'b3' cannot join or leave"):
        bipartite(3, 1).without("b3", FILE)
    assert chain(3, 1).with_delta(2) == chain(3, 2)


def test_a_tree_as_it_is_has_no_brokers_that_left():
    """Such brokers have no link; runs of earlier programs list them all the same."""
    section = {"schema": SCHEMA, "name": "chain", "kind": "tree", "tree": {"delta": 1}}
    values = {**section, "brokers": ["a", "b", "c"], "links": [["a", "b"], ["b", "c"]]}
    grown = Topology.from_mapping({**values, "joined": [["d", "c", ""]], "left": ["d"]}, FILE)
    assert grown.as_it_is() == values
    assert without_departed({**values, "brokers": ["a", "b", "c", "d"], "left": ["d"]}) == values
    inner = {**values, "left": ["c"]}
    assert without_departed(inner) == inner
