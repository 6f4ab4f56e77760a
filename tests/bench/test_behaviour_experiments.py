"""Tests of experiments about failures: stories, repeatability and refusals."""

import json

import pytest

from bench.papers.dft11.behaviour_experiments import draw
from bench.papers.dft11.behaviour_files import KINDS
from bench.papers.experiments import (
    EXPERIMENTS,
    load_figure_experiment,
    run_figure_experiment,
)
from bench.spec.validation import SpecError
from brokerd.text import toml_text

ABOUT = {"schema": "pubsubctl/behaviour-experiment/1", "name": "small", "seed": 3}
SMALL = {
    "bypass": {"brokers": 12, "fanout": 3, "deltas": [1], "suspicion_ms": [300]},
    "starts": {
        "brokers": [12], "fanout": 3, "deltas": [1], "failed_percent": [0, 17], "subscriptions": 2,
    },
    "overhead": {
        "brokers": 12, "fanout": 3, "deltas": [2], "failed": [0, 2], "measured_s": 4,
        "publications_per_s": 10, "variants": {"robust": {}},
    },
    "exclusions": {
        "brokers": 8, "delta": 1, "lengths": [1, 2], "publications_per_s": 5, "partitioned_s": [2],
    },
    "queue": {
        "brokers": 8, "delta": 1, "lengths": [1, 2], "publications_per_s": 10, "before_s": 1,
        "broken_s": 4, "after_s": 6, "sample_every_ms": 500,
    },
}  # fmt: skip


def small(question, **changes):
    about = {**ABOUT, "figure": f"dft11.{question}", "question": question}
    return KINDS[question].model_validate({**about, **SMALL[question], **changes})


def told(question, table, **changes):
    """Return the rows of every point's first draw; no draw may break a rule."""
    rows = []
    experiment = small(question, **changes)
    for point in experiment.points():
        tables = draw(experiment, point, 0)
        assert [draw["violated"] for draw in tables["judged_draws"]] == [[]], point
        rows += tables[table]
    return rows


def test_brokers_behind_a_silent_broker_receive_at_its_suspicion():
    rows = told("bypass", "bypasses")
    assert rows
    for row in rows:
        assert 200_000 <= row["latency_us"] <= 600_000, row


def test_subscriptions_start_in_a_whole_tree_and_past_failures():
    rows = told("starts", "starts")
    assert len(rows) == 4
    assert all(row["latency_us"] > 0 for row in rows)


def test_nothing_is_received_twice_while_nothing_fails():
    calm, broken = told("overhead", "overheads")
    assert (calm["failed"], calm["duplicates"], calm["resent"]) == (0, 0, 0)
    assert calm["deliveries"] == 12 * calm["published"]
    assert broken["resent"] > 0
    assert min(calm["bytes_between_brokers"], broken["bytes_between_brokers"]) > 0


def test_only_beyond_a_barrier_anything_is_withheld_and_all_of_it_is_announced():
    rows = told("exclusions", "exclusions")
    beyond = {row["length"]: row for row in rows if row["source"] == "behind"}
    assert beyond[1]["withheld"] == 0
    assert beyond[2]["withheld"] >= 2 * 5 - 1
    assert [row["neither"] for row in rows] == [0, 0, 0, 0]
    assert all(row["open_us"] is not None for row in rows)


def test_the_queue_before_a_barrier_grows_until_the_heal_and_then_drains():
    rows = told("queue", "queues")
    barrier = {row["t_ms"]: row for row in rows if row["length"] == 2}
    assert barrier[3500]["queue_publications"] > barrier[1500]["queue_publications"] > 5
    for length in (1, 2):
        last = [row for row in rows if row["length"] == length][-1]
        assert last["published"] - last["deliveries"] <= 2, last


def test_the_same_behaviour_experiment_produces_the_same_rows(tmp_path):
    experiment = small("exclusions", lengths=[2])
    texts = []
    for processes in (1, 2):
        run = run_figure_experiment(experiment, tmp_path, processes=processes)
        files = sorted(run.glob("raw/*/*/*.jsonl"))
        texts.append([(path.name, path.read_text()) for path in files])
        assert json.loads((run / "manifest.json").read_text())["kind"] == "behaviour"
    assert [name for name, _ in texts[0]] == ["exclusions.jsonl", "judged_draws.jsonl"]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "question, changes, word",
    [
        ("bypass", {"deltas": [0]}, "δ = 0"),
        ("overhead", {"failed": [11]}, "two must be left"),
        ("overhead", {"variants": {"odd": {"profil": "paper"}}}, "profil"),
        ("queue", {"lengths": [5]}, "two must be left at each end"),
    ],
)
def test_an_invalid_behaviour_experiment_is_refused(question, changes, word, tmp_path):
    about = {**ABOUT, "figure": f"dft11.{question}", "question": question}
    path = tmp_path / "wrong.toml"
    path.write_text(toml_text({**about, **SMALL[question], **changes}))
    with pytest.raises(SpecError, match=word):
        load_figure_experiment(path)


@pytest.mark.parametrize("question", KINDS)
def test_each_question_has_an_experiment_of_ours(question):
    assert load_figure_experiment(f"dft11.{question}").question == question
    assert (EXPERIMENTS / f"dft11-{question}.toml").is_file()
