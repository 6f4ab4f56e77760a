"""Byte streams of clients to brokers behind gateways, as `ssh -J` makes them.

A channel of SSH is read and written by threads. A pair of sockets carries its bytes, so that a
client uses the stream like a connection of its own.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pubsubctl.hosts.ssh.fabric_connection import run_in_background
from pubsubctl.hosts.ssh.stream import close_quietly

_CHUNK_BYTES: Final = 1 << 16


def stream_through(channel: Any) -> socket.socket:
    """Return a socket whose bytes a channel carries; each end closes with the other."""
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
