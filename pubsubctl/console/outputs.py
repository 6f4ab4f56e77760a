"""Files that a command writes where the user says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pubsubctl.errors import PreflightFailed


def output_file(path: Path) -> Path:
    """Return the path of an output that can be written; its folder is created.

    Raises:
        PreflightFailed: the folder cannot be created, or the file cannot be written; names it.
    """
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
    """Write a file with its folder.

    Raises:
        PreflightFailed: the file cannot be written; names it.
    """
    create_folder(path.parent)
    with written(path):
        path.write_text(text, encoding="utf-8")


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
