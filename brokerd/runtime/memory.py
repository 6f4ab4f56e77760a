"""Measurement of the memory of the process, and the return of unused memory to the kernel.

The C library keeps freed memory between buffers that are still in use. After a flood for a
subscriber that reads nothing, the freed memory is as large as the used memory.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Final

GROWTH_BYTES: Final = 16 << 20
"""Growth after which memory is returned; a return at every check would cost page faults."""

_PRIVATE: Final = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int | None:
    """Return the process's resident memory, shared or not; None if it cannot be read.

    A process without a free file descriptor cannot read it, and continues without.
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def private_bytes() -> int:
    """Return the resident memory not shared with other processes.

    0 if the kernel does not report it. The kernel walks all of the process for this figure, so it
    is for rare use.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
            rows = [line.split() for line in rollup]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows if row[0] in _PRIVATE) * 1024


class FreeMemory:
    """The return of memory to the kernel when the process has grown.

    Args:
        trim: returns the memory; by default the function of the C library, if there is one.
    """

    def __init__(self, trim: Callable[[int], object] | None = None) -> None:
        self._trim = trim or getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._lowest_bytes = resident_bytes()

    def look(self) -> int | None:
        """Return memory to the kernel if much may be free; return the resident memory before.

        None, without returning any memory, if resident memory cannot be read.
        """
        found_bytes = resident_bytes()
        if found_bytes is None:
            return None
        if self._lowest_bytes is None:
            self._lowest_bytes = found_bytes
        elif self._trim is not None and found_bytes > self._lowest_bytes + GROWTH_BYTES:
            self._trim(0)
            self._lowest_bytes = resident_bytes()
        else:
            self._lowest_bytes = min(self._lowest_bytes, found_bytes)
        return found_bytes
