"""Files of a program after a simulated power loss: only synced data remains.

The kernel notifies a keeper of every system call of the program that makes data durable, and waits
for the answer (seccomp user notification: no privileges, no preloaded library). At a sync the
keeper copies the present file into a second folder. Renames and removals of copied files are
repeated at once, as a journal would. When the program starts again, the second folder replaces the
program's folder. So a kill becomes the worst possible power loss for data, while names are spared.
The keeper also applies faults of the disk: delayed syncs and refused writes.

Linux on x86_64 only. Writes through memory maps count when the file is synced.
"""

import ctypes
import errno
import fcntl
import heapq
import os
import platform
import select
import shutil
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol

_FSYNC, _FDATASYNC, _SYNC, _SYNCFS = 74, 75, 162, 306
_RENAME, _RENAMEAT, _RENAMEAT2, _UNLINK, _UNLINKAT = 82, 264, 316, 87, 263
_OPENAT, _SECCOMP = 257, 317
_WATCHED: Final = (
    *(_FSYNC, _FDATASYNC, _SYNC, _SYNCFS, _RENAME, _RENAMEAT, _RENAMEAT2, _UNLINK, _UNLINKAT),
)
_WRITE, _PWRITE, _WRITEV, _PWRITEV, _PWRITEV2, _FALLOCATE = 1, 18, 20, 296, 328, 285
_WRITES: Final = (_WRITE, _PWRITE, _WRITEV, _PWRITEV, _PWRITEV2, _FALLOCATE)
_SYNCS: Final = (_FSYNC, _FDATASYNC, _SYNC, _SYNCFS)
_PART: Final = struct.Struct("<QQ")
_ARCHITECTURE: Final = 0xC000003E
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_O_DSYNC: Final = 0x1000
_NEW_LISTENER_WAIT_KILLABLE: Final = (1 << 3) | (1 << 5)
_NO_NEW_PRIVILEGES: Final = 38
_NOTIFICATION: Final = struct.Struct("<QIIiIQ6Q")
_ANSWER: Final = struct.Struct("<QqiI")
_CONTINUE: Final = 1
_AT_FDCWD: Final = (1 << 32) - 100
_LONGEST_PATH: Final = 4096
_ALWAYS: Final = ".written-through"
"""File with the names of files that were opened with synchronous writes."""


class _Filter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter)))


class Disk(Protocol):
    """The faults of the disk of a program; called from the keeper's own thread."""

    def begin(self) -> None:
        """Handle the start of the keeper, in a process of its own."""

    def takes(self, size_bytes: int) -> bool:
        """Return True if so many bytes may still be written."""

    def sync_delay_ns(self) -> int:
        """Return the delay of a sync that begins now."""


def is_possible() -> bool:
    """Return True if this machine supports a keeper."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def keep_synced(folder: Path, kept: Path | None, disk: Disk | None) -> None:
    """Start a keeper that copies synced files of this process in `folder` to `kept`.

    The keeper continues after an exec of this process.

    Args:
        kept: None to copy nothing.
        disk: faults of writes and syncs in `folder`; every write, to sockets too, then costs a
            request to the keeper.

    Raises:
        OSError: the kernel does not allow the filter.
    """
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _be_keeper(theirs, folder, kept, disk)
    theirs.close()
    watched = (_WATCHED if kept is not None else _SYNCS) + (_WRITES if disk is not None else ())
    listener = _listen(watched)
    socket.send_fds(ours, [b"x"], [listener])
    ours.recv(1)  # the keeper has the listener
    os.close(listener)
    ours.close()


def lose_unsynced(folder: Path, kept: Path) -> None:
    """Replace `folder` by the kept files."""
    always = kept / _ALWAYS
    if always.is_file():
        for name in dict.fromkeys(always.read_text().splitlines()):
            if (folder / name).is_file():
                _copy(folder / name, kept / name)
    shutil.rmtree(folder)
    shutil.copytree(kept, folder, ignore=shutil.ignore_patterns(_ALWAYS, ".*.new"))


def _listen(watched: Sequence[int]) -> int:
    """Install the filter, and return the descriptor of its notifications."""
    steps = [_Filter(_LOAD, 0, 0, 4), _Filter(_EQUAL, 1, 0, _ARCHITECTURE)]
    steps += [_Filter(_RETURN, 0, 0, _ALLOW), _Filter(_LOAD, 0, 0, 0)]
    for number in watched:
        steps += [_Filter(_EQUAL, 0, 1, number), _Filter(_RETURN, 0, 0, _NOTIFY)]
    steps += [_Filter(_EQUAL, 0, 3, _OPENAT), _Filter(_LOAD, 0, 0, 16 + 8 * 2)]
    steps += [_Filter(_ANY_BIT, 0, 1, _O_DSYNC), _Filter(_RETURN, 0, 0, _NOTIFY)]
    steps.append(_Filter(_RETURN, 0, 0, _ALLOW))
    program = _Program(len(steps), (_Filter * len(steps))(*steps))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    listener: int = library.syscall(_SECCOMP, 1, _NEW_LISTENER_WAIT_KILLABLE, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp with a listener")
    return listener


def _be_keeper(
    connection: socket.socket, folder: Path, kept: Path | None, disk: Disk | None
) -> NoReturn:
    status = 1
    try:
        _, (listener,), _, _ = socket.recv_fds(connection, 1, 1)
        if disk is not None:
            disk.begin()
        connection.send(b"x")
        connection.close()
        _Keeper(listener, folder, kept, disk).run()
        status = 0
    finally:
        os._exit(status)


class _Keeper:
    def __init__(self, listener: int, folder: Path, kept: Path | None, disk: Disk | None) -> None:
        self._listener = listener
        self._folder = folder.resolve()
        self._copies = _Copies(self._folder, kept) if kept is not None else None
        self._disk = disk
        self._send = _request(1, _ANSWER.size)
        self._late: list[tuple[int, int, int, int, list[int]]] = []

    def run(self) -> None:
        """Answer notifications until the program has ended."""
        receive = _request(0, _NOTIFICATION.size)
        calls = select.poll()
        calls.register(self._listener, select.POLLIN)
        while True:
            found = calls.poll(self._until_late_ms())
            while self._late and self._late[0][0] <= time.monotonic_ns():
                self._answer(*heapq.heappop(self._late)[1:])
            if not found:
                continue
            if not found[0][1] & select.POLLIN:
                return  # no process is left under the filter
            notification = bytearray(_NOTIFICATION.size)
            try:
                fcntl.ioctl(self._listener, receive, notification)
            except FileNotFoundError:
                continue  # the caller was killed meanwhile, or repeats the call
            identifier, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(notification)
            if delay_ns := self._delay_ns(pid, number, arguments):
                due_ns = time.monotonic_ns() + delay_ns
                heapq.heappush(self._late, (due_ns, identifier, pid, number, arguments))
            else:
                self._answer(identifier, pid, number, arguments)

    def _until_late_ms(self) -> int | None:
        if not self._late:
            return None
        return max(0, -((time.monotonic_ns() - self._late[0][0]) // 1_000_000))

    def _answer(self, identifier: int, pid: int, number: int, arguments: list[int]) -> None:
        answer = (0, _CONTINUE)
        try:
            if self._is_refused(pid, number, arguments):
                answer = (-errno.ENOSPC, 0)
            elif self._copies is not None:
                self._copies.on_call(pid, number, arguments)
        except OSError:
            pass  # the file was removed meanwhile; the program's call fails, too
        try:
            fcntl.ioctl(self._listener, self._send, bytearray(_ANSWER.pack(identifier, 0, *answer)))
        except OSError:
            pass  # the caller no longer waits

    def _delay_ns(self, pid: int, number: int, arguments: list[int]) -> int:
        if self._disk is None or number not in _SYNCS:
            return 0
        is_of_file = number in (_FSYNC, _FDATASYNC)
        if is_of_file and not self._is_inside(pid, arguments[0]):
            return 0
        return self._disk.sync_delay_ns()

    def _is_refused(self, pid: int, number: int, arguments: list[int]) -> bool:
        if self._disk is None or number not in _WRITES:
            return False
        if not self._is_inside(pid, arguments[0]):
            return False
        size_bytes = arguments[3] if number == _FALLOCATE else arguments[2]
        if number in (_WRITEV, _PWRITEV, _PWRITEV2):
            size_bytes = _parts_bytes(pid, arguments[1], arguments[2])
        return not self._disk.takes(size_bytes)

    def _is_inside(self, pid: int, descriptor: int) -> bool:
        """Return True if an open file is in the folder."""
        try:
            path = Path(os.readlink(f"/proc/{pid}/fd/{descriptor & 0xFFFFFFFF}"))
        except OSError:
            return False
        return path.is_relative_to(self._folder)


class _Copies:
    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        self._kept = kept
        self._written_through: dict[str, None] = {}

    def on_call(self, pid: int, number: int, arguments: list[int]) -> None:
        """Repeat a call that makes files durable, removes or renames files."""
        if number in (_FSYNC, _FDATASYNC):
            self._keep(Path(os.readlink(f"/proc/{pid}/fd/{arguments[0]}")))
        elif number in (_SYNC, _SYNCFS):
            for path in self._files():
                self._keep(path)
        elif number == _OPENAT:
            if (name := self._name(self._path(pid, arguments[0], arguments[1]))) is not None:
                self._written_through[name] = None
                self._write_down()
        elif number in (_UNLINK, _UNLINKAT):
            at, text = (_AT_FDCWD, arguments[0]) if number == _UNLINK else arguments[:2]
            if (name := self._name(self._path(pid, at, text))) is not None:
                (self._kept / name).unlink(missing_ok=True)
                if self._written_through.pop(name, 0) is None:
                    self._write_down()
        elif number in (_RENAME, _RENAMEAT, _RENAMEAT2):
            self._on_rename(pid, number, arguments)

    def _on_rename(self, pid: int, number: int, arguments: list[int]) -> None:
        if number == _RENAME:
            arguments = [_AT_FDCWD, arguments[0], _AT_FDCWD, arguments[1]]
        old = self._name(self._path(pid, *arguments[:2]))
        new = self._name(self._path(pid, *arguments[2:4]))
        if old is None or new is None:
            return
        if old in self._written_through:
            self._keep(self._folder / old)
            del self._written_through[old]
            self._write_down()
        if (self._kept / old).exists():
            (self._kept / new).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._kept / old, self._kept / new)

    def _write_down(self) -> None:
        """Write the names of files with synchronous writes, for the next start."""
        (self._kept / _ALWAYS).write_text("".join(f"{name}\n" for name in self._written_through))

    def _keep(self, path: Path) -> None:
        name = self._name(path)
        if name is not None and path.is_file():
            _copy(path, self._kept / name)

    def _name(self, path: Path) -> str | None:
        """Return a path relative to the folder; None outside of the folder."""
        whole = Path(os.path.normpath(path))
        return str(whole.relative_to(self._folder)) if whole.is_relative_to(self._folder) else None

    def _files(self) -> Iterator[Path]:
        yield from (path for path in self._folder.rglob("*") if path.is_file())

    def _path(self, pid: int, at: int, pointer: int) -> Path:
        """Return the path in a call: a text in the program's memory, relative to a folder."""
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            # Read to the end of the page first: the next page may be unmapped.
            room = 4096 - pointer % 4096
            text = memory.read(room)
            if b"\0" not in text:
                text += memory.read(_LONGEST_PATH)
        name = os.fsdecode(text.partition(b"\0")[0])
        base = "cwd" if at & 0xFFFFFFFF == _AT_FDCWD else f"fd/{at}"
        return Path(os.readlink(f"/proc/{pid}/{base}"), name)


def _parts_bytes(pid: int, pointer: int, count: int) -> int:
    """Return the number of bytes that a vectored call writes."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(pointer)
        parts = memory.read(count * _PART.size)
    return sum(size_bytes for _, size_bytes in _PART.iter_unpack(parts))


def _request(number: int, size: int) -> int:
    """Return the number of a seccomp ioctl that reads and writes a struct of this size."""
    return (3 << 30) | (size << 16) | (ord("!") << 8) | number


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, fresh)
    shutil.copymode(source, fresh)
    os.replace(fresh, target)
