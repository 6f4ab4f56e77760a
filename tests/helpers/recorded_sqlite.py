"""The SQLite library of this process on a file system that records all operations.

A wrapper of the default VFS: writes, truncations, removals and syncs go to real files, and onto a
trail as of `tests.helpers.memory_storage`.
"""

import _sqlite3
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.helpers.memory_storage import Cut, FolderSynced, Named, Removed, Step, Synced, Wrote

_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OPEN: Final = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, ctypes.POINTER(_I))
_DELETE: Final = ctypes.CFUNCTYPE(_I, _P, _S, _I)
_WRITE: Final = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_TRUNCATE: Final = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC: Final = ctypes.CFUNCTYPE(_I, _P, _I)
_OPEN_FOLDER: Final = ctypes.CFUNCTYPE(_I, _S, ctypes.POINTER(_I))
_SET_CALL: Final = ctypes.CFUNCTYPE(_I, _P, _S, _P)
_GET_CALL: Final = ctypes.CFUNCTYPE(_P, _P, _S)

OK: Final = 0
FULL: Final = 13
IO_WRITE: Final = 10 | 3 << 8
IO_FSYNC: Final = 10 | 4 << 8
_DURABLE: Final = ("", "-wal", "-journal")
"""Endings of the files that matter after a crash; the index of the log is rebuilt."""


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", _I), ("file_bytes", _I), ("longest_path", _I), ("next", _P), ("name", _S),
        ("data", _P), ("open", _P), ("delete", _P), ("access", _P), ("full_path", _P),
        ("dl_open", _P), ("dl_error", _P), ("dl_sym", _P), ("dl_close", _P), ("randomness", _P),
        ("sleep", _P), ("time", _P), ("last_error", _P), ("time_64", _P), ("set_call", _P),
        ("get_call", _P), ("next_call", _P),
    )  # fmt: skip


class _Methods(ctypes.Structure):
    _fields_ = (
        ("version", _I), ("close", _P), ("read", _P), ("write", _P), ("truncate", _P),
        ("sync", _P), ("others", _P * 13),
    )  # fmt: skip


class _File(ctypes.Structure):
    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


@dataclass
class RecordedSqlite:
    """The operations of SQLite on files whose paths begin with a prefix.

    Attributes:
        trail: operations in order; files by number in `paths`.
        answer: result of an operation ("write" or "sync"): OK or an error code.
    """

    prefix: str
    trail: list[Step] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answer: Callable[[str], int] = lambda _operation: OK


def is_possible() -> bool:
    """Return whether this Python's library exports its functions; a built-in library does not."""
    file = getattr(_sqlite3, "__file__", None)
    return file is not None and hasattr(ctypes.CDLL(file), "sqlite3_vfs_register")


@contextmanager
def recorded_sqlite(prefix: str) -> Iterator[RecordedSqlite]:
    """Record every connection that is opened, and closed, within the context."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    library.sqlite3_vfs_find.argtypes = (_S,)
    library.sqlite3_vfs_register.argtypes = (ctypes.POINTER(_Vfs), _I)
    real = library.sqlite3_vfs_find(None)
    recording = RecordedSqlite(prefix)
    shim = _Shim(real, recording)
    library.sqlite3_vfs_register(ctypes.byref(shim.vfs), 1)
    try:
        with shim.folders_seen():
            yield recording
    finally:
        library.sqlite3_vfs_unregister(ctypes.byref(shim.vfs))
        library.sqlite3_vfs_register(real, 1)


class _Shim:
    """The functions that SQLite calls; referenced objects must outlive all calls."""

    def __init__(self, real: Any, recording: RecordedSqlite) -> None:
        self._real = real
        self._recording = recording
        self._open: dict[int, int] = {}
        self._kept: list[Any] = []
        self.vfs = _Vfs.from_buffer_copy(real.contents)
        self.vfs.name = b"recorded"
        self.vfs.next = None
        self.vfs.open = self._as_pointer(_OPEN, self._on_open)
        self.vfs.delete = self._as_pointer(_DELETE, self._on_delete)

    def _as_pointer(self, kind: Any, function: Callable[..., int]) -> int | None:
        self._kept.append(kind(function))
        return ctypes.cast(self._kept[-1], _P).value

    @contextmanager
    def folders_seen(self) -> Iterator[None]:
        """Record folder syncs: SQLite opens folders for no other reason."""
        get, set_call = (
            _GET_CALL(self._real.contents.get_call),
            _SET_CALL(self._real.contents.set_call),
        )
        before = get(ctypes.addressof(self._real.contents), b"openDirectory")
        call = _OPEN_FOLDER(before)

        def open_folder(path: bytes, file: Any) -> int:
            folder = os.path.dirname(path.decode())
            self._recording.trail.append(FolderSynced(folder))
            return int(call(path, file))

        set_call(
            ctypes.addressof(self._real.contents),
            b"openDirectory",
            self._as_pointer(_OPEN_FOLDER, open_folder),
        )
        try:
            yield
        finally:
            set_call(ctypes.addressof(self._real.contents), b"openDirectory", before)

    def _matters(self, path: str) -> bool:
        prefix = self._recording.prefix
        return path.startswith(prefix) and path.removeprefix(prefix) in _DURABLE

    def _on_open(self, _vfs: int, name: int, file: int, flags: int, out: Any) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        is_new = self._matters(path) and not os.path.lexists(path)
        answer = int(_OPEN(self._real.contents.open)(
            ctypes.addressof(self._real.contents), name, file, flags, out
        ))  # fmt: skip
        if answer == OK and self._matters(path):
            if is_new:
                self._recording.paths.append(path)
                number = len(self._recording.paths) - 1
                self._recording.trail.append(Named(path, number))
            else:
                number = len(self._recording.paths) - 1 - self._recording.paths[::-1].index(path)
            self._open[file] = number
            self._wrap(_File.from_address(file))
        return answer

    def _wrap(self, file: _File) -> None:
        """Install recording methods on an opened file, in front of the original methods."""
        real = file.methods.contents
        methods = _Methods.from_buffer_copy(real)
        write, truncate, sync = _WRITE(real.write), _TRUNCATE(real.truncate), _SYNC(real.sync)
        trail = self._recording.trail

        def on_write(at: int, data: int, size: int, place: int) -> int:
            answer = self._recording.answer("write") or write(at, data, size, place)
            if answer == OK:
                trail.append(Wrote(self._open[at], place, ctypes.string_at(data, size)))
            return answer

        def on_truncate(at: int, size: int) -> int:
            answer = truncate(at, size)
            if answer == OK:
                trail.append(Cut(self._open[at], size))
            return answer

        def on_sync(at: int, flags: int) -> int:
            answer = self._recording.answer("sync") or sync(at, flags)
            if answer == OK:
                trail.append(Synced(self._open[at]))
            return answer

        methods.write = self._as_pointer(_WRITE, on_write)
        methods.truncate = self._as_pointer(_TRUNCATE, on_truncate)
        methods.sync = self._as_pointer(_SYNC, on_sync)
        self._kept.append(methods)
        file.methods = ctypes.pointer(methods)

    def _on_delete(self, _vfs: int, path: bytes, sync_folder: int) -> int:
        answer = int(
            _DELETE(self._real.contents.delete)(
                ctypes.addressof(self._real.contents), path, sync_folder
            )
        )
        if answer == OK and self._matters(os.fsdecode(path)):
            self._recording.trail.append(Removed(os.fsdecode(path)))
        return answer
