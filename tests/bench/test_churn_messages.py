"""Tests of the counts of messages about changed subscriptions, and of their figure."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.papers.control_traffic_experiments import ChurnExperiment, Side, count, topology_of
from bench.papers.experiments import EXPERIMENTS, load_figure_experiment
from bench.spec.validation import SpecError
from brokerd.protocols.registry import check_runs_on
from results.figures.control_traffic import draw_churn
from results.papers.experiment_runs import ExperimentRun

TREE = Side(protocol="delta_tree", title="tree")
FILE = {
    "schema": "pubsubctl/churn-messages-experiment/1",
    "name": "story",
    "figure": "control.churn",
    "brokers": [10],
    "changes": 2,
    "pause_s": 0.5,
    "side": [TREE],
}


def asked(**changes: Any) -> ChurnExperiment:
    return ChurnExperiment.model_validate(FILE | changes)


def test_a_change_goes_over_each_link_of_a_tree_and_a_start_is_confirmed_over_each() -> None:
    found = count(asked(), TREE, 10)
    assert (found.changes, found.messages, found.idle_messages) == (4, 2 * (9 + 9) + 2 * 9, 0)
    assert all(0 < started_s < 0.5 for started_s in found.started_s)


def test_a_polling_protocol_sends_many_messages_in_an_idle_overlay() -> None:
    polling = {"get_wait_ns": 500_000_000}
    side = Side(protocol="multi_proxy", title="proxies", parameters=polling)
    found = count(asked(), side, 5)
    assert found.idle_messages > 0
    assert found.messages > found.idle_messages


def test_an_idle_overlay_of_proxies_is_silent_at_any_size() -> None:
    parameters = {"topic_attribute": "kind", "get_wait_ns": 0}
    side = Side(protocol="multi_proxy", title="proxies", parameters=parameters)
    found = [count(asked(), side, brokers) for brokers in (5, 10)]
    assert [each.idle_messages for each in found] == [0, 0]
    assert all(each.messages for each in found)


def test_the_same_experiment_counts_the_same() -> None:
    side = Side(protocol="gryphon", title="cells", cell=2)
    assert count(asked(), side, 10) == count(asked(), side, 10)


def test_our_own_experiment_can_be_carried_out() -> None:
    experiment = load_figure_experiment("control.churn")
    assert isinstance(experiment, ChurnExperiment)
    for side in experiment.side:
        for brokers in experiment.numbers(side):
            check_runs_on(topology_of(side, brokers, experiment.delta), side.protocol)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("changes = 10", "changes = 0", "changes"),
        ('protocol = "delta_tree"', 'protocol = "delta_three"', "delta_three"),
        ("pause_s = 0.5", "pauze_s = 0.5", "pauze_s"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    ours = (EXPERIMENTS / "control-churn.toml").read_text()
    assert old in ours
    path = tmp_path / "story.toml"
    path.write_text(ours.replace(old, new, 1))
    with pytest.raises(SpecError, match=words):
        load_figure_experiment(path)


def test_the_drawing_subtracts_idle_messages() -> None:
    run = ExperimentRun(
        Path(), Path(), {"run_id": "r", "scale": {"brokers": 20}},
        {"side": [{"title": "a"}, {"title": "b"}], "changes": 2, "pause_s": 0.5},
    )  # fmt: skip
    rows = [
        SimpleNamespace(
            protocol=title, title=title, brokers=brokers, changes=4, messages=messages,
            message_bytes=10 * messages, idle_messages=20, idle_bytes=200, seconds=2.0,
            mean_started_s=0.01, mean_kept=2.5, most_kept=4,
        )
        for title, brokers, messages in (("b", 10, 20), ("a", 20, 60), ("a", 10, 40))
    ]  # fmt: skip
    drawing = draw_churn(run, rows)
    assert [*drawing.rows] == [
        ("a", 10, 5.0, 50, 1.0, 10.0, 2.5, 4),
        ("a", 20, 10.0, 100, 0.5, 10.0, 2.5, 4),
        ("b", 10, 0.0, 0, 1.0, 10.0, 2.5, 4),
    ]
    assert drawing.metrics["messages_per_change.a"].value == 10.0
    assert drawing.metrics["messages_per_change.a.10"].value == 5.0


def test_idle_brokers_without_messages_leave_a_readable_axis() -> None:
    run = ExperimentRun(
        Path(), Path(), {"run_id": "r", "scale": {"brokers": 20}},
        {"side": [{"title": "a"}], "changes": 2, "pause_s": 0.5},
    )  # fmt: skip
    rows = [
        SimpleNamespace(
            protocol="a", title="a", brokers=20, changes=4, messages=60, message_bytes=600,
            idle_messages=0, idle_bytes=0, seconds=2.0, mean_started_s=0.01, mean_kept=2.5,
            most_kept=4,
        )
    ]  # fmt: skip
    idle = draw_churn(run, rows).figure.axes[1]
    lowest, highest = idle.get_ylim()
    ticks = [tick for tick in idle.get_yticks() if lowest <= tick <= highest]
    assert ticks == [0.0, 1.0]


def test_profiles_at_gatekeepers_cost_a_fraction_of_profiles_at_every_broker() -> None:
    every = {"keeper_policy": "every_node"}
    flooding = Side(protocol="ges", title="every", fanout=4, parameters=every)
    keeping = Side(protocol="ges", title="paper", fanout=4, settle_s=40)
    found, kept = (count(asked(changes=4), side, 20) for side in (flooding, keeping))
    assert kept.messages * 2 < found.messages
    assert sum(kept.kept) * 2 < sum(found.kept)
    assert set(found.kept) == {20}
