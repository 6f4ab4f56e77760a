"""Publications on their way into the log: one group in flight, the next gathers meanwhile."""

import struct
from collections.abc import Callable
from functools import partial

import trio

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Append, Event, Persisted, Release
from brokerd.runtime.durable import DurableWrites
from brokerd.storage.publication_log import LogEntry, PublicationLogFiles
from brokerd.wire.codec import decode, encode

_KEY = struct.Struct(">QQQ")
_LENGTHS = struct.Struct(">II")


class LogWriter:
    """Performs the Appends and Releases of one core, in order, off the event loop.

    A Release waits for the next Append; what a crash keeps from the log is published twice at
    worst, and told from new by its number.
    """

    def __init__(
        self,
        files: PublicationLogFiles,
        post: Callable[[list[Event]], None],
        writes: DurableWrites | None = None,
    ) -> None:
        self._files = files
        self._writes = writes or DurableWrites()
        self._post = post
        self._entries: list[LogEntry] = []
        self._released: dict[SourceId, int] = {}
        self._tokens: list[int] = []
        self._limiter = trio.CapacityLimiter(1)
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def append(self, effect: Append) -> None:
        """Take publications; Persisted follows."""
        run = effect.run
        self._entries.append(LogEntry(_key(run.source), run.last, encode(Publish(run))))
        self._tokens.append(effect.token)
        self._wanted.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    def release(self, effect: Release) -> None:
        """Note what need not be kept any longer."""
        self._released[effect.source] = effect.through

    async def run(self) -> None:
        """Write for ever.

        Raises:
            OSError: the disk failed otherwise than by being full. What was promised is not
                there, so the broker must end.
        """
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            entries, self._entries = self._entries, []
            tokens, self._tokens = self._tokens, []
            released, self._released = self._released, {}
            entries += [LogEntry(_key(source), last, None) for source, last in released.items()]
            size = sum(len(piece) for entry in entries for piece in entry.content or ())
            await self._writes.perform(partial(self._files.write, entries), size, self._limiter)
            if not self._tokens:
                self._idle.set()
            self._post([Persisted(token) for token in tokens])

    async def settle(self) -> None:
        """Wait until everything taken so far is on disk."""
        await self._idle.wait()


def read_log(files: PublicationLogFiles, *, recovering: bool) -> tuple[PublicationRun, ...]:
    """What an earlier incarnation has left, in order.

    Raises:
        StorageCorrupt: it cannot be what a broker wrote.
        OSError: the disk failed.
    """
    runs: list[PublicationRun] = []
    for entry in files.begin(recovering=recovering):
        assert entry.content is not None, f"{entry.key!r} is a release"
        runs.append(_read_run(entry.content[0]))
    return tuple(runs)


def _read_run(frame: bytes | memoryview) -> PublicationRun:
    view = memoryview(frame)
    try:
        size, header_size = _LENGTHS.unpack_from(view)
        header = view[_LENGTHS.size : _LENGTHS.size + header_size]
        message = decode(header, view[_LENGTHS.size + header_size :], "the publication log")
    except (struct.error, RemoteProtocolError) as error:
        raise StorageCorrupt(f"publication log: {error}") from error
    if not isinstance(message, Publish) or size != len(view) - 4:
        raise StorageCorrupt(f"publication log: an entry of {len(view)} bytes is no publications")
    return message.run


def _key(source: SourceId) -> bytes:
    return _KEY.pack(source.broker, source.publisher, source.incarnation)
