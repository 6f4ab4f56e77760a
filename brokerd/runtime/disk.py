"""The disk of a broker: durable writes of rows, and writes to logs.

Paper: [GD02] §4 (latency consists mostly of logging; so a group shares one write).
"""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from brokerd.errors import DiskFailed, StorageCorrupt
from brokerd.protocols.interface import (
    Append,
    Chop,
    Commit,
    Event,
    LogEffect,
    LogEnds,
    Persisted,
    Read,
    RecordsRead,
)
from brokerd.protocols.parts.bounds import LogBounds
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.threads import DiskThread, run_in_thread
from brokerd.sessions.link_faults import LinkFaults
from brokerd.storage.files import describe_failure, is_out_of_descriptors, is_transient
from brokerd.storage.log_groups import EntryKind, LogEntry, LogRun
from brokerd.storage.log_volume import LogVolume
from brokerd.storage.meta_store import MetaStore, RowChange
from brokerd.units import MILLISECOND_NS, SECOND_NS

ROOM_RETRY_S: Final = 0.1
_SLICE_S: Final = 0.05
_NO_ROOM: Final = ("disk_full", "disk_has_room")
_NO_DESCRIPTORS: Final = ("descriptors_exhausted", "descriptors_free")
_WORDS: Final = {
    _NO_ROOM[0]: "its disk has no room; what must be durable waits, and publishers with it",
    _NO_DESCRIPTORS[0]: "it may open no further file; what must be durable waits",
}

STALLED_AFTER_NS: Final = SECOND_NS
"""Time after which an operation of the disk that has not ended is reported."""
DISK_STALLED: Final = "disk_stalled"
DISK_RESUMED: Final = "disk_resumed"

Returned = TypeVar("Returned")

LAZY_ROWS_NS = 200 * MILLISECOND_NS
"""Time for which commits without a waiter may gather."""
ROW_BYTES: Final = 4_096
"""Bytes of a disk's quota per row: SQLite writes pages."""


class DurableWrites:
    """The path of all durable data of one broker to its disk.

    Args:
        faults: faults of this broker; disk faults are applied.
        record: called when the disk is full or stalled, and when it no longer is.
        check: raises if a restart would not find the written data.
    """

    def __init__(
        self,
        faults: LinkFaults | None = None,
        record: Callable[[str, dict[str, Any]], None] = lambda _event, _details: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._faults = LinkFaults() if faults is None else faults
        self._record = record
        self._check = check
        self._waiting: dict[str, int] = {}
        self._began_ns: dict[int, int] = {}
        self._operations = 0
        self._stalled: set[int] = set()

    def obstacles(self) -> list[str]:
        """Return the reasons for which operations wait now, in words."""
        found = [_WORDS[event] for event, count in self._waiting.items() if count]
        if (stalled_ns := self._longest_ns()) >= STALLED_AFTER_NS:
            found.append(
                f"its disk has not ended an operation for {stalled_ns // SECOND_NS} s; what must "
                "be durable waits, and publishers with it"
            )
        return found

    def record_stalls(self) -> None:
        """Record each operation that the disk has not ended for a while; call once a second."""
        now_ns = clock_ns()
        for number, began_ns in self._began_ns.items():
            if number not in self._stalled and now_ns - began_ns >= STALLED_AFTER_NS:
                self._stalled.add(number)
                self._record(DISK_STALLED, {"after_ns": now_ns - began_ns})

    def _longest_ns(self) -> int:
        """Return the age of the oldest operation that the disk has not ended; 0 without one."""
        return clock_ns() - min(self._began_ns.values()) if self._began_ns else 0

    async def _carry_out(self, operation: Callable[[], Returned], thread: DiskThread) -> Returned:
        number = self._operations = self._operations + 1
        self._began_ns[number] = clock_ns()
        has_failed = False
        try:
            return await thread.carry_out(operation)
        except OSError as error:
            has_failed = not is_transient(error)  # the broker ends, and records `disk_failed`
            raise
        finally:
            began_ns = self._began_ns.pop(number)
            if number in self._stalled:
                self._stalled.discard(number)
                if not has_failed:
                    self._record(DISK_RESUMED, {"after_ns": clock_ns() - began_ns})

    async def perform(self, write: Callable[[], None], size_bytes: int, thread: DiskThread) -> None:
        """Carry out `write` in a thread; repeat it while the disk has no room.

        `write` is repeated while the process has no free file descriptor, too, and must change
        nothing if it fails for either cause. A call must not be abandoned: two threads would use
        its files at once.

        Raises:
            DiskFailed: `write` failed for another cause.
            BrokerMustEnd: the state folder was deleted or replaced.
        """
        try:
            await self._repeat(write, size_bytes, thread)
        except StorageCorrupt:
            self._check()  # a file that is gone with its folder has the folder's cause
            raise
        self._check()
        await self._linger()

    async def read(self, read: Callable[[], Returned], thread: DiskThread) -> Returned:
        """Carry out `read` in a thread and return its result.

        `read` is repeated while the process has no free file descriptor.

        Raises:
            DiskFailed: `read` failed for another cause.
        """
        return await self._repeat(read, 0, thread)

    async def _repeat(
        self, operation: Callable[[], Returned], size_bytes: int, thread: DiskThread
    ) -> Returned:
        refused_ns = 0
        began = ended = ""
        try:
            while True:
                try:
                    if not self._faults.take_room(size_bytes):
                        raise OSError(errno.ENOSPC, "No space left on device (fault)")
                    found = await self._carry_out(operation, thread)
                    break
                except OSError as error:
                    if not is_transient(error):
                        raise DiskFailed(describe_failure(error)) from error
                    if not refused_ns:
                        refused_ns = clock_ns()
                        began, ended = _NO_DESCRIPTORS if is_out_of_descriptors(error) else _NO_ROOM
                        self._waiting[began] = self._waiting.get(began, 0) + 1
                        self._record(began, {"bytes": size_bytes, "error": str(error)[:200]})
                    await trio.sleep(ROOM_RETRY_S)
        finally:
            if began:
                self._waiting[began] -= 1
        if refused_ns:
            self._record(ended, {"after_ns": clock_ns() - refused_ns})
        return found

    async def probe(self, write: Callable[[], None], size_bytes: int) -> bool:
        """Carry out `write` once, under the same faults; return False if there is no room.

        Raises:
            DiskFailed: `write` failed for another cause.
        """
        if not self._faults.take_room(size_bytes):
            return False
        try:
            await run_in_thread(write)
        except OSError as error:
            if not is_transient(error):
                raise DiskFailed(describe_failure(error)) from error
            return False
        await self._linger()
        return True

    async def _linger(self) -> None:
        """Delay the report of a write for as long as a fault demands."""
        began_ns = clock_ns()
        lingered = False
        while (left_ns := began_ns + self._faults.write_delay_ns() - clock_ns()) > 0:
            lingered = True
            await trio.sleep(min(left_ns / SECOND_NS, _SLICE_S))
        if lingered:
            self._faults.count_slowed_write()


class Disk:
    """The commits of one core, performed in order, off the event loop.

    A commit without a token is gathered, and written with the next commit that has a token.
    """

    def __init__(
        self,
        store: MetaStore,
        post: Callable[[list[Event]], object],
        writes: DurableWrites | None = None,
    ) -> None:
        self._store = store
        self._writes = writes or DurableWrites()
        self._post = post
        self._rows: dict[tuple[str, str], RowChange] = {}
        self._tokens: list[int] = []
        self._thread = DiskThread()
        self._wanted = trio.Event()
        self._urgent = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def commit(self, commit: Commit) -> None:
        """Take a commit; Persisted follows if the commit has a token."""
        for change in commit.changes:
            self._rows[change.table, change.key] = (change.table, change.key, change.value)
        if commit.token is not None:
            self._tokens.append(commit.token)
            self._urgent.set()
        self._wanted.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    async def run(self) -> None:
        """Commit for ever.

        Raises:
            DiskFailed, StorageCorrupt: for other reasons than a full disk. Promised data are
                missing, so the broker must end.
        """
        while True:
            await self._wanted.wait()
            with trio.move_on_after(LAZY_ROWS_NS / SECOND_NS):
                await self._urgent.wait()
            rows, self._rows = self._rows, {}
            tokens, self._tokens = self._tokens, []
            self._wanted, self._urgent = trio.Event(), trio.Event()
            commit = partial(self._store.commit, list(rows.values()))
            await self._writes.perform(commit, len(rows) * ROW_BYTES, self._thread)
            if not self._rows and not self._tokens:
                self._idle.set()
            self._post([Persisted(token) for token in tokens])

    async def settle(self) -> None:
        """Wait until everything taken so far is durable."""
        self._urgent.set()
        while not self._idle.is_set():
            await self._idle.wait()

    async def probe(self, path: Path) -> bool:
        """Return True if a page can be made durable in a temporary file.

        Raises:
            DiskFailed: for other reasons than a full disk.
        """
        return await self._writes.probe(partial(_write_and_remove, path), ROW_BYTES)


def _write_and_remove(path: Path) -> None:
    try:
        with open(path, "wb") as file:
            file.write(bytes(ROW_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


LAZY_RECORDS_NS: Final = 50 * MILLISECOND_NS
"""Time for which records without a waiter may gather."""
PAGE_BYTES: Final = 1 << 20
"""Approximate size of one read."""


@dataclass(slots=True)
class _GroupStep:
    """The entries of one group, and the read that follows."""

    entries: list[LogEntry | LogRun] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chopped: dict[str, int] = field(default_factory=dict)
    read: Read | None = None


class LogWriter:
    """The operations of one core on its logs, performed in order, off the event loop.

    A chop waits for the next record.

    Args:
        ends: ends of the logs when the volume began.
    """

    def __init__(
        self,
        volume: LogVolume,
        ends: Mapping[str, LogEnds],
        post: Callable[[list[Event]], object],
        writes: DurableWrites | None = None,
    ) -> None:
        self._volume = volume
        self._bounds = LogBounds(ends)
        self._writes = writes or DurableWrites()
        self._post = post
        self._steps = [_GroupStep()]
        self._chopped: dict[str, int] = {}
        self._thread = DiskThread()
        self._wanted = trio.Event()
        self._urgent = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def take(self, effect: LogEffect) -> None:
        """Take an effect; its answer follows."""
        step = self._steps[-1]
        if isinstance(effect, Append):
            first = self._bounds.append(effect)
            if effect.records:
                step.entries.append(LogRun(effect.log, first, effect.records))
            if effect.token is not None:
                step.tokens.append(effect.token)
                self._urgent.set()
        elif isinstance(effect, Chop):
            if self._bounds.chop(effect):
                step.chopped[effect.log] = effect.first
            return
        elif isinstance(effect, Read):
            self._bounds.read(effect)
            step.read = effect
            self._steps.append(_GroupStep())
            self._urgent.set()
        elif self._bounds.truncate(effect):
            step.entries.append(LogEntry(EntryKind.TRUNCATED, effect.log, effect.next))
        self._wanted.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    async def run(self) -> None:
        """Write and read for ever.

        Raises:
            DiskFailed: for other reasons than a full disk. Promised data are missing, so the broker
                must end.
            StorageCorrupt: the records read differ from the records written.
        """
        while True:
            await self._wanted.wait()
            if not self._urgent.is_set():
                with trio.move_on_after(LAZY_RECORDS_NS / SECOND_NS):
                    await self._urgent.wait()
            self._wanted, self._urgent = trio.Event(), trio.Event()
            steps, self._steps = self._steps, [_GroupStep()]
            for step in steps:
                await self._perform(step)
            if not self._wanted.is_set():
                self._idle.set()

    async def settle(self) -> None:
        """Wait until everything taken so far is durable."""
        self._urgent.set()
        await self._idle.wait()

    async def _perform(self, step: _GroupStep) -> None:
        self._chopped.update(step.chopped)
        if step.entries:
            for log, first in self._chopped.items():
                step.entries.append(LogEntry(EntryKind.CHOPPED, log, first))
            self._chopped.clear()
            size = sum(entry.content_bytes() for entry in step.entries)
            write = partial(self._volume.write, step.entries)
            await self._writes.perform(write, size, self._thread)
        if step.tokens:
            self._post([Persisted(token) for token in step.tokens])
        if (read := step.read) is not None:
            read_page = partial(self._volume.read, read.log, read.first, read.end, PAGE_BYTES)
            records = await self._writes.read(read_page, self._thread)
            self._post([RecordsRead(read.log, read.first, tuple(records))])
