"""Hosts behind connections to this machine: a replacement for SSH."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from pubsubctl.errors import Unreachable
from pubsubctl.inventory.inventory import Host


@dataclass(frozen=True)
class Done:
    status: int
    stdout: bytes
    stderr: bytes


@dataclass
class NearbyConnections:
    """Connections that run a host's commands as local processes, with a bare environment.

    Attributes:
        home: the value of `~`.
        down: unreachable hosts.
        done: requests in order: host and words.
        processes: the processes of open streams.
    """

    home: Path
    down: set[str] = field(default_factory=set)
    done: list[tuple[str, list[str]]] = field(default_factory=list)
    processes: list[trio.Process] = field(default_factory=list)

    async def __aenter__(self) -> "NearbyConnections":
        return self

    async def __aexit__(self, *details: object) -> None:
        pass

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}

    async def run(
        self, host: Host, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Done:
        self._note(host, command)
        if shutil.which(command[0]) is None:
            return Done(127, b"", f"sh: 1: {command[0]}: not found\n".encode())
        done = await trio.run_process(
            list(command),
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=self.environment,
            cwd=self.home,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    async def try_transfer(self, host: Host) -> None:
        if host.name in self.down:
            raise Unreachable(f"{host.name}: it is down")

    @asynccontextmanager
    async def open(self, host: Host, command: Sequence[str]) -> AsyncIterator[trio.abc.Stream]:
        self._note(host, command)
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.home,
        )
        self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield trio.StapledStream(process.stdin, process.stdout)
        finally:
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                await process.stdout.aclose()
                await process.wait()

    async def put(self, host: Host, source: Path, target: str, *, mode: int = 0o600) -> None:
        self._note(host, ["put", target])
        fresh = Path(f"{target}.new")
        shutil.copyfile(source, fresh)
        fresh.chmod(mode)
        fresh.replace(target)

    async def get(
        self, host: Host, source: str, target: Path, *, most_bytes: int | None = None
    ) -> None:
        self._note(host, ["get", source])
        shutil.copyfile(source, target)

    def _note(self, host: Host, command: Sequence[str]) -> None:
        if host.name in self.down:
            raise Unreachable(f"host {host.name}: no route to {host.address}; is it up?")
        self.done.append((host.name, list(command)))
