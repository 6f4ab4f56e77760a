"""Journal and present state of a lab.

Every part is recorded on disk before its creation, so that all can be removed.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.agent.host.private_files import lock_holder, operator_lock
from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from brokerd.files import sync_folder
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.lab.network import NAMESPACES
from pubsubctl.lab.spec import PORT, SCHEMA, LabSpec
from pubsubctl.project import labs_folder

JOURNAL = "journal.jsonl"
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Journal:
    """The journal in a lab's folder, as far as written.

    Attributes:
        spec: None if `lab up` was killed before the first line.
        is_ready: True if `lab up` ran to the end.
        processes: machine → first process, for started machines.
    """

    folder: Path
    spec: LabSpec | None
    is_ready: bool
    processes: dict[str, ProcessIdentity]

    @property
    def name(self) -> str:
        return self.folder.name


def write_line(folder: Path, line: dict[str, Any]) -> None:
    """Append a line durably."""
    path = folder / JOURNAL
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_folder(folder)
        sync_folder(folder.parent)


def read_journal(folder: Path) -> Journal:
    """Return a lab's journal; a torn last line is ignored.

    Raises:
        PreflightFailed: the journal is of another version of this program.
    """
    spec: LabSpec | None = None
    is_ready = False
    processes: dict[str, ProcessIdentity] = {}
    try:
        text = (folder / JOURNAL).read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    for line in text.split("\n")[:-1]:
        content = json.loads(line)
        if "schema" in content:
            if content["schema"] != SCHEMA:
                raise PreflightFailed(
                    f"{folder / JOURNAL}: {content['schema']}, not {SCHEMA}; "
                    "take that lab down with the version that made it"
                )
            spec = LabSpec.from_mapping(content)
        elif "started" in content:
            processes[content["started"]] = ProcessIdentity(content["pid"], content["start_time"])
        elif content.get("ready"):
            is_ready = True
    return Journal(folder, spec, is_ready, processes)


def labs() -> list[Path]:
    """Return the folders of all labs of this user, by name."""
    folder = labs_folder()
    return sorted(path for path in folder.glob("*") if path.is_dir()) if folder.is_dir() else []


def existing_lab(name: str) -> Journal:
    """Return the journal of an existing lab.

    Raises:
        UserError: no lab has this name; names the existing labs.
    """
    folder = labs_folder() / name
    if not folder.is_dir():
        names = ", ".join(path.name for path in labs())
        there_are = f"there is {names}" if names else "there is none"
        raise UserError(f"no lab called {name!r}; {there_are} (`pubsubctl lab up` makes one)")
    return read_journal(folder)


@contextmanager
def lab_lock(name: str, purpose: str) -> Iterator[int]:
    """Hold the lock of a lab; yield the lock's descriptor.

    Every process that is part of the lab inherits the descriptor, so the lock of a killed operator
    is free only after the last of these processes has ended.

    Raises:
        PreflightFailed: the lock is taken; names holder, time and purpose.
    """
    with ExitStack() as stack:
        yield _lock(stack, labs_folder() / name, purpose)


def _lock(stack: ExitStack, root: Path, purpose: str) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return stack.enter_context(operator_lock(root, purpose))
        except ControlError as error:
            holder = lock_holder(root)
            is_of_the_dead = holder is None or not _is_running(holder.get("pid"))
            if not is_of_the_dead or time.monotonic() > deadline:
                raise PreflightFailed(str(error)) from None
            time.sleep(0.02)


def _is_running(pid: Any) -> bool:
    if not isinstance(pid, int):
        return True  # taken this very moment, and not yet signed
    try:
        return ProcessIdentity.of(pid).is_alive()
    except ProcessLookupError:
        return False


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
