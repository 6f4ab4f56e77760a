"""The experiment on lost last events: who finds them, when, and with how many messages.

Paper: [GD02] §3.2 (DCT, AET).
"""

import json
from pathlib import Path

import pytest

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from bench.papers.gd02.delay_experiments import Case, DelayExperiment, find_lost
from pubsubctl.runs.claims import load_claims
from results.papers.experiment_runs import ExperimentRun
from results.papers.gd02.delay_figures import draw_dct
from tests.papers.test_ges import named_rows
from tests.pubsubctl.test_claims import OURS

SMALL = DelayExperiment(
    schema_="pubsubctl/delay-experiment/1", name="small", figure="gd02.dct", runs=1, events=2,
    pause_s=1, limit_s=12, idle_s=4, busy_s=1, rate=10, latency_ms=1,
    case=[
        Case(name="subends-2", title="DCT 2 s", dct_s=2),
        Case(name="subends-20", title="DCT 20 s", dct_s=20),
        Case(name="pubends-2", title="AET 2 s", aet_s=2),
        Case(name="both-2-10", title="both", dct_s=2, aet_s=10),
    ],
)  # fmt: skip


def test_the_earlier_end_finds_a_lost_last_event_and_only_subends_send_messages_when_idle(
    tmp_path: Path,
) -> None:
    run = run_figure_experiment(SMALL, tmp_path)
    rows = named_rows(run, "lost_last_events")
    manifest = json.loads((run / "manifest.json").read_text())
    drawing = draw_dct(ExperimentRun(run, run, manifest, SMALL.model_dump()), rows)
    metrics = {name: each.value for name, each in drawing.metrics.items()}
    assert metrics["slowest_of_threshold.subends-2"] < 2.1
    assert 1 <= metrics["slowest_of_threshold.pubends-2"] < 1.6
    assert metrics["recovery_s.both-2-10"] < 4.2
    assert (metrics["lost.subends-20"], metrics["lost.subends-2"]) == (1, 0)
    assert metrics["idle_per_s.pubends-2"] == 0 < metrics["idle_per_s.subends-2"]


def test_the_same_draw_has_the_same_recovery() -> None:
    assert find_lost(SMALL, SMALL.case[0], 7) == find_lost(SMALL, SMALL.case[0], 7)


def test_a_case_needs_an_end_that_looks_for_events() -> None:
    with pytest.raises(ValueError, match="aet_s or dct_s"):
        Case(name="none", title="none")


def test_all_claims_have_cases_of_the_experiment() -> None:
    experiment = load_figure_experiment("gd02.dct")
    claims = [each for each in load_claims(OURS / "gd02.toml") if each.figure == "gd02.dct"]
    assert len(claims) == 9
    assert {each.metric.partition(".")[2] for each in claims} <= {
        each.name for each in experiment.case
    }
    assert all(each.scale == experiment.scale() for each in claims)
