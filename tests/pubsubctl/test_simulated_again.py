"""Tests of `reproduce --level sim`, which repeats parts without hosts and compares results."""

import json
from pathlib import Path

import pytest

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from brokerd.text import toml_text
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.runs.capsules import Capsule
from pubsubctl.runs.reproduction import simulate_again
from results.tables.seals import seal
from tests.helpers.runs import Scenario, workload_of, write_demo_run

EXPERIMENT = {
    "schema": "pubsubctl/graph-experiment/1", "name": "few", "figure": "dft11.fig9", "seed": 11,
    "question": "connectivity", "shape": "balanced-degree", "brokers": 30, "fanouts": [3],
    "deltas": [0, 1], "failed": [0, 3], "runs": 3, "protocol_runs": 0,
}  # fmt: skip


class Quiet:
    """Progress without output."""

    def phase(self, text: str) -> None:
        """Show nothing."""

    def update(self, numbers: object) -> None:
        """Show nothing."""


@pytest.fixture
def capsule(tmp_path: Path) -> Capsule:
    """Pack a run of brokers without faults, and a small experiment without brokers."""
    runs = tmp_path / "runs"
    run = write_demo_run(runs, Scenario(measure_s=2.0, rate=10))
    workload = {**workload_of(Scenario(measure_s=2.0, rate=10)), "calm": True}
    (run / "spec" / "workload.toml").write_text(toml_text(workload))
    (run / "spec" / "faults.toml").unlink(missing_ok=True)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "seed": 11}))
    seal(run)
    path = tmp_path / "few.toml"
    path.write_text(toml_text(EXPERIMENT))
    few = run_figure_experiment(load_figure_experiment(path), runs, Quiet(), 1)
    said = {
        run.relative_to(tmp_path).as_posix(): {"verdict": "VALID", "figures": {}},
        few.relative_to(tmp_path).as_posix(): {"figures": {}},
    }
    return Capsule(tmp_path, {"runs": said})


def test_simulated_runs_are_reproduced_byte_for_byte_and_broker_runs_are_simulated(
    capsule: Capsule,
) -> None:
    rows = {row.what: row for row in simulate_again(Invocation(), capsule, Quiet())}
    assert {row.level for row in rows.values()} == {"sim"}
    assert (rows["verdict"].run, rows["verdict"].now) == ("demo/20260102T030405Z-0a1b2c", "VALID")
    assert rows["verdict"].is_same
    assert rows["rows"].is_same
    assert rows["rows"].recorded == rows["rows"].now
    table = next(capsule.folder.glob("runs/few/*/raw/*/*/*.jsonl"))
    table.write_bytes(table.read_bytes().replace(b"1", b"2", 1))
    changed = {row.what: row for row in simulate_again(Invocation(), capsule, Quiet())}
    assert changed["rows"].is_same is False
    assert changed["rows"].recorded != changed["rows"].now


def test_a_run_that_cannot_be_simulated_states_the_reason_and_no_verdict(
    capsule: Capsule,
) -> None:
    (path,) = capsule.folder.glob("runs/demo/*/spec/workload.toml")
    text = path.read_text()
    path.write_text(text.replace("[[subscribers]]", '[[subscribers]]\nfailover = ["b1"]', 1))
    rows = {row.what: row for row in simulate_again(Invocation(), capsule, Quiet())}
    assert rows["verdict"].is_same is None
    assert "failover" in rows["verdict"].now


def test_a_capsule_with_nothing_to_simulate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in this capsule is one that can be simulated"):
        [*simulate_again(Invocation(), Capsule(tmp_path, {"runs": {}}), Quiet())]
