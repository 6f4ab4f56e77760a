"""Ports reserved for this process among all programs of this machine."""

import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import cycle
from typing import Final

# Below those that Linux gives to clients, and beside those that other tests and inventories name.
LOWEST, HIGHEST, BLOCK = 10_000, 19_999, 50


def _free_block() -> range:
    """Return consecutive free ports; processes that start one after another get different ports."""
    blocks = (HIGHEST + 1 - LOWEST) // BLOCK
    for turn in range(blocks):
        first = LOWEST + (os.getpid() + turn) % blocks * BLOCK
        if _are_free(range(first, first + BLOCK)):
            return range(first, first + BLOCK)
    raise AssertionError(f"no {BLOCK} free ports in a row from {LOWEST} to {HIGHEST}")


def _are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True


OWN_PORTS: Final = _free_block()
_NEXT: Final = cycle(OWN_PORTS)


def free_address() -> str:
    """Return an address without a listener, reserved while its broker is down.

    The kernel may assign an ephemeral port to a connection of another process.
    """
    while not _are_free([port := next(_NEXT)]):
        pass
    return f"127.0.0.1:{port}"
