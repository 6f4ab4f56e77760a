"""Files to and from other machines, by SFTP: whole or not at all, and regular files only.

These functions block; they are run in worker threads. What the other side says is not trusted:
not the kind of a file, not its size, not that it ends.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from pubsubctl.errors import HostError, IntegrityError, UserError

REQUEST_BYTES: Final = 32_768  # what every server answers in one piece
SEGMENT_BYTES: Final = 8 << 20  # requested at once; what we hold in memory at most


class Sftp(Protocol):
    """The part of paramiko's SFTPClient that is used here."""

    def create(self, path: str, mode: int, /) -> Any: ...
    def open(self, path: str, mode: str, /) -> Any: ...
    def lstat(self, path: str, /) -> Any: ...
    def posix_rename(self, old: str, new: str, /) -> None: ...
    def remove(self, path: str, /) -> None: ...


class Upload:
    """One file on its way to a host, over as many connections as it takes.

    A connection may be lost after the last request was carried out and before its answer came.
    So a further attempt first looks at what is there.
    """

    def __init__(self, source: Path, target: str, mode: int) -> None:
        self._source = source
        self._target = target
        self._mode = mode
        folder, slash, name = target.rpartition("/")
        if not name:
            raise UserError(f"{target}: names no file")
        # Nobody else knows this name, so whether it is there tells what we did.
        self._partial = f"{folder}{slash}.{os.urandom(8).hex()}.part"
        self._size: int | None = None  # once all of it has arrived

    def attempt(self, sftp: Sftp) -> None:
        """Bring the file there, or find that it is."""
        if self._size is None or not self._arrived(sftp):
            self._size = None
            self._size = self._send(sftp)
        if self._is_there(sftp, self._partial):
            sftp.posix_rename(self._partial, self._target)

    def _arrived(self, sftp: Sftp) -> bool:
        """Whether an earlier attempt's copy is whole, under either name."""
        for path in (self._partial, self._target):
            if self._is_there(sftp, path):
                return bool(sftp.lstat(path).st_size == self._size)
        return False

    def _is_there(self, sftp: Sftp, path: str) -> bool:
        try:
            sftp.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def _send(self, sftp: Sftp) -> int:
        try:
            source = self._source.open("rb")
        except OSError as error:
            raise UserError(f"{self._source}: {(error.strerror or '').lower()}") from None
        with source:
            if self._is_there(sftp, self._partial):
                sftp.remove(self._partial)
            sent = 0
            with sftp.create(self._partial, self._mode) as target:
                target.set_pipelined(True)
                while piece := source.read(REQUEST_BYTES * 8):
                    target.write(piece)
                    sent += len(piece)
        arrived = sftp.lstat(self._partial).st_size
        if arrived != sent:
            sftp.remove(self._partial)
            raise IntegrityError(f"{self._target}: {sent} bytes were sent, {arrived} arrived")
        return sent


def fetch(
    sftp: Sftp,
    source: str,
    target: Path,
    most_bytes: int | None,
    is_given_up: Callable[[], bool],
) -> None:
    """Copy a regular file; `target` appears when all of it is there.

    What came of an earlier attempt is kept beside it, and taken up again as long as size and
    time of the source are the same. That the content is what it was is for the caller to
    check, by hash.

    Raises:
        HostError: it is not a regular file, too large, or became shorter meanwhile.
    """
    found = sftp.lstat(source)
    _check_regular(found, source)
    size = int(found.st_size)
    if most_bytes is not None and size > most_bytes:
        raise HostError(f"{source}: {size} bytes; at most {most_bytes} are taken")
    prefix = f".{target.name[:150]}."
    partial = target.with_name(f"{prefix}{size:x}-{int(found.st_mtime or 0):x}.part")
    for stale in target.parent.iterdir():
        if stale.name.startswith(prefix) and stale.name.endswith(".part") and stale != partial:
            stale.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o600), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # an attempt that was given up may not have noticed yet
        have = os.fstat(file.fileno()).st_size
        if have > size:
            file.truncate(0)
            have = 0
        if have < size:
            with sftp.open(source, "rb") as remote:
                _check_regular(remote.stat(), source)
                _copy(remote, file, have, size, source, is_given_up)
    os.replace(partial, target)


def _copy(
    remote: Any, file: Any, have: int, size: int, source: str, is_given_up: Callable[[], bool]
) -> None:
    for begin in range(have, size, SEGMENT_BYTES):
        end = min(begin + SEGMENT_BYTES, size)
        wanted = [
            (offset, min(REQUEST_BYTES, end - offset))
            for offset in range(begin, end, REQUEST_BYTES)
        ]
        for (offset, length), piece in zip(wanted, remote.readv(wanted), strict=True):
            if is_given_up():
                raise HostError(f"{source}: given up")
            if len(piece) != length:
                raise HostError(f"{source}: became shorter than {offset + length} bytes")
            file.write(piece)


def _check_regular(attributes: Any, path: str) -> None:
    if attributes.st_mode is None or not stat.S_ISREG(attributes.st_mode):
        raise HostError(f"{path}: not a regular file")
    if attributes.st_size is None or attributes.st_size < 0:
        raise HostError(f"{path}: the host does not say how large it is")
