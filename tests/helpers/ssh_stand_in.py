"""A small SSH server in threads, for machines without sshd and for faults that sshd cannot produce.

The server presents a host key, records every login attempt, accepts one public key or none, and
answers every command with status 0. Files and tunnels are not supported.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import paramiko

from tests.helpers.ssh_server import KeyPair


@dataclass
class StandIn:
    """A running server.

    Attributes:
        attempts: "method user", one per attempt to log in.
        forwarded: number of requests to forward an agent.
        connections: number of accepted connections, including dropped ones.
    """

    port: int
    host_key: KeyPair
    address: str = "127.0.0.1"
    attempts: list[str] = field(default_factory=list)
    forwarded: int = 0
    connections: int = 0
    commands: list[str] = field(default_factory=list)

    @property
    def known_hosts_line(self) -> str:
        return f"[{self.address}]:{self.port} {self.host_key.public}\n"


class _Answers(paramiko.ServerInterface):
    def __init__(self, server: StandIn, authorized: KeyPair | None) -> None:
        self._server = server
        self._authorized = authorized.public.split()[1] if authorized else None

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password,keyboard-interactive"

    def check_auth_none(self, username: str) -> int:
        self._server.attempts.append(f"none {username}")
        return paramiko.common.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self._server.attempts.append(f"password {username}")
        return paramiko.common.AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> int:
        self._server.attempts.append(f"interactive {username}")
        return paramiko.common.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._server.attempts.append(f"publickey {username}")
        if key.get_base64() == self._authorized:
            return paramiko.common.AUTH_SUCCESSFUL
        return paramiko.common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED if kind == "session" else 1

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:
        self._server.forwarded += 1
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._server.commands.append(command.decode())
        threading.Thread(target=_finish, args=(channel,), daemon=True).start()
        return True


def _finish(channel: paramiko.Channel) -> None:
    channel.recv(1)  # our client ends its input only when it knows that the command has begun
    channel.send_exit_status(0)
    channel.close()


@contextmanager
def running_stand_in(
    host_key: KeyPair, *, authorized: KeyPair | None = None, drop_first: int = 0
) -> Iterator[StandIn]:
    """Start a server on a free port of loopback and stop it at the end.

    Args:
        drop_first: number of connections to close before any byte is sent.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    server = StandIn(listener.getsockname()[1], host_key)
    transports: list[paramiko.Transport] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the end
            server.connections += 1
            if server.connections <= drop_first:
                connection.close()
                continue
            transport = paramiko.Transport(connection)
            transport.add_server_key(paramiko.PKey.from_path(host_key.private))
            transports.append(transport)
            threading.Thread(
                target=_serve, args=(transport, _Answers(server, authorized)), daemon=True
            ).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for transport in transports:
            transport.close()
            transport.join(5)


def _serve(transport: paramiko.Transport, answers: _Answers) -> None:
    try:
        transport.start_server(server=answers)
    except (paramiko.SSHException, EOFError, OSError):
        pass  # the client left in the middle of the handshake
