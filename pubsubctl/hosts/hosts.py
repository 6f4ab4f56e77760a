"""The hosts of a command, which are reached, locked and operated on together.

Hosts with full disks are named: brokers there acknowledge nothing, and do not begin.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import trio

from brokerd.agent.client import AgentClient
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.deployment.bundle import Bundle, build_bundle
from pubsubctl.deployment.plan import ObservedState
from pubsubctl.errors import HostError, PreflightFailed, Unreachable
from pubsubctl.hosts.agents import HeldContext
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.connectors.local import local_connector
from pubsubctl.hosts.connectors.ssh import ssh_connector
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.project import xdg_folder

T = TypeVar("T")


@dataclass
class Lab:
    """The hosts of a command.

    Attributes:
        forks: the number of hosts that are operated on at the same time.
        connections: the connections that all remote hosts share.
    """

    inventory: Inventory
    connectors: tuple[Connector, ...]
    forks: int
    connections: AbstractAsyncContextManager[Any] | None = None
    _nursery: trio.Nursery | None = field(default=None, init=False)

    @classmethod
    def of(cls, inventory: Inventory, hosts: Sequence[Host], forks: int) -> "Lab":
        """Return the lab of these hosts, with the connectors that the inventory names."""
        connections = None
        if any(host.connector == "ssh" for host in hosts):
            from pubsubctl.hosts.ssh.connections import SshConnections

            connections = SshConnections(inventory)

        @cache
        def bundle() -> Bundle:
            return build_bundle(xdg_folder("cache") / "blobs")

        rows = [
            local_connector(inventory, host)
            if connections is None or host.connector == "local"
            else ssh_connector(inventory, host, connections, bundle)
            for host in hosts
        ]
        return cls(inventory, tuple(rows), forks, connections)

    def deciding(self) -> dict[str, dict[str, Any]]:
        """Return the properties of the hosts that affect the numbers of a run, JSON-ready."""
        return self.inventory.deciding([row.host for row in self.connectors])

    def connector(self, host: str) -> Connector:
        return next(row for row in self.connectors if row.host.name == host)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Lab"]:
        """Connect to hosts on demand; all connections end with the block."""
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            if self.connections is not None:
                await stack.enter_async_context(self.connections)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for connector in self.connectors:
                    connector.transport.use(nursery)
                # An exception of the block is raised unchanged, not in a group.
                try:
                    yield self
                except BaseException as error:
                    failure = error
                finally:
                    self._nursery = None
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def install(self, *, only_if_used: bool = False) -> None:
        """Install our program on every host; do nothing on a host that has the program.

        The installation begins after all hosts have received and hashed all files.

        Args:
            only_if_used: only hosts with files of ours that cannot be inspected without the
                program.

        Raises:
            IntegrityError: a file changed, here or on a host; nothing was installed.
        """

        async def upload(connector: Connector) -> None:
            await connector.transport.upload(only_if_used=only_if_used)

        async def install(connector: Connector) -> None:
            await connector.transport.install(only_if_used=only_if_used)

        await self.on_all(upload, only_together=True)
        await self.on_all(install, only_together=True)

    @asynccontextmanager
    async def operate(
        self,
        purpose: str,
        progress: Progress,
        interruption: Interruption,
        *,
        only_if_used: bool = False,
    ) -> AsyncIterator["Lab"]:
        """Reach the hosts, install our program (see `installed`), and hold the operator locks."""
        async with self.open():
            with interruption.stoppable():
                if self.connections is not None:
                    progress.phase("reaching hosts")
                await self.install(only_if_used=only_if_used)
            async with self.lock(purpose):
                yield self

    async def without_unreachable(self) -> list[Unreachable]:
        """Drop unreachable hosts from the lab; return the reasons."""
        lost: dict[str, Unreachable] = {}

        async def reach(connector: Connector) -> None:
            try:
                await connector.transport.reach()
            except Unreachable as error:
                lost[connector.host.name] = error

        await self.on_all(reach)
        kept = [row for row in self.connectors if row.host.name not in lost]
        if not kept:
            raise ExceptionGroup("no host can be reached", list(lost.values()))
        self.connectors = tuple(kept)
        return [lost[name] for name in sorted(lost)]

    async def commands(self) -> dict[str, list[str]]:
        """Return host → the remote commands that a deployment would run from here on."""
        found: dict[str, list[str]] = {}

        async def plan(connector: Connector) -> None:
            found[connector.host.name] = await connector.transport.list_commands()

        await self.on_all(plan, only_together=True)
        return {row.host.name: lines for row in self.connectors if (lines := found[row.host.name])}

    @asynccontextmanager
    async def lock(self, purpose: str) -> AsyncIterator[None]:
        """Hold the operator locks of all hosts; PreflightFailed names the holder of a lock."""

        async def connect(connector: Connector) -> None:
            await connector.lock_holder()

        await self.on_all(connect, only_together=True)  # at once; locks are taken in order
        async with AsyncExitStack() as stack:
            for connector in self.connectors:
                await stack.enter_async_context(connector.lock(purpose))
            yield

    async def hold_agent(self, host: str) -> HeldContext[AgentClient]:
        """Open a connection to a host's agent that any task may use, and leave."""
        assert self._nursery is not None, "to be used inside `opened`"
        return await HeldContext.enter(self._nursery, self.connector(host).open_agent())

    async def cores(self, hosts: Collection[str]) -> dict[str, Sequence[int]]:
        """Return host → the CPUs available to brokers, for the given hosts."""
        found: dict[str, Sequence[int]] = {}

        async def look(connector: Connector) -> None:
            found[connector.host.name] = await connector.cores()

        chosen = [row for row in self.connectors if row.host.name in hosts]
        await self.on_all(look, chosen, only_together=True)
        return found

    async def observe(self) -> list[ObservedState]:
        """Return our processes, files and deployment on every host."""
        found: dict[str, ObservedState] = {}

        async def look(connector: Connector) -> None:
            found[connector.host.name] = await connector.observe()

        await self.on_all(look, only_together=True)
        return [found[connector.host.name] for connector in self.connectors]

    async def on_all(
        self,
        act: Callable[[Connector], Awaitable[None]],
        connectors: Sequence[Connector] | None = None,
        *,
        only_together: bool = False,
    ) -> None:
        """Run `act` on every host, with a bounded number of hosts at the same time.

        Args:
            only_together: the result is useless unless all hosts succeed, so an unreachable host
                fails the whole act.

        Raises:
            ExceptionGroup: of all failures, in the order of the hosts, after the act ran on all
                hosts. Unreachable hosts become a HostError if the act succeeded on others.
        """
        chosen = self.connectors if connectors is None else tuple(connectors)
        limiter = trio.CapacityLimiter(self.forks)
        failed: dict[int, Exception] = {}

        async def turn(place: int, connector: Connector) -> None:
            async with limiter:
                try:
                    await act(connector)
                except Exception as error:
                    failed[place] = error

        async with trio.open_nursery() as nursery:
            for place, connector in enumerate(chosen):
                nursery.start_soon(turn, place, connector)
        if failures := [failed[place] for place in sorted(failed)]:
            done = 0 if only_together else len(chosen) - len(failures)
            raise ExceptionGroup("on some hosts", partial_failure(failures) if done else failures)


async def run_reaching(lab: Lab, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`, run while the hosts of `lab` can be reached."""
    async with lab.open():
        return await work()


def partial_failure(failures: Sequence[Exception]) -> list[Exception]:
    """Return the failures on some hosts of an act that succeeded on others."""
    return [
        HostError(*error.problems) if isinstance(error, Unreachable) else error
        for error in failures
    ]


LEAST_FREE_BYTES = 1 << 20
"""Below this, the durable files of a broker may not grow any more."""


async def lack_of_room(connector: Connector) -> str:
    """Return a complaint about the disk for a host's durable files; "" while there is room."""
    room = await connector.data_room()
    if room is None or room[1] >= LEAST_FREE_BYTES:
        return ""
    folder, free_bytes = room
    return f"{free_bytes:,} bytes free in {folder}: brokers there wait until there is room"


async def check_room(lab: Lab) -> None:
    """Check that the disks for durable files have free space on every host.

    Raises:
        PreflightFailed: a disk is full; names hosts and folders.
    """
    full: dict[str, str] = {}

    async def look(connector: Connector) -> None:
        if text := await lack_of_room(connector):
            full[connector.host.name] = f"host {connector.host.name}: {text}"

    await lab.on_all(look)
    if full:
        problems = [full[name] for name in sorted(full)]
        raise PreflightFailed(*problems, "free some, or name another data_dir in the inventory")
