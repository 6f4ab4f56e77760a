"""External programs as agents start them, and the faults of their disks.

Agents start an external program in place of the project's processes. Commands to its keeper control
the faults of its disk:

    status          `faults` in force
    fault_apply     disk-full: writes beyond a quota are refused, as on a full disk;
                    slow-fsync: each sync begins later
    fault_renew, fault_heal, fault_counters    also available

The evidence is the program's own experience: refused writes, and delayed syncs.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, NoReturn

import trio

from bench.systems.synced_files import keep_synced, lose_unsynced
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import DISK_VERBS
from brokerd.runtime.control import serve_control
from brokerd.sessions.link_faults import LinkFault, LinkFaults, read_fault
from brokerd.units import MILLISECOND_NS

_LEASES_LOOKED_AT_S: Final = 0.05


class DiskFaults:
    """A Disk with faults that are controlled at a control socket."""

    def __init__(self, control_socket: str | Path) -> None:
        self._control_socket = control_socket
        self._faults = LinkFaults()
        self._healed: dict[str, LinkFault] = {}
        self._lock = Lock()

    def begin(self) -> None:
        Thread(target=trio.run, args=(self._serve,), daemon=True).start()

    def takes(self, size_bytes: int) -> bool:
        with self._lock:
            return self._faults.take_room(size_bytes)

    def sync_delay_ns(self) -> int:
        """Return the delay of the next sync in nanoseconds; count it unless it is 0."""
        with self._lock:
            if delay_ns := self._faults.write_delay_ns():
                self._faults.count_slowed_write()
            return delay_ns

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """Return the commands of the control socket."""
        return {
            "status": self._on_status,
            "fault_apply": self._on_apply,
            "fault_renew": self._on_renew,
            "fault_heal": self._on_heal,
            "fault_counters": self._on_counters,
        }

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, self._control_socket, self.handlers())
            while True:
                await trio.sleep(_LEASES_LOOKED_AT_S)
                with self._lock:
                    for fault_id in self._faults.list_expired(time.monotonic_ns()):
                        self._heal(fault_id)

    def _heal(self, fault_id: str) -> None:
        if (fault := self._faults.heal(fault_id)) is not None:
            self._healed[fault_id] = fault

    async def _on_status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return {"faults": [fault.fault_id for fault in self._faults]}

    async def _on_apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        verb = arguments["verb"]
        if verb not in DISK_VERBS:
            text = f"the disk of a program does {', '.join(DISK_VERBS)}, not {verb[:40]!r}"
            raise ControlError("user", text)
        fault = read_fault(
            arguments["fault_id"], verb, None, "both", arguments.get("parameters", {}),
            _end_of(arguments["lease_ms"]),
        )  # fmt: skip
        with self._lock:
            self._faults.apply(fault)
        return {"t_applied_ns": time.monotonic_ns()}

    async def _on_renew(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            known = self._faults.renew(arguments["fault_id"], _end_of(arguments["lease_ms"]))
        if not known:
            raise ControlError("user", f"no fault {arguments['fault_id'][:100]!r} is in force")
        return {}

    async def _on_heal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._heal(arguments["fault_id"])
        return {"t_healed_ns": time.monotonic_ns()}

    async def _on_counters(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            known = [*self._healed.values(), *self._faults]
            return {fault.fault_id: {**fault.counters} for fault in known}


def _end_of(lease_ms: int) -> int:
    return time.monotonic_ns() + lease_ms * MILLISECOND_NS


def run_program(config: dict[str, Any]) -> NoReturn:
    """Become `command` in `folder` (role "program" of the agent); the agent remains the parent.

    With a folder `kept`, all unsynced data of the last process is lost. A `control_socket` accepts
    faults of the disk.
    """
    folder = Path(config["folder"])
    kept = Path(config["kept"]) if "kept" in config else None
    disk = DiskFaults(config["control_socket"]) if "control_socket" in config else None
    if kept is not None:
        if kept.exists():
            lose_unsynced(folder, kept)
        else:
            shutil.copytree(folder, kept)
    if kept is not None or disk is not None:
        try:
            keep_synced(folder, kept, disk)
        except OSError as error:
            sys.exit(f"nothing can stand between a program and its disk here: {error}")
    os.chdir(folder)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    command = config["command"]
    os.execv(command[0], command)
