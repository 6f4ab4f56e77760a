"""The file operations that logs use, and the transient failures of the operating system.

A damaged end of a log, or of the journal of a database, looks like an end that a crash tore off.
`SyncedMark` distinguishes the two: a write at or before the mark was durable, and is not torn. The
mark is written after the write is durable, and never waits for the disk. After a power failure it
may be behind, and then proves less.
"""

import errno
import os
import resource
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from brokerd.files import sync_folder

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the whole machine, has reached its limit of open files."""

Buffer = bytes | memoryview


def is_no_room(error: OSError) -> bool:
    """Return True if a write failed for lack of room only, and may be repeated."""
    return error.errno in NO_ROOM


def is_out_of_descriptors(error: OSError) -> bool:
    """Return True if a file or socket could not be opened for lack of descriptors only."""
    return error.errno in NO_DESCRIPTORS


def is_transient(error: OSError) -> bool:
    """Return True if the same operation may succeed later, after resources are freed."""
    return is_no_room(error) or is_out_of_descriptors(error)


@contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Add the path of the file to an OSError: the operating system reports descriptors only."""
    try:
        yield
    except OSError as error:
        raise name_error(error, path) from error


def name_error(error: OSError, path: Path) -> OSError:
    """Return the same error with the path of the file in its text."""
    return OSError(error.errno, f"{path}: {error.strerror or error}")


def describe_failure(error: OSError) -> str:
    """Return the text of an error of a file, with the limit of the process if one is the cause."""
    text = error.strerror or str(error)
    if error.filename is not None and str(error.filename) not in text:
        text = f"{error.filename}: {text}"
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        text += f": this process may write no file beyond {limit:,} bytes (`ulimit -f`)"
    return text


def find_identity(path: Path) -> tuple[int, int]:
    """Return device and inode of the file that a path names; zeros if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return found.st_dev, found.st_ino


_GROWTH_BYTES: Final = 1 << 16
"""An upper bound of the growth of a database file by one write."""


def find_write_obstacle(paths: Sequence[Path]) -> OSError | None:
    """Return a cause of a failed write that can be seen from outside; None if there is none.

    SQLite reports an error of input or output without the number of the operating system.

    Args:
        paths: the files of a database, in one folder; some may not exist.
    """
    folder = paths[0].parent
    try:
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return name_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), folder)
        found = {path: path.stat().st_size for path in paths if path.exists()}
    except OSError as error:
        return error
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    for path, size in found.items():
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            return name_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), path)
        if limit != resource.RLIM_INFINITY and size + _GROWTH_BYTES > limit:
            return name_error(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), path)
    return None


class Files(Protocol):
    """Files by descriptor, in folders; every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder that only its owner may read, unless it exists."""
        ...

    def names(self, folder: Path) -> list[str]: ...

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable, with the files that they refer to."""
        ...

    def create(self, path: Path) -> int:
        """Create a file for appending and return its descriptor; the name must be new."""
        ...

    def open(self, path: Path, *, change: bool = False) -> int:
        """Open an existing file, to read or to change, and return its descriptor."""
        ...

    def append(self, file: int, data: Buffer) -> int:
        """Write at the end; return the number of bytes written."""
        ...

    def read_at(self, file: int, size: int, place: int) -> bytes:
        """Return up to `size` bytes from a place on."""
        ...

    def write_at(self, file: int, data: Buffer, place: int) -> None:
        """Overwrite bytes within a sector, so that a crash leaves the old or the new bytes."""
        ...

    def cut(self, file: int, size: int) -> None:
        """Truncate a file to `size`."""
        ...

    def end_of(self, file: int) -> int:
        """Return the size of an open file; -1 if the file has no name any more."""
        ...

    def identity(self, path: Path) -> tuple[int, int]:
        """Return device and inode of the file that a path names; zeros if there is none."""
        ...

    def sync(self, file: int) -> None:
        """Make the content of a file durable."""
        ...

    def close(self, file: int) -> None: ...

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a name from its folder."""
        ...


class DiskFiles:
    """See Files: the files of the operating system."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def open(self, path: Path, *, change: bool = False) -> int:
        return os.open(path, (os.O_RDWR if change else os.O_RDONLY) | os.O_CLOEXEC)

    def append(self, file: int, data: Buffer) -> int:
        return os.write(file, data)

    def read_at(self, file: int, size: int, place: int) -> bytes:
        return os.pread(file, size, place)

    def write_at(self, file: int, data: Buffer, place: int) -> None:
        os.pwrite(file, data, place)

    def cut(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def end_of(self, file: int) -> int:
        """See Files."""
        found = os.fstat(file)
        return found.st_size if found.st_nlink else -1

    def identity(self, path: Path) -> tuple[int, int]:
        """See Files."""
        return find_identity(path)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def remove(self, path: Path) -> None:
        path.unlink()


DISK: Final = DiskFiles()


TAG_BYTES: Final = 16
_MARK: Final = struct.Struct(f">{TAG_BYTES}sQ")  # tag of the marked file, number of the write
_CHECKSUM: Final = struct.Struct(">I")
MARK_BYTES: Final = _MARK.size + _CHECKSUM.size


class SyncedMark:
    """The mark in a file; a damaged mark, or the mark of another tag, has no effect.

    Args:
        path: path of the mark.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file = -1
        self._identity = 0, 0

    @property
    def is_in_place(self) -> bool:
        """True unless another file, or none, has the name of the open file."""
        return self._file < 0 or self._files.identity(self._path) == self._identity

    def number(self, tag: bytes) -> int:
        """Return the number of the last write of a tag that the mark shows durable, or 0."""
        marked, number = self.newest()
        return number if marked == tag else 0

    def newest(self) -> tuple[bytes, int]:
        """Return the tag and the number in the mark; (b"", 0) if there is no valid mark."""
        if not self.exists:
            return b"", 0
        data = self._files.read(self._path)
        if len(data) != MARK_BYTES or zlib.crc32(data[: _MARK.size]) != _checksum_of(data):
            return b"", 0
        marked, number = _MARK.unpack_from(data)
        return bytes(marked), int(number)

    def open(self) -> None:
        """Open the file for writing; a new name is durable with the next sync of its folder."""
        if self._file >= 0:
            return
        exists = self.exists
        if not exists or len(self._files.read(self._path)) != MARK_BYTES:
            if exists:
                self._files.remove(self._path)
            file = self._files.create(self._path)
            try:
                self._files.append(file, bytes(MARK_BYTES))
                self._files.sync(file)
            finally:
                self._files.close(file)
        self._file = self._files.open(self._path, change=True)
        self._identity = self._files.identity(self._path)

    def write(self, tag: bytes, number: int) -> None:
        """Record that this write of a tag is durable, and all writes before.

        Raises:
            OSError: for other reasons than lack of room; without room the mark stays behind, and
                nothing is lost.
        """
        mark = _MARK.pack(tag, number)
        try:
            self._files.write_at(self._file, mark + _CHECKSUM.pack(zlib.crc32(mark)), 0)
        except OSError as error:
            if not is_no_room(error):
                raise name_error(error, self._path) from error

    def remove(self) -> None:
        """Close and remove the file."""
        self.close()
        if self.exists:
            self._files.remove(self._path)

    def close(self) -> None:
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1

    @property
    def exists(self) -> bool:
        """True if there is a file, with or without a valid mark."""
        return self._path.name in self._files.names(self._path.parent)


def _checksum_of(data: bytes) -> int:
    (found,) = _CHECKSUM.unpack_from(data, _MARK.size)
    return int(found)
