"""Agents of small processes, in separate folders, with a complete clean-up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from brokerd.agent.client import AgentClient, open_agent
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity
from brokerd.agent.watchdog import read_identity
from brokerd.errors import ControlError
from tests.helpers.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
MODULE = (sys.executable, "-m", "tests.helpers.small_processes")


class Lab:
    """A root folder with agents that a test starts and ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.paths = AgentPaths(self.root)
        self.socket = folder / "s" / "agent.sock"
        self.agents: list[subprocess.Popen[bytes]] = []
        self.prefix: tuple[str, ...] = ()

    def start_agent(self, deployment: str = "d1", lease_ms: int = 0) -> subprocess.Popen[bytes]:
        """Start an agent and wait until clients can connect.

        Fails with the output of the agent if the agent does not start.
        """
        agent, answer = self.try_agent(deployment, lease_ms)
        assert "error" not in answer, answer
        return agent

    def try_agent(
        self, deployment: str = "d1", lease_ms: int = 0
    ) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        ready = self.folder / f"ready-{len(self.agents)}"
        os.mkfifo(ready)
        command = [*self.prefix, *MODULE, "agent"]
        arguments = [str(self.root), deployment, str(self.socket), str(ready), str(lease_ms)]
        log = open(self.folder / "agent.log", "ab")  # noqa: SIM115
        with log:
            agent = subprocess.Popen(command + arguments, cwd=REPOSITORY, stderr=log)
        self.agents.append(agent)
        with open(ready, "rb") as pipe:
            line = pipe.readline()
        assert line, f"the agent died: {self.log()}"
        return agent, json.loads(line)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AgentClient]:
        async with open_agent(self.socket) as client:
            yield client

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def config(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the configuration of a sleeper."""
        return {
            "name": name,
            "control_socket": str(self.folder / "s" / f"{name}.sock"),
            "log_folder": f"run/{name}",
            **more,
        }

    async def start(
        self, client: AgentClient, name: str, role: str = "sleeper", **more: Any
    ) -> ProcessIdentity:
        """Start a process; wait until a sleeper answers."""
        config = self.config(name, **more)
        started = await client.start(name, role, config, config["control_socket"])
        if role == "sleeper":
            await self.answers(client, name)
        return ProcessIdentity(started["pid"], started["start_time"])

    async def answers(self, client: AgentClient, name: str) -> dict[str, Any]:
        """Return the status of a process, as soon as the process answers."""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    return await client.broker(name, "status")
                except ControlError as error:
                    if error.kind != "busy":
                        raise
                await trio.sleep(0.005)

    def descendants(self) -> list[ProcessIdentity]:
        """Return all live processes that belong to this root."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    command = Path(f"/proc/{name}/cmdline").read_bytes()
                    identity = ProcessIdentity.of(int(name))
                except (OSError, ProcessLookupError):
                    continue
                if os.fsencode(self.root) in command and identity.is_alive():
                    found.append(identity)
        return found

    def called(self, prefix: str) -> list[ProcessIdentity]:
        """Return the descendants with a name in `top` that begins with the prefix."""
        names = {found: Path(f"/proc/{found.pid}/comm") for found in self.descendants()}
        return [found for found, name in names.items() if name.read_text().startswith(prefix)]

    def clear(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for file in self.paths.processes.glob("*.json"):
            if (identity := read_identity(file)) is not None:
                identity.signal(signal.SIGKILL)
        for identity in self.descendants():
            identity.signal(signal.SIGKILL)


@contextmanager
def make_lab() -> Iterator[Lab]:
    with TemporaryDirectory(prefix="ag-") as name:
        lab = Lab(Path(name))
        try:
            yield lab
        finally:
            lab.clear()


def is_reaped(process: ProcessIdentity) -> bool:
    """Return whether a process has ended and is no zombie; the pid may have been reused."""
    try:
        return ProcessIdentity.of(process.pid) != process
    except ProcessLookupError:
        return True


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for a condition that only another process can make true."""
    with trio.move_on_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.005)
        return
    raise AssertionError(f"never came true: {what or condition}")


async def next_event(
    events: trio.MemoryReceiveChannel[tuple[str, dict[str, Any]]], wanted: str
) -> dict[str, Any]:
    """Return the details of the next event with this name."""
    async for name, details in events:
        if name == wanted:
            return details
    raise AssertionError(f"the connection ended before {wanted}")


def run(story: Callable[[], Any]) -> None:
    """Run a story, with a time limit."""

    async def bounded() -> None:
        with trio.fail_after(2 * PATIENCE_S):
            await story()

    trio.run(bounded)


def wait_until(condition: Callable[[], Any], what: str = "") -> None:
    """Do the same as `until`, for tests without an event loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        time.sleep(0.005)
