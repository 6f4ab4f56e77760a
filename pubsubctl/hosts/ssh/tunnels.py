"""Byte streams as sockets: through a channel of a gateway, as of `ssh -J`, or through a command.

A pair of sockets carries the bytes, so that a user of the stream needs no thread of its own.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.errors import LineError
from pubsubctl.hosts.ssh.fabric_connection import run_in_background
from pubsubctl.hosts.ssh.stream import close_quietly

_CHUNK_BYTES: Final = 1 << 16


def stream_through(channel: Any) -> socket.socket:
    """Return a socket that is connected to a channel; both ends close together."""
    ours, theirs = socket.socketpair()

    def close() -> None:
        close_quietly(channel)
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)  # unblocks the other thread

    def send() -> None:
        with theirs:
            _carry(theirs.recv, channel.sendall, close)

    run_in_background(send)
    run_in_background(lambda: _carry(channel.recv, theirs.sendall, close))
    return ours


def _carry(
    read: Callable[[int], bytes], write: Callable[[bytes], object], close: Callable[[], None]
) -> None:
    """Carry bytes from one end to the other until either closes."""
    try:
        while data := read(_CHUNK_BYTES):
            write(data)
    finally:
        close()


def dial_through_command(command: str) -> socket.socket:
    """Return a byte stream through a command of this machine; closing the stream ends the command.

    Raises:
        LineError: there is no such command.
    """
    program = command.split()[0]
    if not re.search(r"[\"'$\\]", program) and shutil.which(program) is None:
        raise LineError(f"ProxyCommand {shown(command)}: no such file or directory")
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise LineError(f"ProxyCommand {shown(command)}: {error}") from error
    finally:
        theirs.close()
    run_in_background(process.wait)  # so that no zombie is left
    return ours
