"""What there is of a lab right now."""

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
    """One machine of a lab.

    Attributes:
        address: where its SSH server is dialled, from the controller or the gateway before it.
        process: its first process, an SSH server; None when it is off.
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
    """One lab."""

    spec: LabSpec
    folder: Path
    machines: tuple[MachineState, ...]


def look(journal: Journal) -> LabState:
    """The state of a lab whose journal says what it consists of."""
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
    """Whether there are so many listeners on the SSH port in that process's network."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{process.pid}/net/{table}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue  # it has ended, or the kernel has no IPv6
        for line in lines:
            fields = line.split()
            found += fields[1].endswith(f":{PORT:04X}") and fields[3] == _LISTENING
    return found >= addresses


def processes_in(namespaces: Iterable[str]) -> list[ProcessIdentity]:
    """Every live process whose network is one of these namespaces, whoever started it."""
    networks = set()
    plain = NAMESPACES.stat().st_dev if NAMESPACES.is_dir() else 0
    for name in namespaces:
        try:
            status = (NAMESPACES / name).stat()
        except FileNotFoundError:
            continue
        if status.st_dev != plain:  # a file alone: `ip` was killed before it had mounted it
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
            continue  # it has ended
    return [process for process in found if process.is_alive()]
