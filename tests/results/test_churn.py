"""Tests of churn in records: losses of disconnected subscribers are at risk or owed.

A made-up run, honest and changed, is judged on Spark, by the reference and by the online checker.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from results.checker.checks import Verdict, check_runs
from results.papers.ds03.churn_figures import returns_of
from results.reference.files import FileRefusal
from results.reference.history_reader import judge_folder, read_history
from results.rules.facts import RunFacts
from results.rules.risks import Exposure, risk_windows
from results.tables.json_files import IntegrityError
from results.tables.load import LoadedRun, load_run
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.seals import seal
from tests.helpers.forged_folders import DURATION, NEAR, RunFolder
from tests.helpers.online import Online
from tests.helpers.runs import MILLISECOND, ORIGIN_NS, SECOND, Scenario, write_demo_run, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWAY = (round(1.1 * SECOND), round(1.6 * SECOND))
CHURN = {"churn": {"disconnected": "500ms", "every": "3s", "pattern": "independent"}}


def write_run(folder: Path, run_id: str, change: Callable[[Path], None] = lambda run: None) -> Path:
    """Write a run without faults in which s1-sub-1 is disconnected once."""
    run = write_demo_run(
        folder, Scenario(run_id=run_id, workload=CHURN, bars=1, **{**DURATION, "bypass_s": 0.0})
    )
    shutil.rmtree(run / "faults")
    (run / "SHA256SUMS").unlink()
    with RunFolder(run).records(NEAR, "deliveries") as rows:
        late = _sent_while_away(run, rows)
        rows.all["received_ns"][late] = ORIGIN_NS + AWAY[1] + 30 * MILLISECOND
        rows.all["received_ns"] = np.maximum.accumulate(rows.all["received_ns"])
    session = {"client": "s1-sub-1", "broker": "s1", "event": "up", "reason": ""}
    write_lines(
        run / "raw" / NEAR / "sessions.jsonl",
        [
            {**session, "session": 1, "t_ns": ORIGIN_NS - SECOND},
            {**session, "session": 2, "t_ns": ORIGIN_NS + AWAY[1] + MILLISECOND},
        ],
    )
    line = {"subscriber": "s1-sub-1"}
    line |= {"t_left_ns": ORIGIN_NS + AWAY[0], "t_back_ns": ORIGIN_NS + AWAY[1]}
    write_lines(run / "raw" / NEAR / "absences.jsonl", [line])
    change(run)
    seal(run)
    return run


def _sent_while_away(run: Path, rows: Any) -> Any:
    """Return a mask of the rows for the subscriber that was disconnected."""
    sent = {
        (number, row.sequence)
        for number, log in enumerate(read_history(run).publishers)
        for row in log.published
        if AWAY[0] <= row.sent_ns < AWAY[1]
    }
    mask = rows.of(subscription=0)
    for place in rows.places(subscription=0):
        row = rows.all[place]
        mask[place] = (int(row["publisher"]), int(row["sequence"])) in sent
    assert mask.sum() == len(sent)
    return mask


def missed(run: Path) -> None:
    """Remove the deliveries that a broker without storage does not keep."""
    with RunFolder(run).records(NEAR, "deliveries") as rows:
        rows.drop(_sent_while_away(run, rows))


def nobody_was_away(run: Path) -> None:
    (run / "raw" / NEAR / "absences.jsonl").unlink()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    changes = {"honest": lambda run: None, "missed": missed, "nobody_was_away": nobody_was_away}
    return {
        name: write_run(folder, f"c-{number}", change)
        for number, (name, change) in enumerate(changes.items())
    }


@pytest.fixture(scope="module")
def judged(spark: "SparkSession", runs: dict[str, Path]) -> dict[str, Verdict]:
    """Return the verdicts of Spark; raise if the reference disagrees."""
    found = check_runs(spark, [*runs.values()])
    return dict(zip(runs, found, strict=True))


@pytest.mark.spark
def test_a_returning_subscriber_recovers_its_deliveries_at_risk(judged: dict[str, Verdict]) -> None:
    verdict = judged["honest"]
    assert verdict.verdict == "VALID", verdict.document["doubts"]
    assert verdict.document["second_opinion"]["verdict"] == "valid"
    churn = verdict.document["churn"]
    assert (churn["absences"], churn["subscribers"]) == (1, 1)
    assert churn["at_risk"] == churn["recovered"] == 20  # 4 publishers, 10 a second, half a second
    assert verdict.document["recoveries"] == []
    assert verdict.lines()[1].startswith(
        "  churn: 1 subscriber disconnected 1 time, 0.50 s on the mean: 20 deliveries at risk"
    )
    assert verdict.lines()[1].endswith("the last 0.03 s after the return")


@pytest.mark.spark
def test_a_return_ends_when_all_missed_deliveries_have_arrived(
    spark: "SparkSession", judged: dict[str, Verdict]
) -> None:
    (found,) = returns_of(spark, load_run(spark, judged["honest"].folder))
    assert (found.subscriber, found.missed) == ("s1-sub-1", 20)
    assert found.at_s == pytest.approx((AWAY[1] + MILLISECOND) / SECOND)
    assert (found.away_s, found.took_s) == (pytest.approx(0.501), pytest.approx(0.029, abs=1e-3))


@pytest.mark.spark
def test_deliveries_missing_after_an_absence_make_a_run_invalid(
    judged: dict[str, Verdict],
) -> None:
    verdict = judged["missed"]
    assert (verdict.verdict, verdict.exit_status) == ("INVALID", 1)
    assert verdict.document["counts"]["missing"] == 20
    assert verdict.document["churn"] | {"away_ns_mean": 0} == {
        "absences": 1, "subscribers": 1, "away_ns_mean": 0, "at_risk": 20, "recovered": 0,
        "recovered_after_ns_max": None,
    }  # fmt: skip
    assert verdict.lines()[1].endswith("20 deliveries at risk, 0 recovered, 20 lost")


@pytest.mark.spark
def test_churn_without_any_absence_leaves_the_verdict_unknown(judged: dict[str, Verdict]) -> None:
    verdict = judged["nobody_was_away"]
    assert verdict.verdict == "UNKNOWN"
    assert [text for text in verdict.document["doubts"] if "disconnects subscribers" in text]


def test_the_reference_and_the_online_checker_agree_about_churn(runs: dict[str, Path]) -> None:
    for name, verdict in (("honest", "VALID"), ("missed", "INVALID")):
        found = judge_folder(runs[name])
        assert (found.verdict, found.counts.at_risk) == (verdict, 20), found.doubts
    honest = read_history(runs["honest"])
    assert Online(honest).anomalies() == set()
    assert "missing" in Online(read_history(runs["missed"]), honest).anomalies()
    assert judge_folder(runs["nobody_was_away"]).verdict == "UNKNOWN"


def test_an_absence_is_of_one_subscriber(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, "one"))
    (absence,) = RunFacts.from_run(LoadedRun(run, read_logs(run))).faults
    exposure = Exposure(run.links, ())
    (window,) = risk_windows([absence])
    held = [exposure.holds(window, "p", "p1", f"s1-sub-{number}", "s1") for number in (1, 2)]
    assert held == [True, False]
    assert (window.from_ns, window.to_ns, window.err_ns) == (*AWAY, 0)


@pytest.mark.parametrize("line", [{"t_left_ns": None}, {"subscriber": 7}, {"t_back_ns": 1.5}])
def test_an_absence_that_is_none_is_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    def spoil(run: Path) -> None:
        path = run / "raw" / NEAR / "absences.jsonl"
        write_lines(path, [{**json.loads(path.read_text()), **line}])

    folder = write_run(tmp_path, "spoilt", spoil)
    with pytest.raises(FileRefusal, match="is no absence"):
        judge_folder(folder)
    run = read_run(folder)
    with pytest.raises(IntegrityError, match="is no absence"):
        RunFacts.from_run(LoadedRun(run, read_logs(run)))
