"""Standard input and output joined to an agent's socket, for remote clients.

Started for every command on every host, so the module imports next to nothing.
"""

import os
import socket
import sys
import threading
from pathlib import Path
from typing import Final

from brokerd.agent.paths import read_announcement

EXIT_UNREACHABLE: Final = 6

_CHUNK_BYTES: Final = 65_536


def attach(root: Path) -> int:
    """Join standard input and output to the socket of the agent of `root`, until either ends."""
    announced = read_announcement(root)
    if announced is None:
        return _fail(f"{root}: no agent runs here")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        try:
            agent.connect(announced["socket"])
        except OSError as error:
            return _fail(f"{announced['socket']}: no process answers ({error})")
        threading.Thread(target=_carry_in, args=(agent,), daemon=True).start()
        try:
            while chunk := agent.recv(_CHUNK_BYTES):
                left = memoryview(chunk)
                while left:
                    left = left[os.write(1, left) :]
        except OSError:
            pass  # the other side has closed: this side ends too
    return 0


def _carry_in(agent: socket.socket) -> None:
    try:
        while chunk := os.read(0, _CHUNK_BYTES):
            agent.sendall(chunk)
    except OSError:
        pass  # as above
    try:
        agent.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has closed before


def _fail(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return EXIT_UNREACHABLE
