"""An SSH connection; the only module that opens connections, channels and sessions.

`open_line` sends nothing but the handshake until the caller has accepted the host key; nothing can
disable this check. A login takes a key from a file or from ssh-agent; passwords are not supported,
and no agent is forwarded. All calls block, and are meant for threads.
"""

import getpass
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import fabric
import paramiko
from paramiko.pkey import PublicBlob
from paramiko.sftp import SFTPError

from pubsubctl.errors import PubsubctlError, UserError
from pubsubctl.hosts.ssh.errors import (
    AuthenticationRefused,
    Garbled,
    LineLoss,
    LineRefusal,
    NotBegun,
    describe_error,
)
from pubsubctl.hosts.ssh.file_transfers import Sftp, SftpFiles, files_on
from pubsubctl.hosts.ssh.known_hosts import HostKey
from pubsubctl.hosts.ssh.stream import Channel
from pubsubctl.hosts.ssh.transport import OrderedTransport
from pubsubctl.inventory.inventory import Gateway, Host

Hop = Host | Gateway
Accept = Callable[[HostKey], None]  # raises the reason for a refusal

TRANSFER_STALL_S: Final = 60.0
END_DEADLINE_S: Final = 1.0
SETTLE_S: Final = 0.5
MOST_AGENT_KEYS: Final = 5  # sshd ends the connection after the sixth refused key
OWN_KEYS: Final = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

# Ciphers with built-in integrity come first: they are several times faster here.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr", "aes128-ctr")
_DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
)
_SHA1 = ["ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss"]
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # of a kind of key, where not the same
_ALIVE = "keepalive@openssh.com"
_FAILURES = (paramiko.SSHException, EOFError, OSError)
_FORBIDDEN = 1  # a server's code for a refused channel

# Errors are raised here; paramiko would print tracebacks between our lines.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class TimedByteStream:
    """A byte stream to an SSH server that records the time of the last received data.

    Attributes:
        at_s: the time, in seconds on the monotonic clock.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.at_s = time.monotonic()

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        if data:
            self.at_s = time.monotonic()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def shut(self) -> None:
        """End the connection, even while tasks wait; the thread that reads the socket cleans up."""
        try:
            if isinstance(self._sock, socket.socket):
                self._sock.shutdown(socket.SHUT_RDWR)
            else:
                self._sock.close()
        except _FAILURES:
            pass  # it has ended already


class FabricConnection:
    """A connection that is logged in."""

    def __init__(
        self, connection: Any, transport: paramiko.Transport, stream: TimedByteStream
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._stream = stream
        self._files: SftpFiles | None = None
        self._why: str | None = None

    @property
    def last_received_s(self) -> float:
        """Return the time of the last received data, in seconds on the monotonic clock."""
        return self._stream.at_s

    def loss_reason(self) -> str | None:
        """Return the reason for the connection's end, or None while the connection is alive."""
        if self._transport.is_active():
            return None
        return self._why or "the other side ended it"

    def wait_loss_reason(self) -> str | None:
        """Return `why_lost` after a failure; block for a moment if the connection is alive.

        Channels notice the end of the connection an instant before the transport reports the end.
        """
        self._transport.join(SETTLE_S)
        return self.loss_reason()

    def cut(self, why: str) -> None:
        """End the connection at once, regardless of activity; does not block."""
        self._why = self._why or why
        self._stream.shut()

    def end(self) -> None:
        """End the connection and wait for the transport's thread."""
        self.cut("ended by us")
        self._transport.join(END_DEADLINE_S)
        self._connection.close()

    def probe(self) -> None:
        """Request a sign of life; return after the answer, or after the end of the connection."""
        self._transport.global_request(_ALIVE, wait=True)

    def begin(self, text: str) -> Channel:
        """Return a channel on which a command has begun.

        Raises:
            NotBegun: no session was opened.
            Refused: the host does not run the command.
            Lost: the connection broke; the command may have begun.
        """
        try:
            channel = self._transport.open_session()
        except _FAILURES as error:
            self.wait_loss_reason()
            raise NotBegun(describe_error(error)) from error
        try:
            channel.exec_command(text)
        except _FAILURES as error:
            if (reason := self.wait_loss_reason()) is not None:
                raise LineLoss(reason) from error
            raise LineRefusal("refuses to run commands") from error
        return channel  # type: ignore[return-value]  # paramiko's types are too narrow

    def tunnel(self, address: str, port: int) -> Any:
        """Return a byte stream to an address that this host can reach.

        Raises:
            Refused: the host refuses to, or cannot, connect.
            Lost: the connection broke.
        """
        try:
            return self._transport.open_channel(
                "direct-tcpip", dest_addr=(address, port), src_addr=("127.0.0.1", 0)
            )
        except paramiko.ChannelException as error:
            reason = "it may not be used as one" if error.code == _FORBIDDEN else "no connection"
            raise LineRefusal(f"{reason} ({error.text.lower()})") from error
        except _FAILURES as error:
            raise LineLoss(self.wait_loss_reason() or describe_error(error)) from error

    def transfer(self, work: Callable[[Sftp], None]) -> None:
        """Run `work` in this connection's file session; one at a time.

        Raises:
            Refused: the host refuses, with the reason.
            Lost: the connection broke.
        """
        files = self._files
        try:
            if files is None:
                files = self._files = _open_files(self._transport)
            work(files)
        except (PubsubctlError, Garbled):
            raise
        except SFTPError as error:
            self.drop_files()
            raise LineRefusal(describe_error(error)) from error
        except _FAILURES as error:
            if self._files is files:  # otherwise dropped already, and another session opened
                self.drop_files()
            if isinstance(error, TimeoutError):
                raise LineRefusal(f"nothing moves for {TRANSFER_STALL_S:g} s") from error
            is_answer = isinstance(error, OSError) and error.errno  # for example: no such file
            reason = self.loss_reason() if is_answer else self.wait_loss_reason()
            if reason is not None:
                raise LineLoss(reason) from error
            raise LineRefusal(describe_error(error)) from error

    def drop_files(self) -> None:
        """Drop the file session and all its transfers."""
        files, self._files = self._files, None
        if files is not None:
            run_in_background(files.close)


def open_line(
    hop: Hop, stream: TimedByteStream, key_types: Sequence[str], accept: Accept, timeout_s: float
) -> FabricConnection:
    """Shake hands over a byte stream, check the host's key, log in.

    fabric would read configuration files, route through gateways on its own, and accept any key of
    any host; so fabric receives a byte stream, no configuration, and a client with a strict host
    key policy.

    Args:
        key_types: host key types, the preferred type first.
        accept: raises if the host key is not trusted; the exception is passed on.
        timeout_s: the deadline of every step, in seconds.

    Raises:
        AuthenticationRefused: the host accepts no key.
        Lost: any other failure.
        UserError: the key that the inventory names cannot be used.
    """
    connection = fabric.Connection(
        hop.address,
        user=hop.user or getpass.getuser(),
        port=hop.port,
        config=fabric.Config(
            lazy=True,
            overrides={"load_ssh_configs": False, "forward_agent": False},
            ssh_config=paramiko.SSHConfig(),
        ),
        gateway=False,
        forward_agent=False,
        connect_kwargs={
            "sock": stream,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "auth_strategy": _KeysOnly(hop),
            "transport_factory": lambda sock, **_: _transport(sock, key_types, timeout_s),
        },
    )
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_AcceptedOnly(accept))
    connection.client = client
    try:
        connection.open()
        if not connection.transport.is_authenticated():
            raise AuthenticationRefused("the handshake ended early")
        return FabricConnection(connection, connection.transport, stream)
    except BaseException as error:
        stream.shut()
        client.close()
        if isinstance(error, paramiko.AuthenticationException):
            raise AuthenticationRefused(str(error)) from error
        if isinstance(error, _FAILURES):
            raise LineLoss(describe_error(error)) from error
        raise


def read_host_key(stream: TimedByteStream, key_types: Sequence[str], timeout_s: float) -> HostKey:
    """Return the key of a server; the server receives only the handshake.

    Raises:
        Lost: the server does not answer, or has no key of these types.
    """
    transport = _transport(stream, key_types, timeout_s)
    transport.banner_timeout = timeout_s
    try:
        transport.start_client(timeout=timeout_s)
        return _host_key(transport.get_remote_server_key())
    except _FAILURES as error:
        raise LineLoss(describe_error(error)) from error
    finally:
        stream.shut()
        transport.close()


def run_in_background(function: Callable[[], object]) -> None:
    """Run a blocking function in a thread that nothing waits for, not even the program's end."""

    def work() -> None:
        try:
            function()
        except Exception:  # the resource is discarded, so no exception matters
            pass

    threading.Thread(target=work, daemon=True).start()


class _AcceptedOnly(paramiko.MissingHostKeyPolicy):
    """A host key policy that checks every key, because the client has no keys of its own."""

    def __init__(self, accept: Accept) -> None:
        self._accept = accept

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        self._accept(_host_key(key))


class _KeysOnly:
    """Logs in with keys, from a file or from ssh-agent, and in no other way."""

    def __init__(self, hop: Hop) -> None:
        self._user = hop.user or getpass.getuser()
        self._identities = [Path(path).expanduser() for path in hop.identities]
        origin = hop.origins.get("identity") if isinstance(hop, Host) else None
        place = f"{origin.file}:{origin.line}: " if origin is not None and origin.file else ""
        self._place, self._name = place, hop.name

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Authenticate with the available keys; called by paramiko after the host key check."""
        tried: list[str] = []
        agent = paramiko.Agent()
        try:
            for where, key in self._keys(agent):
                tried.append(where)
                try:
                    if not transport.auth_publickey(self._user, key):
                        return []
                    tried.append("the host demands more than a key")
                    break
                except paramiko.BadAuthenticationType as error:
                    tried.append(f"the host takes {', '.join(error.allowed_types)}, no keys")
                    break
                except paramiko.AuthenticationException:
                    if not transport.is_active():
                        break
        finally:
            agent.close()
        text = ", ".join(tried) or "there is no key to try"
        raise paramiko.AuthenticationException(f"user {self._user} is not admitted ({text})")

    def _keys(self, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        held = {bytes(key.asbytes()): key for key in agent.get_keys()}
        if self._identities:
            yield from self._load_named_keys(held)
            return
        for key in list(held.values())[:MOST_AGENT_KEYS]:
            yield f"ssh-agent: {_host_key(key).fingerprint}", key
        for name in OWN_KEYS:
            path = Path(name).expanduser()
            if path.is_file():
                try:
                    yield name, paramiko.PKey.from_path(path)
                except (TypeError, ValueError, OSError, paramiko.SSHException):
                    continue  # locked by a passphrase, or no key: needs ssh-agent

    def _load_named_keys(
        self, held: Mapping[bytes, paramiko.AgentKey]
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys that the inventory names; without any usable key, raise all reasons."""
        problems: list[str] = []
        for path in self._identities:
            try:
                key = self._load_named_key(path, held)
            except UserError as error:
                problems += error.problems
            else:
                yield key
        if len(problems) == len(self._identities):
            raise UserError(*problems)

    def _load_named_key(
        self, path: Path, held: Mapping[bytes, paramiko.AgentKey]
    ) -> tuple[str, paramiko.PKey]:
        """Return the key that the inventory names; from ssh-agent if the file is locked."""
        text = f"{self._place}identity = {str(path)!r} of {self._name}"
        try:
            return str(path), paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            try:
                public = PublicBlob.from_file(f"{path}.pub").key_blob
            except (OSError, ValueError):
                public = b""
            if public in held:
                return f"{path} in ssh-agent", held[public]
            raise UserError(
                f"{text} is locked by a passphrase and not in ssh-agent; "
                f"ssh-add {shlex.quote(str(path))}"
            ) from None
        except OSError as error:
            raise UserError(f"{text}: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, paramiko.SSHException):
            raise UserError(f"{text}: not a usable private key") from None


def _open_files(transport: paramiko.Transport) -> SftpFiles:
    channel = transport.open_session()
    channel.settimeout(TRANSFER_STALL_S)
    channel.invoke_subsystem("sftp")
    return files_on(channel)


def _transport(sock: Any, key_types: Sequence[str], timeout_s: float) -> paramiko.Transport:
    transport = OrderedTransport(
        sock, disabled_algorithms={"keys": _SHA1, "pubkeys": _SHA1, "kex": []}
    )
    transport.handshake_timeout = timeout_s
    options = transport.get_security_options()
    options.ciphers = _CIPHERS
    options.digests = _DIGESTS
    options.key_types = [name for kind in key_types for name in _SIGNATURES.get(kind, (kind,))]
    return transport


def _host_key(key: paramiko.PKey) -> HostKey:
    return HostKey(key.get_name(), key.asbytes())
