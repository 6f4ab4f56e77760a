"""The testbed of an experiment, and the display of a run's progress.

A testbed consists of hosts with agents, brokers on the hosts, and their files.
"""

import logging
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import trio

from brokerd.agent.client import AgentClient
from brokerd.agent.paths import socket_folder
from brokerd.files import file_sha256
from brokerd.overlay.topology import Topology
from brokerd.storage.files import is_no_room


class Progress(Protocol):
    """A display of the progress of a run."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Show a new phase and, if known, the expected duration."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers; later values replace earlier values of the same name."""

    def print(self, text: str) -> None:
        """Show a permanent line."""


class RunFailed(Exception):
    """A run that could not be completed; the message names the awaited or failed step."""

    exit_status: ClassVar[int] = 3


FetchFile = Callable[[str, str, Path, int], Awaitable[None]]
"""A function that copies a regular file of a host (host, path there, path here, greatest size)."""

logger = logging.getLogger(__name__)

FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
GROWTH_BYTES: Final = 16 << 20
"""Greatest growth of a file between listing and copy."""
ANSWER_TIMEOUT_MS: Final = 10_000
MOST_FILES: Final = 10_000
MOST_BYTES: Final = 64 << 30
"""Limit per process and run."""
CertificateForClients = Callable[[str], Awaitable[Mapping[str, str] | None]]


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """The place of a broker.

    Attributes:
        host: its (logical) host.
        process: process name at the host's agent.
        address: "host:port" for clients.
    """

    host: str
    process: str
    address: str


async def copy_local_file(host: str, source: str, destination: Path, most_bytes: int) -> None:
    """Copy a file of a host with the local file system."""
    await trio.to_thread.run_sync(shutil.copyfile, source, destination)


async def skip_certificate(suffix: str) -> None:
    """Create no certificate, for clients without TLS."""


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """Ready brokers, with access to their hosts, agents and files.

    Attributes:
        agents: agents by host.
        brokers: places by name; every broker of the topology.
        host_roots: by host, the project's folder.
        clients_host: host of all load generators, so that publishers and subscribers read the same
            clock.
        documents: further files for the run's `spec` folder by name, such as inventory.toml (text)
            and placement.json (a mapping).
        fetch_file: copies a host's file to this machine.
        socket_folders: by host, folder of control sockets; the usual folder by default.
        transport: transport between brokers and clients, for the manifest.
        certificate_for_clients: puts a certificate for all clients with this suffix of their names
            on the clients' host, and returns its place; None without TLS.
        broker_nice: by host, nice value of brokers relative to load generators, for the manifest.
        without_fsync: hosts with brokers that do not wait for the disk, for the manifest.
        protected_ports: ports of the connections to hosts; no fault ever affects these ports.
        ready_after_s: time until the brokers were ready; None for brokers that existed before.
    """

    __test__: ClassVar[bool] = False  # pytest would collect this class by its name

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
    certificate_for_clients: CertificateForClients = skip_certificate
    protected_ports: Sequence[int] = ()
    broker_nice: Mapping[str, int] = field(default_factory=dict)
    without_fsync: Sequence[str] = ()
    ready_after_s: float | None = None

    @property
    def clients_agent(self) -> AgentClient:
        """The agent that runs the load generators."""
        return self.agents[self.clients_host]

    def client_socket(self, process: str) -> Path:
        """Return the path of a load generator's control socket."""
        host = self.clients_host
        folder = self.socket_folders.get(host) or socket_folder(self.host_roots[host])
        return folder / f"{process}.sock"

    def run_folder(self, host: str, run_id: str, process: str) -> Path:
        """Return the folder on its host into which a process writes the files of a run."""
        return self.host_roots[host] / "run" / run_id / process

    async def broker_command(
        self, broker: str, command: str, timeout_ms: int = ANSWER_TIMEOUT_MS, **arguments: Any
    ) -> dict[str, Any]:
        """Return a broker's answer to a control command; raise ControlError without an answer."""
        place = self.brokers[broker]
        return await self.agents[place.host].broker(place.process, command, arguments, timeout_ms)

    async def load_command(
        self, process: str, command: str, timeout_ms: int = ANSWER_TIMEOUT_MS, **arguments: Any
    ) -> dict[str, Any]:
        """Return the answer of a load generator to a control command, or raise ControlError."""
        return await self.clients_agent.broker(process, command, arguments, timeout_ms)

    async def collect(
        self,
        host: str,
        process: str,
        folder: Path | None,
        destination: Path,
        names: Collection[str] | None = None,
    ) -> list[str]:
        files = HostFiles(self.agents, self.fetch_file)
        return await files.collect(host, process, folder, destination, names)


class FileLister(Protocol):
    """A source of the listings of a host's files, such as its agent."""

    async def files(self, process: str, folder: str) -> dict[str, Any]:
        """Return `folder` and `files` (name, size_bytes, sha256) of a process."""


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Access to the files of processes on their hosts.

    Attributes:
        agents: the lister of each host's files.
        fetch_file: see Testbed.
    """

    agents: Mapping[str, FileLister]
    fetch_file: FetchFile

    async def collect(
        self,
        host: str,
        process: str,
        folder: Path | None,
        destination: Path,
        names: Collection[str] | None = None,
    ) -> list[str]:
        """Copy the files of a host's folder to this machine; return the names of damaged files.

        A file is damaged if even the second copy differs from the listing of the host's agent.

        Args:
            folder: None for the agent's folder with the output of the process.
            names: only these files.

        Raises:
            OSError: this machine has no room for a file; no part of the file stays.
        """
        destination.mkdir(parents=True, exist_ok=True)
        listed, source = await self._list(host, process, folder)
        damaged = []
        for name in [name for name in listed if names is None or name in names]:
            try:
                if await self._fetch(host, source, destination, listed[name]):
                    continue
                # The file may have grown since its listing.
                listed, _ = await self._list(host, process, folder)
                if await self._fetch(host, source, destination, listed[name]):
                    continue
            except (OSError, KeyError) as error:
                if isinstance(error, OSError) and is_no_room(error):
                    for part in [destination / name, *destination.glob(f".{name}.*.part")]:
                        part.unlink(missing_ok=True)
                    raise
                logger.warning("%s:%s/%s: %s", host, source, name, error)
            damaged.append(f"{host}:{source}/{name}")
        return damaged

    async def _list(
        self, host: str, process: str, folder: Path | None
    ) -> "tuple[dict[str, ListedFile], str]":
        """Return the files in a folder of a host by name, and the folder."""
        listing = await self.agents[host].files(process, str(folder or ""))
        return read_listing(listing["files"], f"{host}:{listing['folder']}"), listing["folder"]

    async def _fetch(self, host: str, source: str, destination: Path, listed: "ListedFile") -> bool:
        """Copy a file to this machine. Return True if the copy equals the listing."""
        target = destination / listed.name
        most_bytes = listed.size_bytes + GROWTH_BYTES
        await self.fetch_file(host, f"{source}/{listed.name}", target, most_bytes)
        return await trio.to_thread.run_sync(file_sha256, target) == listed.sha256


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in the listing of its host's agent."""

    name: str
    size_bytes: int
    sha256: str


class ListingRefused(Exception):
    """A listing that no process of a run can cause, the host's fault; no file is copied."""


def read_listing(rows: Sequence[Mapping[str, Any]], where: str) -> dict[str, ListedFile]:
    """Return the listed files by name, after checks of every row.

    Raises:
        ListingRefused: a name that is not a plain name, a duplicate name, too many files or bytes;
            the host's fault.
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
