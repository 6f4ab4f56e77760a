"""What can be done with a host, whatever way it is reached."""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import trio

from brokerd.agent.client import AgentClient
from brokerd.agent.host.operator_lock import operator_name
from brokerd.errors import ControlError
from pubsubctl.deploying.cores import cores_of
from pubsubctl.deploying.placement import LOOPBACK
from pubsubctl.deploying.plan import Observed, Stray
from pubsubctl.errors import HostError, PreflightFailed, PubsubctlError, Unreachable
from pubsubctl.inventory.inventory import Host


@dataclass(frozen=True)
class PortInUse:
    """A port that cannot be listened on, and who has it as far as one can tell."""

    port: int
    pid: int | None
    owner: str

    def __str__(self) -> str:
        pid = f" by pid {self.pid}" if self.pid is not None else ""
        return f"port {self.port} is in use{pid} ({self.owner})"


@dataclass(frozen=True)
class Ran:
    """What a command on a host came to.

    Attributes:
        status: -1 when a signal ended it.
    """

    status: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """How commands of brokerd.agent.host.server get to a host, and how its agent is reached."""

    @property
    def host(self) -> Host: ...

    @property
    def commands(self) -> Sequence[str]:
        """Every remote command that was run so far, as a person would type it."""

    def use(self, nursery: trio.Nursery) -> None:
        """Where its tasks may run, as long as the connections are wanted."""

    async def reach(self) -> None:
        """Find out whether it can be reached; Unreachable when not."""

    async def processors(self) -> Mapping[str, Any]:
        """Its CPUs and how they lie (see deploying.cores), whatever is installed there."""

    async def run(self, command: Sequence[str], timeout_s: float) -> "Ran":
        """What a command of somebody's own came to; HostError when it took too long."""

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any] | None:
        """What the host answers; None where nothing of ours, so nobody to ask, is there.

        Raises:
            ControlError: it refused, or cannot be reached (`closed`).
            Unreachable: it cannot be reached; says why, and what to do.
        """

    def open_agent(self) -> AbstractAsyncContextManager[AgentClient]:
        """The agent, to talk to; ControlError `closed` when it does not answer."""

    async def fetch(self, source: str, target: Path, most_bytes: int) -> None:
        """Copy a regular file of the host to here."""

    async def upload(self, *, only_if_used: bool = False) -> None:
        """Bring there what is to be installed, and have it hashed; installs nothing.

        Args:
            only_if_used: not where nothing of ours is, nor where there is an older program.

        Raises:
            IntegrityError: something there is not what was uploaded.
        """

    async def install(self, *, only_if_used: bool = False) -> None:
        """Install what was uploaded; nothing happens where it is installed."""

    async def clear(self) -> None:
        """Remove what `upload` began and `install` did not end, where nothing else is."""

    async def planned(self) -> list[str]:
        """The remote commands that a deployment would run from here on."""

    async def program(self) -> str:
        """Names the program that would be started there now."""


class Connector:
    """One host: what was found there, its agent, its files.

    Every method may raise Unreachable; HostError where what was asked for failed over there.

    Attributes:
        host: which.
        transport: how it is reached.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.host = transport.host
        self._about: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Where its brokers listen."""
        return str(getattr(self.host, "bench_address", "") or LOOPBACK)

    async def root(self) -> Path:
        """The folder on it where everything of ours is."""
        return Path((await self._known())["root"])

    async def socket_folder(self) -> Path:
        """The folder on it of our control sockets."""
        return Path((await self._known())["socket_folder"])

    async def cores(self) -> Sequence[int]:
        """The CPUs that brokers may be given, in the order in which they are."""
        return cores_of(self.host, await self.transport.processors())

    @asynccontextmanager
    async def lock(self, purpose: str) -> AsyncIterator[None]:
        """Keep other operators away; PreflightFailed says who has it."""
        await self._ask("lock", purpose=purpose, who=operator_name(), pid=os.getpid())
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                try:
                    await self._ask("unlock")
                except Unreachable:
                    pass  # it ended with the connection

    async def run(self, command: Sequence[str], timeout_s: float) -> Ran:
        """What a command of somebody's own came to, its arguments taken as they are."""
        return await self.transport.run(command, timeout_s)

    async def lock_holder(self) -> str:
        """Who has the lock, since when and for what, in words; "" when nobody does."""
        return str((await self._ask("lock_holder")).get("holder", ""))

    async def facts(self) -> dict[str, Any]:
        """What machine it is."""
        return await self._ask("facts")

    async def observe(self) -> Observed:
        """What is there of ours."""
        found = await self._ask("observe")
        if not found:
            return Observed(self.host.name)
        return Observed(
            host=self.host.name,
            agent=found["agent"],
            processes=found["processes"],
            deployment=found["deployment"],
            strays=tuple(
                Stray(row["pid"], row["name"], tuple(row["ports"])) for row in found["strays"]
            ),
            files=found["files"],
        )

    async def ports_in_use(self, ports: Sequence[int]) -> list[PortInUse]:
        """Those of the ports that nobody could listen on now."""
        found = await self._ask("ports_in_use", address=self.address, ports=list(ports))
        return [PortInUse(row["port"], row["pid"], row["owner"]) for row in found.get("ports", [])]

    async def read_deployment(self) -> Mapping[str, Any] | None:
        """What was recorded of the deployment here; HostError when it cannot be read."""
        content: dict[str, Any] | None = (await self._ask("read_deployment")).get("deployment")
        return content

    async def write_deployment(self, content: Mapping[str, Any], topology: str) -> None:
        """Record what runs here, and the topology file that its brokers read."""
        plain = json.loads(json.dumps(content))
        await self._ask("write_deployment", content=plain, topology=topology)

    async def write_secret(self, name: str, content: bytes) -> Path:
        """Write a file only we can read (`name` or `folder/name`); gives where it is there."""
        return Path((await self._ask("write_secret", name=name, content=content))["path"])

    async def state_folder(self, broker: str) -> Path:
        """Where a broker keeps what must be durable; HostError where data_dir is not there."""
        if not self.host.data_dir:
            return await self.root() / "brokers" / broker / "state"
        found = await self._ask("use_data_folder", folder=self.host.data_dir)
        return Path(found["path"]) / broker / "state"

    async def recorded_loss(self, broker: str) -> int | None:
        """The number of the loss that a broker's state folder records; None if there is none."""
        folder = await self.state_folder(broker)
        return (await self._ask("recorded_loss", folder=str(folder))).get("number")

    async def data_room(self) -> tuple[str, int] | None:
        """The folder of durable files and what its disk has free, in bytes; None in a dry run."""
        found = await self._ask("data_room", folder=self.host.data_dir or "")
        return (found["folder"], found["free_bytes"]) if found else None

    async def read_text(self, path: Path) -> str:
        """The end of a text file below the root; HostError when it is elsewhere, or missing."""
        return str((await self._ask("read_text", path=str(path))).get("text", ""))

    async def start_agent(self, deployment_id: str, lease_ms: int = 0) -> None:
        """Start the agent; it outlives us, by its lease at most if it has one.

        Raises:
            HostError: it does not come up.
        """
        await self._ask("start_agent", deployment_id=deployment_id, lease_ms=lease_ms)

    async def stop_agent(self) -> None:
        """End the agent alone; what it started runs on, for the next one to adopt."""
        await self._ask("stop_agent")

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[AgentClient]:
        """The agent, to talk to; Unreachable when it does not answer."""
        try:
            async with self.transport.open_agent() as client:
                yield client
        except ControlError as error:
            if error.kind != "closed":
                raise
            raise Unreachable(f"host {self.host.name}: no agent answers ({error})") from error

    async def fetch(self, source: str, target: Path, most_bytes: int) -> None:
        """Copy a regular file of the host to here; OSError where that is not possible."""
        await self.transport.fetch(source, target, most_bytes)

    async def stop_strays(self) -> None:
        """End processes of ours that no agent answers for, and an agent that does not answer."""
        await self._ask("stop_strays")

    async def remove(self, *, purge: bool) -> None:
        """Remove our files; with `purge`, the folders that held them and the program, too."""
        await self._ask("remove", purge=purge)
        if purge:
            await self.transport.clear()

    async def residue(self, ports: Sequence[int], *, purged: bool) -> list[str]:
        """What is left of ours after `remove`: processes, ports, sockets, files."""
        found = await self._ask("residue", address=self.address, ports=list(ports), purged=purged)
        return [f"host {self.host.name}: {row}" for row in found.get("rows", [])]

    async def programs(self) -> dict[str, Any]:
        """The bundles that are installed, the latest first, in `programs`."""
        return await self._ask("programs")

    async def collect_programs(self) -> dict[str, Any]:
        """Remove bundles that neither we nor what is deployed there need; `removed` says which."""
        return await self._ask("collect_programs", keep=[await self.transport.program()])

    async def _known(self) -> dict[str, Any]:
        if not self._about:
            self._about = await self._ask("about")
        return self._about

    async def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The answer; empty from a host where nothing of ours is."""
        try:
            return await self.transport.ask(command, **arguments) or {}
        except ControlError as error:
            kinds: dict[str, type[PubsubctlError]]
            kinds = {"busy": PreflightFailed, "closed": Unreachable}
            kind = kinds.get(error.kind, HostError)
            raise kind(f"host {self.host.name}: {error}") from error
