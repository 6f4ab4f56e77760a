"""Tests of experiments on trees alone: output, repeatability and bad files."""

import hashlib
import json
import tomllib

import pytest

from bench.papers.dft11.graph_experiments import draw_failed_brokers
from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from bench.spec.validation import SpecError
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.text import toml_text

SMALL = {
    "schema": "pubsubctl/graph-experiment/1",
    "name": "small",
    "figure": "dft11.fig9",
    "question": "connectivity",
    "brokers": 30,
    "fanouts": [3],
    "deltas": [0, 1],
    "failed": [0, 6],
    "runs": 3,
    "seed": 5,
}


def experiment_file(tmp_path, **changes):
    path = tmp_path / "small.toml"
    values = {**SMALL, **changes}
    path.write_text(toml_text({key: value for key, value in values.items() if value is not None}))
    return path


def rows_of(run, table):
    path = run / "raw" / "controller" / "graph" / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_graph_run_records_its_experiment_and_its_failed_brokers(tmp_path):
    run = run_figure_experiment(
        load_figure_experiment(experiment_file(tmp_path)), tmp_path / "runs"
    )
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["state"], manifest["kind"], manifest["figure"]) == (
        "complete", "graph", "dft11.fig9",
    )  # fmt: skip
    assert manifest["scale"] == {"brokers": 30, "runs": 3, "protocol_runs": 0}
    spec = load_figure_experiment(run / "spec" / "experiment.toml")
    assert spec == load_figure_experiment(experiment_file(tmp_path))
    topology = Topology.from_mapping(
        tomllib.loads((run / "spec" / "topology-fanout-3.toml").read_text()), "there"
    )
    assert len(topology.brokers) == 30

    tree = PrimaryTree(topology)
    failures = {(row["failed"], row["run"]): row["brokers"] for row in rows_of(run, "failures")}
    answers = rows_of(run, "connectivity")
    assert len(failures) == 6
    assert len(answers) == 12
    for row in (row for row in answers if row["delta"] == 0):
        failed = failures[row["failed"], row["run"]]
        live = [broker for broker in range(30) if broker not in failed]
        assert len(failed) == row["failed"]
        assert row["live_pairs"] == len(live) * (len(live) - 1) // 2
        assert row["disconnected_pairs"] == sum(
            any(between in failed for between in tree.path(a, b))
            for a in live
            for b in live
            if a < b
        )


def test_the_same_graph_experiment_produces_the_same_rows(tmp_path):
    experiment = load_figure_experiment(experiment_file(tmp_path))
    runs = [run_figure_experiment(experiment, tmp_path / "runs") for _ in range(2)]
    first, second = ([*map(digest, sorted(run.glob("raw/*/*/*")))] for run in runs)
    assert first == second
    other = load_figure_experiment(experiment_file(tmp_path, seed=6))
    assert draw_failed_brokers(other, 3, 6, 0) != draw_failed_brokers(experiment, 3, 6, 0)


def digest(path):
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def test_neighbourhoods_and_sessions_have_rows_of_their_own(tmp_path):
    nothing_fails = {"failed": None, "runs": None, "seed": None}
    path = experiment_file(tmp_path, question="neighbourhoods", **nothing_fails)
    run = run_figure_experiment(load_figure_experiment(path), tmp_path / "runs")
    sizes = rows_of(run, "neighbourhoods")
    assert len(sizes) == 60
    assert sizes[0] == {"fanout": 3, "delta": 0, "broker": 0, "neighbours": 3}


def test_simulated_brokers_confirm_the_formula_in_some_draws(tmp_path):
    path = experiment_file(tmp_path, question="active-sessions", protocol_runs=2)
    run = run_figure_experiment(load_figure_experiment(path), tmp_path / "runs")
    answers = {}
    for row in rows_of(run, "active_sessions"):
        draw = row["delta"], row["failed"], row["run"]
        counts = answers.setdefault((row["by"], *draw), {})
        counts[row["sessions"]] = row["brokers"]
    formula, protocol = (
        {key[1:]: counts for key, counts in answers.items() if key[0] == by}
        for by in ("formula", "protocol")
    )
    assert len(formula) == 2 * 2 * 3
    assert len(protocol) == 2 * 2 * 2
    for (_, failed, _), counts in formula.items():
        assert sum(counts.values()) == 30 - failed
    assert protocol == {draw: formula[draw] for draw in protocol}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"fanout": 3}, "unknown key 'fanout'; did you mean 'fanouts'?"),
        ({"question": "connectedness"}, "question = 'connectedness'; did you mean 'connectivity'?"),
        ({"failed": [29]}, "failed = 29 of 30 brokers; two must be left"),
        ({"deltas": [17]}, "deltas[0] = 17"),
        ({"fanouts": []}, "fanouts = []"),
        ({"runs": "100"}, "runs = '100'"),
        ({"name": "../elsewhere"}, "name = '../elsewhere'"),
        ({"question": "neighbourhoods"}, "nothing fails when neighbourhoods are counted"),
        ({"protocol_runs": 1}, "simulated brokers report active sessions only"),
        ({"question": "active-sessions", "protocol_runs": 4}, "protocol_runs = 4 of 3 runs"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_key_and_value(tmp_path, changes, problem):
    with pytest.raises(SpecError) as refused:
        load_figure_experiment(experiment_file(tmp_path, **changes))
    assert problem in str(refused.value)
    assert "small.toml" in str(refused.value)
