"""External programs on this machine: their paths, their versions, and ports for servers."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

_MORE_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_VERSION_WITHIN_S: Final = 10


def program_of(program: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *_MORE_FOLDERS]
    return shutil.which(program, path=os.pathsep.join(folders))


def version_of(program: str, option: str) -> str:
    """Return the first line that a program prints with this option."""
    said = subprocess.run(
        (program, option), capture_output=True, text=True, check=False, timeout=_VERSION_WITHIN_S
    )
    return (said.stdout or said.stderr).strip().split("\n")[0]


def is_taken(port: int) -> bool:
    """Return True if a process uses this port on loopback now."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


def free_ports(count: int) -> Sequence[int]:
    """Return ports on loopback that are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
