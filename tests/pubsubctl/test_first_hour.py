"""Stories about a study of one's own: names of files, predictions, and series without a verdict."""

from pathlib import Path

import pytest

from bench.spec.named_files import named_by
from bench.spec.overrides import Overrides
from bench.spec.spec import SpecError, load_experiment
from tests.pubsubctl.conftest import Call

TWELVE = """\
schema = "pubsubctl/topology/1"
name = "twelve"
kind = "tree"
brokers = ["p1", "p2", "p3", "p4", "m1", "m2", "m3", "s1", "s2", "s3", "s4", "s5"]
links = [["p1", "m1"], ["p2", "m1"], ["p3", "m2"], ["p4", "m2"], ["m1", "m3"], ["m2", "m3"],
         ["m3", "s1"], ["m3", "s2"], ["m1", "s3"], ["m2", "s4"], ["m2", "s5"]]
"""
STUDY = """\
schema = "pubsubctl/workload/1"
name = "study"
topology = "twelve"
protocol = "delta_tree"
calm = true
seed = 7
[phases]
warmup = "1s"
measure = "12s"
[attributes]
symbol = { choose = 40 }
price = { uniform = [1, 500] }
[[publishers]]
at = ["p1", "p2"]
rate = "50/s"
[[publishers]]
at = "p4"
rate = "2/s"
[[subscribers]]
at = "s1"
filter = "price <= 250"
[[subscribers]]
at = "s3"
filter = "symbol = 'SYMBOL007'"
"""
SWEEP = """\
schema = "pubsubctl/sweep/1"
name = "both"
workload = "../workloads/study.toml"
[axes]
protocol = ["delta_tree", "best_effort"]
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Path:
    """Return the folder of a project with a topology and a workload of its own."""
    folder = tmp_path / "study"
    assert call("init", str(folder)).status == 0
    (folder / "bench/topologies/twelve.toml").write_text(TWELVE)
    (folder / "bench/workloads/study.toml").write_text(STUDY)
    (folder / "bench/sweeps/both.toml").write_text(SWEEP)
    monkeypatch.chdir(folder)
    return folder


def test_a_new_project_has_a_folder_for_each_kind_of_file(call: Call, tmp_path: Path) -> None:
    result = call("init", str(tmp_path / "my study"))
    assert result.status == 0, result.err
    for kind in ("topologies", "workloads", "sweeps", "comparisons", "experiments"):
        assert (tmp_path / "my study" / "bench" / kind).is_dir(), kind
    assert f"next: cd '{tmp_path}/my study' && " in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "study", "--over", "protocol=delta_tree,best_effort"),
        ("sweep", "both"),
        ("compare", "study", "--against", "protocol=best_effort"),
        ("sweep", "demo", "--set", "topology=twelve", "--over", "publishers.at=p1,p2")
        + ("--set", "subscribers.at=s1"),
    ],
)
def test_a_projects_files_are_found_by_their_bare_names(
    study: Path, call: Call, arguments: tuple[str, ...]
) -> None:
    result = call("--dry-run", *arguments)
    assert result.status == 0, result.err


def test_a_workload_finds_the_topology_of_its_own_project(
    study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_experiment("study/bench/workloads/study.toml").topology.name == "twelve"
    assert load_experiment(study / "bench/workloads/study.toml").topology.name == "twelve"
    with pytest.raises(SpecError, match="no workload called 'study'"):
        load_experiment("study")


def test_a_topology_of_the_command_line_is_relative_to_the_current_folder(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = study / "other.toml"
    other.write_text(TWELVE.replace('"twelve"', '"other"'))
    (study / "bench/workloads/other.toml").write_text(TWELVE)
    found = load_experiment("study", Overrides(topology="./other.toml"))
    assert found.topology.name == "other"


def test_an_unknown_topology_names_the_nearest_of_the_project(study: Path) -> None:
    with pytest.raises(SpecError, match="did you mean 'twelve'"):
        load_experiment("study", Overrides(topology="twelv"))


def test_a_path_in_a_file_is_relative_to_the_file(study: Path) -> None:
    sweep = study / "bench/sweeps/both.toml"
    assert Path(named_by("../workloads/study.toml", sweep)).resolve() == (
        study / "bench/workloads/study.toml"
    )
    assert named_by("study", sweep) == "study"
