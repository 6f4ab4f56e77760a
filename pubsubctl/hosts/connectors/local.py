"""The transport `local`: a logical host is a folder, a port range and an agent on this machine."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from brokerd.agent.client import AgentClient, open_agent_of
from brokerd.agent.host.server import HostSide
from pubsubctl.deployment.bundle import program_digest
from pubsubctl.deployment.placement import processors_here
from pubsubctl.errors import HostError
from pubsubctl.hosts.connectors.base import Connector, Ran
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.project import xdg_folder

_STOP_PATIENCE_S = 5.0
"""Time that a command has to end after SIGTERM, before SIGKILL."""


class LocalTransport:
    """A logical host of this machine. Implements `Transport`."""

    def __init__(self, inventory: Inventory, host: Host) -> None:
        self.host = host
        root = Path(host.root) if host.root else _default_root(inventory, host)
        self._side = HostSide(root, host.name)
        self._commands = self._side.commands()

    @property
    def commands(self) -> Sequence[str]:
        return ()

    def use(self, nursery: trio.Nursery) -> None:
        """See Transport."""

    async def reach(self) -> None:
        """See Transport."""

    async def processors(self) -> Mapping[str, Any]:
        return processors_here()

    async def run(self, command: Sequence[str], timeout_s: float) -> Ran:
        """Run a command in the host's folder, without one in the home folder. See Transport."""
        root = self._side.root
        try:
            with trio.fail_after(timeout_s):
                done = await trio.run_process(
                    list(command),
                    cwd=root if root.is_dir() else Path.home(),
                    stdin=subprocess.DEVNULL,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    deliver_cancel=_stop,
                )
        except trio.TooSlowError:
            raise HostError(f"host {self.host.name}: not done after {timeout_s:g} s") from None
        except FileNotFoundError:
            return Ran(127, b"", f"{command[0]}: command not found\n".encode())
        except PermissionError:
            return Ran(126, b"", f"{command[0]}: cannot be executed\n".encode())
        return Ran(max(-1, done.returncode), done.stdout, done.stderr)

    async def call(self, command: str, **arguments: Any) -> dict[str, Any] | None:
        return await self._commands[command](arguments)

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[AgentClient]:
        async with open_agent_of(self._side.root) as client:
            yield client

    async def upload(self, *, only_if_used: bool = False) -> None:
        """See Transport."""

    async def install(self, *, only_if_used: bool = False) -> None:
        """See Transport."""

    async def clear(self) -> None:
        """See Transport."""

    async def list_commands(self) -> list[str]:
        return []

    async def program(self) -> str:
        return program_digest()

    async def fetch(self, source: str, target: Path, most_bytes: int) -> None:
        await trio.to_thread.run_sync(shutil.copyfile, source, target)


def local_connector(inventory: Inventory, host: Host) -> Connector:
    """Return the connector of a logical host of this machine."""
    return Connector(LocalTransport(inventory, host))


def _default_root(inventory: Inventory, host: Host) -> Path:
    return xdg_folder("state") / inventory.name / host.name


async def _stop(process: trio.Process) -> None:
    """Terminate the process, and kill the process after a timeout."""
    process.terminate()
    await trio.sleep(_STOP_PATIENCE_S)
    process.kill()
