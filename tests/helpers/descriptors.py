"""Processes without a free file descriptor, and their recovery."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def no_free_descriptors(pid: int = 0) -> Iterator[Callable[[], None]]:
    """Lower the limit of a process, this one by default, to its open descriptors.

    Yields a function that lowers the limit again: another process may have had a descriptor open
    for a moment.
    """
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def lower() -> None:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_lowest_free(pid), before[1]))

    lower()
    try:
        yield lower
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _lowest_free(pid: int) -> int:
    if pid == 0:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return next(number for number in range(len(taken) + 1) if number not in taken)
