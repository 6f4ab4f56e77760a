"""Tests of large runs: a sample of whole streams is judged twice."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from results.checker import second_opinion, verdict_document
from results.checker.checks import check_run, check_runs
from results.checker.second_opinion import StreamSample
from results.reference.history_reader import judge_folder, read_history, read_streams
from results.reference.rule import check
from results.rules.findings import PairSummary
from results.tables.seals import seal
from tests.helpers.forged_folders import FAR, NEAR, PUBLISHERS, RunFolder, write_honest_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 400


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of more than SMALL rows count as large."""
    monkeypatch.setattr(verdict_document, "MOST_ROWS", SMALL)
    monkeypatch.setattr(second_opinion, "MOST_ROWS", SMALL)


def pair(subscription: str, source: str, received: int, last: int = 100) -> PairSummary:
    return PairSummary(
        subscription, source, 1, last, received, 0, 0, received, received, 0, None, None, 0
    )


def test_a_sample_is_drawn_by_the_run_and_as_large_as_can_be_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_small(monkeypatch)
    pairs = [pair(f"s{n}", f"p{m}", 60) for n in range(20) for m in range(5)]
    sample = StreamSample.of("run-1", pairs)
    assert sample is not None
    assert sample == StreamSample.of("run-1", pairs)
    assert sample.streams == 100
    assert sample.size > 1
    assert sample.rows == 60 * sample.size + 100 * len(sample.sources) <= SMALL
    drawn = {StreamSample.of(f"run-{n}", pairs) for n in range(10)}
    assert len({(each.sources, each.subscriptions) for each in drawn if each}) > 5


def test_a_sample_takes_the_shortest_of_long_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_small(monkeypatch)
    sample = StreamSample.of("run-1", [pair("s", "p", 9_000), pair("t", "p", 8_000)])
    assert sample is not None
    assert (sample.subscriptions, sample.sources) == (("t",), ("p",))
    most = second_opinion.LARGEST_STREAM
    assert StreamSample.of("run-1", [pair("s", "p", most)]) is None
    assert StreamSample.of("run-1", []) is None


def test_streams_by_themselves_are_judged_as_they_are_among_others(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "run", gated=True)
    whole, sources = read_history(run), ("p1/0", "p1/2")
    for subscriptions in (("s1-sub-1/1",), ("s2-sub-1/1", "s5-sub-1/1")):
        part = read_streams(run, sources, subscriptions)
        assert [log.source for log in part.publishers] == [*sources]
        for log in part.subscriptions:
            (same,) = (s for s in whole.subscriptions if s.subscription == log.subscription)
            rows = [row for row in same.delivered if row.source in sources]
            assert [*log.delivered] == rows
        assert not check(part).counts.violations


def test_a_delivery_to_another_subscription_proves_a_publication(tmp_path: Path) -> None:
    """No acknowledgement arrived, and the sample lacks the subscription that received it."""
    run = write_honest_run(tmp_path, "run")
    folder = RunFolder(run)
    with folder.records(PUBLISHERS, "acks") as rows:
        rows.drop(rows.of(publisher=0, first=20))
    with folder.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=0, publisher=0, sequence=20))
    seal(run)
    part = read_streams(run, ["p1/0"], ["s1-sub-1/1"])
    assert check(part).counts.violations == {"missing": 1}
    with folder.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(publisher=0, sequence=20))
    with folder.records(FAR, "deliveries") as rows:
        rows.drop(rows.of(publisher=0, sequence=20))
    assert check(read_streams(run, ["p1/0"], ["s1-sub-1/1"])).counts.violations == {}


@pytest.mark.spark
@pytest.mark.judges_differ
def test_the_verdict_on_a_large_run_reports_the_sampled_streams(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    run, lossy = (write_honest_run(tmp_path, name) for name in ("large", "lossy"))
    for side in (FAR, NEAR):
        with RunFolder(lossy).records(side, "deliveries") as rows:
            rows.drop(rows.of(sequence=20))
    seal(lossy)
    of_run, of_lossy = check_runs(spark, [run, lossy])
    document: Any = of_run.document
    assert document["verdict"] == "valid"
    second = document["second_opinion"]
    assert (second["of"], second["streams"] > 0, second["rows"] <= SMALL) == (20, True, True)
    assert any("of 20 streams were judged twice" in line for line in document["lines"])
    assert any(f"seed {second['seed']}" in line for line in document["lines"])
    assert of_lossy.document["verdict"] == "invalid"

    blind = second_opinion._count_with_reference
    monkeypatch.setattr(
        second_opinion, "_count_with_reference", lambda found: {**blind(found), "missing": 7}
    )
    document = check_run(spark, run).document
    assert (document["verdict"], document["exit_code"]) == ("unknown", 3)
    assert re.search(
        r"judges differ: of .* \(seed \d+\), .* missing 7, not", document["because"][0]
    )

    plain = replace(judge_folder(run), verdict="INVALID")
    document = check_run(spark, run, judgement=plain).document
    assert (document["verdict"], document["second_opinion"]["spark"]) == ("unknown", "valid")
    assert (
        "  unknown: the judges differ: Spark finds VALID, the plain judge INVALID"
        in (document["lines"][1])
    )


@pytest.mark.judges_differ
def test_a_different_opinion_is_reported_with_both_verdicts(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "run")
    plain = judge_folder(run)
    alike = second_opinion.second_opinion(run, plain.verdict, plain.counts)
    assert (alike["verdict"], second_opinion.disagreement(alike)) == ("valid", "")
    fewer = replace(plain.counts, delivered=plain.counts.delivered - 1)
    differs = second_opinion.second_opinion(run, "VALID", fewer, plain)
    assert second_opinion.disagreement(differs) == (
        "the judges differ: Spark finds VALID, the plain judge VALID: "
        f"delivered {plain.counts.delivered}, not {fewer.delivered}"
    )
    (run / "spec" / "workload.toml").write_text("name = 'other'\n")
    refused = second_opinion.second_opinion(run, "VALID", plain.counts)
    assert "the plain judge refuses the run" in second_opinion.disagreement(refused)
