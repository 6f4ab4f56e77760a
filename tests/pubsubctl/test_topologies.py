"""Stories about topology files at the command line: generated, checked, shown and refused."""

import shutil
from pathlib import Path

import pytest

from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]

RUNS_NOT = (
    "protocol 'delta_tree' runs on kind 'tree', and t is of kind cells; "
    "protocols that run on it: gryphon"
)


@pytest.mark.parametrize(
    "links, delta, said",
    [
        ('["a", "b"], ["b", "c"], ["c", "a"]', 1, "links: a-c closes a cycle"),
        ('["a", "b"]', 1, "c not connected to a"),
        ('["a", "b"], ["b", "c"], ["b", "d"]', 1, "no broker called 'd'"),
        ('["a", "b"], ["b", "c"]', -1, "delta = -1; a whole number from 0 to 16"),
        ('["a", "b"], ["b", "c"], ["c", "c"]', 1, "linked to itself"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(
    call: Call, project: Path, links: str, delta: int, said: str
) -> None:
    (project / "t.toml").write_text(
        'schema = "pubsubctl/topology/2"\nname = "t"\nkind = "tree"\nbrokers = ["a", "b", "c"]\n'
        f"links = [{links}]\n[tree]\ndelta = {delta}\n"
    )
    for verb in ("lint", "show"):
        answer = call("topology", verb, "t.toml")
        assert answer.status == 2
        assert "t.toml: " in answer.err
        assert said in answer.err


def test_switches_that_lose_publications_are_found_before_anything_is_deployed(
    call: Call, project: Path
) -> None:
    (project / "t.toml").write_text(
        'schema = "pubsubctl/topology/2"\nname = "t"\nkind = "tree"\nbrokers = ["a", "b"]\n'
        'links = [["a", "b"]]\n[parameters.delta_tree]\naccept = "late"\n'
    )
    for arguments in (("topology", "lint", "t.toml"), ("deploy", "t.toml", "--dry-run")):
        answer = call(*arguments)
        assert answer.status == 2
        assert "t.toml: parameters.delta_tree: accept = 'late' with cut = 'src' loses" in answer.err
        assert "it needs cut = 'full'" in answer.err


def test_generated_topologies_can_be_read_back(call: Call, project: Path) -> None:
    arguments = ("topology", "gen", "random", "--brokers", "20", "--seed", "4", "--delta", "2")
    assert call(*arguments, "-o", "r.toml").status == 0
    assert call("topology", "lint", "r.toml").out == "r.toml: ok, 20 brokers, delta 2\n"
    assert (project / "r.toml").read_text() == call(*arguments).out.replace("random-20", "r")
    again = call(*arguments, "-o", "r.toml")
    assert (again.status, "exists already" in again.err) == (2, True)
    assert "\n[tree]\ndelta = 2\n" in call("topology", "gen", "demo", "--delta", "2").out


@pytest.mark.parametrize(
    "shape, of_kind, line",
    [
        (("cells", "--cell-size", "2"), "7 cells", "  b2 (cell c1): b3, b1, b4, b5, b6, b7, b8"),
        (("hierarchy", "--fanout", "4"), "2 levels", "  b2 (0.1): b1, b3, b4"),
        (("bipartite", "--proxies", "3"), "3 proxies", "  b8 (server): b1, b2, b3"),
    ],
)
def test_other_kinds_are_made_and_listed(
    call: Call, project: Path, shape: tuple[str, ...], of_kind: str, line: str
) -> None:
    kind = shape[0]
    made = call("topology", "gen", *shape, "--brokers", "8", "-o", "t.toml")
    said = f"8 brokers, {of_kind}, kind {kind}\n"
    assert made.out == f"t.toml: {said}"
    assert call("topology", "lint", "t.toml").out == f"t.toml: ok, {said}"
    shown = call("topology", "show", "t.toml")
    assert shown.out.splitlines()[0] == f"{kind}:"
    assert line in shown.out.splitlines()
    document = call("topology", "show", "t.toml", "-j").document
    assert document["summary"]["kinds"] == [kind]
    assert document["topology"]["kind"] == kind


def test_a_generated_topology_has_the_name_of_its_file(call: Call, project: Path) -> None:
    assert call("topology", "gen", "chain", "-o", "sub/nine.toml").status == 0
    assert 'name = "nine"' in Path("sub/nine.toml").read_text()
    assert call("topology", "gen", "chain", "--brokers", "9", "-o", "Größe.toml").status == 0
    assert 'name = "chain-9"' in Path("Größe.toml").read_text()
    answer = call("topology", "gen", "chain", "-o", "sub")
    assert (answer.status, answer.err) == (4, "error: sub: cannot be written: is a directory\n")


@pytest.mark.parametrize(
    "shape, option, users",
    [
        ("chain", "--fanout", "tree, cells, hierarchy use it"),
        ("bipartite", "--delta", "chain, tree, star, random, demo use it"),
        ("tree", "--cell-size", "cells uses it"),
        ("cells", "--levels", "random-hierarchy uses it"),
        ("star", "--proxies", "bipartite uses it"),
        ("tree", "--seed", "random, random-hierarchy use it"),
    ],
)
def test_a_shape_refuses_measures_of_other_shapes(
    call: Call, shape: str, option: str, users: str
) -> None:
    answer = call("topology", "gen", shape, option, "4")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"error: topology gen {shape}: {option}: only {users}\n"


def test_a_topology_of_one_broker_has_no_plural(call: Call, project: Path) -> None:
    assert call("topology", "gen", "chain", "--brokers", "1", "-o", "one.toml").status == 0
    answer = call("topology", "show", "one.toml")
    assert answer.out.splitlines()[2:] == [
        "1 broker, 0 links, delta 1, longest path 0 links",
        "a broker keeps state of 0 others (within 2 links)",
    ]


def test_a_random_hierarchy_is_drawn_from_its_seed_and_described(call: Call, project: Path) -> None:
    arguments = ("topology", "gen", "random-hierarchy", "--brokers", "30", "--levels", "4")
    assert call(*arguments, "--seed", "4", "-o", "t.toml").status == 0
    drawn = (project / "t.toml").read_text().replace('"t"', '"random-hierarchy-30"')
    assert drawn == call(*arguments, "--seed", "4").out
    assert drawn != call(*arguments, "--seed", "5").out
    shown = call("topology", "show", "t.toml").out
    assert "\n4 levels with " in shown
    assert "; links whose loss alone splits a unit: " in shown


def test_every_kind_that_a_file_carries_is_shown(call: Call, project: Path) -> None:
    (project / "t.toml").write_text(
        'schema = "pubsubctl/topology/2"\nname = "t"\nkind = ["tree", "bipartite"]\n'
        'brokers = ["a", "b"]\nlinks = [["a", "b"]]\n'
        '[bipartite]\nproxies = ["a"]\nservers = ["b"]\n'
    )
    lines = call("topology", "show", "t.toml").out.splitlines()
    assert lines[:6] == ["a", "└── b", "", "bipartite:", "  a (proxy): b", "  b (server): a"]
    lint = call("topology", "lint", "t.toml")
    assert lint.out == "t.toml: ok, 2 brokers, delta 1, kind tree and bipartite\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("deploy", "t.toml", "--dry-run"), "t.toml: " + RUNS_NOT),
        (("bench", "w.toml", "--dry-run"), "w.toml: " + RUNS_NOT),
        (("topology", "place", "t.toml", "--protocol", "delta_tree"), "t.toml: " + RUNS_NOT),
        (("topology", "lint", "t.toml", "--protocol", "delta_tree"), "t.toml: " + RUNS_NOT),
        (("topology", "join", "t.toml", "n1", "--at", "b1"), "only brokers of a tree or"),
        (("topology", "leave", "t.toml", "b8"), "only brokers of a tree or"),
        (
            ("inject", "kill", "b1", "--topology", "t.toml", "--protocol", "delta_tree", "--lint"),
            "t.toml: " + RUNS_NOT,
        ),
    ],
)
def test_commands_for_trees_refuse_other_topologies(
    call: Call, project: Path, arguments: tuple[str, ...], said: str
) -> None:
    made = call("topology", "gen", "cells", "--brokers", "8", "-o", "t.toml")
    assert made.status == 0, made.err
    (project / "w.toml").write_text(
        'schema = "pubsubctl/workload/1"\nname = "w"\ntopology = "t.toml"\n'
        'protocol = "delta_tree"\npublishers = [{ at = ["b1"], rate = "1/s", size = "10B" }]\n'
        'subscribers = [{ at = ["b8"], filter = "true" }]\n'
        '[phases]\nwarmup = "1s"\nmeasure = "1s"\ndrain = "1s"\n'
    )
    answer = call(*arguments)
    assert (answer.status, said in answer.err) == (2, True), answer.err


def test_a_storage_retires_only_after_its_dependent_storages(call: Call, project: Path) -> None:
    shutil.copy(ROOT / "bench" / "topologies" / "t22-stored.toml", project / "t.toml")
    assert call("topology", "store", "t.toml", "n10", "--level", "3").status == 0
    assert call("topology", "store", "t.toml", "n11", "--level", "1").status == 0
    before = (project / "t.toml").read_text()
    early = call("topology", "retire", "t.toml", "n10")
    assert early.status == 2
    assert "n10 is retired, and n11 takes what it stores from it; retire n11 first" in early.err
    assert (project / "t.toml").read_text() == before
    assert call("topology", "retire", "t.toml", "n11").status == 0
    assert call("topology", "retire", "t.toml", "n10").status == 0


def test_a_tree_is_drawn_from_its_first_broker(call: Call) -> None:
    answer = call("topology", "show", "demo")
    assert answer.out.splitlines()[:6] == [
        "p1",
        "├── b1",
        "│   ├── s1",
        "│   ├── s2",
        "│   └── b2",
        "└── b3",
    ]
    assert call("topology", "show", "demo", "-j").document["summary"]["longest_path_links"] == 4
