"""Tests of the state in a run's folder, from the start to the end of the run."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from bench.run import run_directory
from bench.run.coordinator import _Experiment
from bench.run.run_directory import (
    RUN_ID,
    RunDirectory,
    new_run_directory,
    program_facts,
)
from bench.run.run_statistics import ProcessorTime
from bench.run.system_under_test import OurBrokers
from brokerd.errors import ControlError


def manifest_of(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((path / "manifest.json").read_text())
    return content


def test_a_new_run_is_where_latest_leads(tmp_path: Path) -> None:
    first = new_run_directory(tmp_path, "demo")
    second = new_run_directory(tmp_path, "demo")
    other = new_run_directory(tmp_path, "chain3")
    assert first != second
    assert RUN_ID.fullmatch(first.name)
    assert (tmp_path / "demo" / "latest").resolve() == second.resolve()
    assert (tmp_path / "latest").resolve() == other.resolve()


def test_a_regular_file_named_latest_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    new_run_directory(tmp_path, "demo")
    assert (tmp_path / "latest").read_text() == "mine"


def test_the_manifest_is_there_from_the_first_moment(tmp_path: Path) -> None:
    run = RunDirectory(new_run_directory(tmp_path, "demo"))
    run.begin("demo", {"protocol": "delta_tree", "seed": 7, "labels": {}})
    begun = manifest_of(run.path)
    assert (begun["state"], begun["seed"], begun["ended_utc"]) == ("running", 7, None)
    assert begun["cores"]
    run.end("aborted", ["interrupted"])
    ended = manifest_of(run.path)
    assert (ended["state"], ended["reasons"]) == ("aborted", ["interrupted"])
    assert ended["ended_utc"]


def test_checksums_cover_every_file_and_sha256sum_agrees(tmp_path: Path) -> None:
    run = RunDirectory(new_run_directory(tmp_path, "demo"))
    run.begin("demo", {})
    run.write_spec("workload.toml", 'name = "demo"\n')
    run.write_spec("cli.json", {"rate": "5/s"})
    (run.raw_folder("local1", "s1") / "deliveries.rec").write_bytes(bytes(64))
    (run.raw_folder("local1", "s1") / "SHA256SUMS").write_text("named as the seal")
    run.log("something", number=1)
    run.end("complete")
    listed = [line.split("  ")[1] for line in (run.path / "SHA256SUMS").read_text().splitlines()]
    files = {p.relative_to(run.path).as_posix() for p in run.path.rglob("*") if p.is_file()}
    assert {*listed} == files - {"SHA256SUMS"}
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=run.path, check=False)
    assert done.returncode == 0


def test_the_index_has_a_line_per_run(tmp_path: Path) -> None:
    for seed in (1, 2):
        run = RunDirectory(new_run_directory(tmp_path, "demo"))
        run.begin("demo", {"seed": seed, "protocol": "best_effort", "labels": {"a": "b"}})
        run.end("complete")
        run.add_to_index({"delivered_per_s": 5.5})
    lines = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [1, 2]
    assert lines[0]["delivered_per_s"] == 5.5
    assert lines[0]["state"] == "complete"


def test_counting_seeds_in_the_ledger_is_no_change_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, code = tmp_path / "results" / "reliability.json", tmp_path / "code.py"
    ledger.parent.mkdir()
    ledger.write_text("{}\n")
    code.write_text("rate = 1\n")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    commit = ("-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")
    for arguments in (("init", "-q"), ("add", "."), commit):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    monkeypatch.setattr(run_directory, "_PROJECT", tmp_path)

    def is_dirty() -> object:
        return program_facts.__wrapped__()["git_dirty"]  # not what the first call has kept

    assert is_dirty() is False
    ledger.write_text('{"entries": ["a first count"]}\n')
    assert is_dirty() is False
    code.write_text("rate = 1_000\n")
    assert is_dirty() is True
    monkeypatch.setattr(run_directory, "_PROJECT", tmp_path / "results")
    assert program_facts.__wrapped__()["git_commit"] is None, "a repository around it"


@pytest.mark.parametrize("loss", [None, {"cause": "its folder was empty", "loss": 3}])
def test_the_journal_repeats_the_loss_that_a_broker_accepted(
    tmp_path: Path, loss: dict[str, Any] | None
) -> None:
    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        return {"accepted_loss": loss}

    place = SimpleNamespace(host="h", process="c1")
    testbed: Any = SimpleNamespace(
        brokers={"c1": place}, run_folder=lambda *_: tmp_path, broker_command=answer
    )
    lines: list[tuple[str, dict[str, Any]]] = []
    experiment: Any = SimpleNamespace(
        _under_test=OurBrokers(), _testbed=testbed, _run_id="r", _begun=[],
        _directory=SimpleNamespace(log=lambda what, **details: lines.append((what, details))),
    )  # fmt: skip
    trio.run(_Experiment._begin_run_at, experiment, "c1")
    assert lines == ([("loss_accepted", {"broker": "c1", **loss})] if loss else [])


def test_a_restarted_broker_receives_one_run_from_two_samples() -> None:
    begun: list[str] = []
    answers = [ControlError("busy", "c1 did not answer"), None]
    row = {"state": "running", "pid": 2, "start_time": 1, "processor_s": 0.5}

    class Agent:
        async def status(self) -> dict[str, Any]:
            return {"processes": {"c1": row}}

    async def begin_at(broker: str) -> None:
        begun.append(broker)
        await trio.testing.wait_all_tasks_blocked()
        if (error := answers.pop(0)) is not None:
            raise error

    place = SimpleNamespace(host="h", process="c1")
    experiment: Any = SimpleNamespace(
        _testbed=SimpleNamespace(agents={"h": Agent()}, brokers={"c1": place}),
        _processor_time=ProcessorTime(), _broker_pids={"c1": 1}, _exited=set(),
        _begin_run_at=begin_at,
        _begin_run_again=lambda *which: _Experiment._begin_run_again(experiment, *which),
    )  # fmt: skip

    async def story() -> None:
        for count in (1, 2, 2):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(_Experiment._processor_seconds, experiment)
            assert len(begun) == count

    trio.run(story)
    assert experiment._broker_pids == {"c1": 2}
