"""Facts of this machine: for manifests, placement and preflight checks."""

import os
import platform
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from brokerd.agent.processes import boot_id


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
