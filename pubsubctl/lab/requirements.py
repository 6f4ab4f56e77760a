"""Requirements of a lab on this machine."""

import os
import shutil
import sys
from pathlib import Path

from pubsubctl.errors import PreflightFailed
from pubsubctl.lab.network import tool_environment

PACKAGES = {"ip": "iproute2", "sshd": "openssh-server", "nft": "nftables"}
"""Program → the Debian package that contains the program."""

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def missing() -> list[str]:
    """Return the missing requirements, one line each, with a remedy; empty if a lab can be made."""
    if sys.platform != "linux":
        return ["test hosts are Linux namespaces, and this is not Linux"]
    problems = []
    if os.geteuid() != 0:
        problems.append("making network namespaces needs root")
    elif lacking := [name for name, bit in _CAPABILITIES.items() if not _effective() >> bit & 1]:
        problems.append(f"root has no {' and '.join(lacking)} here, as in most containers")
    path = tool_environment()["PATH"]
    absent = [program for program in PACKAGES if shutil.which(program, path=path) is None]
    if absent:
        packages = " ".join(PACKAGES[program] for program in absent)
        problems.append(f"{', '.join(absent)} not found (Debian: apt-get install {packages})")
    return problems


def check() -> None:
    """Check the requirements of a lab.

    Raises:
        PreflightFailed: names missing requirements, with Debian packages.
    """
    if problems := missing():
        raise PreflightFailed(*problems)


def _effective() -> int:
    """Return the capabilities of this process, as bits."""
    for line in Path("/proc/self/status").read_text("ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0
