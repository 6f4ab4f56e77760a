"""Tests of experiments on simulated brokers: rows, agreement and cleanup."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.papers.dft11.simulated_experiments import status_of
from bench.papers.dft11.simulated_point import (
    Point,
    SimulatedExperiment,
    draw_failed_brokers,
    set_up,
)
from bench.papers.dft11.simulator_speed import measure_speed
from bench.papers.experiments import (
    EXPERIMENTS,
    figures,
    load_figure_experiment,
    run_figure_experiment,
    with_all_draws,
)
from bench.spec.experiment import is_deployed_experiment
from bench.spec.validation import SpecError
from brokerd.overlay.generate import generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.text import toml_text
from tests.helpers.patience import PATIENCE_S

SMALL = {
    "schema": "pubsubctl/simulated-experiment/1",
    "name": "small",
    "figure": "dft11.fig10",
    "question": "deliveries",
    "brokers": 20,
    "fanouts": [3],
    "deltas": [0, 2],
    "failed": [0, 4],
    "measured_s": 5,
    "publications_per_broker": 3,
    "seed": 5,
}


class Silent:
    """A progress display that records messages."""

    def __init__(self):
        self.told = []

    def phase(self, name, expected_s=None):
        self.told.append(name)

    def update(self, numbers):
        self.told.append(dict(numbers))


def experiment_file(tmp_path, **changes):
    path = tmp_path / "small.toml"
    path.write_text(toml_text({**SMALL, **changes}))
    return path


def rows_of(run, table):
    path = run / "raw" / "controller" / "simulator" / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_deliveries_match_the_connectivity_of_the_remaining_brokers(tmp_path):
    progress = Silent()
    experiment = load_figure_experiment(experiment_file(tmp_path))
    run = run_figure_experiment(experiment, tmp_path / "runs", progress, 2)
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["state"], manifest["kind"]) == ("complete", "simulation")
    assert manifest["scale"] == {"brokers": 20, "runs": 1, "measured_s": 5}
    assert {"points": "4/4"} in progress.told

    points = rows_of(run, "simulated_points")
    assert [(row["delta"], row["failed"]) for row in points] == [(0, 0), (0, 4), (2, 0), (2, 4)]
    dead = {row["failed"]: row["brokers"] for row in rows_of(run, "failures")}
    graph = Connectivity(generate_balanced_tree(20, 3, 2))
    for point in points:
        of_point = {key: point[key] for key in ("delta", "failed")}
        brokers, seconds = (
            [row for row in rows_of(run, table) if of_point.items() <= row.items()]
            for table in ("simulated_brokers", "simulated_seconds")
        )
        live = 20 - point["failed"]
        failed = dead[point["failed"]]
        connected = graph.live_pairs(failed) - graph.count_disconnected_pairs(
            failed, point["delta"]
        )
        assert point["published"] == 3 * live
        assert point["deliveries"] == 3 * (2 * connected + live)
        assert sum(row["deliveries"] for row in brokers) == point["deliveries"]
        assert sum(row["deliveries"] for row in seconds) == point["deliveries"]
        assert sum(row["published"] for row in seconds) == point["published"]
        assert {row["broker"] for row in brokers} == {*range(20)} - {*failed}
        assert (point["violations"], point["violated"], point["withheld"]) == (0, [], 0)
        assert point["broker_events"] > point["deliveries"]


def test_an_experiment_produces_the_same_rows_with_any_number_of_processes(tmp_path):
    experiment = load_figure_experiment(experiment_file(tmp_path, runs=2))
    runs = [run_figure_experiment(experiment, tmp_path / "r", Silent(), n) for n in (1, 3)]

    def known(run):
        points = rows_of(run, "simulated_points")
        for row in points:
            del row["processor_s"]
        return points, rows_of(run, "simulated_brokers"), rows_of(run, "simulated_seconds")

    assert known(runs[0]) == known(runs[1])
    first, second = (
        [row for row in rows_of(runs[0], "simulated_seconds") if row["run"] == run]
        for run in (0, 1)
    )
    assert [row["published"] for row in first] != [row["published"] for row in second]


def test_failures_during_the_window_cost_publications_in_flight_at_most(tmp_path):
    experiment = load_figure_experiment(
        experiment_file(tmp_path, fail="during", publications_per_broker=20, measured_s=20)
    )
    cluster = set_up(experiment, 3, 2, 0)
    point = Point(experiment, 3, 2, 4, 0)
    assert [*point.measure(cluster)] == [*range(20)]
    (whole,) = point.tables()["simulated_points"]
    failed = draw_failed_brokers(experiment, 3, 4, 0)
    graph = Connectivity(generate_balanced_tree(20, 3, 2))
    connected = graph.live_pairs(failed) - graph.count_disconnected_pairs(failed, 2)
    bound = 20 * (2 * connected + 16)
    assert whole["violations"] == 0
    assert bound * 0.95 <= whole["deliveries"] <= 20 * 16 * 16
    assert whole["resent"] > 0


def test_more_failures_are_the_fewer_ones_and_some_more():
    experiment = SimulatedExperiment.model_validate({**SMALL, "failed": [0, 2, 7]})
    few, many = (draw_failed_brokers(experiment, 3, failed, 0) for failed in (2, 7))
    assert len(few) == 2
    assert {*few} < {*many}
    assert many != draw_failed_brokers(experiment, 3, 7, 1)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"fanout": 3}, "unknown key 'fanout'; did you mean 'fanouts'?"),
        ({"fail": "befor"}, "fail = 'befor'; did you mean 'before'?"),
        ({"failed": [19]}, "failed = 19 of 20 brokers; two must be left"),
        ({"failed": [4, 4]}, "failed = [4, 4]: the same one twice"),
        ({"measured_s": 0}, "measured_s = 0"),
        ({"schema": "pubsubctl/simulated-experiment/2"}, "did you mean"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_key_and_value(tmp_path, changes, problem):
    with pytest.raises(SpecError) as refused:
        load_figure_experiment(experiment_file(tmp_path, **changes))
    assert problem in str(refused.value)
    assert "small.toml" in str(refused.value)


def test_every_simulated_experiment_can_be_read_and_every_figure_names_its_own():
    paths = sorted(EXPERIMENTS.glob("*.toml"))
    names = [path.stem for path in paths if not is_deployed_experiment(str(path))]
    assert {"dft11-fig9", "dft11-fig10", "dft11-fig11", "dft11-fig12"} <= {*names}
    for name in names:
        assert load_figure_experiment(name).name == name
    for figure in figures():
        assert load_figure_experiment(figure).figure == figure


def test_an_experiment_without_a_larger_size_cannot_run_in_full():
    assert with_all_draws(load_figure_experiment("dft11.fig10")).runs == 5
    with pytest.raises(SpecError, match=r"dft11\.fig9 always makes all 100 draws"):
        with_all_draws(load_figure_experiment("dft11.fig9"))


def test_an_experiment_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(SpecError, match=r"'dft11\.fig8'; did you mean 'dft11\.fig"):
        load_figure_experiment("dft11.fig8")


def test_an_interrupted_experiment_records_its_state_and_leaves_no_process(tmp_path):
    program = """
import sys
from pathlib import Path
from bench.papers.experiments import load_figure_experiment, run_figure_experiment

class Progress:
    def phase(self, name, expected_s=None): ...
    def update(self, numbers): print(numbers, flush=True)

if __name__ == "__main__":
    run_figure_experiment(load_figure_experiment(sys.argv[1]), Path(sys.argv[2]), Progress(), 2)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    large = {"brokers": 100, "publications_per_broker": 30, "measured_s": 3600}
    path = experiment_file(tmp_path, **large, failed=[0])
    runs = tmp_path / "runs"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, script, path, runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if " s'" in line:  # a fork is measuring
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()  # ends once nobody holds it any more, the forks included
        assert process.wait() != 0
    (manifest,) = runs.glob("small/2*/manifest.json")
    assert json.loads(manifest.read_text())["state"] == "aborted"
    deadline = time.monotonic() + PATIENCE_S
    while group_lives(process.pid):
        assert time.monotonic() < deadline, "a process of the experiment is left"


def test_a_worker_exits_on_a_sigterm_just_before_its_wait():
    signalled, wakeup = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.write(wakeup, bytes([signal.SIGTERM]))
        with pytest.raises(SystemExit):
            status_of(child.pid, signalled)
        assert child.poll() is None
    finally:
        child.communicate()
        os.close(signalled)
        os.close(wakeup)


def test_the_status_of_a_fork_is_waited_for():
    signalled, wakeup = os.pipe()
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitstatus_to_exitcode(status_of(child, signalled)) == 3
    os.close(signalled)
    os.close(wakeup)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_simulator_speed_is_reported_for_every_phase():
    rows = measure_speed(brokers=10, failed=2)
    assert [row.what for row in rows] == [
        "subscribing", "publishing", "publishing past 2 failures", "publishing, every step checked",
    ]  # fmt: skip
    assert all(row.broker_events > 100 and row.per_second > 0 for row in rows)
