"""Stories about the text of verdicts; `results` computes the verdicts."""

import io
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.expectations import Expectation
from pubsubctl.console.console import Console
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import combine_statuses
from pubsubctl.runs.demo import (
    PROTOCOLS,
    demonstrable_protocols,
    experiment_of,
    explain_unexpected,
)
from pubsubctl.runs.verdicts import (
    CASES_SHOWN,
    JudgedRun,
    announce_verdicts,
    expectations_of,
    plain_verdict,
)
from results.checker.checks import Verdict, standing_verdict
from results.reference.history_reader import read_history
from results.tables.derived import VerdictMark
from results.tables.json_files import IntegrityError
from results.tables.seals import verify_seal
from tests.helpers.forged_folders import write_honest_run
from tests.pubsubctl.conftest import Call

CASE = {
    "kind": "missing",
    "subscription": "s1-sub-1/1",
    "source": "p1/1",
    "incarnation": 1,
    "sequence": 277,
    "t_ns": 8_018_923_263,
    "publication": {"publisher": "p1-pub-1"},
    "received_before": 276,
    "received_after": 850,
    "path": ["p1", "b1", "s1"],
    "active_faults": ["absorb b1"],
}


def judged(folder: Path, verdict: str, cases: int = 0, because: str = "a reason") -> JudgedRun:
    document: dict[str, Any] = {
        "verdict": verdict.lower(),
        "because": [because],
        "lines": [f"{verdict}  exactly-once", "  absorb b1: 3 at risk"],
    }
    (folder / "evidence").mkdir(exist_ok=True)
    rows = [json.dumps({**CASE, "sequence": 277 + number}) for number in range(cases)]
    (folder / "evidence" / "delivery.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return JudgedRun(folder, folder, document)


@pytest.mark.parametrize(
    "verdict, kinds",
    [("VALID", []), ("INVALID", ["VerdictInvalid"]), ("UNKNOWN", ["VerdictUnknown"])],
)
def test_a_verdict_that_is_not_valid_is_an_error_with_its_reasons(
    tmp_path: Path, verdict: str, kinds: list[str]
) -> None:
    because = judged(tmp_path, verdict).because
    assert [type(error).__name__ for error in because] == kinds
    assert all(f"{tmp_path}: {verdict}: a reason" in str(error) for error in because)


def test_the_first_lost_publications_are_named(tmp_path: Path) -> None:
    lines = judged(tmp_path, "INVALID", cases=8).paint(Console()).splitlines()
    assert lines[2] == (
        "  missing: p1-pub-1 number 277 for s1-sub-1/1, at 8.02 s, p1-b1-s1, during absorb b1, "
        "it got 276, then 850"
    )
    assert lines[-2] == f"  `pubsubctl why p1-pub-1:1:277 s1-sub-1/1 {tmp_path}`"
    assert len(lines) == 2 + CASES_SHOWN + 2
    assert lines[-1] == f"  more in {tmp_path}/evidence/delivery.jsonl"
    assert len(judged(tmp_path, "VALID", cases=8).paint(Console()).splitlines()) == 2


def test_the_word_of_a_verdict_is_there_with_and_without_colour(tmp_path: Path) -> None:
    run = judged(tmp_path, "VALID")
    assert run.paint(Console(color="never")).startswith("VALID  exactly-once\n")
    assert run.paint(Console(color="always")).startswith("\x1b[32mVALID\x1b[0m  exactly-once\n")


@pytest.mark.parametrize(
    "failure, status, said",
    [
        (IntegrityError("b: raw/x is missing"), 8, "error: b: raw/x is missing\n"),
        (KeyError("fault_id"), 70, "error: internal error: KeyError: 'fault_id'\n"),
    ],
)
def test_a_run_that_cannot_be_judged_spoils_no_other(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    failure: Exception, status: int, said: str,
) -> None:  # fmt: skip
    def check_run(spark: object, run: Path, judgement: object) -> Verdict:
        if run.name == "b":
            raise failure
        return Verdict(run, run, judged(run, "VALID").document)

    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("results.checker.checks.check_run", check_run)
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    answer = call("check", *map(str, folders))
    assert answer.status == status
    assert said in answer.err
    firsts = [block.split()[0] for block in answer.out.split("\n\n")]
    assert firsts == ["VALID", "NOT", "VALID"]
    document = call("check", *map(str, folders), "--json").document
    assert document["exit_status"] == status
    assert [run["verdict"] for run in document["runs"]] == ["valid", None, "valid"]


def _judged_folder(folder: Path) -> Path:
    """Return the folder of a run that this program has judged."""
    (folder / "evidence").mkdir(parents=True)
    (folder / "tables" / "violations").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "verdict.json").write_text(json.dumps(judged(folder, "VALID").document))
    (folder / "evidence" / "delivery.jsonl").write_text("")
    (folder / "tables" / "violations" / "part-0.parquet").write_text("none")
    VerdictMark(folder, verify_seal(folder).digest).write()
    return folder


@pytest.mark.parametrize(
    "change, stands",
    [
        ("", True),
        ("report.html", True),
        ("verdict.json", False),
        ("evidence/delivery.jsonl", False),
        ("tables/violations/part-0.parquet", False),
        ("tables/judged.json", False),
        ("manifest.json", False),
    ],
)
def test_a_verdict_stands_while_the_files_of_the_run_and_its_own_are_the_same(
    project: Path, change: str, stands: bool
) -> None:
    run = _judged_folder(project / "a")
    if change:
        (run / change).write_text('{"verdict": "valid"}')
    assert (standing_verdict(run) is not None) == stands


def test_a_verdict_of_another_program_or_user_does_not_stand(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _judged_folder(project / "a")
    with monkeypatch.context() as other:
        other.setenv("XDG_CACHE_HOME", str(project / "of-another-user"))
        assert standing_verdict(run) is None
    monkeypatch.setattr("results.tables.derived.program_digest", lambda: "another")
    assert standing_verdict(run) is None


def test_a_report_judges_only_runs_without_a_standing_verdict(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check_run(spark: object, run: Path, judgement: object) -> Verdict:
        checked.append(run.name)
        return Verdict(run, run, judged(run, "VALID").document)

    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("results.checker.checks.check_run", check_run)
    monkeypatch.setattr("results.report.write_report", lambda *_: None)
    runs = [_judged_folder(project / name) for name in ("a", "b")]
    (runs[1] / "verdict.json").write_text("{}")
    answer = call("report", *map(str, runs))
    assert answer.status == 0, answer.err
    assert checked == ["b"]
    assert "a: VALID stands, for files and program are the same" in answer.err
    assert call("check", *map(str, runs)).status == 0
    assert checked == ["b", "a", "b"]


def test_the_plain_judge_answers_before_spark_starts_and_is_the_second_opinion(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def check_run(spark: object, run: Path, judgement: Any) -> Verdict:
        told.append(judgement)
        return Verdict(run, run, {**judged(run, "VALID").document, "schema": "pubsubctl/verdict/1"})

    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("results.checker.checks.check_run", check_run)
    run = write_honest_run(tmp_path, "run")
    lines = call("check", str(run)).err.splitlines()
    assert re.fullmatch(
        r"VALID \(made up\)  exactly-once, publisher order · [\d,]+ owed = .* "
        r"\(plain judge, [\d.]+ s\)",
        lines[0],
    )
    assert lines[1] == "starting Spark"
    assert told[0].verdict == "VALID"

    monkeypatch.setattr("pubsubctl.runs.verdicts.MOST_DELIVERIES", 10)
    assert call("check", str(run)).err.splitlines()[0] == "starting Spark"
    assert told[1] is None


def test_a_run_that_the_plain_judge_refuses_is_left_to_spark(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "run")
    (run / "spec" / "workload.toml").write_text("name = 'other'\n")
    console = Console(stderr=(stream := io.StringIO()))
    with console.progress() as progress:
        assert announce_verdicts([run], progress) == {}
    said = stream.getvalue().splitlines()
    assert said[0].startswith("run: no verdict of the plain judge: ")


def test_a_run_with_a_broken_seal_is_refused_before_spark_starts(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "results.checker.spark.spark_session", lambda *_: pytest.fail("Spark was started")
    )
    run = write_honest_run(tmp_path, "run")
    (run / "raw" / "more").write_text("more")
    answer = call("check", str(run))
    assert answer.status == 8
    assert "raw/more is not in SHA256SUMS" in answer.out


def test_the_plain_judge_names_publishers_in_its_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_honest_run(tmp_path, "run")
    source, name = next(
        (log.source, log.name) for log in read_history(run).publishers if log.source != log.name
    )
    judgement = SimpleNamespace(verdict="UNKNOWN", because=[f"{source} has no fences"], counts=None)
    monkeypatch.setattr("results.reference.rule.check", lambda history: judgement)
    monkeypatch.setattr("results.rules.verdict_text.counts_in_words", lambda *_: "")
    verdict = plain_verdict(run)
    assert verdict is not None
    assert verdict.lines()[1:] == [f"  {name} has no fences"]


@pytest.mark.parametrize(
    "delta_tree, best_effort, status",
    [
        ("VALID", "INVALID", 0),
        ("INVALID", "INVALID", 1),
        ("UNKNOWN", "INVALID", 3),
        ("VALID", "VALID", 3),
        ("VALID", "UNKNOWN", 3),
        ("INVALID", "VALID", 1),
    ],
)
def test_a_demo_succeeds_when_one_protocol_keeps_its_promise_and_the_other_cannot(
    tmp_path: Path, delta_tree: str, best_effort: str, status: int
) -> None:
    rows = [judged(tmp_path, delta_tree), judged(tmp_path, best_effort)]
    found = explain_unexpected(list(PROTOCOLS), rows)
    assert combine_statuses(error.exit_status for error in found) == status


def test_a_protocol_that_runs_on_other_brokers_is_shown_on_those(project: Path) -> None:
    """The load and faults fit those brokers; `--all` adds the protocol to those of the demo."""
    call = Invocation()
    shown = {name: experiment_of(call, name, None) for name in demonstrable_protocols(call)}
    assert {*PROTOCOLS, "multi_proxy"} <= shown.keys()
    by_workload = {name: experiment.spec.workload.name for name, experiment in shown.items()}
    others = {name: on for name, on in by_workload.items() if on != "demo"}
    assert others == {"multi_proxy": "proxies"}
    for name, experiment in shown.items():
        assert experiment.spec.protocol == name
        assert experiment.schedule is not None
        assert experiment.schedule.name == by_workload[name]


HEADLINE = {
    "delivered": 500,
    "delivered_per_s": 99.5,
    "response_us": {"p50": 900.0, "p99": 63_200.0},
    "broker_cpu_us_per_message_mean": 41.0,
    "online": {"missing": 0},
}


@pytest.mark.parametrize(
    "expected, status, said",
    [
        ({}, 0, []),
        ({"latency.p50": "<= 900us"}, 0, ["latency.p50 <= 900us: holds with 0.9 ms"]),
        ({"latency.p99": "< 50ms"}, 1, ["latency.p99 < 50ms: fails with 63.2 ms"]),
        ({"delivered.rate": ">= 100/s"}, 1, ["delivered.rate >= 100/s: fails with 99.5/s"]),
        ({"delivery.missing": "== 0"}, 0, ["delivery.missing == 0: holds with 0"]),
        ({"service.p99": "< 1s"}, 3, ["service.p99 < 1s: not measured"]),
        (
            {"service.p99": "< 1s", "delivered.count": "> 500"},
            1,
            ["service.p99 < 1s: not measured", "delivered.count > 500: fails with 500"],
        ),
    ],
)
def test_an_expectation_of_a_workload_holds_or_fails_with_its_number(
    tmp_path: Path, expected: dict[str, str], status: int, said: list[str]
) -> None:
    (tmp_path / "spec").mkdir()
    lines = [f'"{metric}" = "{wanted}"' for metric, wanted in expected.items()]
    text = "[expectations]\n" + "\n".join(lines) + "\n"
    (tmp_path / "spec" / "workload.toml").write_text(text)
    (tmp_path / "manifest.json").write_text(json.dumps({"headline": HEADLINE}))
    document = judged(tmp_path, "VALID").document
    found = JudgedRun(tmp_path, tmp_path, document, expectations_of(tmp_path))
    assert [each.text for each in found.expectations] == said
    assert combine_statuses(error.exit_status for error in found.because) == status
    painted = found.paint(Console())
    assert all(f"  {line}" in painted for line in said)
    assert [each.row()["holds"] for each in found.expectations] == [
        None if "not measured" in line else "holds" in line for line in said
    ]


@pytest.mark.parametrize(
    "wanted, holds",
    [(">= 50/s", True), (">= 100/s", None), ("< 200/s", None)],
)
def test_a_rate_limited_by_the_load_generator_is_a_lower_bound(
    wanted: str, holds: bool | None
) -> None:
    limit = {"limited_by": "load generator load-sub: 98%", "is_load_generator_limit": True}
    found = Expectation.of("delivered.rate", wanted).judge({**HEADLINE, **limit})
    assert found.holds is holds
    if holds is None:
        assert found.text.endswith("not measured, the limit was load generator load-sub: 98%")
    assert Expectation.of("latency.p50", "< 1ms").judge({**HEADLINE, **limit}).holds
