"""The connector `local`: a logical host is a folder, a port range and an agent on this machine."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import trio

from brokerd.agent.client import AgentClient, open_agent_of
from brokerd.agent.paths import announced_agent, socket_folder
from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from pubsubctl.connectors.base import PortInUse
from pubsubctl.errors import HostError, Unreachable
from pubsubctl.inventory import Host, Inventory
from pubsubctl.lock import operator_lock
from pubsubctl.placement import LOOPBACK
from pubsubctl.plan import Observed, Stray
from pubsubctl.project import xdg_folder

STRAY_EXIT_S = 5.0
DEPLOYMENT_FILE = "deployment.json"
TOPOLOGY_FILE = "topology.toml"


class LocalConnector:
    """One logical host of this machine."""

    def __init__(self, inventory: Inventory, host: Host) -> None:
        self.host = host
        # The agent's socket folder is named after the root, so the root must have one spelling.
        root = Path(host.root).expanduser() if host.root else _usual_root(inventory, host)
        self.root = root.resolve()

    def lock(self, purpose: str) -> AbstractContextManager[None]:
        """See Connector."""
        return operator_lock(self.root, purpose)

    def cores(self) -> Sequence[int]:
        """See Connector."""
        return sorted(os.sched_getaffinity(0))

    async def observe(self) -> Observed:
        """See Connector."""
        agent: str | None = None
        processes: dict[str, str] = {}
        try:
            async with self.open_agent() as client:
                status = await client.status()
                agent = status["deployment"]
                processes = {name: row["state"] for name, row in status["processes"].items()}
        except Unreachable:
            pass
        return Observed(
            host=self.host.name,
            agent=agent,
            processes=processes,
            deployment=self.read_deployment(),
            strays=() if agent else tuple(stray.shown() for stray in self._strays()),
            files=self.root.exists() and any(self.root.iterdir()),
        )

    def ports_in_use(self, ports: Sequence[int]) -> list[PortInUse]:
        """See Connector."""
        refused = [port for port in ports if not _can_listen(port)]
        owners = _port_owners() if refused else {}
        return [PortInUse(port, *owners.get(port, (None, "owner unknown"))) for port in refused]

    def read_deployment(self) -> Mapping[str, Any] | None:
        """What was recorded of the deployment here, or None.

        Raises:
            HostError: the record is there and cannot be read.
        """
        path = self.root / DEPLOYMENT_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HostError(f"{path}: {error}; `pubsubctl down` removes it") from None
        if not isinstance(content, dict) or "deployment_id" not in content:
            raise HostError(f"{path}: not a deployment's record; `pubsubctl down` removes it")
        return content

    def write_deployment(self, content: Mapping[str, Any], topology: str) -> None:
        """See Connector."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in (
            (TOPOLOGY_FILE, topology),
            (DEPLOYMENT_FILE, json.dumps(content, indent=1)),
        ):
            path = self.root / name
            fresh = path.with_suffix(".new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)

    def read_text(self, path: Path) -> str:
        """See Connector."""
        if not path.resolve().is_relative_to(self.root):
            raise HostError(f"host {self.host.name}: {path} is not below {self.root}")
        return path.read_text(encoding="utf-8", errors="replace")

    async def start_agent(self, deployment_id: str) -> None:
        """See Connector."""
        command = [sys.executable, "-m", "bench.machine", "agent", "--root", str(self.root)]
        command += ["--name", self.host.name, "--deployment", deployment_id]
        result = await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        if result.returncode != 0:
            said = result.stderr.decode(errors="replace").strip().splitlines()
            reason = said[-1] if said else f"exit status {result.returncode}"
            raise HostError(f"host {self.host.name}: the agent did not start: {reason}")

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[AgentClient]:
        """See Connector."""
        try:
            async with open_agent_of(self.root) as client:
                yield client
        except ControlError as error:
            if error.kind != "closed":
                raise
            raise Unreachable(f"host {self.host.name}: no agent answers ({error})") from error

    async def stop_strays(self) -> None:
        """See Connector."""
        strays = self._strays()
        for stray in strays:
            stray.identity.signal(signal.SIGTERM)
            stray.identity.signal(signal.SIGCONT)  # a frozen one hears nothing else
        with trio.move_on_after(STRAY_EXIT_S):
            while any(stray.identity.is_alive() for stray in strays):
                await trio.sleep(0.05)
        for stray in strays:
            stray.identity.signal(signal.SIGKILL)
        with trio.move_on_after(STRAY_EXIT_S):
            while any(stray.identity.is_alive() for stray in strays):
                await trio.sleep(0.05)

    def remove(self, *, purge: bool) -> None:
        """See Connector."""
        for folder in self._socket_folders():
            shutil.rmtree(folder, ignore_errors=True)
        if not self.root.is_dir():
            return
        for entry in self.root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if purge:
            self.root.rmdir()

    def residue(self, ports: Sequence[int]) -> list[str]:
        """See Connector."""
        found = [f"process {stray.shown()}" for stray in self._strays()]
        found += [str(row) for row in self.ports_in_use(ports)]
        found += [
            f"socket {path}" for folder in self._socket_folders() for path in folder.iterdir()
        ]
        found += [f"folder {folder}" for folder in self._socket_folders()]
        if self.root.exists():
            found += [f"file {path}" for path in sorted(self.root.rglob("*")) if not path.is_dir()]
        return [f"host {self.host.name}: {row}" for row in found]

    def _strays(self) -> "list[_Stray]":
        """Processes of this root: whatever an agent forked has the agent's command line."""
        found: list[_Stray] = []
        mark = ["bench.machine", "agent", "--root", str(self.root)]
        for process in psutil.process_iter(["pid", "cmdline", "name", "uids"]):
            command = process.info["cmdline"] or []
            uids = process.info["uids"]
            if uids is None or uids.effective != os.geteuid():
                continue
            if any(command[at : at + 4] == mark for at in range(len(command))):
                try:
                    identity = ProcessIdentity.of(process.info["pid"])
                except ProcessLookupError:
                    continue
                if identity.is_alive():
                    found.append(_Stray(identity, process.info["name"]))
        return sorted(found, key=lambda stray: stray.identity.pid)

    def _socket_folders(self) -> list[Path]:
        """Where sockets of this root are: where the agent said, and where one would be now."""
        announced = announced_agent(self.root)
        places = {socket_folder(self.root)}
        if announced is not None:
            places.add(Path(announced["socket"]).parent)
        return sorted(place for place in places if place.is_dir() and not place.is_symlink())


class _Stray(NamedTuple):
    identity: ProcessIdentity
    name: str

    def shown(self) -> Stray:
        pid = self.identity.pid
        listening = [
            row.laddr.port
            for row in psutil.net_connections(kind="tcp")
            if row.pid == pid and row.laddr and row.status == psutil.CONN_LISTEN
        ]
        return Stray(pid, self.name, tuple(sorted(listening)))


def _usual_root(inventory: Inventory, host: Host) -> Path:
    return xdg_folder("state") / inventory.name / host.name


def _can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((LOOPBACK, port))
            attempt.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _port_owners() -> dict[int, tuple[int | None, str]]:
    """Local port → pid and command of who has it, listeners before others."""
    owners: dict[int, tuple[int | None, str]] = {}
    connections = psutil.net_connections(kind="tcp")
    for row in sorted(connections, key=lambda row: row.status != psutil.CONN_LISTEN):
        if not row.laddr or (row.laddr.port in owners and owners[row.laddr.port][0] is not None):
            continue
        owners[row.laddr.port] = (row.pid, _command(row.pid))
    return owners


def _command(pid: int | None) -> str:
    if pid is None:
        return "of another user"
    try:
        return " ".join(psutil.Process(pid).cmdline())[:100] or psutil.Process(pid).name()
    except psutil.Error:
        return "gone by now"
