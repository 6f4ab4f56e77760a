"""A deployment as an experiment sees it: hosts with agents, brokers on them, and their files."""

import logging
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import trio

from bench.run.run_directory import file_sha256
from brokerd.agent.client import AgentClient
from brokerd.agent.paths import socket_folder
from brokerd.overlay.topology import Topology

FetchFile = Callable[[str, str, Path, int], Awaitable[None]]
"""Copies a regular file of a host (host, path there, path here, at most so many bytes)."""

logger = logging.getLogger(__name__)

FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
GROWTH_BYTES: Final = 16 << 20
"""What a file that is written to may have grown by since it was listed."""
ANSWER_TIMEOUT_MS: Final = 10_000
MOST_FILES: Final = 10_000
MOST_BYTES: Final = 64 << 30
"""Of one process in one run."""
CertificateForClients = Callable[[str], Awaitable[Mapping[str, str] | None]]


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


async def copy_local_file(host: str, source: str, destination: Path, most_bytes: int) -> None:
    """Copy a file of a host whose file system is ours."""
    await trio.to_thread.run_sync(shutil.copyfile, source, destination)


async def no_certificate(suffix: str) -> None:
    """What needs none."""


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
        socket_folders: by host, where control sockets are; as on this machine without.
        transport: how brokers and clients talk, for the manifest.
        certificate_for_clients: puts a certificate for all clients with this ending of their
            names on the clients' host, and says where; None where there is no TLS.
        broker_nice: by host, how far brokers give way to load generators, for the manifest.
        without_fsync: hosts whose brokers do not wait for the disk, for the manifest.
        protected_ports: by which hosts are reached; no fault ever touches them.
        ready_after_s: what it took to have them ready; None where they have been there before.
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
    socket_folders: Mapping[str, Path] = field(default_factory=dict)
    transport: str = "plaintext, loopback only"
    certificate_for_clients: CertificateForClients = no_certificate
    protected_ports: Sequence[int] = ()
    broker_nice: Mapping[str, int] = field(default_factory=dict)
    without_fsync: Sequence[str] = ()
    ready_after_s: float | None = None

    @property
    def clients_agent(self) -> AgentClient:
        """The agent that runs the load generators."""
        return self.agents[self.clients_host]

    def client_socket(self, process: str) -> Path:
        """Where a load generator's control socket is."""
        host = self.clients_host
        folder = self.socket_folders.get(host) or socket_folder(self.host_roots[host])
        return folder / f"{process}.sock"

    def run_folder(self, host: str, run_id: str, process: str) -> Path:
        """Where on its host a process writes what belongs to a run."""
        return self.host_roots[host] / "run" / run_id / process

    async def broker_command(
        self, broker: str, command: str, timeout_ms: int = ANSWER_TIMEOUT_MS, **arguments: Any
    ) -> dict[str, Any]:
        """What a broker answers to a control command; ControlError when it cannot."""
        place = self.brokers[broker]
        return await self.agents[place.host].broker(place.process, command, arguments, timeout_ms)

    async def load_command(
        self, process: str, command: str, timeout_ms: int = ANSWER_TIMEOUT_MS, **arguments: Any
    ) -> dict[str, Any]:
        """What a load generator answers to a control command; ControlError when it cannot."""
        return await self.clients_agent.broker(process, command, arguments, timeout_ms)

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
        listed, source = await self._list(host, process, folder)
        damaged = []
        for name in [name for name in listed if names is None or name in names]:
            try:
                if await self._fetch(host, source, destination, listed[name]):
                    continue
                # It may have grown since it was listed.
                listed, _ = await self._list(host, process, folder)
                if await self._fetch(host, source, destination, listed[name]):
                    continue
            except (OSError, KeyError) as error:
                logger.warning("%s:%s/%s: %s", host, source, name, error)
            damaged.append(f"{host}:{source}/{name}")
        return damaged

    async def _list(
        self, host: str, process: str, folder: Path | None
    ) -> "tuple[dict[str, ListedFile], str]":
        """The files in a folder of a host by name, and that folder."""
        listing = await self.agents[host].files(process, str(folder or ""))
        return listed_files(listing["files"], f"{host}:{listing['folder']}"), listing["folder"]

    async def _fetch(self, host: str, source: str, destination: Path, listed: "ListedFile") -> bool:
        """Copy a file to here; whether it is what was listed."""
        target = destination / listed.name
        most_bytes = listed.size_bytes + GROWTH_BYTES
        await self.fetch_file(host, f"{source}/{listed.name}", target, most_bytes)
        return await trio.to_thread.run_sync(file_sha256, target) == listed.sha256


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as its host's agent saw it."""

    name: str
    size_bytes: int
    sha256: str


class ListingRefused(Exception):
    """What a host says to have is nothing that a run writes; none of it is fetched."""


def listed_files(rows: Sequence[Mapping[str, Any]], where: str) -> dict[str, ListedFile]:
    """What a host says to have, by name, once every row is what one of our processes writes.

    Raises:
        ListingRefused: a name that is more than a name, twice the same, too many or too much.
    """
    if len(rows) > MOST_FILES:
        raise ListingRefused(f"{where}: {len(rows)} files; at most {MOST_FILES} are fetched")
    found: dict[str, ListedFile] = {}
    total_bytes = 0
    for row in rows:
        name, size_bytes, sha256 = row.get("name"), row.get("size_bytes"), row.get("sha256")
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            raise ListingRefused(f"{where}: a file called {str(name)[:80]!r} is not fetched")
        if name in found:
            raise ListingRefused(f"{where}: two files called {name!r}")
        if type(size_bytes) is not int or size_bytes < 0 or not isinstance(sha256, str):
            raise ListingRefused(f"{where}: {name} of {str(size_bytes)[:40]!r} bytes")
        total_bytes += size_bytes
        if total_bytes > MOST_BYTES:
            raise ListingRefused(f"{where}: more than {MOST_BYTES} bytes")
        found[name] = ListedFile(name, size_bytes, sha256)
    return found
