"""Tests of Figures 9, 11 and 12: run, picture, values, words and numbers."""

import csv
import json
from types import SimpleNamespace

import pytest
from pyspark.sql import Row

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from brokerd.text import toml_text
from results.figures.catalogue import FIGURES, draw
from results.papers.dft11.figures import draw_fig9, draw_fig12
from results.tables.json_files import ResultsError
from results.tables.seals import verify_seal

EXPERIMENTS = {
    "dft11.fig9": {"question": "connectivity", "deltas": [0, 1], "failed": [0, 6], "runs": 10},
    "dft11.fig11": {"question": "neighbourhoods", "deltas": [0, 2]},
    "dft11.fig12": {"question": "active-sessions", "deltas": [1], "failed": [0, 6], "runs": 3,
                    "protocol_runs": 1},
}  # fmt: skip


@pytest.fixture
def run_of(tmp_path):
    def run(figure):
        path = tmp_path / "experiment.toml"
        values = {
            "schema": "pubsubctl/graph-experiment/1", "name": "small", "figure": figure,
            "brokers": 40, "fanouts": [3, 7], **EXPERIMENTS[figure],
        }  # fmt: skip
        path.write_text(toml_text(values))
        return run_figure_experiment(load_figure_experiment(path), tmp_path / "runs")

    return run


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_figure_is_the_same_bytes_for_the_same_run(spark, run_of, tmp_path, name):
    run = run_of(name)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        FIGURES[name](spark, run).write(folder, name)
    for suffix in ("svg", "png", "csv", "json"):
        first, second = ((folder / f"{name}.{suffix}").read_bytes() for folder in folders)
        assert first == second, suffix
        assert len(first) > 100
    words = json.loads((folders[0] / f"{name}.json").read_text())
    assert words["run_ids"] == [run.name]
    assert words["scale"]["brokers"] == 40
    assert "The paper reports" in words["caption"]
    assert "tree of 40 brokers" in words["caption"]
    of_fig9 = "The paper counts chains of brokers, where this counts pairs"
    assert (of_fig9 in words["caption"]) == (words["figure"] == "dft11.fig9")
    for metric in words["metrics"].values():
        assert isinstance(metric["value"], int | float)
    with (folders[0] / f"{name}.csv").open() as stream:
        assert {row["fanout"] for row in csv.DictReader(stream)} == {"3", "7"}


def test_a_run_about_something_else_is_refused(spark, run_of):
    with pytest.raises(ResultsError, match="is about 'neighbourhoods', the figure 'connectivity'"):
        FIGURES["dft11.fig9"](spark, run_of("dft11.fig11"))


def test_a_figure_lands_in_its_runs_folder_and_leaves_the_run_sound(spark, run_of):
    run = run_of("dft11.fig11")
    written = draw("dft11.fig11", spark, run, ["svg"])
    assert [path.relative_to(run).as_posix() for path in written] == [
        f"figures/dft11.fig11.{suffix}" for suffix in ("svg", "csv", "json")
    ]
    verify_seal(run)
    with pytest.raises(ResultsError, match=r"'dft11\.fig8'; did you mean 'dft11\.fig"):
        draw("dft11.fig8", spark, run)


def a_run(**experiment):
    """Return a stand-in for a run with the attributes that drawing needs."""
    known = {"brokers": 1000, "runs": 100, "deltas": [0, 1], **experiment}
    scale = {"brokers": known["brokers"], "runs": known["runs"]}
    return SimpleNamespace(
        experiment=known, manifest={"scale": scale}, run_id="20261120T113502Z-7f3a9c"
    )


def losses(fanout, delta, *points, losing_runs=50):
    return [
        Row(
            fanout=fanout,
            delta=delta,
            failed=failed,
            runs=100,
            losing_runs=losing_runs,
            mean_percent=mean,
            low_percent=mean - spread if mean else None,
            high_percent=mean + spread if mean else None,
            worst_percent=100.0,
        )
        for failed, mean, spread in points
    ]


def numbers_of(drawing):
    return {name: metric.value for name, metric in drawing.metrics.items()}


def test_the_same_brokers_fail_for_every_delta_so_any_loss_more_is_one_too_many():
    rows = [
        *losses(3, 0, (10, 5.0, 1.0), (20, 9.0, 1.0)),
        *losses(3, 1, (10, 5.1, 1.0), (20, 9, 1)),
    ]
    drawing = draw_fig9(a_run(), rows)
    assert numbers_of(drawing)["points_where_more_delta_loses_more"] == 1
    of_point = drawing.metrics["disconnected_percent.fanout_3.delta_1.failed_10"]
    assert (of_point.value, of_point.low, of_point.high) == (5.1, pytest.approx(4.1), 6.1)


def test_trees_are_compared_beyond_chance_and_only_where_enough_was_lost():
    rows = [
        *losses(3, 0, (10, 5.0, 1.0), (20, 6.0, 1.0), (30, 6.0, 1.0)),
        *losses(3, 3, (10, 0.0, 0.0), losing_runs=0),
        *losses(7, 0, (10, 4.0, 0.5), (20, 9.0, 0.5), (30, 6.5, 1.0)),  # less, more, chance
        *losses(7, 3, (10, 0.01, 0.005), losing_runs=4),
    ]
    numbers = numbers_of(draw_fig9(a_run(), rows))
    assert numbers["points_with_enough_losses_to_compare_fanouts"] == 3
    assert numbers["points_where_wider_trees_lose_more"] == 1
    assert numbers["mean_loss_narrow_to_wide_ratio"] == pytest.approx(17 / 19.51)


def test_session_counts_are_reduced_to_means_quantiles_and_growth():
    def counted(failed, *counts):
        total, share, rows = sum(brokers for _, brokers in counts), 0, []
        for sessions, brokers in counts:
            share += brokers / total
            rows.append(
                Row(fanout=3, delta=3, failed=failed, sessions=sessions, brokers=brokers,
                    share=share)
            )  # fmt: skip
        return rows

    rows = [*counted(0, (1, 50), (3, 50)), *counted(60, (1, 40), (3, 40), (8, 20))]
    drawing = draw_fig12(a_run(deltas=[3]), rows, [True, False, True])
    numbers = numbers_of(drawing)
    assert numbers["mean.fanout_3.failed_0"] == 2
    assert numbers["mean.fanout_3.failed_60"] == pytest.approx(3.2)
    assert numbers["mean_growth.fanout_3.failed_60"] == pytest.approx(1.2)
    assert numbers["median.fanout_3.failed_60"] == 3
    assert numbers["p90.fanout_3.failed_60"] == numbers["largest.fanout_3.failed_60"] == 8
    assert numbers["percent_within_fanout.fanout_3.failed_60"] == pytest.approx(80)
    assert "fan-out 3: 3 (0 failed), 8 (60 failed)" in drawing.caption
    assert numbers["draws_where_the_protocol_differs"] == 1
    assert "in 3 draws the protocol ran too" in drawing.caption
