"""Writes of records to the logs of a broker: one group in flight, the next gathers meanwhile.

Paper: [GD02] §4 (latency consists mostly of logging; so a group shares one write).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from brokerd.protocols.interface import (
    Append,
    Chop,
    Event,
    LogEffect,
    LogEnds,
    Persisted,
    Read,
    RecordsRead,
)
from brokerd.protocols.parts.bounds import LogBounds
from brokerd.runtime.disk import DiskThread, DurableWrites
from brokerd.storage.log_groups import EntryKind, LogEntry, LogRun
from brokerd.storage.log_volume import LogVolume
from brokerd.units import MILLISECOND_NS, SECOND_NS

LAZY_NS: Final = 50 * MILLISECOND_NS
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
                with trio.move_on_after(LAZY_NS / SECOND_NS):
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
