"""Ports that are this process's own, whatever else runs on this machine."""

import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import cycle
from typing import Final

# Below those that Linux gives to clients, and beside those that other tests and inventories name.
LOWEST, HIGHEST, BLOCK = 10_000, 19_999, 50


def _free_block() -> range:
    """Ports in a row that nobody has; processes that were started in a row have different ones."""
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
    """Return an address that nothing listens on, also while its broker is down.

    A port of the kernel's choice may become that of another process's connection.
    """
    while not _are_free([port := next(_NEXT)]):
        pass
    return f"127.0.0.1:{port}"
