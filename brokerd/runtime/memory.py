"""How much memory the process has, and giving back what it has no use for.

The C library keeps what was freed between buffers that are still needed. After a flood for a
subscriber that takes nothing that is as much again as what is kept.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Final

GROWTH_BYTES: Final = 16 << 20
"""Growth after which memory is given back; doing it at every look would cost page faults."""

_PRIVATE: Final = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int | None:
    """Return the process's resident memory, shared or not; None if it cannot be read.

    A process without a free file descriptor cannot read it, and goes on without.
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def private_bytes() -> int:
    """What it has in memory and shares with no other process; 0 where the kernel does not say.

    The kernel goes through all of the process for it, so this is for once in a while.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
            rows = [line.split() for line in rollup]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows if row[0] in _PRIVATE) * 1024


class FreeMemory:
    """Gives memory back to the kernel when the process has grown.

    Args:
        trim: gives it back; the C library's, where it has one, by default.
    """

    def __init__(self, trim: Callable[[int], object] | None = None) -> None:
        self._trim = trim or getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._lowest_bytes = resident_bytes()

    def look(self) -> int | None:
        """Give memory back if much may be free; return the resident memory before.

        None, without giving any back, if resident memory cannot be read.
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
