"""Tests of comparisons: participants, reasons in place of runs, and refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.testbed import RunFailed
from bench.spec.spec import load_experiment, load_topology
from brokerd.protocols.registry import DEFINITIONS, check_runs_on, protocol_on
from fault_injection.schedule.limits import find_permanently_ended, waits_for_ever
from fault_injection.schedule.schedule import load_schedule
from pubsubctl.runs.experiment import Experiment, carry_out
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
LOSSY = {"best_effort", "ges"}
OURS = {*LOSSY, "delta_tree", "gryphon", "durable", "ges_reliable", "multi_proxy"}
WITHOUT: dict[str, set[str]] = {
    "s1": set(),
    "s2": set(),
    "s2-all": set(),
    "s3": set(),
    "s4": set(),
    "s5": set(),
    "s5-two": {"multi_proxy"},
    "s6": set(),
    "s6-long": OURS - {"durable", "ges_reliable"},
    "s6-publisher": OURS - {"ges_reliable"},
    "s7": set(),
    "s8": set(),
}
"""By comparison, the protocols without the tested promise."""

MINE = """\
schema = "pubsubctl/comparison/1"
title = "Mine"
workload = "x10"
faults = "x10-core-gone"
[[entry]]
name = "one"
protocol = "gryphon"
[[entry]]
name = "other"
protocol = "delta_tree"
"""


def test_the_ten_brokers_are_the_same_for_every_protocol() -> None:
    ten, paths = load_topology("x10"), load_topology("x10-paths")
    assert ten.brokers == paths.brokers
    for name in DEFINITIONS:
        check_runs_on(ten, name)


def test_no_comparison_is_forgotten_here() -> None:
    found = {path.stem for path in (ROOT / "bench" / "comparisons").glob("*.toml")}
    assert found == {*WITHOUT, "all", "corrupt"}


@pytest.mark.parametrize("name", WITHOUT)
def test_each_protocol_is_run_or_has_a_reason(name: str, call: Call) -> None:
    result = call("--json", "--dry-run", "compare", "--comparison", name)
    assert result.status == 0, result.err
    plan = result.document
    assert set(plan["not_promised"]) == WITHOUT[name]
    assert {entry.partition("-")[0] for entry in plan["runs"]} == OURS - WITHOUT[name]
    assert not plan["left_out"]
    assert all(why and ".toml" not in why for why in plan["not_promised"].values())


def test_a_protocol_waiting_for_a_lost_broker_is_excluded_with_a_reason(call: Call) -> None:
    result = call("--dry-run", "compare", "--comparison", "s5-two")
    assert "run delta_tree: x10, faults x10-cores-gone" in result.out
    assert "run durable: x10, faults x10-cores-gone" in result.out
    assert "multi_proxy does not promise that: b1 and b3 never come back" in result.out


def test_a_lost_broker_on_the_only_route_is_not_promised() -> None:
    gone = load_schedule(ROOT / "fault_injection" / "x10-core-gone.toml")
    found = waits_for_ever(gone, protocol_on(load_topology("x10-paths"), "durable"))
    assert found.startswith("b1 never comes back; no route leads from p1")
    assert waits_for_ever(gone, protocol_on(load_topology("x10"), "durable")) == ""


def test_a_restarted_broker_is_not_counted_as_lost() -> None:
    topology = load_topology("x10-paths")
    durable, crash = protocol_on(topology), ROOT / "fault_injection" / "x10-core-crash.toml"
    assert find_permanently_ended(load_schedule(crash)) == ()
    assert waits_for_ever(load_schedule(crash), durable) == ""


def test_a_protocol_without_guarantees_is_run_despite_lost_brokers() -> None:
    gone = load_schedule(ROOT / "fault_injection" / "x10-cores-gone.toml")
    assert find_permanently_ended(gone) == ("b1", "b3")
    assert waits_for_ever(gone, protocol_on(load_topology("x10"), "best_effort")) == ""
    assert waits_for_ever(gone, protocol_on(load_topology("x10"), "multi_proxy"))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--comparison", "s33"], "did you mean 's3'?"),
        (["--comparison", "s5", "--only", "gryphn"], "no entry 'gryphn'; did you mean 'gryphon'"),
        (["--comparison", "s6-long", "--only", "gryphon"], "nothing of it can be run here"),
        (["--comparison", "s5", "--selftest"], "only one of them"),
        (["--comparison", "s5", "--rate", "1/s"], "--rate 1/s: can be used with --against only"),
        (["latest", "--seed", "0"], "--seed 0: can be used with --against only"),
        (["--against", "protocol=ges"], "name one WORKLOAD before"),
        (["demo"], "a workload has two sides with --against: `pubsubctl compare demo"),
        (["--comparison", "s5", "latest"], "makes the runs that it compares"),
        (["--comparison", "s5", "-d", "30"], "--duration = '30'"),
        (["-d", "30s"], "can be used with --against or --comparison only"),
    ],
)
def test_slips_at_the_command_line_are_refused(arguments: list[str], said: str, call: Call) -> None:
    result = call("compare", *arguments)
    assert result.status == 2
    assert said in result.err


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('"gryphon"', '"gryphn"', "did you mean 'gryphon'?"),
        ('"gryphon"', '"gryphon"\ntopology = "x11"', "did you mean 'x10'?"),
        ('"gryphon"', '"gryphon"\nset = { "topology.cell.bundles" = 1 }', "'cell'"),
        ('"gryphon"', '"gryphon"\nset = { "publishers.rat" = "1/s" }', "rat"),
        ('"x10"', '"x1"', "workload 'x1'"),
        ('"x10-core-gone"', '"x10-core-gon"', "did you mean 'x10-core-gone'?"),
        ('"x10-core-gone"', '"gd02-b1-crashed"', "did you mean 'gd02-b1-crash'?"),
        ('faults = "x10-core-gone"', 'fault = "x10-core-gone"', "unknown key 'fault'"),
        (
            'faults = "x10-core-gone"',
            'faults = "x10-core-gone"\nmeasure = "9"',
            "mine.toml: measure = '9'",
        ),
        ('"x10-core-gone"', '"x10-core-gon"', "(from mine.toml: faults)"),
        ('protocol = "gryphon"', 'topology = "x11"\nprotocol = "gryphon"', ".topology)"),
        (
            'protocol = "gryphon"',
            'system = "external/mosquito"',
            "].system: no configuration called 'external/mosquito'; did you mean "
            "'external/mosquitto",
        ),
        (
            'protocol = "gryphon"',
            'system = "a.toml"\nset = { seed = 1 }',
            "use set with our protocols",
        ),
    ],
)
def test_slips_in_a_file_are_no_missing_promises(
    old: str, new: str, said: str, project: Path, call: Call
) -> None:
    (project / "mine.toml").write_text(MINE.replace(old, new))
    result = call("--dry-run", "compare", "--comparison", "mine.toml")
    assert result.status == 2, result.out
    assert said in result.err


def test_an_entry_sets_keys_of_its_own(project: Path, call: Call) -> None:
    text = MINE + 'set = { "topology.tree.delta" = 2, "publishers.rate" = "10/s" }\n'
    (project / "mine.toml").write_text(text)
    assert call("--dry-run", "compare", "--comparison", "mine.toml").status == 0


class _Lab:
    """A lab that wraps exceptions as nurseries do."""

    @asynccontextmanager
    async def operate(self, *arguments: object) -> AsyncIterator[None]:
        async with trio.open_nursery():
            yield


def test_the_cause_of_a_failed_run_is_reported_without_exception_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(*arguments: object) -> None:
        raise RunFailed("waited 9 s for 4 fences to arrive")

    monkeypatch.setattr("pubsubctl.runs.experiment.choose_deployment", failing)
    experiment = Experiment(load_experiment("x10"), None, Path())
    lab: Any = _Lab()
    nobody: Any = None
    with pytest.raises(RunFailed, match="for 4 fences"):
        trio.run(carry_out, experiment, lab, nobody, nobody, "a test")
