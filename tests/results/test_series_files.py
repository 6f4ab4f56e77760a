"""Tests of series whose files disagree, and of manifests with values of other types."""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.spec.experiment import ExperimentFile, write_experiment
from brokerd.text import toml_text
from results.figures.sweep import draw
from results.papers.experiment_runs import check_experiment_files
from results.repetitions.comparable import NotComparable
from results.repetitions.comparison import Group, compare
from results.repetitions.numbers import doubts_about_verdict, numbers_of
from results.repetitions.series_files import find_misplaced, points_of_runs
from results.repetitions.series_runs import read_points, read_series, verdict_lines
from results.rules.terms import CHURN
from results.tables.derived import VerdictMark, read_counts
from results.tables.json_files import IntegrityError, ResultsError, problem_of_manifest, read_toml
from results.tables.seals import seal, verify_seal
from tests.helpers.runs import write_lines
from tests.results.test_repetitions import FAULTS, WORKLOAD, written

RUNS = {"few": ["r1", "r2"], "many": ["r3"]}
MANIFEST: dict[str, Any] = {"kind": "series", "state": "complete", "runs": RUNS}
SUMMARY: dict[str, Any] = {
    "points": {
        name: {"runs": dict.fromkeys(runs, "VALID"), "modal": runs[0]}
        for name, runs in RUNS.items()
    }
}


SIZES = {"few": "1KiB", "many": "2KiB"}
"""The size of publications at each point."""


def workload_at(point: str) -> dict[str, Any]:
    return {"publishers": [{**WORKLOAD["publishers"][0], "size": SIZES[point]}]}


def series(folder: Path, manifest: Any = MANIFEST, summary: Any = SUMMARY) -> Path:
    """Write a series without run folders."""
    (folder / "spec").mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "series.json").write_text(json.dumps(summary))
    lines = [
        {"point": point, "number": number, "run_id": run_id, "state": state}
        for point, runs in RUNS.items()
        for number, run_id in enumerate(runs, start=1)
        for state in ("began", "complete")
    ]
    write_lines(folder / "instances.jsonl", lines)
    topology = toml_text({"name": "cells", "brokers": ["p1", "s1"], "links": [["p1", "s1"]]})
    points = {
        point: {"workload": WORKLOAD | workload_at(point), "topology": topology, "faults": FAULTS}
        for point in RUNS
    }
    (folder / "spec" / "plan.json").write_text(json.dumps({"points": points, "axes": []}))
    seal(folder)
    return folder


def whole_series(folder: Path) -> Path:
    """Write a series with run folders and a summary; return the folder of the series."""
    for point, runs in RUNS.items():
        for run_id in runs:
            written(folder / run_id, workload=workload_at(point), verdict="valid")
    path = series(folder / "series")
    points = points_of_runs(path, SUMMARY)
    return series(path, summary={**SUMMARY, "points": points})


def test_an_honest_series_is_read_whole(tmp_path: Path) -> None:
    folder = whole_series(tmp_path)
    manifest, points = read_series(folder)
    assert (manifest, [*points]) == (MANIFEST, [*RUNS])
    assert verdict_lines(folder) == ["few: 2 VALID; typical: r1", "many: 1 VALID; typical: r3"]


def _document(name: str, *place: str, value: Any) -> Callable[[Path], None]:
    """Return a change of a document of a series."""

    def change(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        _at(*place, value=value)(document)
        (folder / name).write_text(json.dumps(document))
        seal(folder)

    return change


def _ledger(change: Callable[[list[str]], object]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        lines = (folder / "instances.jsonl").read_text().splitlines()
        change(lines)
        (folder / "instances.jsonl").write_text("\n".join(lines) + "\n")
        seal(folder)

    return both


def _exchange_members(folder: Path) -> None:
    """Exchange two runs of different points, and the names of both runs."""
    one, other = folder.parent / "r1", folder.parent / "r3"
    one.rename(folder.parent / "r0")
    other.rename(one)
    (folder.parent / "r0").rename(other)
    for run in (one, other):
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "run_id": run.name}))
        seal(run)


def _repeat_member(folder: Path) -> None:
    """Replace run r2 by a renamed copy of run r1 of the same point."""
    shutil.rmtree(folder.parent / "r2")
    shutil.copytree(folder.parent / "r1", folder.parent / "r2")
    manifest = json.loads((folder.parent / "r2" / "manifest.json").read_text())
    (folder.parent / "r2" / "manifest.json").write_text(json.dumps({**manifest, "run_id": "r2"}))
    seal(folder.parent / "r2")


def _rejudge_member(folder: Path) -> None:
    path = folder.parent / "r1" / "verdict.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "verdict": "invalid"}))
    seal(folder.parent / "r1")


def _mark_and_rejudge_member(folder: Path) -> None:
    """Change a verdict, and its line in the seal, of a run that this program has judged."""
    run = folder.parent / "r1"
    VerdictMark(run, verify_seal(run).digest).write()
    _rejudge_member(folder)


def _change_member(folder: Path) -> None:
    path = folder.parent / "r1" / "manifest.json"
    path.write_text(path.read_text() + " ")


def _journal(folder: Path) -> None:
    """Let the journal repeat the manifest, and the manifest change after that."""
    manifest = json.loads((folder / "manifest.json").read_text())
    line = {"what": "end", "state": "complete", "manifest": manifest}
    write_lines(folder / "log.jsonl", [line])
    seal(folder)
    assert read_series(folder)
    _document("manifest.json", "seed", value=9)(folder)


LIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a verdict after its check": (_mark_and_rejudge_member, "verdict.json has changed"),
    "a file of a run": (_change_member, "manifest.json has changed"),
    "another seed than in the journal": (_journal, "manifest.json and log.jsonl differ on seed"),
    "a run less": (_ledger(lambda lines: lines.pop()), "instances.jsonl and manifest.json"),
    "a run of another point": (
        _ledger(lambda lines: lines.append(lines[-1].replace("many", "few"))),
        "instances.jsonl and manifest.json",
    ),
    "another order": (
        _document("manifest.json", "runs", "few", value=["r2", "r1"]),
        "instances.jsonl and manifest.json",
    ),
    "more instances": (_document("manifest.json", "instances", value=2), "differ on instances"),
    "a planned point": (
        _document("spec/plan.json", "points", "none", value={}), "spec/plan.json and manifest.json",
    ),
    "another workload": (
        _document("spec/plan.json", "points", "few", "workload", "seed", value=4),
        "workload.toml differ",
    ),
    "another topology": (
        _document("spec/plan.json", "points", "few", "topology", value="name = 'x'"),
        "topology.toml differ",
    ),
    "no faults": (
        _document("spec/plan.json", "points", "few", "faults", value=None), "faults.toml differ",
    ),
    "another axis": (
        _document("spec/plan.json", "axes", value=[{"key": "k", "values": [1, 2]}]),
        "spec/plan.json and series.json",
    ),
    "a missing run": (lambda folder: shutil.rmtree(folder.parent / "r3"), "r3 is missing"),
    "exchanged runs": (_exchange_members, "no run of point few"),
    "a repeated run": (_repeat_member, "a run counts once"),
    "a better number": (
        _document("series.json", "points", "few", "numbers", "latency_p99_ms", "mean", value=0.1),
        "UNKNOWN: series.json and the records of its runs differ on latency_p99_ms of few",
    ),
    "a number of a run": (
        _document("series.json", "points", "few", "numbers", "cpu_us_per_delivered", "values",
                  value=[1.0, 1.0]),
        "UNKNOWN: series.json and the records of its runs differ on cpu_us_per_delivered of few",
    ),
    "another verdict": (
        _document("series.json", "points", "few", "runs", "r1", value="INVALID"),
        "UNKNOWN: series.json and r1/verdict.json differ: INVALID, and VALID",
    ),
    "a verdict of a run": (
        _rejudge_member, "UNKNOWN: series.json and r1/verdict.json differ: VALID, and INVALID",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*LIES])
def test_a_lie_about_a_series_is_found_out(tmp_path: Path, name: str) -> None:
    change, says = LIES[name]
    folder = whole_series(tmp_path)
    change(folder)
    try:
        said = verdict_lines(folder)
    except (IntegrityError, ResultsError) as refused:
        said = [str(refused)]
    assert any(says in each for each in said), said


def test_the_points_of_a_series_have_the_numbers_of_its_runs(tmp_path: Path) -> None:
    folder = whole_series(tmp_path)
    honest = read_points(folder)
    for name in ("a better number", "a number of a run", "another verdict"):
        LIES[name][0](folder)
    assert read_points(folder) == honest


def test_deliveries_that_arrive_while_a_fault_lasts_recover_in_no_time(
    tmp_path: Path,
) -> None:
    run = written(tmp_path / "r1")
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["recoveries"] = [{"at_risk": 172, "recovered": 172, "recovered_after_ns": -9_778_016}]
    (run / "verdict.json").write_text(json.dumps(verdict))
    seal(run)
    assert numbers_of(run)["recovery_s"] == 0


@pytest.mark.parametrize(
    "place, value, says",
    [
        (("counts", "delivered"), 99, "delivered_fraction: 0.99, and 1.0"),
        (("counts", "owed"), 200, "delivered_fraction: 0.5, and 1.0"),
        (("exercised", "resent_publications"), 6, "resent_publications: 6, and 7"),
        (("recoveries",), [], "recovery_s: None, and 2.0"),
        (("recoveries",), [{"at_risk": 3, "recovered_after_ns": 10**9}], "recovery_s: 1.0, and 2"),
        (("recoveries",), [{"at_risk": 3, "recovered_after_ns": None}], "recovery_s: None, and 2"),
        (("verdict",), "valid", ""),
    ],
)
def test_a_verdict_with_other_numbers_than_the_logs_is_doubted(
    tmp_path: Path, place: tuple[str, ...], value: Any, says: str
) -> None:
    run = written(tmp_path / "r1")
    for broker, resent in (("p1", (1, 3)), ("s1", (0, 4))):
        lines = [{"t_ns": n, "resent_publications": n_resent} for n, n_resent in enumerate(resent)]
        write_lines(run / "raw" / "h" / broker / "stats.jsonl", lines)
    windows = [("freeze", 3, 2 * 10**9), (CHURN, 5, 9 * 10**9), ("freeze", 0, None)]
    judgement: Any = SimpleNamespace(
        counts=SimpleNamespace(owed=100, delivered=100),
        recoveries=[
            SimpleNamespace(
                window=SimpleNamespace(verb=verb), at_risk=at_risk, recovered_after_ns=after_ns
            )
            for verb, at_risk, after_ns in windows
        ],
    )
    _document("verdict.json", *place, value=value)(run)
    found = [*doubts_about_verdict(run, judgement)]
    assert (says in "; ".join(found), "resent_bytes" in "; ".join(found)) == (
        True, place[0] == "exercised",
    )  # fmt: skip
    assert bool(found) == bool(says)


def test_a_varied_key_has_the_value_in_the_name_of_its_point(tmp_path: Path) -> None:
    axes = [{"key": "publishers.size", "values": ["1KiB", "2KiB"]}, {"key": "calm", "values": [1]}]
    keys = {"publishers.size": "2KiB", "calm": True}
    for names, says in (
        (("size=2KiB", "publishers.size=2KiB,b=1", "a=1,size=2KiB", "large"), ""),
        (("size=1KiB", "size=2KiB2", "isize=2KiB"), "publishers.size"),
    ):
        for name in names:
            assert "".join(find_misplaced(name, keys, axes)) == says, name
    for name, says in (("size=2KiB", "publishers.size"), ("rate=1/s", "")):
        assert "".join(find_misplaced(name, {"calm": True}, axes)) == says, "the key is lost"


@pytest.mark.parametrize(
    "file, old, new, says",
    [
        ("log.jsonl", "", "", ""),
        ("manifest.json", '"scale": {}', '"scale": {"runs": 5}', "differ on scale"),
        ("manifest.json", '"figure": "ges.load"', '"figure": "ges.scale"', "differ on figure"),
        ("spec/experiment.toml", 'name = "small"', 'name = "large"', "spec/experiment.toml: exp"),
        ("spec/experiment.toml", "seed = 3", "seed = 4", "spec/experiment.toml: seed"),
        ("spec/experiment.toml", 'schema = "s"', 'schema = "t"', "differ on specification_digest"),
        ("raw/controller/simulator/points.jsonl", '"late":7', '"late":8', "differ on its rows"),
        ("raw/controller/simulator/points.jsonl", '{"late":7}\n', "", "differ on its rows"),
    ],
)
def test_a_lie_in_one_file_of_an_experiment_is_found_out(
    tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    experiment = ExperimentFile(schema="s", name="small", figure="ges.load", seed=3)
    rows = {"points": [{"late": 6}, {"late": 7}]}
    run = write_experiment(experiment, tmp_path, "simulation", None, {}, lambda: rows, labels={})
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new, 1))
    documents = (
        json.loads((run / "manifest.json").read_text()), read_toml(run / "spec/experiment.toml"),
    )  # fmt: skip
    if not says:
        check_experiment_files(run, *documents)
        return
    with pytest.raises(IntegrityError, match=says):
        check_experiment_files(run, *documents)


def test_a_figure_of_a_sweep_names_the_numbers_that_differ() -> None:
    axis = {"key": "rate", "values": ["1", "2"], "numbers": [1.0, 2.0]}
    row = {"n": 1, "mean": 3.0, "low": None, "high": None, "smallest": 3.0, "largest": 3.0}
    points = {
        f"rate={rate}": {"runs": {f"r{rate}": "VALID"}, "keys": {"rate": rate},
                         "numbers": {"latency_p50_ms": row}}
        for rate in axis["values"]
    }  # fmt: skip
    manifest = {"experiment": "e", "instances": 1, "cpu": "c", "cores": 2}
    assert draw(manifest, [axis], points, {}).caption.startswith("e: means of 1 runs")
    assert draw(manifest, [axis], points, {}, ("a and b differ",)).caption.startswith(
        "UNKNOWN: a and b differ. e: means"
    )


def _at(*place: str, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    return change


@pytest.mark.parametrize(
    "file, change, says",
    [
        ("manifest", _at("runs", value=None), "points"),
        ("manifest", _at("runs", value="r1"), "runs = 'r1'"),
        ("manifest", _at("runs", "few", value=["../../x"]), "runs = "),
        ("manifest", _at("runs", "few", value=["r1", "r1"]), "runs = "),
        ("manifest", _at("runs", "many", value=["r1"]), "runs = "),
        ("manifest", _at("runs", "few", value=["r1"]), "points.few.runs"),
        ("manifest", _at("state", value="running"), "the series is running"),
        ("manifest", _at("kind", value="run"), "is no series"),
        ("summary", _at("points", value=[]), "points"),
        ("summary", _at("points", "few", value=None), "points.few.runs"),
        ("summary", _at("points", "few", "runs", value={"r1": "VALID"}), "points.few.runs"),
        ("summary", _at("points", "few", "runs", "r1", value=7), "points.few.runs"),
        ("summary", _at("points", "few", "modal", value="r3"), "points.few.modal"),
        ("summary", _at("points", "none", value={"runs": {}}), "points.none.runs"),
    ],
)
def test_series_files_that_disagree_are_refused_by_file_and_key(
    tmp_path: Path, file: str, change: Callable[[Any], None], says: str
) -> None:
    documents = {"manifest": deepcopy(MANIFEST), "summary": deepcopy(SUMMARY)}
    change(documents[file])
    if says == "points.none.runs":
        documents["manifest"]["runs"]["none"] = ["r9"]
    with pytest.raises((IntegrityError, ResultsError)) as caught:
        read_series(series(tmp_path / "series", documents["manifest"], documents["summary"]))
    assert says in str(caught.value)


def test_a_verdict_on_a_run_of_no_point_is_refused(tmp_path: Path) -> None:
    summary = deepcopy(SUMMARY)
    summary["points"]["few"]["runs"]["r9"] = "VALID"
    with pytest.raises(IntegrityError, match=r"points\.few\.runs"):
        read_series(series(tmp_path / "series", summary=summary))


@pytest.mark.parametrize("seal_is_there", [True, False])
def test_a_series_without_its_own_seal_is_refused(tmp_path: Path, seal_is_there: bool) -> None:
    folder = series(tmp_path / "series")
    if seal_is_there:
        (folder / "series.json").write_text(json.dumps(SUMMARY, indent=1))
    else:
        (folder / "SHA256SUMS").unlink()
    with pytest.raises(IntegrityError, match=r"series\.json has changed|no SHA256SUMS"):
        read_series(folder)


@pytest.mark.parametrize(
    "values, says",
    [
        ({"runs": {"a": ["r1"]}, "labels": {"k": "v"}, "cores": 2, "roles": {}}, ""),
        ({"runs": None, "labels": None, "reasons": None, "argv": None}, ""),
        ({"labels": "x"}, "labels = 'x'"),
        ({"labels": {"k": 5}}, "labels = {'k': 5}"),
        ({"reasons": 5}, "reasons = 5"),
        ({"argv": {"a": 1}}, "argv = {'a': 1}"),
        ({"cores": True}, "cores = True"),
        ({"cores": -1}, "cores = -1"),
        ({"roles": {"b1": None}}, "roles = {'b1': None}"),
        ({"headline": []}, "headline = []"),
        ({"state": 5}, "state = 5"),
        ({"runs": {"a": "r1"}}, "runs = {'a': 'r1'}"),
        ({"runs": {"a": [".."]}}, "runs = {'a': ['..']}"),
    ],
)
def test_a_value_of_another_type_is_named(values: dict[str, Any], says: str) -> None:
    assert problem_of_manifest(values).startswith(says)
    assert bool(problem_of_manifest(values)) == bool(says)


def _groups(folder: Path, **manifest: Any) -> list[Group]:
    runs = [written(folder / name) for name in ("r1", "r2", "r3")]
    runs.append(written(folder / "r4", manifest=manifest))
    return [Group("few", tuple(runs[:2])), Group("many", tuple(runs[2:]))]


def test_runs_of_another_commit_or_protocol_are_no_repetitions(tmp_path: Path) -> None:
    assert compare(_groups(tmp_path / "alike")).rows
    for number, (key, value) in enumerate((("git_commit", "c2"), ("protocol", "durable"))):
        with pytest.raises(NotComparable, match="r4 are no repetitions of one run"):
            compare(_groups(tmp_path / str(number), **{key: value}))


def test_a_run_counts_once_even_as_a_copy(tmp_path: Path) -> None:
    first, second = written(tmp_path / "r1"), written(tmp_path / "r2")
    copy = written(tmp_path / "r3", manifest={"run_id": "r1"})
    for groups in (
        [Group("few", (first, first)), Group("many", (second,))],
        [Group("few", (first,)), Group("many", (first, second))],
    ):
        with pytest.raises(NotComparable, match="are one run, r1: it counts once"):
            compare(groups)
    with pytest.raises((NotComparable, IntegrityError)):
        compare([Group("few", (first,)), Group("many", (copy,))])


def test_a_point_without_a_run_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="many: no run of this point has ended"):
        compare([Group("few", (written(tmp_path / "r1"),)), Group("many", ())])


@pytest.mark.parametrize(
    "place, value, says",
    [
        (("counts",), None, "counts, exercised or recoveries"),
        (("recoveries",), [5], "counts, exercised or recoveries"),
        (("counts", "owed"), "x", "counts.owed = 'x'"),
        (("counts", "delivered"), -1, "counts.delivered = -1"),
        (("counts", "delivered"), 101, "counts.delivered = 101"),
        (("exercised", "resent_publications"), True, "resent_publications = True"),
        (("recoveries",), [{"at_risk": 1, "recovered_after_ns": []}], "recovered_after_ns = []"),
        (("run_id",), "r9", "run_id = 'r9': manifest.json is of run r1"),
    ],
)
def test_a_verdict_that_no_judge_wrote_is_refused_by_key(
    tmp_path: Path, place: tuple[str, ...], value: Any, says: str
) -> None:
    run = written(tmp_path / "r1")
    verdict = json.loads((run / "verdict.json").read_text())
    assert read_counts(run / "verdict.json", "r1") == verdict
    _at(*place, value=value)(verdict)
    (run / "verdict.json").write_text(json.dumps(verdict))
    with pytest.raises(IntegrityError) as caught:
        read_counts(run / "verdict.json", "r1")
    assert says in str(caught.value)
    seal(run)
    with pytest.raises(IntegrityError):
        numbers_of(run)
