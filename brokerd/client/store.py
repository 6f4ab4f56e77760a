"""The store of a client's state that must survive a restart."""

import errno
import os
from pathlib import Path
from typing import Final, Protocol

STORE_LIMIT_BYTES: Final = 1 << 30


class Store(Protocol):
    """A store of one value of one client; calls never overlap, and arrive from changing threads."""

    def load(self) -> bytes | None:
        """Return the value that was last saved; None if there is none.

        Raises:
            OSError: the value cannot be read.
        """
        ...

    def save(self, content: bytes) -> None:
        """Replace the value; durable when this returns.

        Raises:
            OSError: the new value may be stored or not; the client must end.
        """
        ...


class FileStore:
    """A store in one file of this user alone, for one client in one process at a time.

    After a crash the file contains the value last saved or, if a save was in progress, the value
    before, never parts of either. After an error nothing more is saved: the content of the disk is
    unknown then, and only a new process that reads the file can continue.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._failure = ""

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        """See Store."""
        try:
            with open(self._path, "rb") as file:
                return file.read(STORE_LIMIT_BYTES)
        except FileNotFoundError:
            return None

    def save(self, content: bytes) -> None:
        """See Store."""
        if self._failure:
            raise OSError(errno.EIO, f"{self._path}: nothing is saved after {self._failure}")
        try:
            self._replace(content)
        except OSError as error:
            self._failure = str(error)
            raise OSError(errno.EIO, f"{self._path}: {error}") from error

    def _replace(self, content: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(fresh, flags, 0o600)
        try:
            os.fchmod(file, 0o600)  # a file that a crash has left may be readable by others
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(fresh, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
