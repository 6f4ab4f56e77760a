"""A deployment as an experiment sees it: hosts with agents, brokers on them, and their files."""

import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import trio

from bench.run_directory import file_sha256
from brokerd.agent.client import AgentClient
from brokerd.agent.paths import socket_folder
from brokerd.overlay.topology import Topology

FetchFile = Callable[[str, str, Path], Awaitable[None]]
"""Copies a file of a host (host, path there, path here)."""


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Where a broker is.

    Attributes:
        host: its (logical) host.
        process: what the host's agent calls it.
        address: "host:port" where clients reach it.
    """

    host: str
    process: str
    address: str


async def copy_local_file(host: str, source: str, destination: Path) -> None:
    """Copy a file of a host whose file system is ours."""
    await trio.to_thread.run_sync(shutil.copyfile, source, destination)


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """Brokers that run and are ready, and how to reach everything that belongs to them.

    Attributes:
        agents: by host.
        brokers: by name; every broker of the topology.
        host_roots: by host, the folder that is ours there.
        clients_host: where load generators run. One host for all of them, so that publishers
            and subscribers read the same clock.
        documents: further files for the run's `spec` folder by name, such as inventory.toml
            (text) and placement.json (a mapping).
        fetch_file: brings a host's file home.
    """

    __test__: ClassVar[bool] = False  # pytest, it only sounds like a test

    agents: Mapping[str, AgentClient]
    brokers: Mapping[str, BrokerPlace]
    topology: Topology
    topology_digest: str
    protocol: str
    deployment_id: str
    host_roots: Mapping[str, Path]
    clients_host: str
    documents: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    fetch_file: FetchFile = copy_local_file

    @property
    def clients_agent(self) -> AgentClient:
        """The agent that runs the load generators."""
        return self.agents[self.clients_host]

    def client_socket(self, process: str) -> Path:
        """Where a load generator's control socket is."""
        return socket_folder(self.host_roots[self.clients_host]) / f"{process}.sock"

    def run_folder(self, host: str, run_id: str, process: str) -> Path:
        """Where on its host a process writes what belongs to a run."""
        return self.host_roots[host] / "run" / run_id / process

    async def broker_command(self, broker: str, command: str, **arguments: Any) -> dict[str, Any]:
        """What a broker answers to a control command; ControlError when it cannot."""
        place = self.brokers[broker]
        return await self.agents[place.host].broker(place.process, command, arguments)

    async def load_command(self, process: str, command: str, **arguments: Any) -> dict[str, Any]:
        """What a load generator answers to a control command; ControlError when it cannot."""
        return await self.clients_agent.broker(process, command, arguments)

    async def collect(
        self,
        host: str,
        process: str,
        folder: Path | None,
        destination: Path,
        names: Collection[str] | None = None,
    ) -> list[str]:
        """Bring the files of a host's folder home; returns the names of damaged ones.

        A file is damaged when it is not here as its host's agent saw it, even when fetched
        a second time.

        Args:
            folder: None for where the agent keeps what the process prints.
            names: only these files.
        """
        destination.mkdir(parents=True, exist_ok=True)
        hashes, source = await self._list(host, process, folder)
        damaged = []
        for name in [name for name in hashes if names is None or name in names]:
            if await self._fetch(host, f"{source}/{name}", destination / name) != hashes[name]:
                # It may have grown since it was listed.
                hashes, _ = await self._list(host, process, folder)
                fetched = await self._fetch(host, f"{source}/{name}", destination / name)
                if fetched != hashes.get(name):
                    damaged.append(f"{host}:{source}/{name}")
        return damaged

    async def _list(
        self, host: str, process: str, folder: Path | None
    ) -> tuple[dict[str, str], str]:
        """SHA-256 by name of the files in a folder of a host, and that folder."""
        listing = await self.agents[host].files(process, str(folder or ""))
        hashes = {entry["name"]: entry["sha256"] for entry in listing["files"]}
        return hashes, listing["folder"]

    async def _fetch(self, host: str, source: str, target: Path) -> str:
        await self.fetch_file(host, source, target)
        return await trio.to_thread.run_sync(file_sha256, target)
