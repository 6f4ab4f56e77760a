"""The probe of a machine before any installation; changes nothing and leaves nothing.

Sent as is to `python3 -I - ROOT DATA ADDRESS FIRST_PORT LAST_PORT PEER...` on a host, where DATA is
the folder of durable files ("" for ROOT), and peers are addresses of other hosts that the host must
reach. It uses the standard library only and may be run by any Python that can report its version.
Prints one line of JSON. A value that cannot be determined is None: the probe must not fail where a
deployment might succeed.
"""

from __future__ import annotations  # so that an older Python can report its version

import errno
import glob
import json
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from typing import Any

FSYNCS = 20
BLOCK_BYTES = 4096
MOST_PORTS = 64
ROUND_TRIPS = 5
PEER_TIMEOUT_S = 2.0
SIOCGIFADDR = 0x8915
IP_MTU = 14
STA_UNSYNC = 0x40
TIME_ERROR = 5
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21


def probe(
    root: str, data: str, address: str, first_port: int, last_port: int, *peers: str
) -> dict[str, Any]:
    """Return all facts of a host."""
    folder = os.path.expanduser(root)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder) or "/"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = _memory()
    data = os.path.expanduser(data) if data else folder
    disk = shutil.disk_usage(data) if os.path.isdir(data) else None
    return {
        "hostname": socket.gethostname(),
        "user": _user(),
        "uid": os.geteuid(),
        "boot_id": _text("/proc/sys/kernel/random/boot_id"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "has_venv": _has_venv(),
        "cpu_model": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "cores_logical": os.cpu_count() or 1,
        "cores_physical": len(core_threads()) or None,
        "core_threads": core_threads(),
        "numa_nodes": numa_nodes(),
        "cpu_quota": _cpu_quota(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_1min": os.getloadavg()[0],
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "folder": folder,
        "folder_writable": os.access(folder, os.W_OK | os.X_OK),
        "folder_noexec": bool(os.statvfs(folder).f_flag & os.ST_NOEXEC),
        "data_folder": data,
        "disk_free_bytes": disk.free if disk else None,
        "fsync_ns": _fsync_ns(data),
        "descriptors": soft,
        "descriptors_hard": hard,
        "ephemeral_ports": _numbers("/proc/sys/net/ipv4/ip_local_port_range"),
        "receive_buffer_bytes": _numbers("/proc/sys/net/ipv4/tcp_rmem"),
        "send_buffer_bytes": _numbers("/proc/sys/net/ipv4/tcp_wmem"),
        "ports_taken": _ports_taken(address, first_port, last_port),
        "address_problem": _address_problem(address),
        "clocksource": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "clock_resolution_ns": time.get_clock_info("monotonic").resolution * 1e9,
        "wall_ns": time.time_ns(),
        "clock_sync": clock_sync(),
        "nics": _nics(),
        "peers": {peer: _peer(peer, first_port) for peer in peers},
        "nft": shutil.which("nft", path=_path()),
        "ip": shutil.which("ip", path=_path()),
        "may_change_network": _has_capability(CAP_NET_ADMIN),
        "may_make_namespaces": _has_capability(CAP_SYS_ADMIN),
    }


def _user() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def _has_venv() -> bool:
    try:
        import ensurepip
        import venv
    except ImportError:
        return False
    return bool(ensurepip and venv)


def _cpu_model() -> str | None:
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return None


def core_threads() -> list[str]:
    """Return the CPUs that are threads of one core, per core, in the kernel's notation: "0,4"."""
    paths = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    return sorted({text for text in map(_text, paths) if text})


def numa_nodes() -> dict[str, str]:
    """Return the CPUs of each NUMA node, in the kernel's notation: "0-3,8-11"."""
    return {
        os.path.basename(os.path.dirname(path))[len("node") :]: _text(path) or ""
        for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"))
    }


def _cpu_quota() -> float | None:
    """Return the number of CPUs that the cgroup grants; None for no limit."""
    words = (_text("/sys/fs/cgroup/cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota = _text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    return None


def _memory() -> dict[str, int]:
    found = {}
    for line in (_text("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[key] = int(words[0]) * 1024
    return found


def _fsync_ns(folder: str) -> list[int] | None:
    """Return the durations of a few fsyncs, shortest first; the file is temporary."""
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(FSYNCS):
                file.write(b"\0" * BLOCK_BYTES)
                before = time.monotonic_ns()
                os.fsync(file.fileno())
                took.append(time.monotonic_ns() - before)
    except OSError:
        return None
    return sorted(took)


def _ports_taken(address: str, first: int, last: int) -> list[int]:
    return [
        port
        for port in range(first, min(last, first + MOST_PORTS - 1) + 1)
        if _bind(address, port) == errno.EADDRINUSE
    ]


def _address_problem(address: str) -> str | None:
    number = _bind(address, 0)
    return os.strerror(number) if number else None


def _bind(address: str, port: int) -> int:
    """Return the error number of listening there, or 0."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind((address, port))
            attempt.listen(1)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def clock_sync() -> dict[str, Any] | None:
    """Return the kernel's report on its wall clock: synchronisation and error bound."""
    import ctypes

    class Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_uint),
            *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        )

    try:
        timex = Timex()
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return {
        "synchronised": not timex.status & STA_UNSYNC and state != TIME_ERROR,
        "error_ns": timex.maxerror * 1000,
    }


def _nics() -> list[dict[str, Any]]:
    """Return the network interfaces, each with its first IPv4 address."""
    found = []
    for name in sorted(os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else []):
        speed = _text(f"/sys/class/net/{name}/speed")
        mtu = _text(f"/sys/class/net/{name}/mtu")
        found.append(
            {
                "name": name,
                "address": _address_of(name),
                "mtu": int(mtu) if mtu and mtu.isdigit() else None,
                "speed_mbps": int(speed) if speed and speed.isdigit() else None,
                "state": _text(f"/sys/class/net/{name}/operstate"),
            }
        )
    return found


def _address_of(nic: str) -> str | None:
    import fcntl

    request = nic.encode()[:15].ljust(256, b"\0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
    except OSError:
        return None


def _peer(address: str, port: int) -> dict[str, Any]:
    """Return the round-trip times to another host, and the largest packet.

    A host without a listener answers with a refusal, which takes as long.
    """
    took = []
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in range(ROUND_TRIPS):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(PEER_TIMEOUT_S)
                began = time.monotonic_ns()
                number = attempt.connect_ex((address, port))
                if number not in (0, errno.ECONNREFUSED):
                    return {"problem": os.strerror(number)}
                took.append(time.monotonic_ns() - began)
        except OSError as error:
            return {"problem": error.strerror or str(error)}
    mtu = None
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            mtu = probe.getsockopt(socket.IPPROTO_IP, IP_MTU) if family == socket.AF_INET else None
    except OSError:
        pass
    return {"rtt_ns": min(took), "mtu_bytes": mtu}


def _has_capability(number: int) -> bool:
    for line in (_text("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _path() -> str:
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _numbers(path: str) -> list[int] | None:
    words = (_text(path) or "").split()
    return [int(word) for word in words] if words and all(w.isdigit() for w in words) else None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


if __name__ == "__main__":
    root, data, address, first, last, *peers = sys.argv[1:]
    found = probe(root, data, address, int(first), int(last), *peers)
    sys.stdout.write(json.dumps(found) + "\n")
