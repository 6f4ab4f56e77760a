"""Descendants of a process."""

from collections.abc import Iterator

import psutil


def descendants(pid: int, name: str) -> list[psutil.Process]:
    """Return the descendants of a process that have this name.

    Raises:
        psutil.NoSuchProcess: the process itself has ended.
    """
    return [*_find_by_name(psutil.Process(pid).children(recursive=True), name)]


def _find_by_name(processes: list[psutil.Process], name: str) -> Iterator[psutil.Process]:
    for process in processes:
        try:
            if process.name() == name:
                yield process
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
