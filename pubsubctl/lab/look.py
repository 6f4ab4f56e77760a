"""The present state of a lab."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from brokerd.agent.processes import ProcessIdentity
from pubsubctl.lab.journal import Journal
from pubsubctl.lab.network import NAMESPACES
from pubsubctl.lab.spec import PORT, LabSpec

_LISTENING = "0A"


@dataclass(frozen=True)
class MachineState:
    """A machine of a lab.

    Attributes:
        address: the address of the SSH server, as seen from the controller or the previous gateway.
        process: the first process, an SSH server; None if the machine is off.
    """

    name: str
    namespace: str
    address: str
    process: ProcessIdentity | None

    @property
    def is_up(self) -> bool:
        return self.process is not None


@dataclass(frozen=True)
class LabState:
    """The state of a lab."""

    spec: LabSpec
    folder: Path
    machines: tuple[MachineState, ...]


def look(journal: Journal) -> LabState:
    """Return the state of a lab from the lab's journal."""
    spec = journal.spec
    assert spec is not None, journal
    rows = []
    for machine in spec.machines:
        process = journal.processes.get(machine.name)
        is_up = process is not None and process.is_alive()
        rows.append(
            MachineState(
                machine.name, machine.namespace, spec.address(machine), process if is_up else None
            )
        )
    return LabState(spec, journal.folder, tuple(rows))


def is_listening(process: ProcessIdentity, addresses: int) -> bool:
    """Return True if the process's network has at least `addresses` listeners on the SSH port."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{process.pid}/net/{table}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue  # the process has ended, or the kernel has no IPv6
        for line in lines:
            fields = line.split()
            found += fields[1].endswith(f":{PORT:04X}") and fields[3] == _LISTENING
    return found >= addresses


def processes_in(namespaces: Iterable[str]) -> list[ProcessIdentity]:
    """Return every live process with a network in these namespaces, regardless of its parent."""
    networks = set()
    plain = NAMESPACES.stat().st_dev if NAMESPACES.is_dir() else 0
    for name in namespaces:
        try:
            status = (NAMESPACES / name).stat()
        except FileNotFoundError:
            continue
        if status.st_dev != plain:  # only a file: `ip` was killed before the mount
            networks.add((status.st_dev, status.st_ino))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "ns" / "net").stat()
            if (status.st_dev, status.st_ino) in networks:
                found.append(ProcessIdentity.of(int(entry.name)))
        except OSError:
            continue  # the process has ended
    return [process for process in found if process.is_alive()]
