"""Files and the meta store in memory, so that tests can crash at any moment."""

import copy
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.storage.files import Buffer
from brokerd.storage.meta_store import (
    WITNESSED,
    Beginning,
    FolderMarks,
    NewMarks,
    RowChange,
    Tables,
    decode_value,
    encode_value,
)


@dataclass(frozen=True, slots=True)
class Named:
    """A new name in a folder, for this file; -1 for a folder."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Removed:
    """The removal of a name from a folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """A write of bytes from `place` on."""

    file: int
    place: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncation of a file to `size`."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync of the content of a file."""

    file: int


@dataclass(frozen=True, slots=True)
class FolderSynced:
    """A sync of the names in a folder."""

    path: str


Step = Named | Removed | Wrote | Cut | Synced | FolderSynced


def _never_fail(_operation: str) -> None:
    """Do nothing before an operation: no operation fails."""


@dataclass
class MemoryFiles:
    """See brokerd.storage.files.Files.

    Args:
        contents: the durable files at the start: path → bytes.

    Attributes:
        trail: every change and sync, in order.
        before: called with the name of each operation; may raise OSError, or block.
        room_bytes: bytes that may still be appended; None is no bound.
        most_bytes: largest size of one append.
        in_use: the descriptors that are open, each as often as it was opened.
    """

    contents: Mapping[str, bytes] = field(default_factory=dict)
    trail: list[Step] = field(default_factory=list)
    before: Callable[[str], None] = _never_fail
    room_bytes: int | None = None
    most_bytes: int = 1 << 30
    in_use: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._files = [bytearray(content) for content in self.contents.values()]
        self._names = {str(Path(path).parent): -1 for path in self.contents}
        self._names |= {path: file for file, path in enumerate(self.contents)}

    def read_all(self) -> dict[str, bytes]:
        """Return the present content of all files: path → bytes."""
        return {path: bytes(self._files[file]) for path, file in self._names.items() if file >= 0}

    def make_folder(self, folder: Path) -> None:
        """See Files."""
        self.before("make_folder")
        if str(folder) not in self._names:
            self._names[str(folder)] = -1
            self.trail.append(Named(str(folder), -1))

    def names(self, folder: Path) -> list[str]:
        """See Files."""
        self.before("names")
        inside = f"{folder}/"
        return [path.removeprefix(inside) for path in self._names if path.startswith(inside)]

    def sync_folder(self, folder: Path) -> None:
        """See Files."""
        self.before("sync_folder")
        self.trail.append(FolderSynced(str(folder)))

    def create(self, path: Path) -> int:
        """See Files."""
        self.before("create")
        if str(path) in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        file = len(self._files)
        self._files.append(bytearray())
        self._names[str(path)] = file
        self.trail.append(Named(str(path), file))
        self.in_use.append(file)
        return file

    def open(self, path: Path, *, change: bool = False) -> int:
        """See Files."""
        self.before("open")
        file = self._names[str(path)]
        self.in_use.append(file)
        return file

    def append(self, file: int, data: Buffer) -> int:
        """See Files."""
        self.before("append")
        taken = bytes(data[: self.most_bytes])
        if self.room_bytes is not None:
            taken = taken[: self.room_bytes]
            if not taken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room_bytes -= len(taken)
        self.trail.append(Wrote(file, len(self._files[file]), taken))
        self._files[file] += taken
        return len(taken)

    def read_at(self, file: int, size: int, place: int) -> bytes:
        """See Files."""
        self.before("read_at")
        return bytes(self._files[file][place : place + size])

    def write_at(self, file: int, data: Buffer, place: int) -> None:
        """See Files."""
        self.before("write_at")
        written = bytes(data)
        assert place + len(written) <= len(self._files[file]), f"{place} of {file}"
        self._files[file][place : place + len(written)] = written
        self.trail.append(Wrote(file, place, written))

    def cut(self, file: int, size: int) -> None:
        """See Files."""
        self.before("cut")
        del self._files[file][size:]
        self.trail.append(Cut(file, size))

    def end_of(self, file: int) -> int:
        """See Files."""
        return len(self._files[file]) if file in self._names.values() else -1

    def identity(self, path: Path) -> tuple[int, int]:
        """See Files."""
        return 1, self._names.get(str(path), -1) + 1

    def sync(self, file: int) -> None:
        """See Files."""
        self.before("sync")
        self.trail.append(Synced(file))

    def close(self, file: int) -> None:
        """See Files."""
        self.in_use.remove(file)

    def read(self, path: Path) -> bytes:
        """See Files."""
        self.before("read")
        return bytes(self._files[self._names[str(path)]])

    def remove(self, path: Path) -> None:
        """See Files."""
        self.before("remove")
        del self._names[str(path)]
        self.trail.append(Removed(str(path)))


class MemoryMetaStore:
    """A store of rows for the life of the object; values pass the same encoding."""

    def __init__(self, incarnation: int = 0, deployment_id: str = "") -> None:
        self._incarnation = incarnation
        self._deployment_id = deployment_id
        self._rows: Tables = {}
        self.commits = 0

    def has_deployment(self, deployment_id: str) -> bool:
        """See MetaStore."""
        return self._deployment_id == deployment_id

    def check_owner(self, deployment_id: str) -> None:
        """See MetaStore; a store in memory never moves to another broker."""

    def marks(self) -> FolderMarks:
        """See MetaStore; state in memory is never restored from a copy."""
        return FolderMarks(commits=self.commits)

    def missing(self, deployment_id: str) -> int:
        """See MetaStore; no disk loses the state."""
        return 0

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        """See MetaStore."""
        self._incarnation += 1
        recovering = self._deployment_id == deployment_id
        if not recovering:
            self._rows.clear()
        self._deployment_id = deployment_id
        return Beginning(self._incarnation, recovering, copy.deepcopy(self._rows))

    def commit(self, changes: Iterable[RowChange]) -> None:
        """See MetaStore."""
        changes = list(changes)
        self.commits += any(table != WITNESSED for table, _, _ in changes)
        for table, key, value in changes:
            rows = self._rows.setdefault(table, {})
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = decode_value(encode_value(value))
            if not rows:
                del self._rows[table]

    def close(self) -> None:
        """See MetaStore."""
