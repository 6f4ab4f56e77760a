"""Servers of a system, in a folder and on ports of their own, and always ended afterwards."""

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

from bench.peers.system import ServerStart, System
from bench.systems import boundary

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
        programs = sorted({system.program for system in systems})
        packages = sorted({system.package for system in systems})
        super().__init__(
            f"not installed: {', '.join(programs)} (Debian: apt-get install {' '.join(packages)})"
        )


def program_of(system: System) -> str | None:
    """Return the path of the system's program; None if not installed."""
    return boundary.program_of(system.program)


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
    return boundary.version_of(program, system.version_option)


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
        folders = [Path(root) / f"broker{number}" for number in range(1, brokers + 1)]
        for folder in folders:
            folder.mkdir()
        starts = system.start(program, folders, boundary.free_ports(2 * brokers))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            # Start the last server first, because each server connects to the next.
            for folder, start in reversed(list(zip(folders, starts, strict=True))):
                processes.insert(0, _start(folder, start))
                _wait_up(folder, start, processes[0])
            yield Servers([start.port for start in starts], processes)
        finally:
            _stop(processes)


def _start(folder: Path, start: ServerStart) -> "subprocess.Popen[bytes]":
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


def _wait_up(folder: Path, start: ServerStart, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_WITHIN_S
    while True:
        ended = process.poll() is not None
        if not ended:
            try:
                socket.create_connection(("127.0.0.1", start.port), timeout=1).close()
                return
            except OSError:
                pass  # not yet
        if ended or time.monotonic() > until:
            reason = "has ended" if ended else f"takes no connections after {START_WITHIN_S:g} s"
            output = (folder / "output").read_text(errors="replace").strip()[-500:]
            raise PeerFailed(f"{' '.join(start.command)} {reason}: {output or 'no output'}")
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
