"""Writes that must be on disk before anybody is told, on disks that are full, slow, or broken.

A full disk is waited for: nothing is acknowledged meanwhile, and nothing is lost. Any other
failure ends the broker, because what the kernel then still holds is not known.
"""

import errno
from collections.abc import Callable
from typing import Any, Final

import trio

from brokerd.config import SECOND_NS
from brokerd.errors import DiskFailed
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.disk_thread import DiskThread
from brokerd.sessions.link_faults import LinkFaults
from brokerd.storage.room import is_no_room

ROOM_RETRY_S: Final = 0.1
_SLICE_S: Final = 0.05


class DurableWrites:
    """How everything of one broker that must be durable gets to its disk.

    Args:
        faults: of this broker; those of its disk are obeyed.
        record: is told when the disk is full, and when it no longer is.
        check: raises where what was written is not where a restart would look for it.
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
        """Carry out `write` in a thread, again and again while there is no room on the disk.

        `write` must change nothing when it fails for lack of room. Not to be abandoned: its
        files would be used by two threads at once.

        Raises:
            DiskFailed: it failed otherwise.
            MustNotGoOn: the state folder was deleted or replaced.
        """
        refused_ns = 0
        while True:
            try:
                if not self._faults.take_room(size_bytes):
                    raise OSError(errno.ENOSPC, "No space left on device (fault)")
                await thread.carry_out(write)
                self._check()
                break
            except OSError as error:
                if not is_no_room(error):
                    raise DiskFailed(str(error)) from error
                if not refused_ns:
                    refused_ns = clock_ns()
                    self._record("disk_full", {"bytes": size_bytes, "error": str(error)[:200]})
                await trio.sleep(ROOM_RETRY_S)
        if refused_ns:
            self._record("disk_has_room", {"after_ns": clock_ns() - refused_ns})
        await self._linger()

    async def probe(self, write: Callable[[], None], size_bytes: int) -> bool:
        """Carry out `write` once, under the same faults; False when there is no room for it.

        Raises:
            DiskFailed: it failed otherwise.
        """
        if not self._faults.take_room(size_bytes):
            return False
        try:
            await trio.to_thread.run_sync(write)
        except OSError as error:
            if not is_no_room(error):
                raise DiskFailed(str(error)) from error
            return False
        await self._linger()
        return True

    async def _linger(self) -> None:
        """Let the write seem to take longer, as long as a fault says so."""
        began_ns = clock_ns()
        lingered = False
        while (left_ns := began_ns + self._faults.write_delay_ns() - clock_ns()) > 0:
            lingered = True
            await trio.sleep(min(left_ns / SECOND_NS, _SLICE_S))
        if lingered:
            self._faults.count_slowed_write()
