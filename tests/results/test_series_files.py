"""Tests of series whose files disagree, and of manifests with values of other types."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from results.repetitions.comparable import NotComparable
from results.repetitions.comparison import Group, compare
from results.repetitions.numbers import numbers_of
from results.repetitions.series_runs import read_series, verdict_lines
from results.tables.derived import read_counts
from results.tables.json_files import IntegrityError, ResultsError, problem_of_manifest
from results.tables.seals import seal
from tests.results.test_repetitions import written

RUNS = {"few": ["r1", "r2"], "many": ["r3"]}
MANIFEST: dict[str, Any] = {"kind": "series", "state": "complete", "runs": RUNS}
SUMMARY: dict[str, Any] = {
    "points": {
        name: {"runs": dict.fromkeys(runs, "VALID"), "modal": runs[0]}
        for name, runs in RUNS.items()
    }
}


def series(folder: Path, manifest: Any = MANIFEST, summary: Any = SUMMARY) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "series.json").write_text(json.dumps(summary))
    seal(folder)
    return folder


def test_an_honest_series_is_read_whole(tmp_path: Path) -> None:
    folder = series(tmp_path / "series")
    assert read_series(folder) == (MANIFEST, SUMMARY["points"])
    assert verdict_lines(folder)[0] == "few: 2 VALID; typical: r1"


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
