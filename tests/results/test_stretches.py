"""Tests of deliveries in stretches: the verdict is as exact as with single rows."""

import json
import struct
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.load.records import RESOLUTION_NS, Stretches
from brokerd.history.records import STRETCH
from results.reference.files import FileRefusal
from results.reference.history_reader import judge_folder, read_history
from results.rules import timing
from results.tables.json_files import IntegrityError
from results.tables.record_files import RECORDS, read_record_file
from results.tables.seals import seal
from tests.helpers.folded import folded_copy
from tests.helpers.runs import Scenario, write_demo_run, write_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROW = struct.Struct("<qqIIHHBBH")


PROTOCOLS = ("delta_tree", "best_effort")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Return runs with single rows and with stretches: one valid run, and one with many losses."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for number, protocol in enumerate(PROTOCOLS):
        scenario = Scenario(run_id=f"run-{number}", protocol=protocol, rate=100)
        run = write_demo_run(folder / "full", scenario)
        found[protocol] = [run, folded_copy(run, folder / "folded", "sampled")]
    return found


@pytest.fixture(params=PROTOCOLS)
def both(request: pytest.FixtureRequest, runs: dict[str, list[Path]]) -> list[Path]:
    """Return a run with single rows, and the same run with stretches."""
    return runs[request.param]


def test_the_verdict_from_stretches_is_that_from_rows(both: list[Path]) -> None:
    full, folded = map(judge_folder, both)
    assert folded.verdict == full.verdict == {True: "VALID", False: "INVALID"}[not full.violations]
    assert folded.counts == full.counts
    assert [v.kind for v in folded.violations] == [v.kind for v in full.violations]
    at_risk = [(one.at_risk, other.at_risk) for one, other in zip(
        folded.recoveries, full.recoveries, strict=True)]  # fmt: skip
    assert all(0 < fewer <= exact for fewer, exact in at_risk), at_risk
    sizes = [sum(p.stat().st_size for p in run.glob("raw/*/*/deliveries.rec")) for run in both]
    assert sizes[1] < sizes[0] / 3


@pytest.mark.spark
def test_both_judges_read_stretches_alike(
    spark: "SparkSession", runs: dict[str, list[Path]]
) -> None:
    from results.checker.checks import check_runs

    judged = check_runs(spark, [run for both in runs.values() for run in both])
    documents = [verdict.document for verdict in judged]
    for full, folded in zip(documents[::2], documents[1::2], strict=True):
        assert folded["counts"] == full["counts"]
        assert folded["verdict"] == full["verdict"]
        assert folded["second_opinion"] is not None
        told = folded["stretches"]
        assert told["in_stretches"] > told["deliveries"] / 2
        assert told["longest_ms"] < 1_500, "within a second, and a little"
        assert "are recorded in stretches: their contents are exact" in folded["lines"][-1]
        assert "stretches" not in full
    assert [document["verdict"] for document in documents[::2]] == ["valid", "invalid"]


@pytest.mark.spark
def test_a_histogram_log_contains_every_timed_delivery(
    spark: "SparkSession", both: list[Path], tmp_path: Path
) -> None:
    """The library reads back all deliveries of one run, and the sample of the other."""
    from hdrh.histogram import HdrHistogram

    from results.tables.histogram_logs import write_histogram_logs
    from results.tables.load import load_run

    totals = []
    for run in both:
        loaded = load_run(spark, run)
        paths = write_histogram_logs(spark, loaded, tmp_path / run.parent.parent.name)
        assert {path.name for path in paths} >= {"measure-response.hlog", "measure-service.hlog"}
        (path,) = (path for path in paths if path.name == "measure-response.hlog")
        lines = path.read_text().splitlines()
        histograms = [line.rpartition(",")[2] for line in lines if line[0] not in '#"']
        added = sum(HdrHistogram.decode(each).get_total_count() for each in histograms)
        totals.append(added)
    full = loaded_counts(both[0])
    assert totals[0] == full
    assert 0 < totals[1] < full / 4


def loaded_counts(run: Path) -> int:
    """Return the deliveries of data that were due in the measure phase."""
    history = read_history(run)
    measured = {
        (log.source, each.incarnation, each.sequence)
        for log in history.publishers
        for each in log.published
        if each.attribute_set != history.content.fence_set
        and 0 <= each.sent_ns < (history.measured_until_ns or 0)
    }
    return sum(
        (row.source, row.incarnation, row.sequence) in measured
        for log in history.subscriptions
        for row in log.delivered
    )


def spoiled(run: Path, folder: Path, **changes: int) -> Path:
    """Return a copy of a run in stretches in which one stretch is changed."""
    copy = folded_copy(run, folder, "hist")
    path = next(iter(sorted(copy.glob("raw/*/*/deliveries.rec"))))
    rows = np.fromfile(path, RECORDS["deliveries"])
    at = np.flatnonzero((rows["kind"] == STRETCH) & (rows["digest"] > 3))[0]
    for column, by in changes.items():
        rows[column][at] = int(rows[column][at]) + by
    sidecar = json.loads(path.with_name("deliveries.rec.json").read_text())
    packed = [row.tobytes() for row in rows]
    write_records(path.parent, "deliveries", copy.name, packed, sidecar["tables"])
    seal(copy)
    return copy


def test_a_stretch_that_is_one_short_is_a_publication_that_is_missing(tmp_path: Path) -> None:
    """A stretch counts for no more publications than it states."""
    run = write_demo_run(tmp_path / "full", Scenario(rate=100, measure_s=6.0))
    assert judge_folder(folded_copy(run, tmp_path / "as-it-was", "hist")).counts.missing == 0
    found = judge_folder(spoiled(run, tmp_path / "short", digest=-1))
    assert (found.verdict, found.counts.missing) == ("INVALID", 1)


def test_a_stretch_longer_than_its_source_is_refused(tmp_path: Path) -> None:
    run = write_demo_run(tmp_path / "full", Scenario(rate=100, measure_s=6.0))
    copy = spoiled(run, tmp_path / "long", digest=1 << 30)
    with pytest.raises(FileRefusal, match="digest makes no sense"):
        judge_folder(copy)
    path = next(iter(sorted(copy.glob("raw/*/*/deliveries.rec"))))
    with pytest.raises(IntegrityError, match="a stretch of no sense"):
        read_record_file(path, copy.name)


def test_a_delivery_after_a_pause_keeps_its_time() -> None:
    rows: list[bytes] = []
    stretches = Stretches("sampled", rows.append)
    at_ns = 10 * RESOLUTION_NS
    assert not stretches.take(0, 0, 1, [100], at_ns), "the first one has a row of its own"
    assert stretches.take(0, 0, 1, [101, 102], at_ns + 1_500_000)
    stretches.end(0, 0, 1, at_ns + 2_000_000)
    assert not stretches.take(0, 0, 1, [272], at_ns + 3 * RESOLUTION_NS)
    assert stretches.take(0, 0, 1, [273], at_ns + 3 * RESOLUTION_NS + 1)
    assert not stretches.take(1, 0, 1, [1], at_ns + 3 * RESOLUTION_NS + 1)
    stretches.take(1, 0, 1, [2], at_ns + 4 * RESOLUTION_NS + 1)
    found = [_ROW.unpack(row) for row in rows]
    assert [(row[0], row[2], row[8]) for row in found] == [(102, 2, 1), (273, 1, 100)]
    assert all(row[6] == STRETCH for row in found)
    assert stretches.written == 3


def test_a_stretch_ends_while_other_deliveries_are_received() -> None:
    """One source stops; all deliveries of the other are in the sample, or out of order."""
    rows: list[bytes] = []
    stretches = Stretches("sampled", rows.append)
    at_ns = 10 * RESOLUTION_NS
    stretches.take(0, 0, 1, [100], at_ns)
    stretches.take(0, 0, 1, [101], at_ns + 1)
    stretches.end(0, 1, 1, at_ns + RESOLUTION_NS // 2)
    assert rows == []
    stretches.end(0, 1, 1, at_ns + RESOLUTION_NS + 2)
    (row,) = map(_ROW.unpack, rows)
    assert (row[0], row[1], row[8]) == (101, at_ns + RESOLUTION_NS + 2, 101)


def test_runs_are_cut_where_the_sample_begins_and_ends() -> None:
    stretches = Stretches("sampled", lambda rows: None)
    assert [*stretches.parts(range(250, 275))] == [
        (slice(0, 6), False), (slice(6, 22), True), (slice(22, 25), False),
    ]  # fmt: skip
    assert [*stretches.parts((255, 300, 511, 512))] == [
        (slice(0, 1), False), (slice(1, 3), False), (slice(3, 4), True),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_a_stretch_is_too_long_by_the_stamps_before_it_in_any_order(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Stamps of several tasks are not always in order; compared with a loop over all rows."""
    random = Random(seed)
    rows = np.zeros(60, RECORDS["deliveries"])
    rows["received_ns"] = [
        place * RESOLUTION_NS + random.choice((0, 0, -3, 2)) * RESOLUTION_NS + 10**10
        for place in range(60)
    ]
    folded = random.sample(range(60), 20)
    rows["kind"][folded] = STRETCH
    rows["partition"][folded] = [random.choice((90, 250)) for _ in folded]
    wanted = 0
    for row in rows[sorted(folded)]:
        lasted_ns, latest_ns = int(row["partition"]) * 1_000_000, 0
        for stamp in map(int, rows["received_ns"]):
            if stamp >= row["received_ns"]:
                break
            latest_ns = max(latest_ns, stamp)
        is_behind = latest_ns > int(row["received_ns"]) - lasted_ns + RESOLUTION_NS + 2_000_000
        wanted += lasted_ns > RESOLUTION_NS + 1_000_000 and is_behind
    scan = SimpleNamespace(in_stretches=1)
    file: Any = SimpleNamespace(name="s", tables={"sample": {"one_in": 10}}, scan=scan)
    run: Any = SimpleNamespace(workload={"load": {"records": "sampled"}})
    monkeypatch.setattr(timing, "_rows", lambda _: rows)
    monkeypatch.setattr(timing, "SAMPLES", {"sampled": 10})
    monkeypatch.setattr(timing, "doubt", lambda kind, **values: (kind, values["n"]))
    found: list[Any] = [*timing._stretches(run, file)]
    assert found == ([("long_stretch", wanted)] if wanted else [])
