"""Tests of `targets`: a table of targets and results."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.testbed import RunFailed
from pubsubctl.hosts.hosts import Lab
from pubsubctl.runs.experiment import Experiment
from tests.pubsubctl.conftest import Call

HEADLINES: dict[str, dict[str, Any]] = {
    "chain3-paced": {
        "response_us": {"p50": 400.0, "p99": 2500.0},
        "broker_cpu_us_per_message_mean": 100.0,
        "online": {"missing": 0},
        "limited_by": "rate",
    },
    "chain3": {
        "delivered_per_s": 100_000.0,
        "broker_cpu_us_per_message_mean": 0.8,
        "online": {"missing": 0},
        "sessions_lost": 0,
        "limited_by": "load generator load-sub: 99% of a core",
        "is_load_generator_limit": True,
    },
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write runs with given numbers."""

    async def carried_out(experiment: Experiment, *_: object) -> SimpleNamespace:
        name = experiment.spec.name
        if name not in HEADLINES:
            raise RunFailed("broker c2 ended")
        run = tmp_path / name
        run.mkdir()
        (run / "manifest.json").write_text(json.dumps({"headline": HEADLINES[name]}))
        return SimpleNamespace(run_directory=run)

    monkeypatch.setattr("pubsubctl.runs.targets.carry_out", carried_out)


def test_each_target_is_reached_missed_or_undecided(call: Call) -> None:
    answer = call("targets", "P1", "P4", "-j")
    assert answer.status == 1
    found = {
        (row["id"], each["metric"]): each["holds"]
        for row in answer.document["targets"]
        for each in row["expectations"]
    }
    assert found == {
        ("P1", "delivered.rate"): None,
        ("P1", "broker.cpu_per_message"): True,
        ("P1", "delivery.missing"): True,
        ("P1", "sessions.lost"): True,
        ("P4", "latency.p50"): True,
        ("P4", "latency.p99"): False,
        ("P4", "broker.cpu_per_message"): True,
        ("P4", "delivery.missing"): True,
    }
    assert "latency.p99 <= 1ms: fails with 2.5 ms" in answer.err


def test_the_table_shows_missed_targets_and_measured_values(call: Call) -> None:
    answer = call("targets", "P4")
    assert "P4 three brokers in a chain, 1,000/s" in " ".join(answer.out.split())
    assert "missed" in answer.out
    assert "0.4 ms" in answer.out


def test_a_run_that_fails_holds_no_other_one_up(call: Call) -> None:
    answer = call("targets", "P2", "P4", "-j")
    failed, other = answer.document["targets"]
    assert (failed["failed"], failed["run_directory"]) == ("broker c2 ended", None)
    assert other["expectations"]
    assert "target P2: broker c2 ended" in answer.err


def test_a_target_is_run_on_hosts_of_its_own_unless_others_are_given(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    async def carried_out(_: Experiment, lab: Lab, *__: object) -> SimpleNamespace:
        used.append(lab.inventory.name)
        raise RunFailed("not now")

    monkeypatch.setattr("pubsubctl.runs.targets.carry_out", carried_out)
    many = (project / "inventories" / "local.toml").read_text().replace('"test"', '"many"')
    (project / "inventories" / "many.toml").write_text(many)
    call("targets", "P6", "P4")
    call("--inventory", "local", "targets", "P6")
    assert used == ["test", "many", "test"]


def test_a_part_of_ours_is_measured_without_brokers(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    async def run_process(command: list[str], **_: object) -> SimpleNamespace:
        asked.append(command[1:])
        return SimpleNamespace(stdout=b'{"hits_ratio": 1.25, "miss_us": 7.5}')

    monkeypatch.setattr("trio.run_process", run_process)
    answer = call("targets", "P5", "-j")
    assert asked == [["-P", "-m", "bench.components", "matching"]]
    (row,) = answer.document["targets"]
    assert [each["holds"] for each in row["expectations"]] == [True, False]
    assert "P5: not as expected: matching.miss <= 5us: fails with 0.0075 ms" in answer.err
    assert answer.status == 1


def test_an_unmeasurable_part_reports_the_reason(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_process(command: list[str], **_: object) -> SimpleNamespace:
        raise subprocess.CalledProcessError(1, command, stderr=b"Traceback\nMemoryError\n")

    monkeypatch.setattr("trio.run_process", run_process)
    answer = call("targets", "P8")
    assert answer.status == 3
    assert "target P8: verdict: status 1: MemoryError" in answer.err


def test_a_dry_run_prints_targets_and_planned_runs(call: Call) -> None:
    answer = call("--dry-run", "targets", "P4")
    assert answer.status == 0
    assert "target P4: latency.p50 <= 500us" in answer.out
    assert "1 run, about" in answer.out


@pytest.mark.parametrize(
    "words, said",
    [
        (["P11"], "no target 'P11'; did you mean 'P1'"),
        (["--file", "performnce"], "did you mean 'performance'"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(
    call: Call, words: list[str], said: str
) -> None:
    answer = call("targets", *words)
    assert answer.status == 2
    assert said in answer.err
