"""The hosts of one command: reached together, locked together, worked on side by side."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import trio

from brokerd.agent.client import AgentClient
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.deploying.bundle import Bundle, build_bundle
from pubsubctl.deploying.plan import Observed
from pubsubctl.errors import HostError, Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.connectors.local import local_connector
from pubsubctl.hosts.connectors.ssh import ssh_connector
from pubsubctl.hosts.held import Held
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.project import xdg_folder

T = TypeVar("T")


@dataclass
class Lab:
    """The hosts of one command.

    Attributes:
        forks: how many of them are worked on at the same time.
        connections: what all hosts that are reached over the network share.
    """

    inventory: Inventory
    connectors: tuple[Connector, ...]
    forks: int
    connections: AbstractAsyncContextManager[Any] | None = None
    _nursery: trio.Nursery | None = field(default=None, init=False)

    @classmethod
    def of(cls, inventory: Inventory, hosts: Sequence[Host], forks: int) -> "Lab":
        """The lab of these hosts, each reached in the way its inventory says."""
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
        """What of its hosts decides the numbers of a run on them, JSON-ready."""
        return self.inventory.deciding([row.host for row in self.connectors])

    def connector(self, host: str) -> Connector:
        """The one of that host."""
        return next(row for row in self.connectors if row.host.name == host)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Lab"]:
        """Reach the hosts as they are needed; all connections end with the block."""
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            if self.connections is not None:
                await stack.enter_async_context(self.connections)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for connector in self.connectors:
                    connector.transport.use(nursery)
                # What is raised in the block comes out as it is, not in a group.
                try:
                    yield self
                except BaseException as error:
                    failure = error
                finally:
                    self._nursery = None
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def installed(self, *, only_if_used: bool = False) -> None:
        """Have our program on every host; where it is there already, nothing is done.

        On no host anything is installed before on every host everything is there and hashed.

        Args:
            only_if_used: only where something of ours is that cannot be looked into without.

        Raises:
            IntegrityError: a file is not what it was: here, or there; nothing was installed.
        """

        async def upload(connector: Connector) -> None:
            await connector.transport.upload(only_if_used=only_if_used)

        async def install(connector: Connector) -> None:
            await connector.transport.install(only_if_used=only_if_used)

        await self.on_all(upload, only_together=True)
        await self.on_all(install, only_together=True)

    @asynccontextmanager
    async def operated(
        self,
        purpose: str,
        progress: Progress,
        interruption: Interruption,
        *,
        only_if_used: bool = False,
    ) -> AsyncIterator["Lab"]:
        """Reach the hosts, have our program on them (see `installed`), and keep others away."""
        async with self.opened():
            with interruption.stoppable():
                if self.connections is not None:
                    progress.phase("reaching hosts")
                await self.installed(only_if_used=only_if_used)
            async with self.locked(purpose):
                yield self

    async def without_unreachable(self) -> list[Unreachable]:
        """Go on with the hosts that can be reached; gives why the others cannot."""
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
        """Host → the remote commands that a deployment would run from here on."""
        found: dict[str, list[str]] = {}

        async def plan(connector: Connector) -> None:
            found[connector.host.name] = await connector.transport.planned()

        await self.on_all(plan, only_together=True)
        return {row.host.name: lines for row in self.connectors if (lines := found[row.host.name])}

    @asynccontextmanager
    async def locked(self, purpose: str) -> AsyncIterator[None]:
        """Keep other operators away from all hosts; PreflightFailed says who has one."""

        async def connect(connector: Connector) -> None:
            await connector.lock_holder()

        await self.on_all(connect, only_together=True)  # at once; locks are taken in order
        async with AsyncExitStack() as stack:
            for connector in self.connectors:
                await stack.enter_async_context(connector.lock(purpose))
            yield

    async def hold_agent(self, host: str) -> Held[AgentClient]:
        """A connection to a host's agent that any task may use, and leave."""
        assert self._nursery is not None, "to be used inside `opened`"
        return await Held.enter(self._nursery, self.connector(host).open_agent())

    async def cores(self, hosts: Collection[str]) -> dict[str, Sequence[int]]:
        """Host → the CPUs that brokers may run on there, of these hosts."""
        found: dict[str, Sequence[int]] = {}

        async def look(connector: Connector) -> None:
            found[connector.host.name] = await connector.cores()

        chosen = [row for row in self.connectors if row.host.name in hosts]
        await self.on_all(look, chosen, only_together=True)
        return found

    async def observe(self) -> list[Observed]:
        """What there is of ours on each host."""
        found: dict[str, Observed] = {}

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
        """Do something on every host, some at the same time.

        Args:
            only_together: it is of no use where it is not done on all of them, so that a host
                that cannot be reached is the failure of all.

        Raises:
            ExceptionGroup: of what went wrong, in the order of the hosts, after all had their
                turn. Where only some cannot be reached, that is a HostError: the others are done.
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
            raise ExceptionGroup("on some hosts", in_part(failures) if done else failures)


async def reached(lab: Lab, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives, done while the hosts of `lab` can be reached."""
    async with lab.opened():
        return await work()


def in_part(failures: Sequence[Exception]) -> list[Exception]:
    """What went wrong on some hosts, while on others all is done."""
    return [
        HostError(*error.problems) if isinstance(error, Unreachable) else error
        for error in failures
    ]
