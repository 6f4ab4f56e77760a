"""Stories about agents in the background: started from a shell, reached over a pipe."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.agent import daemon
from brokerd.agent.client import open_agent, open_agent_of
from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from brokerd.runtime import process
from tests.helpers.agents import MODULE, REPOSITORY, Lab, make_lab, run, until
from tests.helpers.patience import PATIENCE_S


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        yield made


def start_daemon(lab: Lab, deployment: str = "d1") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODULE, "daemon", str(lab.root), deployment],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_RUNTIME_DIR": str(lab.folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def read_line(started: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert started.returncode == 0, started.stderr
    (line,) = started.stdout.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_daemon_outlives_its_starter_and_reports_its_pid(lab: Lab) -> None:
    line = read_line(start_daemon(lab))
    agent = ProcessIdentity.of(line["pid"])
    assert os.getsid(agent.pid) == agent.pid, "a session of its own"

    async def story() -> None:
        async with open_agent_of(lab.root) as client:
            assert (await client.status())["pid"] == line["pid"]
            await lab.start(client, "b1")
            await client.shutdown()
        await until(lambda: not agent.is_alive())
        with pytest.raises(ControlError, match="no agent runs here"):
            async with open_agent_of(lab.root):
                pass

    run(story)
    assert lab.descendants() == []


def test_a_second_daemon_fails_with_the_reason(lab: Lab) -> None:
    line = read_line(start_daemon(lab))
    second = start_daemon(lab)
    assert second.returncode == 4
    assert second.stdout == ""
    assert "another agent has this root" in second.stderr
    os.kill(line["pid"], signal.SIGTERM)


def test_attach_carries_a_control_connection(lab: Lab) -> None:
    read_line(start_daemon(lab))

    async def story() -> None:
        process = await trio.lowlevel.open_process(
            [*MODULE, "attach", str(lab.root)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdio is not None
        async with open_agent(process.stdio) as client:
            identity = await lab.start(client, "b1")
            events = await client.listen()
            await client.stop("b1")
            assert (await events.receive())[0] == "process_exited"
            assert not identity.is_alive()
            await client.shutdown()
        assert await process.wait() == 0

    run(story)


def test_attach_without_an_agent_is_unreachable(lab: Lab) -> None:
    attached = subprocess.run(
        [*MODULE, "attach", str(lab.root)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert attached.returncode == 6
    assert "no agent runs here" in attached.stderr


def test_a_relative_root_is_refused(lab: Lab) -> None:
    started = subprocess.run(
        [*MODULE, "daemon", "here", "d1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 2
    assert "must be an absolute path" in started.stderr


def test_an_agent_keeps_its_processes_after_its_fork_server_died(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            (image,) = lab.called("pubsub:image")
            image.signal(signal.SIGKILL)
            with pytest.raises(ControlError, match="fork server has died") as caught:
                await lab.start(client, "b2")
            assert caught.value.kind == "internal"
            assert (await client.broker("b1", "status"))["pid"] == identity.pid
            await client.shutdown()
        assert not identity.is_alive()

    run(story)


def test_the_journal_records_each_action_before_its_execution(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f", "freeze", "b1", lease_ms=60_000)
            await client.fault_apply("k", "kill", "b1")
            lines = [json.loads(line) for line in lab.paths.journal.read_text().splitlines()]
            order = [line["entry"] for line in lines]
            assert order[:3] == ["agent", "start", "started"]
            kill = next(line for line in lines if line.get("verb") == "kill")
            exited = next(line for line in lines if line["entry"] == "exited")
            frozen = next(line for line in lines if line["entry"] == "fault")
            assert frozen["verb"] == "freeze"
            assert order.index("fault") < order.index("fault_state")
            assert lines.index(kill) < lines.index(exited)
            assert kill["t_ns"] < exited["t_ns"]

    run(story)


def refuse_to_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_limit_of_processes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent without a process, and a broker without a thread."""
    monkeypatch.setattr(os, "fork", refuse_to_fork)
    assert daemon.start_daemon(tmp_path / "root", "host", "d1", {}) == 4
    assert "`ulimit -u`" in capsys.readouterr().err
    monkeypatch.setattr(daemon, "fork_image", lambda _: refuse_to_fork())
    for change_of_the_process in ("os.umask", "brokerd.agent.daemon.raise_descriptor_limit"):
        monkeypatch.setattr(change_of_the_process, lambda *_: 0)
    assert daemon.run_agent(tmp_path / "root", "host", "d1", {}) == 4
    assert "`ulimit -u`" in capsys.readouterr().err

    def refuse_to_start(*_: object) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "_run_once", refuse_to_start)
    mapping = broker_mapping(tmp_path)
    with pytest.raises(SystemExit) as ended:
        process.run_broker(mapping)
    assert ended.value.code == 4
    assert "broker c1: this account may start no further" in capsys.readouterr().err


def broker_mapping(folder: Path) -> dict[str, Any]:
    """Return the configuration of a broker; its topology is not read."""
    return {
        "broker": "c1",
        "topology_file": str(folder / "topology.toml"),
        "protocol": "best_effort",
        "deployment_id": "d1",
        "listen": "127.0.0.1:1",
        "state_folder": str(folder / "state"),
        "control_socket": str(folder / "control"),
        "log_folder": str(folder / "log"),
        "addresses": {"c1": "127.0.0.1:1"},
    }
