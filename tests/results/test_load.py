"""Tests of tables that Spark reads from raw logs, against a plain reading of the same files."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import results.tables.load
import results.tables.record_readers
from results.checker.latency import judge_across_clocks, select_measured
from results.figures.catalogue import draw
from results.reference.history_reader import read_history
from results.rules.expectation import splitmix64
from results.tables.frames import read_table
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun, load_run
from results.tables.record_files import RECORDS
from results.tables.schema import TABLES, schema_markdown
from results.tables.seals import seal
from tests.helpers.plain_times import intended_times
from tests.helpers.runs import ORIGIN_NS, Scenario, write_demo_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCENARIO = Scenario(measure_s=5.0, stall_s=1.0, kill_s=1.8, restart_s=3.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_run(tmp_path_factory.mktemp("runs"), SCENARIO)


@pytest.fixture(scope="module")
def loaded(spark: "SparkSession", run: Path) -> LoadedRun:
    # Pieces of 100 records, so that files are cut in several places, and for Spark's workers.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results.tables.record_readers, "PIECE_ROWS", 100)
        patch.setattr(results.tables.record_readers, "BATCH_ROWS", 64)
        patch.setattr(results.tables.record_readers, "READ_HERE_ROWS", 0)
        patch.setattr(results.tables.load, "READ_HERE_ROWS", 0)
        return load_run(spark, run)


def test_a_table_is_read_from_its_own_folder(spark: "SparkSession", tmp_path: Path) -> None:
    """Spark took such a path for a pattern: another run's rows, or an internal error."""
    for folder, phase in ((tmp_path / "a 1", "other"), (tmp_path / "a [1]", "own")):
        folder.mkdir()
        rows = pa.table({"run_id": ["r"], "phase": [phase]})
        pq.write_table(rows, folder / "part.parquet")
        assert read_table(spark, "phases", folder).first()["phase"] == phase
    folder = (tmp_path / "a [1]").rename(tmp_path / "{x}*?\\[]")
    assert read_table(spark, "phases", folder).first()["phase"] == "own"


def test_stamps_of_another_clock_are_moved_and_latencies_between_clocks_are_judged(
    spark: "SparkSession", loaded: LoadedRun, tmp_path: Path
) -> None:
    here = loaded.table(spark, "deliveries").where("t_sent_ns is not null").toArrow().to_pylist()
    folder = tmp_path / "demo" / loaded.run.run_id
    shutil.copytree(loaded.run.folder, folder, ignore=shutil.ignore_patterns("tables"))
    (publisher,) = [p for p in loaded.logs.processes if p.role == "publisher"]
    for process in [p for p in loaded.logs.processes if p.role == "subscriber"]:
        (folder / "raw" / "far").mkdir(exist_ok=True)
        (folder / "raw" / process.host / process.name).rename(folder / "raw/far" / process.name)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["clock"] = {"host_id": publisher.host, "boot_id": "x"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ahead_ns, error_ns = 40_000_000, 30_000
    (folder / "clock.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "phase": "before", "host_id": host, "ref_host": publisher.host,
                    "same_clock": host != "far", "clock_id": host, "t_ns": ORIGIN_NS + 10**10,
                    "offset_ns": -ahead_ns * (host == "far"), "drift_ppb": 0.0,
                    "rtt_min_ns": 2 * error_ns, "err_ns": error_ns * (host == "far"), "n": 9,
                }
            ) + "\n"
            for host in (publisher.host, "far")
        )
    )  # fmt: skip
    seal(folder)
    apart = load_run(spark, folder)
    assert not apart.shares_a_clock
    there = apart.table(spark, "deliveries").where("t_sent_ns is not null").toArrow().to_pylist()
    keys = ("sub_id", "pubend", "incarnation", "seq", "layer", "order_idx")
    latencies = {tuple(row[key] for key in keys): row["lat_service_us"] for row in here}
    assert len(there) == len(here) > 0
    assert all(row["same_clock"] and row["lat_err_us"] == 0 for row in here)
    for row in there:
        assert (row["same_clock"], row["lat_err_us"]) == (False, 30)
        assert row["lat_service_us"] - latencies[tuple(row[k] for k in keys)] == ahead_ns // 1000
    (judged,) = judge_across_clocks(apart.table(spark, "deliveries"))
    assert judged.judgement.is_announced, judged  # 30 us of 40 ms
    assert select_measured(apart.table(spark, "deliveries")).count() == 0
    with pytest.raises(ResultsError, match="no latency of record"):
        draw("spectrum", spark, folder)


def test_every_delivery_is_a_row_with_its_publication(
    spark: "SparkSession", loaded: LoadedRun, run: Path
) -> None:
    rows = loaded.table(spark, "deliveries").toArrow().to_pylist()
    history = read_history(run)
    sent = {(log.source, *row.key): row for log in history.publishers for row in log.published}
    expected = {
        (s.subscription, d.source, d.incarnation, d.sequence, d.received_ns)
        for s in history.subscriptions
        for d in s.delivered
    }
    found = {(r["sub_id"], r["pubend"], r["incarnation"], r["seq"], r["t_recv_ns"]) for r in rows}
    assert found == expected
    assert len(rows) == len(expected)
    for row in rows:
        publication = sent[row["pubend"], row["incarnation"], row["seq"]]
        assert row["digest_ok"] is True
        assert row["t_sent_ns"] == publication.sent_ns
        assert row["attrs_expected"] == publication.attribute_set
        assert row["lat_service_us"] == (row["t_recv_ns"] - row["t_sent_ns"]) // 1000
        assert row["kind"] == ("fence" if publication.attribute_set == 100 else "data")


WICKED = "`); DROP TABLE deliveries; -- '\"\\ ${spark.master} */ =cmd"


def test_a_response_is_counted_from_the_intended_time_and_service_from_sending(
    spark: "SparkSession", loaded: LoadedRun, run: Path
) -> None:
    intended = intended_times(run)
    rows = loaded.table(spark, "deliveries").toArrow().to_pylist()
    assert rows
    waited = []
    for row in rows:
        intended_ns = intended[row["pubend"], row["incarnation"], row["seq"]]
        assert row["lat_response_us"] == (row["t_recv_ns"] - intended_ns) // 1000
        waited.append(row["lat_response_us"] - row["lat_service_us"])
    assert min(waited) >= 0
    assert max(waited) > 20, "else nothing could be confused here"


def test_a_name_that_resembles_a_command_is_loaded_as_text(
    spark: "SparkSession", loaded: LoadedRun, tmp_path: Path
) -> None:
    """S-SPARK-2: names of clients and attributes are arbitrary text."""
    folder = tmp_path / "demo" / loaded.run.run_id
    shutil.copytree(loaded.run.folder, folder, ignore=shutil.ignore_patterns("tables"))
    quoted = json.dumps(WICKED)[1:-1]
    renamed = 0
    for path in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
        before = path.read_text()
        after = before.replace("s1-sub-1", quoted).replace('"symbol"', f'"{quoted}"')
        renamed += after != before
        path.write_text(after)
    assert renamed >= 3
    seal(folder)
    wicked = load_run(spark, folder)
    for name, column in (("deliveries", "sub_id"), ("subscriptions", "subscriber")):
        counted = [
            {
                row[column]: row["count"]
                for row in run.table(spark, name).groupBy(column).count().toArrow().to_pylist()
            }
            for run in (loaded, wicked)
        ]
        assert counted[1] == {
            key.replace("s1-sub-1", WICKED): count for key, count in counted[0].items()
        }
        assert any(WICKED in key for key in counted[1])


def test_places_in_the_log_survive_being_cut_into_pieces(
    spark: "SparkSession", loaded: LoadedRun, run: Path
) -> None:
    rows = loaded.table(spark, "deliveries").where("broker in ('s1', 's2')").toArrow().to_pylist()
    rows.sort(key=lambda row: row["order_idx"])
    records = np.fromfile(run / "raw/local2/load-local2/deliveries.rec", RECORDS["deliveries"])
    assert [row["order_idx"] for row in rows] == [*range(len(records))]
    assert [row["seq"] for row in rows] == records["sequence"].tolist()
    assert [row["t_recv_ns"] for row in rows] == (records["received_ns"] - ORIGIN_NS).tolist()


@pytest.mark.parametrize("limits", [(0, 1 << 22), (0, 0)], ids=["hashed", "sorted"])
def test_more_publications_are_joined_otherwise_and_to_the_same_rows(
    spark: "SparkSession", loaded: LoadedRun, run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int],
) -> None:  # fmt: skip
    monkeypatch.setattr(results.tables.load, "BROADCAST_PUBLICATIONS", limits[0])
    monkeypatch.setattr(results.tables.load, "HASHED_PUBLICATIONS", limits[1])
    again = load_run(spark, Path(shutil.copytree(run, tmp_path / run.name)), force=True)
    for name in ("publications", "deliveries"):
        rows, others = [
            sorted(map(str, of.table(spark, name).toArrow().to_pylist())) for of in (loaded, again)
        ]
        assert rows == others, name


def test_publications_have_outcome_phase_and_expected_content(
    spark: "SparkSession", loaded: LoadedRun
) -> None:
    rows = loaded.table(spark, "publications").toArrow().to_pylist()
    assert {row["outcome"] for row in rows} == {"acked"}
    assert all(row["t_acked_ns"] > row["t_sent_ns"] for row in rows)
    assert all(row["attrs_ref"] == row["attrs_expected"] for row in rows)
    assert sum(row["is_fence"] for row in rows) == 8
    measured = [row for row in rows if row["phase"] == "measure" and not row["is_fence"]]
    assert len(measured) == 4 * 25 * 5
    assert {row["size_bytes"] for row in rows} == {100}
    assert {row["publisher"] for row in rows} == {f"p1-pub-{n}" for n in range(1, 5)}


def test_small_tables_match_their_files(spark: "SparkSession", loaded: LoadedRun) -> None:
    def rows(name: str) -> list[dict]:
        return loaded.table(spark, name).toArrow().to_pylist()

    (about,) = rows("runs")
    assert (about["experiment"], about["protocol"], about["topology"], about["seed"]) == (
        "demo", "delta_tree", "demo", 11,
    )  # fmt: skip
    assert dict(about["params"])["publishers.0.rate"] == "25/s"
    assert about["started_utc"].isoformat() == "2026-01-02T03:04:05+00:00"
    nodes = {row["broker"]: row for row in rows("topology_nodes")}
    assert (nodes["s1"]["parent"], nodes["s1"]["depth"], nodes["p1"]["parent"]) == ("b1", 2, None)
    assert sorted(nodes["s1"]["neighbourhood"]) == ["b1", "b2", "p1", "s2"]
    assert len(rows("topology_edges")) == 9
    assert {row["phase"]: row["t0_ns"] for row in rows("phases")}["measure"] == 0
    stall, kill, restart = rows("faults")
    assert (stall["verb"], stall["t_applied_ns"], stall["absorbed_msgs"]) == ("absorb", 10**9, 112)
    assert dict(kill["params"]) == {"signal": "KILL"}
    assert restart["t_observed_ns"] > restart["t_applied_ns"]
    ups_and_downs = rows("links")
    assert {(row["a"], row["b"], row["event"]) for row in ups_and_downs} == {
        ("p1", "b1", "down"), ("s1", "b1", "down"), ("s2", "b1", "down"), ("b2", "b1", "down"),
    }  # fmt: skip
    cpu = [row["cpu_ratio"] for row in rows("broker_stats") if row["broker"] == "p1"]
    assert cpu[0] is None
    assert cpu[1:] == pytest.approx([0.05] * (len(cpu) - 1))
    assert {row["proc_id"] for row in rows("loadgen_stats")} == {"load-publishers"}
    cumulated = {
        name: [r["cumulated_ns"] // 10**6 for r in rows("retransmission_requests")
               if r["broker"] == name]
        for name in ("s1", "s2", "b2")
    }  # fmt: skip
    assert cumulated == {"s1": [2_000, 2_700], "s2": [2_700], "b2": [2_700]}
    ratios = {row["broker"]: row["consolidation_ratio"] for row in rows("retransmission_totals")}
    assert (ratios["b2"], ratios["p1"], ratios["s1"]) == (0.5, 0.0, None)


def test_tables_are_made_once_until_a_log_changes(
    spark: "SparkSession", loaded: LoadedRun, run: Path
) -> None:
    marker = run / "tables" / "hosts" / "part-0.parquet"
    before = marker.stat().st_mtime_ns
    load_run(spark, run)
    assert marker.stat().st_mtime_ns == before
    document = json.loads((run / "tables" / "loaded.json").read_text())
    (run / "tables" / "loaded.json").write_text(json.dumps({**document, "schema": 0}))
    load_run(spark, run)
    assert marker.stat().st_mtime_ns > before


def test_every_table_has_the_columns_of_the_schema(
    spark: "SparkSession", loaded: LoadedRun
) -> None:
    for name in ("publications", "deliveries", "subscriptions", "broker_stats"):
        frame = spark.read.parquet(str(loaded.run.folder / "tables" / name))
        assert sorted(frame.columns) == sorted(TABLES[name].names)


def test_columns_are_mixed_as_single_numbers_are() -> None:
    numbers = [0, 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15]
    mixed = results.tables.record_readers.splitmix64(np.array(numbers, "u8"))
    assert mixed.tolist() == [splitmix64(number) for number in numbers]


def test_the_schema_document_is_made_from_the_schema() -> None:
    path = Path(results.__path__[0]) / "SCHEMA.md"
    assert path.read_text(encoding="utf-8") == schema_markdown(), (
        "run `python -m results.tables.schema > results/SCHEMA.md`"
    )
