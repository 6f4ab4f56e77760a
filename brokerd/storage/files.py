"""The file operations that logs are made of, as the operating system has them.

Whoever stands in for them decides what a crash leaves: a file has for sure what it had at its
last `sync`, and a folder the names that it had at its last `sync_folder`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

Buffer = bytes | memoryview


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of what is done within names the file: the operating system knows descriptors."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error


class Files(Protocol):
    """Files by descriptor, in folders; every method may raise OSError."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder that only its owner may look into, unless it is there."""
        ...

    def names(self, folder: Path) -> list[str]:
        """What is in a folder."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make durable which names a folder has, and which files they stand for."""
        ...

    def create(self, path: Path) -> int:
        """A new file, to append to; there must be none of that name."""
        ...

    def open(self, path: Path, *, change: bool = False) -> int:
        """A file that is there, to read or to change."""
        ...

    def append(self, file: int, data: Buffer) -> int:
        """Write at the end; says how many bytes there was room for."""
        ...

    def read_at(self, file: int, size: int, place: int) -> bytes:
        """As many bytes as there are from a place on, up to `size`."""
        ...

    def write_at(self, file: int, data: Buffer, place: int) -> None:
        """Write over what is there; within a sector, so that a crash leaves either of them."""
        ...

    def cut(self, file: int, size: int) -> None:
        """Let a file end at `size`."""
        ...

    def sync(self, file: int) -> None:
        """Make durable what a file contains."""
        ...

    def close(self, file: int) -> None:
        """Let go of a file."""
        ...

    def read(self, path: Path) -> bytes:
        """All of a file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a name from its folder."""
        ...


class DiskFiles:
    """See Files: those of the operating system."""

    def make_folder(self, folder: Path) -> None:
        """See Files."""
        folder.mkdir(mode=0o700, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        """See Files."""
        return os.listdir(folder)

    def sync_folder(self, folder: Path) -> None:
        """See Files."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, path: Path) -> int:
        """See Files."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def open(self, path: Path, *, change: bool = False) -> int:
        """See Files."""
        return os.open(path, (os.O_RDWR if change else os.O_RDONLY) | os.O_CLOEXEC)

    def append(self, file: int, data: Buffer) -> int:
        """See Files."""
        return os.write(file, data)

    def read_at(self, file: int, size: int, place: int) -> bytes:
        """See Files."""
        return os.pread(file, size, place)

    def write_at(self, file: int, data: Buffer, place: int) -> None:
        """See Files."""
        os.pwrite(file, data, place)

    def cut(self, file: int, size: int) -> None:
        """See Files."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """See Files."""
        os.fdatasync(file)

    def close(self, file: int) -> None:
        """See Files."""
        os.close(file)

    def read(self, path: Path) -> bytes:
        """See Files."""
        return path.read_bytes()

    def remove(self, path: Path) -> None:
        """See Files."""
        path.unlink()


DISK: Final = DiskFiles()
