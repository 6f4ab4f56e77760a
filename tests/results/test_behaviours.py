"""Tests of the figures about failures: raw rows, pictures, words and numbers."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from bench.papers.experiments import NoProgress, load_figure_experiment, run_figure_experiment
from brokerd.simulator.search.ledger import Campaign, empty_ledger, with_runs
from brokerd.text import toml_text
from pubsubctl.commands.app import run
from results.figures.catalogue import draw
from results.papers.dft11.behaviours import (
    bypass_distribution,
    exclusions_by_partition,
    gate_openings,
)
from results.papers.dft11.delivery_figures import check_simulated_run
from results.report import write_experiment_report
from results.tables.json_files import ResultsError
from results.tables.schema import TABLES
from tests.bench.test_behaviour_experiments import ABOUT, SMALL
from tests.helpers.runs import unpack_sample


@pytest.mark.parametrize("question", SMALL)
def test_each_figure_is_drawn_with_words_and_numbers(spark, question, tmp_path):
    about = {**ABOUT, "figure": f"dft11.{question}", "question": question}
    path = tmp_path / "small.toml"
    path.write_text(toml_text({**about, **SMALL[question]}))
    folder = run_figure_experiment(load_figure_experiment(path), tmp_path / "runs", NoProgress(), 1)
    written = draw(f"dft11.{question}", spark, folder)
    assert {file.suffix for file in written} == {".svg", ".png", ".csv", ".json"}
    words = json.loads((folder / "figures" / f"dft11.{question}.json").read_text())
    assert "The paper has no such figure" in words["caption"]
    assert "nan" not in words["caption"]
    wanted = "unknown" if question == "starts" else "valid"
    assert check_simulated_run(spark, folder)["verdict"] == wanted


def test_experiments_and_runs_of_brokers_are_not_put_on_one_page(tmp_path, capsys):
    folders = []
    for kind in ("behaviour", None):
        folder = tmp_path / str(kind)
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"kind": kind}))
        folders.append(str(folder))
    assert run(["report", *folders]) == 2
    assert "a run of brokers" in capsys.readouterr().err


def test_the_page_on_an_experiment_holds_all_it_shows(spark, tmp_path):
    about = {**ABOUT, "figure": "dft11.queue", "question": "queue"}
    path = tmp_path / "small.toml"
    path.write_text(toml_text({**about, **SMALL["queue"]}))
    folder = run_figure_experiment(load_figure_experiment(path), tmp_path / "runs", NoProgress(), 1)
    draw("dft11.queue", spark, folder)
    claim = {
        "claim": "queue.empties", "tests": "paper", "verdict": "fails", "ours": "12", "ci": "",
        "tolerance": "≤ 10", "wrong": "",
        "paper_value": "none", "statement": "it empties", "explanation": "because <it> is small",
        "differs": "counts others", "set_after_results": "the bound",
    }  # fmt: skip
    clean = Campaign(commit="c0ffee", dirty=False, protocol="delta_tree")
    ledger = with_runs(empty_ledger(), clean, [])
    ledger = with_runs(ledger, replace(clean, settings=("moves",), profile="paper"), [])
    ledger["entries"][1]["violations"] = [{"seed": 746, "rule": "liveness"}]
    ledger["total"]["violations"] = 1  # of an earlier commit, and mended since
    page = write_experiment_report(
        [folder], tmp_path / "page.html", verdicts={folder: ["VALID 3 deliveries"]},
        claims=[claim], ledger=ledger,
    )  # fmt: skip
    text = page.read_text()
    wanted = (
        "VALID 3 deliveries",
        "because &lt;it&gt; is small",
        "unlike the paper: counts others",
        "set after first results: the bound",
        "data:image/svg+xml",
        "The paper has no such figure",
        '<section class="card valid" aria-label="Simulator">',
        "0 violations",
        "queue publications",
        "of c0ffee, which was counted last; 1 in the 0 seeds of all commits",
        "moves, paper",
    )
    for shown in wanted:
        assert shown in text, shown
    assert text.index("moves, paper") < text.rindex("swarm</th>")
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def test_a_run_without_a_drawn_figure_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "graph", "figure": "dft11.fig9"}))
    with pytest.raises(ResultsError, match="no figure has been drawn"):
        write_experiment_report(
            [tmp_path], tmp_path / "page.html", verdicts={}, claims=[], ledger=None
        )


def test_cut_off_pairs_keep_the_bypass_curve_below_one(spark):
    rows = [(1, 750, 0, n, latency) for n, latency in enumerate((600_000, 600_040, 900_000, None))]
    found = bypass_distribution(_table(spark, "bypasses", rows)).collect()
    assert [(row.latency_ms, row.share, row.cut_off) for row in found] == [
        (600.0, 0.5, 1),
        (900.0, 0.75, 1),
    ]


def test_gates_that_never_close_have_no_opening(spark):
    rows = [
        (1, 5, 0, "behind", 100, 100, 0, 0, 50_000),
        (3, 5, 0, "behind", 100, 60, 40, 0, 200_000),
        (3, 5, 1, "behind", 100, 50, 48, 2, None),
    ]
    table = _table(spark, "exclusions", rows)
    assert [(row.length, row.draws, row.p50_ms) for row in gate_openings(table).collect()] == [
        (3, 1, 200.0)
    ]
    bypassed, barrier = exclusions_by_partition(table).collect()
    assert (bypassed.withheld, bypassed.neither, bypassed.never_opened) == (0.0, 0, 0)
    assert (barrier.withheld, barrier.neither, barrier.never_opened) == (44.0, 2, 1)


def _table(spark, name, rows):
    columns = [column for column in TABLES[name].names if column != "run_id"]
    of_runs = [("a run", *row) for row in rows]
    return spark.createDataFrame(of_runs, schema=TABLES[name].ddl).select(*columns)


def test_the_count_of_the_simulator_leads_a_report_without_claims(tmp_path):
    folder = unpack_sample("dft11-fig12", tmp_path)
    for path in (folder / "figures").glob("*.json"):
        path.with_suffix(".svg").write_text("<svg/>")
        path.with_suffix(".csv").write_text("a,b\n1,2\n")
    clean = Campaign(commit="c0ffee", dirty=False, protocol="delta_tree")
    ledger = with_runs(empty_ledger(), clean, [])
    ledger["total"]["violations"] = 7
    page = write_experiment_report(
        [folder], tmp_path / "page.html", verdicts={}, claims=[], ledger=ledger
    )
    text = page.read_text()
    assert 'aria-label="Claims"' not in text
    assert "<h1>1 experiment without real brokers</h1>" in text
    manifest = json.loads((folder / "manifest.json").read_text())
    other = shutil.copytree(folder, tmp_path / "series")
    about = {**manifest, "kind": "series", "experiment": "mine-sweep"}
    (other / "manifest.json").write_text(json.dumps(about))
    row = {"mean": 10.274, "low": 8.1, "high": 12.93}
    points = {
        "as-given": {"numbers": {"latency_p50_ms": row}},
        "protocol=delta_tree": {"numbers": {"latency_p50_ms": {**row, "low": None}, "more": row}},
    }
    (other / "series.json").write_text(json.dumps({"points": points}))
    for runs, heading in (
        ([other], "Series mine-sweep"),
        ([other, folder], "Series mine-sweep, and 1 experiment without real brokers"),
    ):
        page = write_experiment_report(
            runs, tmp_path / "page.html", verdicts={}, claims=[], ledger=None
        )
        assert f"<h1>{heading}</h1>" in page.read_text()
        assert '<td class="n">10.27 (8.1 … 12.93)</td><td class="n">10.27</td>' in page.read_text()
        assert page.read_text().count("more than chance") == 1
        assert '<th class="n">protocol=delta_tree</th>' in page.read_text()
        assert ("Real processes appear in none" in page.read_text()) is (folder in runs)
    assert text.index("0 violations") < text.index("7 in the 0 seeds of all commits")
