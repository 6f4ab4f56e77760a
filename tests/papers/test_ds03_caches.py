"""The experiment on caches: the brokers that have the events that subscribers missed.

Paper: [DS03] §1.1.
"""

import json
from pathlib import Path

from bench.papers.ds03.cache_experiments import CacheExperiment, Case, count_events
from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from pubsubctl.runs.claims import load_claims
from results.papers.ds03.cache_figures import draw_caches
from results.papers.experiment_runs import ExperimentRun
from tests.papers.test_ges import named_rows
from tests.pubsubctl.test_claims import OURS

SMALL = CacheExperiment(
    schema_="pubsubctl/cache-experiment/1", name="small", figure="ds03.caches", runs=1, seed=1,
    subscribers=1, rate=5, payload_bytes=250, period_s=12, away_s=4, latency_ms=1,
    case=[
        Case(name="none", title="no store", store_bytes=0),
        Case(name="default", title="16 MiB", store_bytes=1 << 24),
        Case(name="restarted", title="restarted", store_bytes=1 << 24, restarts=True),
    ],
)  # fmt: skip


def test_stores_on_the_way_have_what_subscribers_missed_also_after_a_restart(
    tmp_path: Path,
) -> None:
    run = run_figure_experiment(SMALL, tmp_path)
    rows = named_rows(run, "missed_events")
    manifest = json.loads((run / "manifest.json").read_text())
    drawing = draw_caches(ExperimentRun(run, run, manifest, SMALL.model_dump()), rows)
    metrics = {name: each.value for name, each in drawing.metrics.items()}
    assert metrics["percent_from_pubends.none"] > 30
    assert metrics["percent_from_pubends.default"] == 0
    assert metrics["percent_from_pubends.restarted"] == 0
    assert metrics["missing"] == 0 < metrics["fetched.none"]


def test_the_same_draw_counts_the_same_events() -> None:
    assert count_events(SMALL, SMALL.case[0], 7) == count_events(SMALL, SMALL.case[0], 7)


def test_all_claims_about_caches_have_cases_of_the_experiment() -> None:
    experiment = load_figure_experiment("ds03.caches")
    claims = [each for each in load_claims(OURS / "ds03.toml") if each.figure == "ds03.caches"]
    names = {each.name for each in experiment.case}
    assert {each.metric.partition(".")[2] for each in claims} - {""} <= names
    assert len(claims) == 5
    assert all(each.scale == experiment.scale() for each in claims)
