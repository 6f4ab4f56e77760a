"""The journal of an agent: each step is durable before it is carried out.

The next agent of the same root reads the journal: processes that may be alive, their start
commands, and faults to be healed.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from brokerd.errors import StorageCorrupt
from brokerd.files import sync_folder
from brokerd.runtime.threads import run_in_thread

Entry = dict[str, Any]

logger = logging.getLogger(__name__)


class Journal:
    """An append-only file of JSON lines.

    Every line has `entry` (its kind) and `t_ns` (monotonic). An entry is complete or absent: a
    write that fails leaves no part of a line, which would spoil the next one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _cut_torn_line(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        sync_folder(path.parent)  # a file that is not in its folder is no journal
        self._limiter = trio.CapacityLimiter(1)
        self._waiting = b""

    async def write(self, entry: str, **details: Any) -> None:
        """Append an entry, durable on return.

        Raises:
            OSError: the entry is not durable and must have no effect.
        """
        await self._append(entry, details, durable=True)

    async def note(self, entry: str, **details: Any) -> None:
        """Append an entry that need only survive a crash of this agent.

        An entry that cannot be written now, as on a full disk, is written before the next one.
        """
        try:
            await self._append(entry, details, durable=False)
        except OSError as error:
            logger.warning("journal: %s waits: %s", entry, error)

    async def _append(self, entry: str, details: dict[str, Any], durable: bool) -> None:
        line = json.dumps({"entry": entry, "t_ns": time.monotonic_ns(), **details}) + "\n"

        def append() -> None:
            if not durable:
                self._waiting += line.encode()
            self._write(self._waiting + (line.encode() if durable else b""), durable)
            self._waiting = b""

        # Uncancellable: an entry is complete or absent, independent of the request.
        await run_in_thread(append, limiter=self._limiter)

    def _write(self, data: bytes, durable: bool) -> None:
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            if durable:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        if self._waiting:
            with suppress(OSError):
                self._write(self._waiting, durable=False)
        os.close(self._file)


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the entries of a journal, oldest first, without a last line that a crash cut off.

    Raises:
        StorageCorrupt: a line that is no entry; names the line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise StorageCorrupt(f"{path}:{number}: not an entry: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("entry"), str):
            raise StorageCorrupt(f"{path}:{number}: not an entry")
        yield entry


@dataclass(slots=True)
class Recollection:
    """The state that the entries of a journal describe.

    Attributes:
        deployment: deployment of the last agent; None if there was none.
        boot: the boot that the last agent ran in; identities and times are invalid in other boots.
        starts: process → its last `start` entry, with `identity` (pid, start_time) and `exit` (the
            `exited` entry), if recorded.
        faults: fault id → its `fault` entry, with `state` and the latest `deadline_ns`.
        hold_deadline_ns: end of the deployment's lease, or None.
        metrics_port: port of the metrics; 0 for none.
    """

    deployment: str | None = None
    boot: str | None = None
    starts: dict[str, Entry] = field(default_factory=dict)
    faults: dict[str, Entry] = field(default_factory=dict)
    hold_deadline_ns: int | None = None
    metrics_port: int = 0


def recall(entries: Iterable[Entry]) -> Recollection:
    """Return the state that the last agent left, as far as recorded."""
    found = Recollection()
    for entry in entries:
        match entry["entry"]:
            case "agent":
                found.deployment, found.boot = entry["deployment"], entry["boot_id"]
            case "start":
                found.starts[entry["process"]] = {**entry}
            case "started":
                identity = (entry["pid"], entry["start_time"])
                found.starts[entry["process"]]["identity"] = identity
            case "exited":
                found.starts[entry["process"]]["exit"] = entry
            case "fault":
                found.faults[entry["fault_id"]] = {**entry, "state": "requested"}
            case "fault_state":
                found.faults[entry["fault_id"]].update(
                    (key, value) for key, value in entry.items() if key not in ("entry", "t_ns")
                )
            case "hold":
                found.hold_deadline_ns = entry["deadline_ns"]
            case "metrics":
                found.metrics_port = entry["port"]
            case "end":
                found = Recollection(deployment=found.deployment, boot=found.boot)
    return found


def _cut_torn_line(path: Path) -> None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    end = content.rfind(b"\n") + 1
    if end != len(content):
        os.truncate(path, end)
