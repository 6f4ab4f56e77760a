"""Tests of results as files for CI and papers: a case per run, in JUnit, Markdown and LaTeX."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pubsubctl.console.console import Result
from pubsubctl.errors import VerdictInvalid
from pubsubctl.runs.case_files import Case, cases_of, junit, latex, markdown
from results.checker.checks import Verdict
from tests.pubsubctl.conftest import Call

VERDICTS = {"a": "valid", "b": "invalid", "c": "unknown", "d": None}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return four runs with given verdicts, without Spark; the last judgement fails."""

    def check_run(spark: object, run: Path, judgement: object) -> Verdict:
        if VERDICTS[run.name] is None:
            raise KeyError("torn")
        document: dict[str, Any] = {
            "verdict": VERDICTS[run.name], "because": [f"why {run.name}"], "lines": [run.name],
        }  # fmt: skip
        return Verdict(run, run, document)

    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("results.checker.checks.check_run", check_run)
    for name in VERDICTS:
        folder = tmp_path / name
        folder.mkdir()
        headline = {"delivered_per_s": 1234.4, "response_us": {"p50": 900.0, "p99": 5_000.0}}
        about = {"protocol": "delta_tree", "headline": headline}
        (folder / "manifest.json").write_text(json.dumps(about))
    return [str(tmp_path / name) for name in VERDICTS]


def cases_in(path: str) -> dict[str, tuple[str, str]]:
    """Return kind and message of each case of a JUnit file."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        [*problems] = case
        kind, text = (problems[0].tag, problems[0].get("message", "")) if problems else ("", "")
        found[str(case.get("name"))] = kind, text
    return found


def test_an_unknown_verdict_is_an_error_and_never_skipped(call: Call, runs: list[str]) -> None:
    answer = call(
        "check", *runs, "--junit", "out/junit.xml", "--markdown", "a.md", "--latex", "a.tex"
    )
    assert answer.status == 70  # one run is a bug of ours
    assert cases_in("out/junit.xml") == {
        "a": ("", ""),
        "b": ("failure", "why b"),
        "c": ("error", "why c"),
        "d": ("error", "'torn'"),
    }
    suite = ElementTree.parse("out/junit.xml").getroot()
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["4", "1", "2", "0"]
    lines = Path("a.md").read_text().splitlines()
    assert lines[0] == "| case | protocol | verdict | owed | delivered | per second | p50 | p99 |"
    assert "| a | delta_tree | VALID |  |  | 1,234 | 0.90 ms | 5.00 ms |" in lines
    assert "- **c**: why c" in lines
    tex = Path("a.tex").read_text()
    assert r"b & delta\_tree & INVALID &  &  & 1,234 & 0.90 ms & 5.00 ms \\" in tex
    assert tex.count("&") == 7 * 5


def test_an_unfinished_command_is_recorded_in_its_file(
    call: Call, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pubsubctl.runs.verdicts.judge_each", interrupt)
    assert call("check", *runs, "--junit", "junit.xml").status == 130
    assert cases_in("junit.xml") == {"check": ("error", "check did not finish")}


def test_a_file_that_cannot_be_written_is_found_before_the_work(
    call: Call, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("folder").mkdir()
    monkeypatch.setattr("pubsubctl.runs.verdicts.judge_each", lambda *_: pytest.fail("began"))
    answer = call("check", *runs, "--markdown", "folder")
    assert answer.status == 4
    assert "folder: cannot be written: is a directory" in answer.err


def test_a_dry_run_has_no_results_to_write(call: Call, project: Path) -> None:
    answer = call("-n", "bench", "chain3", "--junit", "junit.xml")
    assert answer.status == 2
    assert "--junit and --dry-run: there are no results to write" in answer.err


def series(**about: Any) -> dict[str, Any]:
    return {"schema": "pubsubctl/series/1", "run_directory": "runs/s/1", **about}


def test_a_series_has_a_case_per_run_and_per_missing_run() -> None:
    points = {"rate=1": {"runs": {"r1": "VALID", "r2": "INVALID"}}}
    broken = VerdictInvalid("runs/s/r2: INVALID: 1 missing")
    found = cases_of(Result(document=series(points=points), because=(broken,)))
    assert [(case.name, [*case.failures]) for case in found] == [
        ("rate=1: r1", []),
        ("rate=1: r2", ["runs/s/r2: INVALID: 1 missing"]),
    ]
    allowed = cases_of(Result(document=series(points=points)))  # its protocol promises less
    assert [(*case.failures, *case.errors) for case in allowed] == [(), ()]
    missing = cases_of(Result(document=series(missing=[{"point": "p", "number": 2}])))
    assert [(case.name, case.errors) for case in missing] == [("p: 2", ("this run is missing",))]


def test_a_target_is_reached_missed_or_not_measured() -> None:
    def row(name: str, holds: bool | None, failed: str = "") -> dict[str, Any]:
        expectation = {"metric": "latency.p99", "wanted": "< 5ms", "holds": holds}
        return {
            "id": name, "run_directory": None, "expectations": [expectation], "failed": failed,
        }  # fmt: skip

    rows = [row("a", True), row("b", False), row("c", None), row("d", True, "no host")]
    document = {"schema": "pubsubctl/targets/1", "targets": rows}
    found = {case.name: case for case in cases_of(Result(document=document))}
    assert [case.verdict for case in found.values()] == ["reached", "missed", "failed", "failed"]
    assert found["b"].failures == ["not as expected: latency.p99 < 5ms"]
    assert found["c"].errors == ["not measured: latency.p99 < 5ms"]
    assert found["d"].errors == ["no host"]


def test_hostile_names_stay_text() -> None:
    case = Case(name="a|b&<c>_\x1b%", verdict="INVALID", failures=["line\n\x00two"])
    [row] = ElementTree.fromstring(junit("check", [case])).iter("testcase")
    assert "a|b&<c>_" in str(row.get("name"))
    assert r"a\|b&<c>_" in markdown("check", [case])
    assert r"a|b\&<c>\_" in latex("check", [case])
    assert "\x1b" not in junit("check", [case]) + markdown("check", [case]) + latex("check", [case])
