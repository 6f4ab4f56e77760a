"""A system under comparison: its servers, its load clients and its figures.

Load clients attach, subscribe, publish, deliver and acknowledge. They do no input or output, so
that tests can feed recorded bytes. They write batches encoded in advance and count deliveries by
whole buffers if possible, because a load client that is slower than the system would be measured
instead.
"""

import ctypes
import math
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from bench.systems import boundary


class ServerRefused(Exception):
    """An answer that no working server would send; the server's fault."""


class Deliveries(NamedTuple):
    """Publications in one buffer: the payload of the k-th begins at start + k · step."""

    start: int
    size: int
    step: int
    number: int


@dataclass(slots=True)
class ReceivedContent:
    """The content of some received bytes.

    Attributes:
        buffer, deliveries: publications, as places in the buffer.
        acknowledged: number of own publications that the server took responsibility for.
        answer: bytes to send back.
    """

    buffer: bytes
    deliveries: list[Deliveries] = field(default_factory=list)
    acknowledged: int = 0
    answer: bytes = b""

    @property
    def delivered(self) -> int:
        """The number of delivered publications."""
        return sum(each.number for each in self.deliveries)

    def payloads(self) -> Iterator[bytes]:
        """Yield the payload of each publication, in order."""
        for start, size, step, count in self.deliveries:
            for place in range(start, start + count * step, step):
                yield self.buffer[place : place + size]


class Client(Protocol):
    """One connection of a publisher or a subscriber.

    Attributes:
        is_attached: True once the connection, and a subscriber's subscription, is established.
        awaits_acknowledgements: True if the server acknowledges publications.
    """

    is_attached: bool
    awaits_acknowledgements: bool

    def attach(self) -> bytes:
        """Return the first bytes of a new connection."""

    def publish(self, payload: bytes, count: int) -> bytes:
        """Return the bytes of `count` publications; a repeated payload costs next to nothing."""

    def feed(self, data: bytes) -> ReceivedContent:
        """Decode received bytes.

        Raises:
            ServerRefused: the server refuses, or the bytes do not follow its protocol.
        """


SATURATED: Final = 0.9
"""Share of a core at which a process is saturated."""
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The result of one system under one load, once.

    Attributes:
        system, brokers, rate: the measured system, chain and load; rate 0 is the highest rate.
        delivered_per_s: deliveries per second of the measurement.
        cpu_us: processor time per delivery, by process; brokers begin with "broker".
        response_us, service_us: percentiles of received minus intended, and minus sent.
        lost: publications that never arrived; None if not counted.
        limited_by: the saturated process, "cores", "other work" of the machine, or "window" if
            nothing was saturated; "" if not measured.
    """

    system: str
    brokers: int
    rate: int
    delivered_per_s: float
    cpu_us: Mapping[str, float]
    lost: int | None
    limited_by: str
    response_us: Mapping[str, float] = field(default_factory=dict)
    service_us: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the result as a document."""
        return asdict(self)

    def broker_cpu_us(self) -> float:
        """Return the processor time per delivery and broker."""
        costs = [cost for name, cost in self.cpu_us.items() if name.startswith("broker")]
        return sum(costs) / len(costs) if costs else math.nan

    def client_cpu_us(self) -> float:
        """Return the processor time per delivery of all load clients."""
        return sum(cost for name, cost in self.cpu_us.items() if not name.startswith("broker"))


def limit_of(shares: Mapping[str, float], all_cores: float, cores: int) -> str:
    """Return the saturated process or resource.

    Args:
        shares: by process of the measurement, the used share of one core.
        all_cores: number of cores that the whole machine used, out of `cores`.
    """
    name, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if share >= SATURATED:
        return name
    if sum(shares.values()) >= SATURATED * cores:
        return "cores"
    return "other work" if all_cores >= SATURATED * cores else "window"


@dataclass(frozen=True, kw_only=True)
class System:
    """A system in one configuration.

    Attributes:
        name: name in the table and behind `--systems`.
        promise: the system's promise of delivery.
        kept: the part of a publication on disk, in the measured configuration.
        product: program and package, as in runs on external systems.
        window: greatest number of publications in flight from publisher to subscriber.
        batch: publications per write.
        largest_chain: greatest number of brokers in a row.
        start: starts of the servers of a chain (program, servers with one further port).
        client: creates the client of a subscriber, or of a publisher.
    """

    name: str
    promise: str
    kept: str
    product: boundary.System
    window: int
    batch: int
    largest_chain: int
    start: Callable[[str, Sequence[boundary.Server]], list[boundary.Start]]
    client: Callable[[bool], Client]


START_WITHIN_S: Final = 15.0
STOP_WITHIN_S: Final = 5.0
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


class PeerFailed(Exception):
    """A failed server or load client, with its output."""

    exit_status: ClassVar[int] = 3


class PackagesMissing(Exception):
    """Programs that are not installed, with their packages."""

    exit_status: ClassVar[int] = 4

    def __init__(self, systems: Sequence[System]) -> None:
        programs = sorted({system.product.program for system in systems})
        packages = sorted({system.product.package for system in systems})
        super().__init__(
            f"not installed: {', '.join(programs)} (Debian: apt-get install {' '.join(packages)})"
        )


def program_of(system: System) -> str | None:
    """Return the path of the system's program; None if not installed."""
    return boundary.program_of(system.product.program)


def check_installed(systems: Sequence[System]) -> None:
    """Check that all programs are installed.

    Raises:
        PackagesMissing: a program is missing.
    """
    if missing := [system for system in systems if program_of(system) is None]:
        raise PackagesMissing(missing)


def version_of(system: System) -> str:
    """Return the version of the system's program, the first line of the output."""
    program = program_of(system)
    assert program is not None, system.name
    return boundary.version_of(program, system.product.version_option)


class Servers:
    """Running servers that accept connections.

    Attributes:
        ports: ports for clients, by server.
        pids: process ids.
    """

    def __init__(
        self, ports: Sequence[int], processes: Sequence["subprocess.Popen[bytes]"]
    ) -> None:
        self.ports = tuple(ports)
        self.pids = tuple(process.pid for process in processes)
        self._processes = processes

    def check(self) -> None:
        """Check that all servers run.

        Raises:
            PeerFailed: a server has ended.
        """
        for process in self._processes:
            if process.poll() is not None:
                raise PeerFailed(f"{process.args!r} has ended with status {process.returncode}")


@contextmanager
def run_chain(system: System, brokers: int) -> Iterator[Servers]:
    """Run a chain of a system's brokers until the block ends.

    Raises:
        PeerFailed: a broker ends at once, or accepts no connections.
    """
    program = program_of(system)
    if program is None:
        raise PackagesMissing([system])
    with TemporaryDirectory(prefix="peers-") as root:
        ports = boundary.free_ports(2 * brokers)
        servers = [
            boundary.Server(name, Path(root) / name, port, (further,))
            for name, port, further in zip(
                [f"broker{number}" for number in range(1, brokers + 1)],
                ports[:brokers],
                ports[brokers:],
                strict=True,
            )
        ]
        starts = system.start(program, servers)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            # Start the last server first, because each server connects to the next.
            for server, start in reversed(list(zip(servers, starts, strict=True))):
                processes.insert(0, _start(server.folder, start))
                _wait_up(server, processes[0])
            yield Servers([server.port for server in servers], processes)
        finally:
            _stop(processes)


def _start(folder: Path, start: boundary.Start) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    for name, content in start.files.items():
        (folder / name).write_text(content)
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            start.command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )


def end_with_parent() -> None:
    """Let the kernel kill this process at the end of its parent, for any reason."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _wait_up(server: boundary.Server, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_WITHIN_S
    while True:
        ended = process.poll() is not None
        if not ended:
            try:
                socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
                return
            except OSError:
                pass  # not yet
        if ended or time.monotonic() > until:
            reason = "has ended" if ended else f"takes no connections after {START_WITHIN_S:g} s"
            output = (server.folder / "output").read_text(errors="replace").strip()[-500:]
            raise PeerFailed(f"{server.name}: {process.args!r} {reason}: {output or 'no output'}")
        time.sleep(0.02)


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.terminate()
    until = time.monotonic() + STOP_WITHIN_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
