"""Group commit of rows: one commit is in flight, and the next gathers meanwhile.

Paper: [GD02] §4 (latency consists mostly of logging; so a group shares one write).
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from brokerd.protocols.interface import Commit, Event, Persisted
from brokerd.runtime.disk_thread import DiskThread
from brokerd.runtime.durable import DurableWrites
from brokerd.storage.meta_store import MetaStore, RowChange
from brokerd.units import MILLISECOND_NS, SECOND_NS

LAZY_NS = 200 * MILLISECOND_NS
"""Time for which commits without a waiter may gather."""
ROW_BYTES: Final = 4_096
"""Bytes of a disk's quota per row: SQLite writes pages."""


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
            with trio.move_on_after(LAZY_NS / SECOND_NS):
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
        while self._rows or self._tokens or not self._idle.is_set():
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
