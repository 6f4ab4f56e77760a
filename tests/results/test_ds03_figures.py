"""Tests of the figures of [DS03]: run, picture, values, words and numbers."""

import csv
import json
from types import SimpleNamespace

import pytest

from bench.papers.ds03.storage_experiments import StorageExperiment
from bench.papers.ds03.storage_methods import WAYS
from bench.papers.experiments import run_figure_experiment
from pubsubctl.runs.claims import load_claims
from results.figures.catalogue import draw
from results.papers.ds03.recovery_figures import Recovery, draw_fig7, draw_fig8
from results.tables.json_files import ResultsError
from tests.pubsubctl.test_claims import OURS


@pytest.mark.spark
def test_the_log_of_matches_is_drawn_beside_the_other_variants(spark, tmp_path) -> None:
    experiment = StorageExperiment(
        schema_="pubsubctl/storage-experiment/1",
        name="small", figure="ds03.pfs",
        seconds=2, events_per_s=8, subscribers=4, kinds=2, event_bytes=50, kept_s=1,
        repetitions=2,
    )  # fmt: skip
    run = run_figure_experiment(experiment, tmp_path)
    (table,) = run.glob("raw/*/*/stored.jsonl")
    raw = [json.loads(line) for line in table.read_text().splitlines()]
    written = {path.suffix: path for path in draw("ds03.pfs", spark, run)}
    assert {*written} == {".svg", ".png", ".csv", ".json"}
    rows = list(csv.DictReader(written[".csv"].read_text().splitlines()))
    assert {row["way"] for row in rows} == {*WAYS}
    for row in rows:
        walls = [each["wall_s"] for each in raw if each["way"] == row["way"]]
        assert (float(row["wall_s_least"]), float(row["wall_s_most"])) == (min(walls), max(walls))
    words = json.loads(written[".json"].read_text())
    claims = [each for each in load_claims(OURS / "ds03.toml") if each.figure == "ds03.pfs"]
    assert {claim.metric for claim in claims} <= words["metrics"].keys()
    assert words["scale"]["events"] == 16


def recovery(slope: float = 5.0, down_s: float = 10.0, up_s: float = 30.0) -> Recovery:
    """Return a stream that advances `slope` times as fast from `up_s` on, sampled every second."""
    line = [(float(at), float(at)) for at in range(11)]
    line += [(float(at), min(float(at), down_s + slope * (at - up_s))) for at in range(31, 61)]
    return Recovery(
        "r", down_s, up_s, {"0.0": line}, {"0.0": line},
        [(float(at), 100 if at < 10 or at > 35 else 300 if at >= 30 else 0) for at in range(60)],
        {"p1": [(1.0, 0.1)], "s1": [(1.0, 0.2), (40.0, 0.4)]},
        missed_s=34.5,
    )  # fmt: skip


@pytest.mark.parametrize("slope", [3.0, 5.0, 9.0])
def test_the_slope_after_a_failure_is_that_of_the_stream(slope) -> None:
    at, found = recovery(slope).caught_up()
    assert found == pytest.approx(slope, rel=0.35)
    assert at == pytest.approx(30 + 20 / (slope - 1), abs=1.5)


def test_a_stream_that_stays_behind_has_not_caught_up() -> None:
    late = recovery(slope=0.9)
    with pytest.raises(ResultsError, match="never caught up"):
        late.caught_up()
    assert late.lag_s(late.delivered) == pytest.approx(23, abs=1)


def test_a_failure_of_a_subscriber_hosting_broker_is_drawn_and_judged() -> None:
    run = SimpleNamespace(
        run_id="r",
        manifest={"cpu": "x", "cores": 2},
        workload={
            "publishers": [{"count": 4, "rate": "25/s"}],
            "subscribers": [{"count": 10}] * 4,
        },
    )
    point = SimpleNamespace(modal=SimpleNamespace(run=run))
    series = SimpleNamespace(points=(point,), run_ids=("r",))
    drawn = {
        "ds03.fig7": draw_fig7(series, [recovery(), recovery(6.0)]),
        "ds03.fig8": draw_fig8(series, [recovery()]),
    }
    for claim in load_claims(OURS / "ds03.toml"):
        if claim.figure in drawn:
            assert claim.metric in drawn[claim.figure].metrics, claim.name
            assert claim.scale.items() <= drawn[claim.figure].scale.items()
    fig7, fig8 = (each.metrics for each in drawn.values())
    assert fig7["flat_s"].value == pytest.approx(21)
    assert fig7["released_lag_s.end"].value == pytest.approx(0)
    assert fig8["normal_per_s"].value == 100
    assert fig8["rate_per_normal"].value == 3
    assert fig8["missed_after_s"].value == 4.5
