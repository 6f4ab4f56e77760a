"""Tests of runs in Python: deliveries as a data frame, without and with Spark."""

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from results import open_run
from results.reference.history import DATA
from results.reference.history_reader import read_history
from results.tables.json_files import IntegrityError, ResultsError
from tests.helpers.forged_folders import write_honest_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "results" / "samples" / "delta-tree-crash"


def test_the_deliveries_are_those_that_the_plain_judge_reads() -> None:
    rows = open_run(SAMPLE).deliveries()
    rows = rows[rows.layer == "application"]
    history = read_history(SAMPLE)
    for log in history.subscriptions:
        found = rows[rows.sub_id == log.subscription]
        assert found.broker.unique().tolist() == [log.broker]
        columns = zip(found.pubend, found.incarnation, found.seq, found.t_recv_ns, strict=True)
        assert [*columns] == [(row.source, *row.key, row.received_ns) for row in log.delivered]
        assert (found.kind == "data").sum() == sum(row.kind == DATA for row in log.delivered)
    sent = {
        (log.source, row.key): row.sent_ns for log in history.publishers for row in log.published
    }
    by_key = zip(rows.pubend, zip(rows.incarnation, rows.seq, strict=True), strict=True)
    assert [sent[key] for key in by_key] == rows.t_sent_ns.tolist()
    assert (rows.lat_service_us == (rows.t_recv_ns - rows.t_sent_ns) // 1000).all()


def test_publications_have_names_and_times() -> None:
    rows = open_run(SAMPLE).publications()
    measured = rows[(rows.phase == "measure") & ~rows.is_fence]
    assert len(measured) == open_run(SAMPLE).manifest["headline"]["published"] == 6000
    assert measured.groupby("publisher").size().to_dict() == {
        f"p1-pub-{n}": 1500 for n in range(1, 5)
    }
    assert (measured.t_sent_ns >= measured.t_intended_ns).all()


def test_a_run_has_its_verdict_numbers_and_figures(tmp_path: Path) -> None:
    run = open_run(write_honest_run(tmp_path, "20260101T000000Z-aaaaaa"))
    assert (run.run_id, run.verdict, run.verdict_document) == ("20260101T000000Z-aaaaaa", "", {})
    (run.folder / "verdict.json").write_text(json.dumps({"verdict": "invalid"}))
    (run.folder / "figures").mkdir()
    (run.folder / "figures" / "timeline.svg").write_text("<svg/>")
    assert run.verdict == "INVALID"
    assert run.figures() == {"timeline": run.folder / "figures" / "timeline.svg"}
    assert open_run(SAMPLE).numbers["delivered_per_s"] == 285.6


def test_a_run_is_found_by_path_id_and_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("results", "runs", "demo", "20260101T000000Z-aaaaaa")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"run_id": folder.name}))
    (folder.parent / "latest").symlink_to(folder.name)
    for name in (folder, folder.name, "latest", "demo/latest"):
        assert open_run(name).run_id == folder.name
    with pytest.raises(ResultsError, match=r"did you mean '20260101T000000Z-aaaaaa'"):
        open_run("20260101T000000Z-aaaaab")
    with pytest.raises(ResultsError, match="no such folder, nor run in elsewhere"):
        open_run("latest", runs="elsewhere")
    (tmp_path / "pubsubctl.toml").write_text("")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert open_run("latest").run_id == folder.name
    (tmp_path / "pubsubctl.toml").write_text('results = "results/runs/demo"')
    assert open_run("latest").run_id == folder.name
    series = {"run_id": folder.name, "kind": "series", "runs": {"a": ["one", "two"]}}
    (tmp_path / folder / "manifest.json").write_text(json.dumps(series))
    with pytest.raises(ResultsError, match="is a series; open a run: one, two"):
        open_run("latest")


def test_a_changed_run_and_one_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(write_honest_run(tmp_path, "run"))
    monkeypatch.setattr("results.opened_run.MOST_ROWS", 10)
    with pytest.raises(ResultsError, match="too many for pandas"):
        run.deliveries()
    (run.folder / "spec" / "workload.toml").write_text("")
    with pytest.raises(IntegrityError):
        run.publications()


def test_the_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "results" / "samples")  # as Jupyter does
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads(Path("open_run.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    script = tmp_path / "notebook.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells), "utf-8")
    names: dict[str, Any] = runpy.run_path(str(script))
    assert names["run"].verdict == "VALID"
    assert len(names["latency_ms"]) == 5
    assert names["per_s"].max() > 1.2 * names["per_s"].median(), "deliveries after the fault"


@pytest.mark.spark
def test_pandas_and_spark_return_the_same_rows(spark: "SparkSession", tmp_path: Path) -> None:
    run = open_run(write_honest_run(tmp_path, "run"))
    plain = run.deliveries().drop(columns="publisher")
    table = run.deliveries(spark).toPandas()
    table = table.sort_values(["sub_id", "order_idx"], ignore_index=True)[[*plain.columns]]
    assert plain.astype(str).equals(table.astype(str))
