"""Identities in SSH logins: attempts, host keys and fingerprints."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import paramiko
import trio

from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.inventory.inventory import Inventory
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ssh_server import KeyPair, Sshd
from tests.helpers.ssh_stand_in import StandIn

Server = Sshd | StandIn
Start = Callable[[KeyPair], AbstractContextManager[Server]]


def login_attempts(server: Server) -> list[str]:
    """Return the methods of all login attempts so far."""
    return server.login_attempts() if isinstance(server, Sshd) else server.attempts


def say_hello(inventory: Inventory) -> None:
    """Run a command on the first host."""

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with SshConnections(inventory) as connections:
                done = await connections.run(inventory.hosts[0], ["true"])
                assert done.status == 0

    trio.run(main)


def print_of(key: KeyPair) -> str:
    """Return a key's fingerprint as Paramiko computes it."""
    return paramiko.PKey.from_path(key.private).fingerprint
