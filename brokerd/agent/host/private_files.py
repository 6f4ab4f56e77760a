"""Private files of an operator, and the lock of one operator at a time per root.

Other users cannot read the files, which are written only where no other user had access. The lock
is released by the end of its holder.
"""

import fcntl
import getpass
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brokerd.errors import ControlError


def make_private_folder(folder: Path) -> None:
    """Make `folder`, mode 0700, and its missing parents.

    Raises:
        ControlError: `user`: the folder is a link, no folder, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise ControlError("user", f"{folder}: not a folder; move or remove the file at this path")
    if status.st_uid != os.geteuid():
        raise ControlError("user", f"{folder}: belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)


def write_private(path: Path, content: bytes) -> None:
    """Put `content` at `path`, mode 0600; a reader sees the old or the new content.

    Raises:
        ControlError: `user`: a link, or an entry that is no file, exists at the path.
    """
    make_private_folder(path.parent)
    _refuse_others(path)
    fresh = path.with_name(f".{path.name}.new")
    _refuse_others(fresh)
    fresh.unlink(missing_ok=True)  # of one that was killed in here
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _refuse_others(path: Path) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise ControlError("user", f"{path}: not a file of ours; remove it")


@contextmanager
def operator_lock(root: Path, purpose: str, who: str = "", pid: int = 0) -> Iterator[int]:
    """Exclude other changes of `root` while this block runs.

    A process that is given the descriptor shares the lock, which is free when all have ended. The
    file of a lock that was never released stays: see `interrupted_command`.

    Args:
        who, pid: the operator and process that request the lock, if not this process.

    Raises:
        ControlError: `busy`: the lock is held; the text names holder, time and purpose.
    """
    path = lock_path(root)
    descriptor = _try_lock(path)
    if descriptor is None:
        advice = _describe_wait(str((lock_holder(root) or {}).get("purpose", "")), purpose)
        raise ControlError("busy", f"{root}: locked by {holder_text(root)}; {advice}")
    is_abandoned = False
    try:
        holder = {
            "who": who or operator_name(),
            "pid": pid or os.getpid(),
            "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "purpose": purpose,
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield descriptor
    except GeneratorExit:
        is_abandoned = True  # at the end of a process that lost its connection to the operator
        raise
    finally:
        # Unlinked while still locked: a waiter on the old file sees that the file is gone.
        if not is_abandoned:
            path.unlink(missing_ok=True)
        os.close(descriptor)
        try:
            path.parent.rmdir()
        except OSError:
            pass  # something is in it, as usual


def operator_name() -> str:
    """Return the person at the command line, as shown to a second operator."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def lock_path(root: Path) -> Path:
    """Return the path of the lock of a root."""
    return root.with_name(root.name + ".lock")


def lock_holder(root: Path) -> dict[str, Any] | None:
    """Return the holder of a root's lock, with the keys of its file; None if there is none."""
    found = _read_lock(root)
    return found[0] if found is not None and found[1] else None


def interrupted_command(root: Path) -> str:
    """Return the last holder of a root's lock if the lock was never released, in words; or "".

    The command was killed, or lost its connection. The next command on the root takes the lock.
    """
    holder, is_held = _read_lock(root) or ({}, True)
    if is_held or not holder.get("purpose"):
        return ""
    return (
        f"`{holder['purpose']}` of {holder.get('who', 'somebody')}, begun "
        f"{holder.get('since', 'at an unknown time')}"
    )


def _read_lock(root: Path) -> tuple[dict[str, Any], bool] | None:
    """Return the content of a root's lock, and whether it is held; None without a lock."""
    try:
        descriptor = os.open(lock_path(root), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    is_held = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = True
        if not is_held and not os.fstat(descriptor).st_nlink:
            return None  # released since it was opened
        try:
            content = json.loads(os.pread(descriptor, 4096, 0))
        except ValueError:
            content = {}  # taken this very moment, and not yet signed
        return (content if isinstance(content, dict) else {}), is_held
    finally:
        os.close(descriptor)


def holder_text(root: Path) -> str:
    """Return the holder in words."""
    holder = lock_holder(root) or {}
    return (
        f"{holder.get('who', 'somebody')} (pid {holder.get('pid', '?')}) since "
        f"{holder.get('since', 'just now')} for `{holder.get('purpose', '?')}`"
    )


def _describe_wait(held_for: str, purpose: str) -> str:
    """Return the advice for an operator while a command waits for another one."""
    if purpose.startswith("inject ") and held_for.startswith("bench "):
        return (
            "faults during a run belong to its schedule (`bench WORKLOAD --faults FILE`); for "
            "`inject`, wait for its end"
        )
    return "wait for its end, or end it there with Ctrl-C"


def _try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock, or None if another process has it."""
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # the holder of the last lock in the folder removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # its holder released it between our open and our lock
        os.close(descriptor)
