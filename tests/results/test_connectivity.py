"""Tests of graph experiments on Spark against plain Python on the same raw rows."""

import json
from collections import Counter, defaultdict
from statistics import fmean

import numpy as np
import pytest

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from brokerd.text import toml_text
from results.papers.dft11.connectivity import (
    compute_disconnected_percent,
    mean_interval,
    neighbourhood_distribution,
    protocol_agreement,
    session_distribution,
)
from results.papers.experiment_runs import is_experiment_run, load_experiment_run
from results.tables.json_files import IntegrityError, ResultsError

QUESTIONS = {
    "connectivity": {"deltas": [0, 1], "failed": [0, 6], "runs": 20},
    "neighbourhoods": {"deltas": [0, 2]},
    "active-sessions": {"deltas": [1], "failed": [0, 6], "runs": 5, "protocol_runs": 2},
}


@pytest.fixture
def run_of(tmp_path):
    def run(question):
        path = tmp_path / f"{question}.toml"
        values = {
            "schema": "pubsubctl/graph-experiment/1", "name": question, "figure": "dft11.fig9",
            "question": question, "brokers": 40, "fanouts": [3, 7], **QUESTIONS[question],
        }  # fmt: skip
        path.write_text(toml_text(values))
        return run_figure_experiment(load_figure_experiment(path), tmp_path / "runs")

    return run


def raw_rows(run, table):
    path = run / "raw" / "controller" / "graph" / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_mean_of_draws_is_the_mean_and_lies_in_its_interval(spark, run_of):
    folder = run_of("connectivity")
    percents = defaultdict(list)
    for row in raw_rows(folder, "connectivity"):
        point = row["fanout"], row["delta"], row["failed"]
        percents[point].append(100 * row["disconnected_pairs"] / row["live_pairs"])
    found = compute_disconnected_percent(
        load_experiment_run(spark, folder).table(spark, "connectivity")
    )
    rows = found.collect()
    assert [(row.fanout, row.delta, row.failed) for row in rows] == sorted(percents)
    for row in rows:
        draws = percents[row.fanout, row.delta, row.failed]
        assert row.runs == len(draws) == 20
        assert row.mean_percent == pytest.approx(fmean(draws))
        assert row.worst_percent == max(draws)
        assert row.losing_runs == sum(map(bool, draws))
        if row.losing_runs:
            assert row.low_percent < row.mean_percent < row.high_percent
        else:
            assert (row.low_percent, row.mean_percent, row.high_percent) == (None, 0, None)
    assert {bool(row.losing_runs) for row in rows} == {True, False}
    assert found.collect() == rows  # bootstrap and all


def test_the_interval_of_a_mean_has_the_width_of_the_theory():
    values = sorted(np.random.default_rng(3).normal(50, 10, 400))
    low, high = mean_interval(values)
    standard_error = np.std(values) / 20
    assert (high - low) / 2 == pytest.approx(1.96 * standard_error, rel=0.05)
    assert mean_interval([7.0] * 10) == (7.0, 7.0)
    assert mean_interval([0.0] * 10) is None


def test_distributions_end_at_one_and_count_every_broker(spark, run_of):
    folder = run_of("neighbourhoods")
    run = load_experiment_run(spark, folder)
    rows = neighbourhood_distribution(run.table(spark, "neighbourhoods")).collect()
    sizes = Counter(
        (row["fanout"], row["delta"], row["neighbours"])
        for row in raw_rows(folder, "neighbourhoods")
    )
    assert {(row.fanout, row.delta, row.neighbours): row.brokers for row in rows} == sizes
    for row in rows:
        up_to = sum(
            count
            for (fanout, delta, size), count in sizes.items()
            if (fanout, delta) == (row.fanout, row.delta) and size <= row.neighbours
        )
        assert row.share == up_to / 40


def test_sessions_of_all_draws_are_counted_together(spark, run_of):
    folder = run_of("active-sessions")
    run = load_experiment_run(spark, folder)
    rows = session_distribution(run.table(spark, "active_sessions")).collect()
    for fanout in (3, 7):
        for failed in (0, 6):
            of_point = [row for row in rows if (row.fanout, row.failed) == (fanout, failed)]
            assert sum(row.brokers for row in of_point) == 5 * (40 - failed)
            assert of_point[-1].share == 1
            assert [*of_point] == sorted(of_point, key=lambda row: row.sessions)


def test_a_draw_in_which_the_protocol_ends_otherwise_shows(spark):
    def rows(run, by, *counts):
        return [(3, 1, 6, run, by, sessions, brokers) for sessions, brokers in counts]

    answers = [
        *rows(0, "formula", (1, 20), (3, 14)), *rows(0, "protocol", (3, 14), (1, 20)),
        *rows(1, "formula", (1, 20), (3, 14)), *rows(1, "protocol", (1, 21), (3, 13)),
        *rows(2, "formula", (1, 20), (3, 14)), *rows(3, "protocol", (1, 34)),
    ]  # fmt: skip
    columns = "fanout INT, delta INT, failed INT, run INT, by STRING, sessions INT, brokers BIGINT"
    found = protocol_agreement(spark.createDataFrame(answers, columns)).collect()
    assert [(row.run, row.equal) for row in found] == [(0, True), (1, False), (3, False)]


def test_rows_that_were_changed_afterwards_are_noticed(spark, run_of):
    folder = run_of("neighbourhoods")
    load_experiment_run(spark, folder)
    path = folder / "raw" / "controller" / "graph" / "neighbourhoods.jsonl"
    path.write_text(path.read_text().replace('"neighbours":3', '"neighbours":2'))
    with pytest.raises(IntegrityError, match=r"neighbourhoods\.jsonl has changed"):
        load_experiment_run(spark, folder)


def test_a_run_that_was_cut_short_or_is_none_is_refused(spark, run_of, tmp_path):
    folder = run_of("neighbourhoods")
    with pytest.raises(ResultsError, match="answers 'neighbourhoods'"):
        load_experiment_run(spark, folder).table(spark, "connectivity")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "state": "aborted"}))
    with pytest.raises(ResultsError, match="the run is aborted"):
        load_experiment_run(spark, folder)
    assert not is_experiment_run(tmp_path)
    with pytest.raises(ResultsError, match="holds no run of an experiment"):
        load_experiment_run(spark, tmp_path)
