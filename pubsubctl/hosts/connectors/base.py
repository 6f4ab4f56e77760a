"""Operations on a host that are the same for every connector."""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import trio

from brokerd.agent.client import AgentClient
from brokerd.agent.host.private_files import operator_name
from brokerd.errors import ControlError
from pubsubctl.deployment.placement import LOOPBACK, cores_of
from pubsubctl.deployment.plan import ObservedState, Stray
from pubsubctl.errors import HostError, PreflightFailed, PubsubctlError, Unreachable
from pubsubctl.inventory.inventory import Host


@dataclass(frozen=True)
class PortInUse:
    """A port that is in use, with the owner as far as the owner can be determined.

    Attributes:
        deployment: the deployment of the owner, if the owner is an agent or a broker.
    """

    port: int
    pid: int | None
    owner: str
    deployment: Mapping[str, str] | None = None

    def __str__(self) -> str:
        pid = f" by pid {self.pid}" if self.pid is not None else ""
        return f"port {self.port} is in use{pid} ({self.owner})"


@dataclass(frozen=True)
class Ran:
    """The outcome of a command on a host.

    Attributes:
        status: the exit status; -1 after a signal.
    """

    status: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """A channel to the commands of brokerd.agent.host.server on a host, and to the host's agent."""

    @property
    def host(self) -> Host: ...

    @property
    def commands(self) -> Sequence[str]:
        """Return every remote command that was run so far, in shell syntax."""

    def use(self, nursery: trio.Nursery) -> None:
        """Set the nursery for the background tasks of the transport's connections."""

    async def reach(self) -> None:
        """Check that the host can be reached; raise Unreachable if not."""

    async def processors(self) -> Mapping[str, Any]:
        """Return the host's CPUs and CPU topology (see deploying.cores); needs no installation."""

    async def run(self, command: Sequence[str], timeout_s: float) -> "Ran":
        """Run a command of the user and return the outcome; raise HostError after `timeout_s`."""

    async def call(self, command: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the host's answer; None if nothing of ours is installed there.

        Raises:
            ControlError: the host refused, or cannot be reached (`closed`).
            Unreachable: the host cannot be reached; with reason and remedy.
        """

    def open_agent(self) -> AbstractAsyncContextManager[AgentClient]:
        """Open a connection to the agent; ControlError `closed` if the agent does not answer."""

    async def fetch(self, source: str, target: Path, most_bytes: int) -> None:
        """Copy a regular file of the host to here."""

    async def upload(self, *, only_if_used: bool = False) -> None:
        """Upload and hash the files to be installed; install nothing.

        Args:
            only_if_used: skip hosts without files of ours, and hosts that have an older program.

        Raises:
            IntegrityError: a file on the host differs from the uploaded file.
        """

    async def install(self, *, only_if_used: bool = False) -> None:
        """Install the uploaded files; do nothing if the program is installed."""

    async def clear(self) -> None:
        """Remove the files of an `upload` without an `install`, unless the root has other files."""

    async def list_commands(self) -> list[str]:
        """Return the remote commands that a deployment would run from here on."""

    async def program(self) -> str:
        """Return the name of the program that would be started on the host now."""


class Connector:
    """A host with the observed state, the agent and the files.

    Every method may raise Unreachable, and HostError if the request failed on the host.

    Attributes:
        host: the host's row in the inventory.
        transport: the transport to the host.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.host = transport.host
        self._about: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Return the address on which the host's brokers listen."""
        return str(getattr(self.host, "bench_address", "") or LOOPBACK)

    async def root(self) -> Path:
        """Return the folder on the host that contains all files of ours."""
        return Path((await self._known())["root"])

    async def socket_folder(self) -> Path:
        """Return the folder on the host for our control sockets."""
        return Path((await self._known())["socket_folder"])

    async def cores(self) -> Sequence[int]:
        """Return the CPUs available to brokers, in the order of assignment."""
        return cores_of(self.host, await self.transport.processors())

    @asynccontextmanager
    async def lock(self, purpose: str) -> AsyncIterator[None]:
        """Hold the operator lock of the host; PreflightFailed names the present holder."""
        await self._call("lock", purpose=purpose, who=operator_name(), pid=os.getpid())
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                try:
                    await self._call("unlock")
                except Unreachable:
                    pass  # the lock ended with the connection

    async def run(self, command: Sequence[str], timeout_s: float) -> Ran:
        """Run a command of the user, with the arguments unchanged, and return the outcome."""
        return await self.transport.run(command, timeout_s)

    async def lock_holder(self) -> str:
        """Return the holder of the lock with time and purpose, in words; "" if the lock is free."""
        return str((await self._call("lock_holder")).get("holder", ""))

    async def interrupted_command(self) -> str:
        """Return the last command on the host if interrupted, in words; or ""."""
        return str((await self._call("lock_holder")).get("interrupted", ""))

    async def facts(self) -> dict[str, Any]:
        """Return facts about the machine."""
        return await self._call("facts")

    async def observe(self) -> ObservedState:
        """Return our processes, files and deployment on the host."""
        found = await self._call("observe")
        if not found:
            return ObservedState(self.host.name)
        return ObservedState(
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
        """Return the given ports that are in use now."""
        found = await self._call("ports_in_use", address=self.address, ports=list(ports))
        return [
            PortInUse(row["port"], row["pid"], row["owner"], row.get("deployment"))
            for row in found.get("ports", [])
        ]

    async def read_deployment(self) -> Mapping[str, Any] | None:
        """Return the deployment recorded here, if any; HostError if the record cannot be read."""
        content: dict[str, Any] | None = (await self._call("read_deployment")).get("deployment")
        return content

    async def write_deployment(self, content: Mapping[str, Any], topology: str) -> None:
        """Record the deployment of this host, and the topology file for the host's brokers."""
        plain = json.loads(json.dumps(content))
        await self._call("write_deployment", content=plain, topology=topology)

    async def write_secret(self, name: str, content: bytes) -> Path:
        """Write a file (`name` or `folder/name`) that only we can read; return the path."""
        return Path((await self._call("write_secret", name=name, content=content))["path"])

    async def state_folder(self, broker: str) -> Path:
        """Return a broker's folder of durable state; HostError if data_dir is missing."""
        if not self.host.data_dir:
            return await self.root() / "brokers" / broker / "state"
        found = await self._call("use_data_folder", folder=self.host.data_dir)
        return Path(found["path"]) / broker / "state"

    async def read_recorded_loss(self, broker: str) -> int | None:
        """Return the number of the loss that a broker's state folder records, or None."""
        folder = await self.state_folder(broker)
        return (await self._call("recorded_loss", folder=str(folder))).get("number")

    async def set_state_aside(self, broker: str) -> None:
        """Rename the folder of durable state that a broker left here before, if there is one."""
        await self._call("set_state_aside", folder=str(await self.state_folder(broker)))

    async def data_room(self) -> tuple[str, int] | None:
        """Return the folder of durable files and the free bytes of its disk; None in a dry run."""
        found = await self._call("data_room", folder=self.host.data_dir or "")
        return (found["folder"], found["free_bytes"]) if found else None

    async def read_text(self, path: Path) -> str:
        """Return the end of a text file below the root; HostError if missing or outside."""
        return str((await self._call("read_text", path=str(path))).get("text", ""))

    async def start_agent(self, deployment_id: str, lease_ms: int = 0) -> None:
        """Start the agent, which outlives this process, by at most the lease if a lease is given.

        Raises:
            HostError: the agent does not start.
        """
        await self._call("start_agent", deployment_id=deployment_id, lease_ms=lease_ms)

    async def stop_agent(self) -> None:
        """End only the agent; its processes run on, for adoption by the next agent."""
        await self._call("stop_agent")

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[AgentClient]:
        """Open a connection to the agent; Unreachable if the agent does not answer."""
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
        await self._call("stop_strays")

    async def remove(self, *, purge: bool) -> None:
        """Remove our files; with `purge`, the containing folders and the program, too."""
        await self._call("remove", purge=purge)
        if purge:
            await self.transport.clear()

    async def residue(self, ports: Sequence[int], *, purged: bool) -> list[str]:
        """Return the residue of ours after `remove`: processes, ports, sockets, files."""
        found = await self._call("residue", address=self.address, ports=list(ports), purged=purged)
        return [f"host {self.host.name}: {row}" for row in found.get("rows", [])]

    async def programs(self) -> dict[str, Any]:
        """Return the installed bundles in `programs`, the latest first."""
        return await self._call("programs")

    async def collect_programs(self) -> dict[str, Any]:
        """Remove bundles that neither we nor the deployment there need; returned in `removed`."""
        return await self._call("collect_programs", keep=[await self.transport.program()])

    async def _known(self) -> dict[str, Any]:
        if not self._about:
            self._about = await self._call("about")
        return self._about

    async def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer; empty from a host where nothing of ours is installed."""
        try:
            return await self.transport.call(command, **arguments) or {}
        except ControlError as error:
            kinds: dict[str, type[PubsubctlError]]
            kinds = {"busy": PreflightFailed, "closed": Unreachable}
            kind = kinds.get(error.kind, HostError)
            raise kind(f"host {self.host.name}: {error}") from error
