"""Statements of connections in hierarchies, counted and drawn."""

import json
from pathlib import Path
from types import SimpleNamespace

from bench.papers.figure_experiments import load_figure_experiment, run_figure_experiment
from results.papers.experiment_runs import ExperimentRun
from results.papers.ges.statement_figures import draw_statements


def test_a_larger_hierarchy_needs_more_statements(tmp_path: Path) -> None:
    experiment = load_figure_experiment("ges.statements")
    small = experiment.model_copy(update={"brokers": [16, 32]})
    run = run_figure_experiment(small, tmp_path)
    (path,) = run.glob("raw/*/*/statements.jsonl")
    rows = [SimpleNamespace(**json.loads(line)) for line in path.read_text().splitlines()]
    assert [row.brokers for row in rows] == [16, 32]
    assert rows[0].statements < rows[1].statements
    manifest = json.loads((run / "manifest.json").read_text())
    drawing = draw_statements(ExperimentRun(run, run, manifest, {}), rows)
    assert drawing.metrics.keys() == {"statements_per_link"}
