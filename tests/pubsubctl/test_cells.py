"""Tests of commands on topologies that are no trees."""

from pathlib import Path

import pytest

from tests.pubsubctl.conftest import Call

CELLS = """
schema = "pubsubctl/topology/2"
name = "ring"
kind = "cells"
brokers = ["p1", "b1", "s1", "b2"]

[cells]
bundles = [["p1", "ib"], ["ib", "s1"]]
[cells.members]
ib = ["b1", "b2"]
"""

SCHEDULE = """
schema = "pubsubctl/faults/1"
name = "ring"

[[step]]
id = "first"
at = "1s"
do = "freeze"
on = "b1"
for = "2s"

[[step]]
id = "second"
at = "1s"
do = "{verb}"
on = "{on}"
for = "2s"
"""


@pytest.fixture
def ring(project: Path) -> Path:
    path = project / "ring.toml"
    path.write_text(CELLS)
    return path


def test_a_topology_of_cells_is_checked_shown_and_placed(call: Call, ring: Path) -> None:
    assert "4 brokers, 3 cells, kind cells" in call("topology", "lint", str(ring)).out
    shown = call("topology", "show", str(ring))
    assert "a broker keeps state of 2 to 3 others" in shown.out, shown.err
    packed = call("topology", "place", str(ring), "--policy", "pack")
    assert packed.status == 0, packed.err


def test_a_safe_placement_separates_the_brokers_of_a_cell(call: Call, ring: Path) -> None:
    dealt = call("-l", "t1,t2", "topology", "place", str(ring))
    assert "the loss of machine t2 takes b1-b2: no route leads from p1 to s1" in dealt.out, (
        dealt.err
    )
    apart = call("-l", "t1,t2", "topology", "place", str(ring), "--safe", "-j")
    assert apart.status == 0, apart.err
    hosts = {row["broker"]: row["host"] for row in apart.document["brokers"]}
    assert hosts["b1"] != hosts["b2"]


@pytest.mark.parametrize(
    "verb, on, status",
    [("freeze", "s1", 0), ("freeze", "b2", 2), ("cut", "p1-b2", 2), ("cut", "p1-b1", 0)],
)
def test_the_routes_determine_which_brokers_may_fail_together(
    call: Call, ring: Path, project: Path, verb: str, on: str, status: int
) -> None:
    schedule = project / "both.toml"
    schedule.write_text(SCHEDULE.format(verb=verb, on=on))
    answer = call("inject", "--lint", str(schedule), "--topology", str(ring))
    assert answer.status == status, answer.err
    if status:
        assert "without b1, " in answer.err
        assert "no route leads from p1 to" in answer.err


def test_a_preview_names_brokers_that_the_routes_do_not_reach(call: Call, ring: Path) -> None:
    both = ("inject", "--preview", "partition", "p1|b1,b2", "--for", "5s", "--topology", str(ring))
    answer = call(*both)
    assert answer.status == 0, answer.err
    assert "islands: b1,s1,b2 | p1" in answer.out
    one = call("inject", "--preview", "kill", "b1", "--topology", str(ring))
    assert "no pair is cut off: all 6 pairs of 3 live brokers communicate" in one.out


def test_no_protocol_that_runs_on_trees_is_deployed_on_cells(call: Call, ring: Path) -> None:
    answer = call("deploy", str(ring), "--protocol", "delta_tree")
    assert answer.status == 2
    assert "protocol 'delta_tree' runs on kind 'tree', and ring is of kind cells" in answer.err


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('kind = "cells"', 'kind = "cell"', "kind = 'cell'; one of tree, cells"),
        ("", "[tree]", "[tree] is a section of another kind"),
        ('["p1", "ib"], ', "", "cells: bundles"),
        ('ib = ["b1", "b2"]', 'ib = ["b1", "b9"]', "'b9'"),
        (
            "[cells]",
            '[cells]\nlinks = [["p1", "b1"], ["p1", "b2"]]',
            "cells: links: no link of the bundle ib-s1; at least one",
        ),
        (
            "[cells]",
            '[cells]\nlinks = [["p1", "b1"], ["b2", "s1"], ["p1", "s1"]]',
            "cells: links[2]: p1-s1 is in no bundle: there is no p1-s1",
        ),
    ],
)
def test_a_wrong_topology_is_refused_with_its_mistake(
    call: Call, ring: Path, old: str, new: str, said: str
) -> None:
    if "[tree]" in new:
        ring.write_text(CELLS + "[tree]\ndelta = 1\n")
    else:
        ring.write_text(CELLS.replace(old, new))
    for command in (("topology", "lint", str(ring)), ("deploy", str(ring), "--dry-run")):
        answer = call(*command)
        assert (answer.status, said in answer.err) == (2, True), answer.err
        assert "ring.toml" in answer.err


def test_an_unknown_protocol_is_named_with_the_nearest(call: Call, ring: Path) -> None:
    for command in (
        ("topology", "lint", str(ring)),
        ("topology", "place", str(ring)),
        ("inject", "kill", "b1", "--lint", "--topology", str(ring)),
    ):
        answer = call(*command, "--protocol", "delta_three")
        assert answer.status == 2
        assert "'delta_three'; did you mean 'delta_tree'" in answer.err, answer.err
    alone = call("inject", "kill", "b1", "--lint", "--protocol", "delta_tree")
    assert "only with --topology" in alone.err
