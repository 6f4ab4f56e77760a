"""The transport `ssh`: a host that is reached over the network and only has Python.

Before the first bundle, a small script on the standard input of the host's Python inspects the
host. With a bundle, `python -m bench.run.machine host` answers requests for the time of the
connection; the end of the process frees the operator lock. State that must survive a lost
connection belongs to the agent.
"""

import json
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from brokerd.agent.client import AgentClient, open_agent
from brokerd.agent.host import bootstrap
from brokerd.errors import ControlError
from brokerd.runtime.control_socket import ControlClient, open_control
from pubsubctl.deployment.bundle import Bundle
from pubsubctl.errors import HostError, IntegrityError, PreflightFailed, UserError
from pubsubctl.hosts.agents import HeldContext
from pubsubctl.hosts.connectors.base import Connector, Ran
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.inventory import Host, Inventory

LOOK_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 600.0
PING_EVERY_S = 10.0
OLDEST_PYTHON = (3, 11)


class CommandOutcome(Protocol):
    """The outcome of a remote command."""

    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class Connections(Protocol):
    """Shared connections to hosts; pubsubctl.hosts.ssh.connections has the real implementation."""

    async def run(
        self, host: Host, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0
    ) -> CommandOutcome: ...

    def open(
        self, host: Host, command: Sequence[str]
    ) -> AbstractAsyncContextManager[trio.abc.Stream]: ...

    async def put(self, host: Host, source: Path, target: str, *, mode: int = 0o600) -> None: ...

    async def get(
        self, host: Host, source: str, target: Path, *, most_bytes: int | None = None
    ) -> None: ...


@dataclass(frozen=True)
class HostState:
    """The script's findings on a host.

    Attributes:
        root: the canonical path of the root.
        environments: installed bundles, the latest first.
        missing: requested blobs that must be uploaded.
        exists: True if the root exists.
        is_bare: neither files nor processes of ours are there, so no process of ours can answer.
        processors: the CPUs and their topology.
    """

    root: str
    environments: tuple[str, ...]
    missing: tuple[str, ...]
    is_bare: bool
    exists: bool = True
    processors: Mapping[str, Any] = field(default_factory=dict)


class SshTransport:
    """A transport to a host over SSH. Implements `Transport`.

    Args:
        bundle: builds the bundle for installation; called on first use.
    """

    def __init__(
        self,
        inventory: Inventory,
        host: Host,
        connections: Connections,
        bundle: Callable[[], Bundle],
    ) -> None:
        self.host = host
        self.commands: list[str] = []
        self._connections = connections
        self._make_bundle = bundle
        self._wanted_root = host.root or f"~/.local/share/pubsubctl/{inventory.name}/{host.name}"
        self._nursery: trio.Nursery | None = None
        self._found: HostState | None = None
        self._helper: HeldContext[ControlClient] | None = None
        self._connecting = trio.Lock()
        self._lock_arguments: dict[str, Any] | None = None

    def use(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._found, self._helper = None, None

    async def reach(self) -> None:
        await self._look()

    async def processors(self) -> Mapping[str, Any]:
        return (await self._look()).processors

    async def run(self, command: Sequence[str], timeout_s: float) -> Ran:
        """Run a command in the user's login folder. See Transport."""
        done = await self._connections.run(self.host, command, timeout_s=timeout_s)
        return Ran(done.status, done.stdout, done.stderr)

    async def call(self, command: str, **arguments: Any) -> dict[str, Any] | None:
        """Send a request to the host. See Transport.

        After a lost connection, reconnect once and take the lock again. All requests are repeatable
        but `start_agent`, which is repeated only if the agent is not running yet.
        """
        try:
            return await self._call(command, arguments)
        except ControlError as error:
            if error.kind != "closed":
                raise
            if command == "start_agent":
                seen = await self._call("observe", {})
                if seen is not None and seen["agent"] == arguments["deployment_id"]:
                    return {}
            return await self._call(command, arguments)

    async def _call(self, command: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        control = await self._control()
        if control is None:
            return None
        try:
            answer = await control.request(command, **arguments)
        except ControlError as error:
            if error.kind == "closed":
                self._forget()
            raise
        if command == "lock":
            self._lock_arguments = arguments
        elif command == "unlock":
            self._lock_arguments = None
        return answer

    def _forget(self) -> None:
        """Discard the connection and the findings about the host."""
        if self._helper is not None and self._nursery is not None:
            self._nursery.start_soon(self._helper.leave)
        self._helper, self._found = None, None

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[AgentClient]:
        found = await self._look()
        if not found.environments:
            raise ControlError("closed", f"{found.root}: no agent runs here")
        command = [*self._machine(found), "attach", "--root", found.root]
        is_there = False
        try:
            async with self._open(command) as stream, open_agent(stream) as agent:
                await (
                    agent.status()
                )  # a caller that receives the agent can rely on an answering agent
                is_there = True
                yield agent
        except HostError as error:
            if is_there:
                raise
            raise ControlError("closed", str(error)) from error

    async def fetch(self, source: str, target: Path, most_bytes: int) -> None:
        await self._connections.get(self.host, source, target, most_bytes=most_bytes)

    async def upload(self, *, only_if_used: bool = False) -> None:
        found = await self._look(fresh=True)
        bundle = self._make_bundle()
        if bundle.sha256 in found.environments:
            return
        if only_if_used and (found.is_bare or found.environments):
            return
        await self._script("prepare")
        missing = set(found.missing)
        for blob in bundle.blobs:
            if blob.sha256 in missing:
                target = f"{found.root}/{bootstrap.BLOBS}/{blob.sha256}"
                self.commands.append(f"put {blob.name} {shlex.quote(target)}")
                await self._connections.put(self.host, blob.path, target)
                missing.discard(blob.sha256)
        await self._script("verify", bundle.sha256, timeout_s=INSTALL_TIMEOUT_S)

    async def install(self, *, only_if_used: bool = False) -> None:
        found = await self._look()
        bundle = self._make_bundle()
        if bundle.sha256 in found.environments:
            return
        if only_if_used and (found.is_bare or found.environments):
            return
        await self._script("install", bundle.sha256, timeout_s=INSTALL_TIMEOUT_S)
        await self._look(fresh=True)

    async def clear(self) -> None:
        found = await self._look()
        if found.exists and not found.environments and found.is_bare:
            await self._script("clear")
            self._found = None

    async def list_commands(self) -> list[str]:
        found = await self._look()
        bundle = self._make_bundle()
        lines: list[str] = []
        if bundle.sha256 not in found.environments:
            lines.append(shlex.join(self._script_command("prepare")))
            missing = set(found.missing)
            for blob in bundle.blobs:
                if blob.sha256 in missing:
                    target = f"{found.root}/{bootstrap.BLOBS}/{blob.sha256}"
                    lines.append(f"put {blob.name} {shlex.quote(target)}")
                    missing.discard(blob.sha256)
            lines.append(shlex.join(self._script_command("verify", bundle.sha256)))
            lines.append(shlex.join(self._script_command("install", bundle.sha256)))
            lines.append(shlex.join(self._look_command(bundle)))
        after = HostState(found.root, (bundle.sha256,), (), False)
        helper = shlex.join(self._helper_command(after))
        if helper not in self.commands:
            lines.append(helper)
        lines.append(shlex.join([*self._machine(after), "attach", "--root", after.root]))
        return lines

    async def program(self) -> str:
        return self._make_bundle().sha256

    async def _control(self) -> ControlClient | None:
        """Return the connection to our process on the host; None if none is installed."""
        async with self._connecting:
            if self._helper is None:
                found = await self._look()
                if not found.environments:
                    if not found.is_bare:
                        raise PreflightFailed(
                            f"host {self.host.name}: {found.root} is not empty, and nothing to "
                            "look into it with is installed; `pubsubctl down` clears it"
                        )
                    return None
                assert self._nursery is not None, "to be used inside `Lab.opened`"
                self._helper = await HeldContext.enter(
                    self._nursery, self._serve(self._helper_command(found))
                )
                if self._lock_arguments is not None:
                    await self._helper.value.request("lock", **self._lock_arguments)
            return self._helper.value

    @asynccontextmanager
    async def _serve(self, command: Sequence[str]) -> AsyncIterator[ControlClient]:
        async def keep_alive(control: ControlClient) -> None:
            try:
                while True:
                    await trio.sleep(PING_EVERY_S)
                    await control.request("ping")
            except ControlError:
                pass  # the next request reports the error

        async with self._open(command) as stream, open_control(stream) as control:
            await control.request("ping")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_alive, control)
                yield control
                nursery.cancel_scope.cancel()

    def _open(self, command: Sequence[str]) -> AbstractAsyncContextManager[trio.abc.Stream]:
        self.commands.append(shlex.join(command))
        return self._connections.open(self.host, command)

    async def _look(self, *, fresh: bool = False) -> HostState:
        if self._found is not None and not fresh:
            return self._found
        bundle = self._make_bundle()
        answer = await self._run_script(self._look_command(bundle), LOOK_TIMEOUT_S)
        version = tuple(answer["python"])
        if version < OLDEST_PYTHON:
            raise PreflightFailed(
                f"host {self.host.name}: {self.host.python} is Python "
                f"{'.'.join(map(str, version))}; 3.11 or newer is needed; name one in the "
                'inventory: python = "python3.11"'
            )
        environments = list(answer["environments"])
        if bundle.sha256 in environments:  # ours first: same commands
            environments.remove(bundle.sha256)
            environments.insert(0, bundle.sha256)
        self._found = HostState(
            answer["root"],
            tuple(environments),
            tuple(answer["missing"]),
            not answer["entries"] and not answer["processes"],
            answer["exists"],
            {name: answer[name] for name in ("cores", "core_threads", "numa_nodes")},
        )
        return self._found

    async def _script(
        self, command: str, *arguments: str, timeout_s: float = LOOK_TIMEOUT_S
    ) -> dict[str, Any]:
        return await self._run_script(self._script_command(command, *arguments), timeout_s)

    async def _run_script(self, words: Sequence[str], timeout_s: float) -> dict[str, Any]:
        self.commands.append(shlex.join(words))
        script = Path(bootstrap.__file__).read_bytes()
        done = await self._connections.run(self.host, words, stdin=script, timeout_s=timeout_s)
        output = done.stderr.decode(errors="replace").strip().splitlines()
        if done.status in (126, 127):
            raise PreflightFailed(
                f"host {self.host.name}: {self.host.python} cannot be run there "
                f"({output[-1] if output else f'status {done.status}'}); name another in the "
                'inventory: python = "python3.11"'
            )
        try:
            answer = json.loads(done.stdout.splitlines()[-1]) if done.status == 0 else None
        except (ValueError, IndexError):
            answer = None
        if not isinstance(answer, dict):
            why = shown(output[-1] if output else f"status {done.status}")
            raise HostError(f"host {self.host.name}: {words[3]} failed: {why}")
        if "refused" in answer:
            if answer["damaged"]:
                raise IntegrityError(
                    f"host {self.host.name}: {answer['refused']}; nothing was installed; "
                    "remove that file"
                )
            raise HostError(f"host {self.host.name}: {answer['refused']}")
        return answer

    def _script_command(self, command: str, *arguments: str) -> list[str]:
        root = self._found.root if self._found is not None else self._wanted_root
        return [self.host.python, "-I", "-", command, root, *arguments]

    def _look_command(self, bundle: Bundle) -> list[str]:
        words = [self.host.python, "-I", "-", "look", self._wanted_root]
        return words + [blob.sha256 for blob in bundle.blobs]

    def _machine(self, found: HostState) -> list[str]:
        python = f"{found.root}/venv-{found.environments[0]}/bin/python"
        return [python, "-I", "-m", "bench.run.machine"]

    def _helper_command(self, found: HostState) -> list[str]:
        return [*self._machine(found), "host", "--root", found.root, "--name", self.host.name]


def ssh_connector(
    inventory: Inventory, host: Host, connections: Connections, bundle: Callable[[], Bundle]
) -> Connector:
    if not host.address:
        raise UserError(f"{inventory.path}: host {host.name} has no address to be reached at")
    return Connector(SshTransport(inventory, host, connections, bundle))
