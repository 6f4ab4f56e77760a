"""Servers of a system under test on this machine, started by an agent.

Each run has a folder and ports of its own. The agent is the parent of the servers, and ends them by
its lease if the controller dies. So no remains of a run disturb the next run.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Final

import trio

from bench.run.coordinator import find_only_cause
from bench.run.testbed import BrokerPlace, Testbed
from bench.systems.boundary import Server, Start, call_driver, free_ports, is_taken
from bench.systems.configuration import Configuration
from bench.systems.left_records import SERVERS_FOLDER, LeftRecords
from brokerd.agent.client import AgentClient, open_agent_of
from brokerd.errors import BrokerError, ControlError
from brokerd.interpreter import module_command
from brokerd.overlay.topology import SCHEMA, Topology

HOST: Final = "local"
RELAY: Final = "relay"
_COST_PROBES: Final = 21
_RELAY_WITHIN_S: Final = 15.0
LEASE_MS: Final = 30_000
_SHUTDOWN_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.05
_OUTPUT_BYTES: Final = 1500
_PROJECT: Final = Path(__file__).parents[2]


class ServerFailed(BrokerError):
    """A server that does not start, with its output."""

    exit_status: ClassVar[int] = 4


def topology_of(configuration: Configuration) -> Topology:
    """Return the servers as brokers, linked as they dial each other, or else in a row.

    The overlay document contains the paths between servers.
    """
    names, dials = configuration.servers, configuration.system.dials
    links = [[a, b] for a, b in pairwise(names)]
    if dials is not None:
        links = [[a, b] for a, b in list_links(call_driver(dials, names))]
    found: dict[str, Any] = {"schema": SCHEMA, "name": configuration.name, "brokers": [*names]}
    if len(links) == len(names) - 1:
        found |= {"kind": "tree", "tree": {"delta": 1}, "links": links}
    else:
        places = {name: f"0.{number}" for number, name in enumerate(names)}
        found |= {"kind": "hierarchy", "hierarchy": {"links": links, "addresses": places}}
    return Topology.from_mapping(found, str(configuration.source))


def list_links(dials: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the links between servers, each once, whichever server dials."""
    return sorted({(min(each), max(each)) for each in dials})


class SystemServers:
    """The placed servers of a configuration.

    Args:
        relayed: True if all links pass a relay.
        faulty_disks: True for faults of the servers' disks.

    Attributes:
        root: the folder of the servers, and of all records of the run.
        keeps_records: True if the records stay after the servers have ended.
        servers: servers by name.
        addresses: addresses for clients, by name.
        relay_us: round-trip time of a byte through the relay, without a fault; 0 without a relay.
    """

    def __init__(
        self,
        configuration: Configuration,
        root: Path,
        *,
        relayed: bool = False,
        faulty_disks: bool = False,
    ) -> None:
        self.configuration = configuration
        self.root = root
        self.keeps_records = False
        self.servers: dict[str, Server] = {}
        self.relay_us = 0
        self._faulty_disks = faulty_disks
        count = configuration.system.ports
        ports = free_ports(count * len(configuration.servers))
        for place, name in enumerate(configuration.servers):
            own = ports[place * count : (place + 1) * count]
            self.servers[name] = Server(name, root / "servers" / name, own[0], tuple(own[1:]))
        self.addresses = {name: server.address for name, server in self.servers.items()}
        self._relays: list[dict[str, Any]] = []
        if relayed:
            self._set_relay()

    def facts(self) -> dict[str, Any]:
        """Return facts about the system, for the manifest of a run."""
        facts = self.configuration.facts()
        if not self._relays:
            return facts
        return {**facts, "relay": {"ports": len(self._relays), "round_trip_us": self.relay_us}}

    def _set_relay(self) -> None:
        """Put a port of the relay in place of each dialled port."""
        system, names = self.configuration.system, self.configuration.servers
        dials = call_driver(system.dials, names) if system.dials is not None else ()
        ports = iter(free_ports(len(names) + len(dials)))
        for name in names:
            port = next(ports)
            row = {"link": name, "towards": "in", "port": port, "to_port": self.servers[name].port}
            self._relays.append(row)
            self.addresses[name] = f"127.0.0.1:{port}"
        for a, b in dials:
            port, (first, second) = next(ports), list_links([(a, b)])[0]
            to = self.servers[b]
            to_port = (to.port, *to.further_ports)[system.dialled]
            towards = "out" if a == first else "in"
            link = f"{first}-{second}"
            self._relays.append(
                {"link": link, "towards": towards, "port": port, "to_port": to_port}
            )
            dialler = self.servers[a]
            self.servers[a] = replace(dialler, through={**dialler.through, b: port})

    async def start_relay(self, agent: AgentClient, root: Path) -> None:
        """Start the relay and measure its cost; do nothing without a relay."""
        if not self._relays:
            return
        control = str(root / "relay.sock")
        config = {
            "ways": self._relays,
            "control_socket": control,
            "log_folder": str(root / "log" / RELAY),
        }
        await agent.start(RELAY, RELAY, config, control)
        with trio.move_on_after(_RELAY_WITHIN_S) as waiting:
            while not await _answers(agent):
                await trio.sleep(_POLL_S)
        if waiting.cancelled_caught:
            output = "".join(path.read_text() for path in (root / "log" / RELAY).glob("std*.log"))
            raise ServerFailed(f"no relay: {output.strip()[-_OUTPUT_BYTES:] or 'no output'}")
        found = []
        for _ in range(_COST_PROBES):
            row = await agent.broker(
                RELAY, "probe", {"link": self._relays[0]["link"], "within_ms": 1000}
            )
            found.append(row["out_us"] + row["in_us"])
        self.relay_us = sorted(found)[len(found) // 2]

    async def start(self, agent: AgentClient, root: Path) -> None:
        """Start all servers; return when all servers take part.

        Raises:
            ServerFailed: a server ends, or is not up in time, with its output; or a port or folder
                is in use.
        """
        of = self.configuration
        servers = [*self.servers.values()]
        starts = call_driver(of.system.start, of.program, servers, of.settings, of.version)
        for server, start in zip(servers, starts, strict=True):
            for port in (server.port, *server.further_ports):
                if is_taken(port):
                    raise ServerFailed(f"{server.name}: port {port} is in use; try again")
            _write_files(server, start)
            config = {
                "command": list(start.command),
                "folder": str(server.folder),
                "log_folder": str(root / "log" / server.name),
            }
            if of.loses_unsynced:
                config["kept"] = str(root / "kept" / server.name)
            control = str(root / f"{server.name}.sock") if self._faulty_disks else ""
            if control:
                config["control_socket"] = control
            await agent.start(server.name, "program", config, control)
        for server in servers:
            with trio.move_on_after(of.system.start_within_s) as waiting:
                while not await self.is_up(server.name):
                    row = (await agent.status(server.name))["processes"][server.name]
                    if row["state"] != "running":
                        raise self._make_failure(server, root, "has ended")
                    await trio.sleep(_POLL_S)
            if waiting.cancelled_caught:
                raise self._make_failure(
                    server, root, f"is not up after {of.system.start_within_s:g} s"
                )

    async def is_up(self, name: str) -> bool:
        """Return True if a server takes part."""
        of = self.configuration
        call = partial(call_driver, of.system.is_up, self.servers[name], of.settings)
        return await trio.to_thread.run_sync(call)

    def leader(self) -> str:
        """Return the present leader; "" if unknown. A single server always leads."""
        of = self.configuration
        if len(of.servers) == 1:
            return of.servers[0]
        if of.system.leader is None:
            return ""
        return call_driver(of.system.leader, [*self.servers.values()], of.settings)

    def _make_failure(self, server: Server, root: Path, problem: str) -> ServerFailed:
        output = [
            path.read_text(errors="replace").strip()
            for path in sorted((root / "log" / server.name).glob("std*.log"))
        ]
        words = "\n".join(text for text in output if text)[-_OUTPUT_BYTES:]
        name = self.configuration.system.program
        return ServerFailed(f"{name} ({server.name}) {problem}: {words or 'no output'}")


async def _answers(agent: AgentClient) -> bool:
    try:
        await agent.broker(RELAY, "status")
    except ControlError:
        return False
    return True


@asynccontextmanager
async def servers_running(
    configuration: Configuration, *, relayed: bool = False, faulty_disks: bool = False
) -> AsyncIterator[tuple[Testbed, SystemServers]]:
    """Run the servers of a configuration until the block ends, and remove all their state.

    Records of the run stay if `keeps_records` is set.

    Args:
        relayed: True if all links pass a relay.
        faulty_disks: True for faults of the servers' disks.

    Raises:
        ServerFailed: the servers do not start.
    """
    root = Path(mkdtemp(prefix=SERVERS_FOLDER))
    servers: SystemServers | None = None
    try:
        deployment = root.name
        await _start_agent(root, deployment)
        async with open_agent_of(root) as agent, trio.open_nursery() as nursery:
            try:
                await agent.hold(LEASE_MS)
                nursery.start_soon(_renew, agent)
                servers = SystemServers(
                    configuration, root, relayed=relayed, faulty_disks=faulty_disks
                )
                await servers.start_relay(agent, root)
                await servers.start(agent, root)
                yield _make_testbed(configuration, servers, agent, root, deployment), servers
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(_SHUTDOWN_WITHIN_S):
                    await agent.shutdown()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if (cause := find_only_cause(group)) is not None:
            raise cause from group
        raise
    finally:
        left = LeftRecords(root)
        if servers is not None and servers.keeps_records:
            left.drop_state()
        else:
            left.remove()


def _make_testbed(
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
            name: BrokerPlace(HOST, name, address) for name, address in servers.addresses.items()
        },
        topology=topology,
        topology_digest="",
        protocol=configuration.name,
        deployment_id=deployment,
        host_roots={HOST: root},
        clients_host=HOST,
        documents={"system.json": servers.facts()},
    )


async def _start_agent(root: Path, deployment: str) -> None:
    command = module_command("bench.run.machine", "agent", "--root", str(root))
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
            return  # the agent has ended, which the run reports


def _write_files(server: Server, start: Start) -> None:
    try:
        server.folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        text = f"{server.folder} is there already, and may have data of another run in it"
        raise ServerFailed(f"{server.name}: {text}; remove it") from None
    for name, content in start.files.items():
        (server.folder / name).write_text(content, encoding="utf-8")
