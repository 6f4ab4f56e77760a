"""Programs of others on this machine: where they are, what version they say, and ports for them."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

_MORE_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_VERSION_WITHIN_S: Final = 10


def program_of(program: str) -> str | None:
    """Where it is; None if it is not installed."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *_MORE_FOLDERS]
    return shutil.which(program, path=os.pathsep.join(folders))


def version_of(program: str, option: str) -> str:
    """The first line of what it prints with this option."""
    said = subprocess.run(
        (program, option), capture_output=True, text=True, check=False, timeout=_VERSION_WITHIN_S
    )
    return (said.stdout or said.stderr).strip().split("\n")[0]


def is_taken(port: int) -> bool:
    """Whether somebody has this port on loopback now."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


def free_ports(count: int) -> Sequence[int]:
    """Ports on loopback that nobody has now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
