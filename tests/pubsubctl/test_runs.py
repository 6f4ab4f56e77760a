"""Stories about the names of runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.spec.experiment import Point
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.project import Project
from pubsubctl.runs.run_changes import label_runs
from pubsubctl.runs.run_records import find_member_runs, record_of
from pubsubctl.runs.runs import find_run, find_runs, latest_of_figure, manifest
from pubsubctl.runs.series import Habits
from tests.pubsubctl.conftest import Call

FIRST, SECOND = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"
SERIES = "20260103T000000Z-cccccc"


@pytest.fixture
def home(project: Path) -> Project:
    """Return a project with a run of each of two experiments."""
    return _add_runs(project)


def _add_runs(project: Path) -> Project:
    """Add a run of each of two experiments to a project."""
    for experiment, run in (("demo", FIRST), ("chain3", SECOND)):
        folder = project / "results" / "runs" / experiment / run
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"run_id": run}))
        (folder.parent / "latest").symlink_to(run)
    (project / "results" / "runs" / "latest").symlink_to(f"chain3/{SECOND}")
    return Project(project)


def test_a_run_is_named_from_the_folder_above_it(
    home: Project, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = project / "results" / "runs"
    label_runs([runs / "demo" / FIRST], ["for=paper"])
    monkeypatch.chdir(runs / "demo")
    assert record_of(Path(FIRST)).labels == {"for": "paper"}
    label_runs([Path(FIRST)], ["for=talk"])
    assert record_of(Path(FIRST)).labels == {"for": "talk"}


@pytest.mark.parametrize(
    "name, run",
    [
        (FIRST, FIRST),
        (SECOND, SECOND),
        ("latest", SECOND),
        ("demo/latest", FIRST),
        (f"results/runs/demo/{FIRST}", FIRST),
        (f"results/runs/demo/{FIRST}/", FIRST),
    ],
)
def test_a_run_is_a_folder_an_id_or_the_latest(home: Project, name: str, run: str) -> None:
    found = find_run(home, name)
    assert found == Path("results/runs", "demo" if run == FIRST else "chain3", run)
    assert manifest(found)["run_id"] == run


@pytest.mark.parametrize("name", ["latst", FIRST[:-1], "", "*"])
def test_a_run_that_is_not_there_is_refused_with_the_nearest(home: Project, name: str) -> None:
    with pytest.raises(UserError, match=r"no such folder or run id; (did you mean|known)"):
        find_run(home, name)


def test_the_same_run_named_twice_is_one(home: Project) -> None:
    assert len(find_runs(home, [SECOND, "latest", FIRST])) == 2


def test_a_figure_is_of_the_latest_run_of_its_own_experiment(home: Project, project: Path) -> None:
    folder = project / "results" / "runs"
    (folder / "demo").rename(folder / "mp22-m7")
    assert latest_of_figure(home, "mp22.m7").name == FIRST
    assert latest_of_figure(home, "timeline").name == SECOND


def test_the_lack_of_any_run_is_reported(project: Path) -> None:
    with pytest.raises(UserError, match=r"there are no runs in .*results/runs yet"):
        find_run(Project(project), "latest")


def test_a_manifest_that_is_not_json_is_an_integrity_error(home: Project) -> None:
    path = find_run(home, FIRST)
    (path / "manifest.json").write_text("{")
    with pytest.raises(IntegrityError) as caught:
        manifest(path)
    assert caught.value.exit_status == 8


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["plot", "dft11.fig10x", "latest"], "did you mean 'dft11.fig1"),
        (["plot"], "name a figure"),
        (["plot", "dft11.fig9"], "no run of dft11.fig9 in results/runs; `pubsubctl experiment dft"),
        (["plot", "dft11.fig9"], "dft11-fig9.tar.xz -C run && pubsubctl plot dft11.fig9 run`"),
        (["plot", "gd02.fig7"], "`pubsubctl experiment gd02.fig7` makes one\n"),
        (["plot", "dft11.fig9", "--format", "jpg"], "no 'jpg'"),
        (["plot", "dft11.fig9", "latst"], "did you mean 'latest'?"),
        (["check", "latst"], "did you mean 'latest'?"),
        (["report", "demo/20260101"], "no such folder or run id"),
        (["experiment", "dft11.fig99"], "did you mean"),
    ],
)
def test_a_figure_or_run_that_is_not_there_is_refused_before_spark_is_started(
    call: Call, home: Project, arguments: list[str], said: str
) -> None:
    answer = call(*arguments)
    assert answer.status == 2
    assert said in answer.err
    assert "Spark" not in answer.err


def _add_series(project: Path, runs: list[str]) -> None:
    """Make the latest run a series of these runs of `demo`."""
    folder = project / "results" / "runs" / "demo" / SERIES
    folder.mkdir()
    about = {"run_id": SERIES, "kind": "series", "runs": {"a": runs} if runs else {}}
    (folder / "manifest.json").write_text(json.dumps(about))
    latest = project / "results" / "runs" / "latest"
    latest.unlink()
    latest.symlink_to(f"demo/{SERIES}")


def test_a_series_stands_for_its_runs(project: Path) -> None:
    home = _add_runs(project)
    _add_series(project, [FIRST])
    demo = Path("results/runs/demo")
    assert find_runs(home, ["latest"]) == [demo / SERIES]
    assert find_member_runs(home, ["latest", FIRST]) == [demo / FIRST]


@pytest.mark.parametrize(
    "line", [("check",), ("results", "tables"), ("results", "histograms"), ("plot", "timeline")]
)
def test_a_series_without_a_run_is_refused_before_spark_is_started(
    call: Call, home: Project, project: Path, line: tuple[str, ...]
) -> None:
    _add_series(project, [])
    answer = call(*line, "latest")
    assert answer.status == 2
    assert f"results/runs/demo/{SERIES}: this series has no run yet" in answer.err
    assert "Spark" not in answer.err


def test_a_figure_of_one_run_is_drawn_for_each_run_of_a_series(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_runs(project)
    _add_series(project, [FIRST])
    drawn: list[Path] = []

    def draw(figure: str, spark: object, folder: Path, formats: object) -> list[Path]:
        drawn.append(folder)
        return []

    monkeypatch.setattr("results.figures.catalogue.draw", draw)
    assert call("plot", "run.topology", "latest").status == 0
    assert drawn == [Path("results/runs/demo", FIRST)]


def test_the_experiment_of_a_figure_lands_in_a_run_folder(call: Call, project: Path) -> None:
    answer = call("experiment", "dft11.fig11", "--no-figure")
    assert answer.status == 0, answer.err
    run = Path(answer.out.strip())
    assert run.is_relative_to(Path("results/runs")) or run.is_relative_to(project)
    assert manifest(run)["state"] == "complete"


@dataclass(frozen=True)
class Labelled:
    labels: dict[str, str]


def test_a_label_of_a_point_is_not_replaced_by_a_label_of_the_command() -> None:
    spec: Any = Labelled({"point": "p1", "who": "bob"})
    found = Habits(labels={"who": "ann", "machine": "m"}).with_labels(Point("p1", spec))
    assert found.spec.labels == {"point": "p1", "who": "bob", "machine": "m"}
