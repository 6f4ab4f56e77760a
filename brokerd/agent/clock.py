"""The clocks of this machine, and the quality of its wall clock."""

import ctypes
import os
import struct
import time
from typing import Any, Final

from brokerd.agent.processes import boot_id

_TIMEX_BYTES: Final = 256  # more than any kernel writes
_STATUS_UNSYNCHRONISED: Final = 0x40


def clock_reading() -> dict[str, Any]:
    """Return the present time of the clocks.

    Returns:
        monotonic_ns, wall_ns: read directly one after the other.
        clock_id: equal exactly where CLOCK_MONOTONIC is the same clock: one boot of one machine,
            and one time namespace.
        synchronised: True if the kernel reports a synchronised wall clock; None if unavailable.
        wall_error_us: the kernel's bound on the error of the wall clock; None if unavailable.
    """
    monotonic_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    synchronised, wall_error_us = _kernel_discipline()
    return {
        "monotonic_ns": monotonic_ns,
        "wall_ns": wall_ns,
        "clock_id": f"{boot_id()}/{_time_namespace()}",
        "synchronised": synchronised,
        "wall_error_us": wall_error_us,
    }


def _time_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return "time:[only]"  # a kernel without time namespaces


def _kernel_discipline() -> tuple[bool | None, int | None]:
    """Return the result of adjtimex(2) without any change."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None, None
    if answer < 0:
        return None, None
    # struct timex: unsigned modes; long offset, freq, maxerror, esterror; int status.
    _, _, _, most_us, _, status = struct.unpack_from("@Illlli", buffer)
    return not status & _STATUS_UNSYNCHRONISED, most_us
