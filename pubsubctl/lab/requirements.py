"""What this machine must offer before a lab can be made on it."""

import os
import shutil
import sys

from pubsubctl.errors import PreflightFailed
from pubsubctl.lab.network import tool_environment

PACKAGES = {"ip": "iproute2", "sshd": "openssh-server", "nft": "nftables"}
"""Program → the Debian package it is in."""


def missing() -> list[str]:
    """What stands in the way, one line each, with its remedy; nothing when a lab can be made."""
    if sys.platform != "linux":
        return ["test hosts are Linux namespaces, and this is not Linux"]
    problems = []
    if os.geteuid() != 0:
        problems.append("test hosts are network namespaces, and making those needs root")
    path = tool_environment()["PATH"]
    absent = [program for program in PACKAGES if shutil.which(program, path=path) is None]
    if absent:
        packages = " ".join(PACKAGES[program] for program in absent)
        problems.append(f"{', '.join(absent)} not found (Debian: apt-get install {packages})")
    return problems


def check() -> None:
    """Nothing, where a lab can be made.

    Raises:
        PreflightFailed: says what is missing, with the names of Debian's packages.
    """
    if problems := missing():
        raise PreflightFailed(*problems)
