"""Files that a name means: a path, or a bare name in a folder of a project or of the program.

A path is relative to the file that names it, or else to the current folder. A bare name is looked
up in the project of that file, in the project of the current folder, and in the program, in this
order. A project is the nearest folder upwards with a pubsubctl.toml.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT_FILE: Final = "pubsubctl.toml"


def is_bare(name: str) -> bool:
    """Return True if a name is no path."""
    return "/" not in name and not name.startswith((".", "~"))


def project_of(folder: Path) -> Path | None:
    """Return the nearest folder upwards that is a project."""
    whole = folder.absolute()
    return next((each for each in (whole, *whole.parents) if (each / PROJECT_FILE).is_file()), None)


def folders_of(packaged: Path, beside: Path | None) -> list[Path]:
    """Return the folders in which bare names are looked up, in this order.

    Args:
        packaged: the folder in the program; its name is that of the folder in projects, too.
        beside: the file that contains the name.
    """
    starts = [beside.parent] if beside is not None else []
    inside = Path("bench") / packaged.name
    projects = [project_of(start) for start in (*starts, Path.cwd())]
    found = [project / inside for project in projects if project is not None]
    return [*dict.fromkeys(folder.resolve() for folder in found), packaged]


def find_named_file(name: str, packaged: Path, beside: Path | None = None) -> Path | None:
    """Return the file that a name means; None if there is none."""
    return next((path for path in _candidates(name, packaged, beside) if path.is_file()), None)


def names_in(packaged: Path, beside: Path | None) -> list[str]:
    """Return the bare names of all files, project files first."""
    names: list[str] = []
    for folder in folders_of(packaged, beside):
        names += sorted(path.stem for path in folder.glob("*.toml") if path.is_file())
    return [*dict.fromkeys(names)]


def resolve_name(name: str, file: Path) -> str:
    """Return a name from a file, as seen from the current folder: paths are relative to the file.

    A name without such a file is returned as it is.
    """
    beside = file.parent / Path(name).expanduser()
    return str(beside) if beside.is_file() else name


def _candidates(name: str, packaged: Path, beside: Path | None) -> Iterator[Path]:
    path = Path(name).expanduser()
    if not is_bare(name) or name.endswith(".toml"):
        if beside is not None:
            yield beside.parent / path
        yield path
    if is_bare(name):
        for folder in folders_of(packaged, beside):
            yield folder / f"{name.removesuffix('.toml')}.toml"
