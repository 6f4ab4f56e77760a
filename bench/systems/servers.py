"""Servers of a system under test on this machine: started by an agent, and gone with it.

Each run has a folder and ports of its own. The agent is the servers' parent, and ends them by its
lease should the controller die; so nothing of a run is in the way of the next one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Final

import trio

from bench.run.coordinator import only_cause
from bench.run.testbed import BrokerPlace, Testbed
from bench.systems.boundary import Server, Start
from bench.systems.configuration import Configuration
from bench.systems.programs import free_ports
from brokerd.agent.client import AgentClient, open_agent_of
from brokerd.errors import BrokerError, ControlError
from brokerd.overlay.topology import SCHEMA, Topology

HOST: Final = "local"
START_WITHIN_S: Final = 20.0
LEASE_MS: Final = 30_000
_SHUTDOWN_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.05
_SAID_BYTES: Final = 1500
_PROJECT: Final = Path(__file__).parents[2]


class ServerFailed(BrokerError):
    """A server that does not start, with what it said."""

    exit_status: ClassVar[int] = 4


def topology_of(configuration: Configuration) -> Topology:
    """The servers as brokers in a row; which ways lead from one to another says the overlay."""
    names = configuration.servers
    links = [[a, b] for a, b in pairwise(names)]
    return Topology.from_mapping(
        {
            "schema": SCHEMA, "name": configuration.name, "kind": "tree", "tree": {"delta": 1},
            "brokers": [*names], "links": links,
        },
        str(configuration.source),
    )  # fmt: skip


class SystemServers:
    """The servers of a configuration, as they are placed.

    Attributes:
        servers: by name.
    """

    def __init__(self, configuration: Configuration, root: Path) -> None:
        self.configuration = configuration
        self.servers: dict[str, Server] = {}
        count = configuration.system.ports
        ports = free_ports(count * len(configuration.servers))
        for place, name in enumerate(configuration.servers):
            own = ports[place * count : (place + 1) * count]
            self.servers[name] = Server(name, root / "servers" / name, own[0], tuple(own[1:]))

    async def start(self, agent: AgentClient, root: Path) -> None:
        """Start all of them, and return when each takes part.

        Raises:
            ServerFailed: one ends, or does not within START_WITHIN_S; says what it said.
        """
        of = self.configuration
        servers = [*self.servers.values()]
        starts = of.system.start(of.program, servers, of.settings, of.version)
        for server, start in zip(servers, starts, strict=True):
            _write_files(server, start)
            config = {
                "command": list(start.command),
                "folder": str(server.folder),
                "log_folder": str(root / "log" / server.name),
            }
            if of.loses_unsynced:
                config["kept"] = str(root / "kept" / server.name)
            await agent.start(server.name, "program", config, "")
        for server in servers:
            with trio.move_on_after(START_WITHIN_S) as waiting:
                while not await self.is_up(server.name):
                    row = (await agent.status(server.name))["processes"][server.name]
                    if row["state"] != "running":
                        raise self._failed(server, root, "has ended")
                    await trio.sleep(_POLL_S)
            if waiting.cancelled_caught:
                raise self._failed(server, root, f"is not up after {START_WITHIN_S:g} s")

    async def is_up(self, name: str) -> bool:
        """Whether a server takes part."""
        of = self.configuration
        return await trio.to_thread.run_sync(of.system.is_up, self.servers[name], of.settings)

    def leader(self) -> str:
        """Which server leads now, a single one always; "" where nobody knows."""
        of = self.configuration
        if len(of.servers) == 1:
            return of.servers[0]
        if of.system.leader is None:
            return ""
        return of.system.leader([*self.servers.values()], of.settings)

    def _failed(self, server: Server, root: Path, what: str) -> ServerFailed:
        said = [
            path.read_text(errors="replace").strip()
            for path in sorted((root / "log" / server.name).glob("std*.log"))
        ]
        words = "\n".join(text for text in said if text)[-_SAID_BYTES:]
        name = self.configuration.system.program
        return ServerFailed(f"{name} ({server.name}) {what}: {words or 'it said nothing'}")


@asynccontextmanager
async def servers_running(
    configuration: Configuration,
) -> AsyncIterator[tuple[Testbed, SystemServers]]:
    """The servers of a configuration, until the block ends; nothing is left of them then.

    Raises:
        ServerFailed: they do not start.
    """
    root = Path(mkdtemp(prefix="pubsubctl-system-"))
    try:
        deployment = root.name
        await _start_agent(root, deployment)
        async with open_agent_of(root) as agent, trio.open_nursery() as nursery:
            try:
                await agent.hold(LEASE_MS)
                nursery.start_soon(_renew, agent)
                servers = SystemServers(configuration, root)
                await servers.start(agent, root)
                yield _testbed(configuration, servers, agent, root, deployment), servers
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(_SHUTDOWN_WITHIN_S):
                    await agent.shutdown()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if (cause := only_cause(group)) is not None:
            raise cause from group
        raise
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _testbed(
    configuration: Configuration,
    servers: SystemServers,
    agent: AgentClient,
    root: Path,
    deployment: str,
) -> Testbed:
    topology = topology_of(configuration)
    return Testbed(
        agents={HOST: agent},
        brokers={
            name: BrokerPlace(HOST, name, server.address)
            for name, server in servers.servers.items()
        },
        topology=topology,
        topology_digest="",
        protocol=configuration.name,
        deployment_id=deployment,
        host_roots={HOST: root},
        clients_host=HOST,
        documents={"system.json": configuration.facts()},
    )


async def _start_agent(root: Path, deployment: str) -> None:
    command = [sys.executable, "-m", "bench.run.machine", "agent", "--root", str(root)]
    done = await trio.run_process(
        [*command, "--name", HOST, "--deployment", deployment], cwd=_PROJECT, env=os.environ,
        capture_stderr=True, capture_stdout=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ServerFailed(f"no agent: {done.stderr.decode(errors='replace').strip()}")


async def _renew(agent: AgentClient) -> None:
    while True:
        await trio.sleep(LEASE_MS / 5000)
        try:
            await agent.hold(LEASE_MS)
        except ControlError:
            return  # it is gone, and the run will say so


def _write_files(server: Server, start: Start) -> None:
    server.folder.mkdir(mode=0o700, parents=True)
    for name, content in start.files.items():
        (server.folder / name).write_text(content, encoding="utf-8")
