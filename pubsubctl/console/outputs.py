"""Files that a command writes to a path of the user."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pubsubctl.errors import PreflightFailed, UserError

_LONGEST_NAME: Final = 200
_STANDARD_OUTPUT: Final = Path("-")


def text_output(path: Path | None) -> Path | None:
    """Return the file of --output; None for "-", which is standard output, as without --output."""
    return None if path == _STANDARD_OUTPUT else path


def output_file(path: Path) -> Path:
    """Return the path of an output that can be written; its folder is created.

    Raises:
        UserError: the path is "-".
        PreflightFailed: the folder cannot be created, or the file cannot be written; names it.
    """
    _refuse_standard_output(path)
    create_folder(path.parent)
    with written(path):
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    return path


def output_folder(path: Path) -> Path:
    """Return the path of a folder that can be created, or exists.

    Raises:
        PreflightFailed: the folder cannot be created; names it.
    """
    is_new = not path.exists()
    create_folder(path)
    if is_new:
        path.rmdir()
    return path


def write_output(path: Path, text: str) -> None:
    """Write a file with its folder, whole or not at all.

    Raises:
        UserError: the path is "-".
        PreflightFailed: the file cannot be written; names it.
    """
    _refuse_standard_output(path)
    create_folder(path.parent)
    with written(path):
        write_whole(path, text)


def _refuse_standard_output(path: Path) -> None:
    if path == _STANDARD_OUTPUT:
        raise UserError("-: name a file; this output cannot go to standard output")


def write_whole(path: Path, text: str) -> None:
    """Write a file; if that fails, an earlier content stays, and no part of the new one.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(os.path.realpath(path))  # a loop of links is an error of the write
    is_other = target.exists() and not target.is_file()  # a device, a pipe, or a folder
    if is_other or not os.access(target.parent, os.W_OK):
        target.write_text(text, encoding="utf-8")
        return
    fresh = target.with_name(f".{target.name[:_LONGEST_NAME]}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        if target.exists():
            fresh.chmod(stat.S_IMODE(target.stat().st_mode))
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a fresh folder, which gets the name of a new output when the block has filled it.

    A block that fails leaves nothing.

    Raises:
        PreflightFailed: the disk is full; names the output.
    """
    create_folder(folder.parent)
    fresh = folder.with_name(f".{folder.name[:_LONGEST_NAME]}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield fresh
        fresh.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PreflightFailed(f"{folder}: cannot be written: {reason_of(error)}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Report each failed call of the block as a file that cannot be written.

    Raises:
        PreflightFailed: a call failed; names the file.
    """
    try:
        yield
    except OSError as error:
        raise PreflightFailed(f"{path}: cannot be written: {reason_of(error)}") from None


def create_folder(folder: Path) -> None:
    """Create a folder with its parents, if missing.

    Raises:
        PreflightFailed: the folder cannot be created; names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightFailed(f"{folder}: cannot be created: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """Return the reason of a failed call in lower case."""
    return (error.strerror or str(error)).lower()
