"""Files that a command writes where the user says."""

from pathlib import Path

from pubsubctl.errors import PreflightFailed


def output_file(path: Path) -> Path:
    """Return the path of an output after its folder was created.

    Raises:
        PreflightFailed: the folder cannot be created; names it.
    """
    create_folder(path.parent)
    return path


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
