"""Figures of what happens around failures: from raw rows to pictures, words and numbers."""

import json

import pytest

from bench.figure_experiments import load_figure_experiment, run_figure_experiment
from bench.toml_text import toml_text
from results.behaviours import bypass_distribution, exclusions_by_partition, gate_openings
from results.figures import draw
from results.schema import TABLES
from results.simulated_deliveries import check_simulated_run
from tests.bench.test_behaviour_experiments import ABOUT, SMALL, Silent


@pytest.mark.parametrize("question", SMALL)
def test_each_figure_is_drawn_with_words_and_numbers(spark, question, tmp_path):
    about = {**ABOUT, "figure": f"dft11.{question}", "question": question}
    path = tmp_path / "small.toml"
    path.write_text(toml_text({**about, **SMALL[question]}))
    run = run_figure_experiment(load_figure_experiment(path), tmp_path / "runs", Silent(), 1)
    written = draw(f"dft11.{question}", spark, run)
    assert {file.suffix for file in written} == {".svg", ".png", ".csv", ".json"}
    words = json.loads((run / "figures" / f"dft11.{question}.json").read_text())
    assert "The paper has no such figure" in words["caption"]
    assert "nan" not in words["caption"]
    wanted = "unknown" if question == "starts" else "valid"
    assert check_simulated_run(spark, run)["verdict"] == wanted


def test_who_is_never_reached_keeps_the_curve_from_its_top(spark):
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
    return spark.createDataFrame(rows, schema=_without_run_id(TABLES[name].ddl)).select(*columns)


def _without_run_id(ddl):
    return ", ".join(
        part for part in (p.strip() for p in ddl.split(",")) if not part.startswith("run_id")
    )
