"""Facts of this machine: hardware, clocks, disk use of processes, and the ends of log files."""

import ctypes
import os
import platform
import shutil
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from brokerd.agent.processes import boot_id
from brokerd.errors import ControlError

_TIMEX_BYTES: Final = 256  # more than any kernel writes
_STATUS_UNSYNCHRONISED: Final = 0x40

FOLDERS: Final = ("state_folder", "folder")
"""Keys of the configuration that name the data folder of a process, for every role."""
_BLOCK_BYTES: Final = 512

SUFFIXES: Final = (".log", ".jsonl")
MOST_BYTES: Final = 512 * 1024  # of one answer, which is one frame


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


def machine_facts(root: Path) -> dict[str, Any]:
    """Return facts of this machine, of kinds that a control answer can carry."""
    disk = shutil.disk_usage(root)
    return {
        "hostname": socket.gethostname(),
        "host_id": _machine_id(),
        "boot_id": boot_id(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpu_model": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "cores_logical": psutil.cpu_count(logical=True) or 1,
        "cores_physical": psutil.cpu_count(logical=False) or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "disk_free_bytes": disk.free,
        "load_average": list(os.getloadavg()),
        "uid": os.geteuid(),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
    }


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
    return socket.gethostname()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or "unknown"


def disk_bytes_of(config: dict[str, Any]) -> int | None:
    """Return the disk use of a process in bytes; None without a folder of its own."""
    folder = data_folder(config)
    return _disk_bytes(folder) if folder else None


def data_folder(config: dict[str, Any]) -> Path | None:
    """Return the data folder of a process; None without a folder of its own."""
    folder = next((config[key] for key in FOLDERS if isinstance(config.get(key), str)), "")
    return Path(folder) if folder else None


def _disk_bytes(folder: Path) -> int:
    """Return the size of all files below; a file that is removed meanwhile does not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                pass  # brokers remove files that are no longer needed
    return total


def read_tails(folder: Path, after: Mapping[str, Any], last_bytes: int) -> list[dict[str, Any]]:
    """Return the content of the log files in `folder` behind the given places.

    Args:
        after: by name, the number of bytes received already; of a file not named, the end is
            returned.
        last_bytes: length of that end.

    Returns:
        per regular file with new content: name, offset of `data` in the file, data, size_bytes. A
            file that has become shorter is read from the start. If not all content fits, a further
            call returns the rest.

    Raises:
        ControlError: `user`: an argument of another kind.
    """
    if not all(type(place) is int and place >= 0 for place in after.values()) or last_bytes < 0:
        raise ControlError("user", "places in files are whole numbers from 0")
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    room = MOST_BYTES
    for entry in entries:
        if not entry.name.endswith(SUFFIXES) or not entry.is_file(follow_symlinks=False):
            continue
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone, or become a link, since it was listed
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                continue
            size = status.st_size
            offset = after.get(entry.name, max(0, size - last_bytes))
            offset = 0 if offset > size else offset
            data = os.pread(descriptor, min(room, size - offset), offset)
        finally:
            os.close(descriptor)
        if data:
            room -= len(data)
            found.append({"name": entry.name, "offset": offset, "data": data, "size_bytes": size})
    return found
