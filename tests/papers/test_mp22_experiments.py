"""Tests of experiments on topics behind proxies: rows, a figure, and claims."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from bench.papers.mp22.crash_points import CRASHES
from bench.papers.mp22.proxy_experiments import RECORD, count_nested
from bench.papers.mp22.proxy_world import CRASH_POINTS, KINDS, ProxyExperiment
from bench.spec.validation import SpecError
from brokerd.simulator.named_bugs import bugs_of, plant
from pubsubctl.runs.claims import load_claims
from results.papers.experiment_runs import ExperimentRun
from results.papers.mp22 import simulated_figures as figures
from results.tables.schema import TABLES
from tests.pubsubctl.test_claims import OURS

MUTANTS = bugs_of("multi_proxy")

SMALL: dict[str, dict[str, Any]] = {
    "spread": {
        "servers": 3,
        "topics": 24,
        "asked_percent": 50,
        "ownerships": ["arbiter", "rendezvous", "causal", "paper"],
    },
    "stall": {
        "servers": 2,
        "topics": 6,
        "publications_per_s": 20,
        "before_s": 1,
        "stalled_s": 1,
        "down_s": 2,
        "after_s": 1,
    },
    "crashes": {"servers": 2, "publications": 8, "crash_points": [*CRASH_POINTS], "runs": 1},
    "timeouts": {
        "servers": 1,
        "publications_per_s": 20,
        "timeouts_ms": [50, 100],
        "stalls_ms": [100, 500],
    },
}
DRAWN = {
    "spread": ("mp22.m3", figures.draw_spread, "owned_topics"),
    "stall": ("mp22.m6", figures.draw_stall, "stalled_seconds"),
    "crashes": ("mp22.m7", figures.draw_crashes, "crash_points"),
    "timeouts": ("mp22.m8", figures.draw_timeouts, "asked_again"),
}


def small(question: str, **changed: Any) -> ProxyExperiment:
    values = {**SMALL[question], **changed}
    figure = DRAWN[question][0]
    return KINDS[question](
        schema_=RECORD.schema, name="small", figure=figure, seed=1, question=question, **values
    )


def rows_of(run: Any, table: str) -> list[Any]:
    (path,) = run.glob(f"raw/*/*/{table}.jsonl")
    return [SimpleNamespace(**json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("question", SMALL)
def test_a_figure_has_each_number_that_is_claimed_of_it(question: str, tmp_path: Any) -> None:
    experiment = small(question)
    run = run_figure_experiment(experiment, tmp_path)
    figure, draw, table = DRAWN[question]
    rows = rows_of(run, table)
    assert {*TABLES[table].names} == {"run_id", *vars(rows[0])}
    manifest = json.loads((run / "manifest.json").read_text())
    drawing = draw(ExperimentRun(run, run, manifest, experiment.model_dump()), rows)
    claims = [each for each in load_claims(OURS / "mp22.toml") if each.figure == figure]
    assert claims
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= drawing.scale.keys() for claim in claims)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    assert not [row for row in rows if getattr(row, "violations", 0)]


@pytest.mark.parametrize("figure", [figure for figure, _, _ in DRAWN.values()])
def test_the_experiment_of_a_figure_can_be_loaded(figure: str) -> None:
    experiment = load_figure_experiment(figure)
    assert isinstance(experiment, ProxyExperiment)
    assert experiment.figure == figure
    assert experiment.points()


def test_each_crash_point_is_reached_and_reveals_a_planted_bug(tmp_path: Any) -> None:
    """A server that acknowledges before the write is killed before the write (C7)."""
    assert CRASHES.keys() == CRASH_POINTS.keys()
    asked = small("crashes", crash_points=["C7"], runs=4, publications=12)
    with plant([MUTANTS["stored-before-it-is-written"]]):
        run = run_figure_experiment(asked, tmp_path)
    rows = rows_of(run, "crash_points")
    assert all(row.broker.startswith("v") for row in rows)
    assert any(row.violations for row in rows)


def test_a_stalled_server_delays_only_its_own_topics(tmp_path: Any) -> None:
    rows = rows_of(run_figure_experiment(small("stall"), tmp_path), "stalled_seconds")
    slowest = {
        stalled: max(row.slowest_ms for row in rows if row.stalled_server == stalled)
        for stalled in (True, False)
    }
    assert slowest[True] > 2_000 > 100 > slowest[False]


def test_tries_at_two_hops_multiply() -> None:
    assert [count_nested(100, stall) for stall in (50, 100, 250, 1_000)] == [1, 3, 6, 9]


def test_a_crash_point_that_is_none_is_named(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="'C77' is none of C1, C2"):
        small("crashes", crash_points=["C77"])
    path = tmp_path / "x.toml"
    path.write_text(f'schema = "{RECORD.schema}"\nquestion = "spred"\n', encoding="utf-8")
    with pytest.raises(SpecError, match="did you mean 'spread'"):
        load_figure_experiment(path)
