"""A network namespace of a test, with two addresses, servers, and agents.

`python -m tests.helpers.namespaces serve ADDRESS:PORT…` greets clients; `connect FROM TO` prints
the outcome in one word.
"""

import os
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE, THERE = "10.99.0.1", "10.99.0.2"
GREETING = b"hello"
CONNECT_TIMEOUT_S = 3.0
REPOSITORY = Path(__file__).parents[2]
_PATH = f"{os.defpath}:/usr/sbin:/sbin"


class Namespace:
    """An existing namespace with two addresses on the loopback interface."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[subprocess.Popen[bytes]] = []

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the prefix of commands that run in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def call(self, *command: str) -> str:
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, *places: str) -> None:
        """Start servers at these addresses."""
        command = [*self.prefix, sys.executable, "-m", "tests.helpers.namespaces", "serve"]
        server = subprocess.Popen([*command, *places], stdout=subprocess.PIPE, cwd=REPOSITORY)
        self.servers.append(server)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"

    def connect(self, source: str, destination: str) -> str:
        """Connect and return "greeted", "silence" or "refused"; source port 0 selects any port."""
        command = [sys.executable, "-m", "tests.helpers.namespaces", "connect"]
        return self.call(*command, source, destination).strip()

    def tables(self) -> str:
        return self.call("nft", "list", "ruleset")

    def clear(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


@contextmanager
def own_namespace() -> Iterator[Namespace]:
    """Create a namespace and remove it at the end; skip the test if the machine permits none."""
    missing = [name for name in ("ip", "nft") if shutil.which(name, path=_PATH) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root, iproute2 and nftables (missing: {', '.join(missing) or 'root'})")
    namespace = Namespace(f"psf-{secrets.token_hex(4)}")
    subprocess.run(["ip", "netns", "add", namespace.name], check=True)
    try:
        namespace.call("ip", "link", "set", "lo", "up")
        for address in (HERE, THERE):
            namespace.call("ip", "address", "add", f"{address}/32", "dev", "lo")
        yield namespace
    finally:
        namespace.clear()
        subprocess.run(["ip", "netns", "delete", namespace.name], check=True)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _serve(places: list[str]) -> None:
    waiting = selectors.DefaultSelector()
    for place in places:
        waiting.register(socket.create_server(_place(place)), selectors.EVENT_READ)
    print("ready", flush=True)  # noqa: T201
    while True:
        for key, _ in waiting.select():
            assert isinstance(key.fileobj, socket.socket)
            connection, _ = key.fileobj.accept()
            with connection:
                connection.sendall(GREETING)


def _connect(source: str, destination: str) -> str:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.settimeout(CONNECT_TIMEOUT_S)
        client.bind(_place(source))
        try:
            client.connect(_place(destination))
            return "greeted" if client.recv(len(GREETING)) == GREETING else "nothing"
        except TimeoutError:
            return "silence"
        except ConnectionError:
            return "refused"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2:])
    else:
        print(_connect(*sys.argv[2:]))  # noqa: T201
