"""paramiko's transport, and file transfers.

paramiko's transport, with channels that close in order.

In paramiko, a sending thread composes a message under the channel's lock and sends the message
after the release of the lock. If the other side closes the channel in between, the transport's
thread sends its own close first, and the message names a closed channel. OpenSSH then ends the
whole connection with all other channels.

File transfers by SFTP: whole or not at all, and regular files only.

All calls block and run in worker threads. The host's answers are not trusted: neither the type of a
file, nor the size, nor that the file ends.
"""

import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE
from paramiko.transport import ChannelMap

from pubsubctl.errors import HostError, IntegrityError, PreflightFailed, UserError


class OrderedTransport(paramiko.Transport):
    """A transport that announces a closed channel only after all senders have finished."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._channels = _OrderedChannels()
        self._channel_handler_table = {
            **self._channel_handler_table,  # type: ignore[has-type]
            MSG_CHANNEL_CLOSE: _OrderedChannel._handle_close,
        }


class _OrderedChannels(ChannelMap):
    """A channel map that makes every channel ordered before the other side can use the channel."""

    def put(self, chanid: int, chan: paramiko.Channel) -> None:
        chan.__class__ = _OrderedChannel
        assert isinstance(chan, _OrderedChannel), chan
        chan.begin()
        super().put(chanid, chan)


class _OrderedChannel(paramiko.Channel):
    """A channel that closes after the messages in flight, without blocking."""

    def begin(self) -> None:
        self._guard = threading.Lock()
        self._senders = 0
        self._is_closing = False
        self._closings: list[Callable[[], None]] = []

    def shutdown(self, how: int) -> None:
        with self._sending() as is_open:
            if is_open:
                super().shutdown(how)

    def close(self) -> None:
        self._close_after_senders(super().close)

    def _send(self, s: bytes, m: paramiko.Message) -> int:
        with self._sending() as is_open:
            if not is_open:
                raise OSError("Socket is closed")  # paramiko's own text
            return super()._send(s, m)  # type: ignore[misc, no-any-return]

    def _handle_close(self, m: paramiko.Message) -> None:
        handle = super()._handle_close  # type: ignore[misc]
        self._close_after_senders(lambda: handle(m))

    @contextmanager
    def _sending(self) -> Iterator[bool]:
        """Yield True if the channel may be sent on; an open channel stays open in the block."""
        with self._guard:
            is_open = not self._is_closing
            self._senders += 1
        try:
            yield is_open
        finally:
            with self._guard:
                self._senders -= 1
            self._close_now()

    def _close_after_senders(self, closing: Callable[[], None]) -> None:
        with self._guard:
            self._is_closing = True
            self._closings.append(closing)
            is_sending = self._senders > 0
        if not is_sending:
            self._close_now()
            return
        with self.lock:  # releases threads that wait for room to send
            self.eof_sent = True
            self.out_buffer_cv.notify_all()

    def _close_now(self) -> None:
        """Run the requested closings, unless a thread is still sending.

        The closings are not stored: a stored closing refers to this channel, which would live until
        the next garbage collection, and close once more at an arbitrary time.
        """
        while True:
            with self._guard:
                if self._senders or not self._closings:
                    return
                closing = self._closings.pop(0)
            closing()


# sshd's answer to one request; sshd allows up to 255 KiB. The standard's 32 KiB halve the speed at
# least.
REQUEST_BYTES: Final = 131_072
SEGMENT_BYTES: Final = 8 << 20  # requested at once; the most that is in memory


class Sftp(Protocol):
    """The part of paramiko's SFTPClient that is used here."""

    def create(self, path: str, mode: int, /) -> Any: ...
    def open(self, path: str, mode: str, /) -> Any: ...
    def lstat(self, path: str, /) -> Any: ...
    def posix_rename(self, old: str, new: str, /) -> None: ...
    def remove(self, path: str, /) -> None: ...


class Upload:
    """An upload of a file to a host, over as many connections as necessary.

    A connection may be lost between the execution of the last request and the answer. So a further
    attempt first inspects the host's files.
    """

    def __init__(self, source: Path, target: str, mode: int, *, where: str) -> None:
        """
        Args:
            where: host and path, for messages.
        """
        self._source = source
        self._target = target
        self._mode = mode
        self._where = where
        folder, slash, name = target.rpartition("/")
        if not name:
            raise UserError(f"{target}: names no file")
        # The name is random and private, so its existence proves our progress.
        self._partial = f"{folder}{slash}.{os.urandom(8).hex()}.part"
        self._sent_bytes: int | None = None  # set once the whole file is there, under either name

    def attempt(self, sftp: Sftp) -> None:
        """Upload the file, or find that the file has arrived.

        Raises:
            UserError: the source cannot be read here.
            IntegrityError: the remote file is shorter or longer.
        """
        if self._sent_bytes is not None and self._size(sftp, self._partial) is None:
            if self._size(sftp, self._target) == self._sent_bytes:
                return  # the file was renamed after all
            self._sent_bytes = None
        if self._sent_bytes is None:
            self._send(sftp)
        sftp.posix_rename(self._partial, self._target)

    def _size(self, sftp: Sftp, path: str) -> int | None:
        try:
            return int(sftp.lstat(path).st_size)
        except FileNotFoundError:
            return None

    def _send(self, sftp: Sftp) -> None:
        try:
            source = self._source.open("rb")
        except OSError as error:
            raise UserError(f"{self._source}: {(error.strerror or '').lower()}") from None
        with source:
            if self._size(sftp, self._partial) is not None:
                sftp.remove(self._partial)
            sent_bytes = 0
            with sftp.create(self._partial, self._mode) as target:
                target.set_pipelined(True)
                while piece := source.read(REQUEST_BYTES * 4):
                    target.write(piece)
                    sent_bytes += len(piece)
        arrived_bytes = self._size(sftp, self._partial)
        if arrived_bytes != sent_bytes:
            raise IntegrityError(f"{self._where}: {sent_bytes} bytes sent, {arrived_bytes} arrived")
        self._sent_bytes = sent_bytes


class Download:
    """A download of a regular file, over as many connections as necessary.

    The partial content is kept beside the target, in a file named after size and time of the
    source, and the download resumes while both are the same.
    """

    def __init__(self, source: str, target: Path, most_bytes: int | None, *, where: str) -> None:
        """
        Args:
            where: host and path, for messages.
        """
        self._source = source
        self._target = target
        self._most_bytes = most_bytes
        self._where = where

    def attempt(self, sftp: Sftp, is_given_up: Callable[[], bool]) -> None:
        """Fetch the file, or the missing part of a partial file.

        Raises:
            HostError: the source is not a regular file, is too large, or became shorter meanwhile.
            PreflightFailed: the file cannot be written here.
        """
        found = sftp.lstat(self._source)
        size = self._check_size(found)
        if self._most_bytes is not None and size > self._most_bytes:
            raise HostError(f"{self._where}: {size} bytes; at most {self._most_bytes} are taken")
        prefix = f".{self._target.name[:150]}."
        partial = self._target.with_name(f"{prefix}{size:x}-{int(found.st_mtime or 0):x}.part")
        with _translate_disk_errors(partial):
            for stale in self._target.parent.glob(f"{_literally(prefix)}*.part"):
                if stale != partial:
                    stale.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(partial, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # An abandoned attempt may still be writing.
            fcntl.flock(file, fcntl.LOCK_EX)
            have = os.fstat(file.fileno()).st_size
            if have > size:
                file.truncate(0)
                have = 0
            if have < size:
                with sftp.open(self._source, "rb") as remote:
                    self._check_size(remote.stat())
                    self._copy(remote, file, have, size, is_given_up)
            with _translate_disk_errors(partial):
                file.flush()
                os.replace(partial, self._target)

    def _copy(
        self, remote: Any, file: Any, have: int, size: int, is_given_up: Callable[[], bool]
    ) -> None:
        for begin in range(have, size, SEGMENT_BYTES):
            end = min(begin + SEGMENT_BYTES, size)
            wanted = [
                (offset, min(REQUEST_BYTES, end - offset))
                for offset in range(begin, end, REQUEST_BYTES)
            ]
            for (offset, length), piece in zip(wanted, remote.readv(wanted), strict=True):
                if is_given_up():
                    raise HostError(f"{self._where}: cancelled")
                if len(piece) != length:
                    raise HostError(f"{self._where}: became shorter than {offset + length} bytes")
                with _translate_disk_errors(self._target):
                    file.write(piece)

    def _check_size(self, attributes: Any) -> int:
        if attributes.st_mode is None or not stat.S_ISREG(attributes.st_mode):
            raise HostError(f"{self._where}: not a regular file")
        if attributes.st_size is None or attributes.st_size < 0:
            raise HostError(f"{self._where}: the host does not report its size")
        return int(attributes.st_size)


@contextmanager
def _translate_disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of this machine's disk into PreflightFailed, because the host is not at fault."""
    try:
        yield
    except OSError as error:
        raise PreflightFailed(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _literally(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)
