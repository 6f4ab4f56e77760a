"""Durable writes that precede an announcement, on disks that are full, slow, or broken.

On a full disk, writes wait: nothing is acknowledged meanwhile, and nothing is lost. The same holds
without a free file descriptor. Any other failure ends the broker, because the state of the kernel's
buffers is then unknown.
"""

import errno
from collections.abc import Callable
from typing import Any, Final, TypeVar

import trio

from brokerd.errors import DiskFailed
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.disk_thread import DiskThread
from brokerd.sessions.link_faults import LinkFaults
from brokerd.storage.room import is_out_of_descriptors, is_transient
from brokerd.units import SECOND_NS

ROOM_RETRY_S: Final = 0.1
_SLICE_S: Final = 0.05
_NO_ROOM: Final = ("disk_full", "disk_has_room")
_NO_DESCRIPTORS: Final = ("descriptors_exhausted", "descriptors_free")

Returned = TypeVar("Returned")


class DurableWrites:
    """The path of all durable data of one broker to its disk.

    Args:
        faults: faults of this broker; disk faults are applied.
        record: called when the disk is full, and when it has room again.
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

    async def perform(self, write: Callable[[], None], size_bytes: int, thread: DiskThread) -> None:
        """Carry out `write` in a thread; repeat it while the disk has no room.

        `write` is repeated while the process has no free file descriptor, too, and must change
        nothing if it fails for either cause. A call must not be abandoned: two threads would use
        its files at once.

        Raises:
            DiskFailed: `write` failed for another cause.
            MustNotGoOn: the state folder was deleted or replaced.
        """
        await self._repeat(write, size_bytes, thread)
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
        ended = ""
        while True:
            try:
                if not self._faults.take_room(size_bytes):
                    raise OSError(errno.ENOSPC, "No space left on device (fault)")
                found = await thread.carry_out(operation)
                break
            except OSError as error:
                if not is_transient(error):
                    raise DiskFailed(str(error)) from error
                if not refused_ns:
                    refused_ns = clock_ns()
                    began, ended = _NO_DESCRIPTORS if is_out_of_descriptors(error) else _NO_ROOM
                    self._record(began, {"bytes": size_bytes, "error": str(error)[:200]})
                await trio.sleep(ROOM_RETRY_S)
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
            await trio.to_thread.run_sync(write)
        except OSError as error:
            if not is_transient(error):
                raise DiskFailed(str(error)) from error
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
