"""Transfers of files by SFTP: whole or not at all, and regular files only.

All calls block and run in worker threads. The host's answers are not trusted: neither the type of a
file, nor the size, nor that the file ends.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import paramiko
from paramiko.sftp import CMD_HANDLE, CMD_OPEN, SFTPError
from paramiko.sftp_attr import SFTPAttributes

from pubsubctl.errors import HostError, IntegrityError, PreflightFailed, UserError
from pubsubctl.hosts.ssh.errors import Garbled, describe_error

# sshd's answer to one request; sshd allows up to 255 KiB. The standard's 32 KiB halve the speed at
# least.
REQUEST_BYTES: Final = 131_072
SEGMENT_BYTES: Final = 8 << 20  # requested at once; the most that is in memory
LONGEST_GREETING: Final = 256
GREETING_S: Final = 0.5


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


class SftpFiles(paramiko.SFTPClient):
    """A file session that can make files with their mode, so that none is ever open to others."""

    def open(self, filename: Any, mode: str = "r", bufsize: int = -1) -> paramiko.SFTPFile:
        """Open a file with larger requests than paramiko's."""
        file = super().open(filename, mode, bufsize)
        file.MAX_REQUEST_SIZE = REQUEST_BYTES
        return file

    def create(self, path: str, mode: int) -> paramiko.SFTPFile:
        """Create a new file for writing; raise OSError if the file exists."""
        attributes = SFTPAttributes()
        attributes.st_mode = mode
        flags = 0x02 | 0x08 | 0x20  # write, create, exclusively
        kind, message = self._request(  # type: ignore[attr-defined]
            CMD_OPEN, path.encode(), flags, attributes
        )
        if kind != CMD_HANDLE:
            raise paramiko.SSHException("the host gave no handle for a new file")
        file = paramiko.SFTPFile(self, message.get_binary(), "wx", 0)
        file.MAX_REQUEST_SIZE = REQUEST_BYTES
        file.chmod(mode)  # regardless of the host's umask
        return file


def files_on(channel: Any) -> SftpFiles:
    """Return a file session on a channel, a byte stream with a timeout.

    Raises:
        Garbled: the server begins with a text instead of the protocol.
    """
    received = _Received(channel)
    try:
        files = SftpFiles(received)  # type: ignore[arg-type]  # a stream, as paramiko allows
        files.sock = channel
        return files
    except SFTPError as error:
        received.settimeout(GREETING_S)
        try:
            while len(received.begin) < LONGEST_GREETING and received.recv(LONGEST_GREETING):
                pass
        except (OSError, EOFError):
            pass  # nothing more arrives
        received.close()
        text = received.begin.decode("utf-8", "replace").split("\0")[0].strip()
        raise Garbled(text.splitlines()[0] if text else describe_error(error)) from error


class _Received:
    """A channel of a file session that keeps the first received bytes."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.begin = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def recv(self, size: int) -> bytes:
        """Return received bytes; see `paramiko.Channel.recv`."""
        found: bytes = self._channel.recv(size)
        if len(self.begin) < LONGEST_GREETING:
            self.begin += found
        return found
