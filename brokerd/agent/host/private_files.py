"""Private files: unreadable for other users, and written only where no other user had access."""

import os
import stat
from pathlib import Path

from brokerd.errors import ControlError


def make_private_folder(folder: Path) -> None:
    """Make `folder`, mode 0700, and its missing parents.

    Raises:
        ControlError: `user`: the folder is a link, no folder, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise ControlError("user", f"{folder}: not a folder; somebody put something else there")
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
