"""Stories about the records of an external broker's run on a machine without room for them."""

import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.run.collection import RecordFolder, RunEnd, is_uncollected, write_uncollected
from bench.run.run_directory import RunDirectory
from bench.systems import servers
from pubsubctl.runs import external_brokers
from pubsubctl.runs.experiment import RecordsLeft
from tests.pubsubctl.conftest import Call

RUN_ID = "20261130T000000Z-abcdef"
SERVERS = "pubsubctl-system-q1"
RECORDS = ("run/b1/events.jsonl", "run/load/intents.jsonl")


class Ended:
    """An agent of a run whose servers have ended."""

    async def hold(self, lease_ms: int) -> None:
        pass

    async def shutdown(self) -> None:
        pass


@asynccontextmanager
async def _agent_of(_: Path) -> AsyncIterator[Ended]:
    yield Ended()


async def _nothing(*_: Any) -> None:
    pass


def _left_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> RecordsLeft | None:
    """Run a system whose records meet an error at their end; return the error of the run."""
    root = folder / SERVERS
    for name in ("servers/n1/db", "kept/n1/db", "log/b1/stderr.log", *RECORDS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("content")
    bed = SimpleNamespace(configuration=SimpleNamespace(version="0"))
    planned: Any = SimpleNamespace(
        configuration=SimpleNamespace(
            version="1", name="toy", servers=(), system=SimpleNamespace(ports=1, dials=None)
        ),
        spec=SimpleNamespace(name="tried"),
        schedule=None,
    )
    monkeypatch.setattr(servers, "mkdtemp", lambda **_: str(root))
    monkeypatch.setattr(servers, "_start_agent", _nothing)
    monkeypatch.setattr(servers, "open_agent_of", _agent_of)
    monkeypatch.setattr(servers.SystemServers, "start", _nothing)
    monkeypatch.setattr(servers, "_make_testbed", lambda *_: bed)
    directory = RunDirectory(folder / "runs" / "tried" / RUN_ID)
    directory.begin("tried", {"deployment_id": SERVERS, "protocol": "toy", "phases": []})
    end = RunEnd(
        state="complete", reasons=[], manifest=directory.manifest,
        journal_bytes=directory.journal_bytes,
    )  # fmt: skip
    rows = [
        RecordFolder("local", "b1", str(root / "run/b1")),
        RecordFolder("local", "b1", None, ("stderr.log",)),
        RecordFolder("local", "load", str(root / "run/load")),
    ]
    write_uncollected(directory.path, rows, end)
    directory.leave()

    async def run_on_system(*_: Any) -> None:
        raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(external_brokers, "new_run_directory", lambda *_: directory.path)
    monkeypatch.setattr(external_brokers, "run_on_system", run_on_system)
    progress: Any = SimpleNamespace(print=lambda _: None)
    interruption: Any = SimpleNamespace(stoppable=nullcontext)
    try:
        trio.run(external_brokers.run_system, planned, folder, progress, interruption)
    except RecordsLeft as left:
        return left
    except OSError:
        return None
    raise AssertionError("no error")


def test_records_of_an_external_broker_without_room_stay_and_are_collected_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call
) -> None:
    """The state of the servers does not stay."""
    left = _left_by(tmp_path, monkeypatch, errno.ENOSPC)
    run, root = tmp_path / "runs" / "tried" / RUN_ID, tmp_path / SERVERS
    assert left is not None
    assert f"{run}: no space left; the records stay in {root}. Free space" in str(left)
    assert {path.name for path in root.iterdir()} == {"log", "run"}
    collected = call("results", "collect", str(run))
    assert collected.status == 0, collected.err
    assert not root.exists()
    assert not is_uncollected(run)
    found = {str(path.relative_to(run / "raw/local")) for path in run.glob("raw/local/*/*")}
    assert found == {"b1/stderr.log", "b1/events.jsonl", "load/intents.jsonl"}


def test_records_of_an_external_broker_that_are_gone_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call
) -> None:
    _left_by(tmp_path, monkeypatch, errno.ENOSPC)
    run, root = tmp_path / "runs" / "tried" / RUN_ID, tmp_path / SERVERS
    shutil.rmtree(root)
    collected = call("results", "collect", str(run))
    assert (collected.status, f"{root}: no such folder" in collected.err) == (4, True)


def test_servers_of_a_run_that_failed_otherwise_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _left_by(tmp_path, monkeypatch, errno.EIO) is None
    assert not (tmp_path / SERVERS).exists()
