"""Tests of experiments with stateless subscribers and real brokers, on a small scale."""

import json

import pytest

from bench.papers.ds03.consumer_experiments import ConsumerExperiment
from bench.papers.experiments import load_figure_experiment, run_figure_experiment

SMALL = ConsumerExperiment(
    schema_="pubsubctl/consumer-experiment/1",
    name="small", figure="ds03.jms", subscribers=(3,), ways=((2, 0),), deliveries=30, seconds=60,
    event_bytes=10, processes=2, repetitions=1,
)  # fmt: skip


@pytest.mark.end_to_end
def test_every_subscriber_commits_every_event(tmp_path) -> None:
    folder = run_figure_experiment(SMALL, tmp_path)
    (table,) = folder.glob("raw/*/*/consumed.jsonl")
    (row,) = [json.loads(line) for line in table.read_text().splitlines()]
    assert (row["subscribers"], row["lanes"], row["batch"], row["consumed"]) == (3, 2, 0, 30)
    assert 1 <= row["transactions"] <= row["commits"]
    assert row["wall_s"] > 0


def test_the_experiment_of_the_paper_has_its_numbers() -> None:
    experiment = load_figure_experiment("ds03.jms")
    assert isinstance(experiment, ConsumerExperiment)
    assert experiment.subscribers == (25, 200)
    assert {lanes for lanes, batch in experiment.ways if not batch} == {1, 2, 4, 8}
