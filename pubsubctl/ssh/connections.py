"""Connections to the hosts of an inventory: the only place where SSH sessions are made.

Whatever is asked of a host goes over one connection, made when it is first needed and shared
until the end. Each connection, and each hop on the way to it, is made by `_open`: the key with
which the other side answers must be in the inventory's known_hosts before anything else happens,
and nothing can switch that off. Logging in takes a key, from a file or from ssh-agent; there are
no passwords, no agent is forwarded, and no configuration of the user's is read.
"""

import getpass
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import fabric
import paramiko
import trio
from paramiko.pkey import PublicBlob
from paramiko.sftp import CMD_HANDLE, CMD_OPEN
from paramiko.sftp_attr import SFTPAttributes

from brokerd.errors import ControlError
from pubsubctl.errors import HostError, PubsubctlError, UserError
from pubsubctl.inventory import Gateway, Host, Inventory, SshSettings
from pubsubctl.ssh.errors import (
    ChangedHostKey,
    ConnectionFailed,
    ConnectionLost,
    HostKeyRefused,
    LoginRefused,
    UnknownHostKey,
)
from pubsubctl.ssh.known_hosts import KEY_TYPES, HostKey, KnownHosts, Standing
from pubsubctl.ssh.quoting import command_line, remote_path
from pubsubctl.ssh.stream import CommandStream, Workers, printable
from pubsubctl.ssh.transfers import Upload, fetch

T = TypeVar("T")
Hop = Host | Gateway

MOST_OUTPUT_BYTES: Final = 64 << 20  # of one command: whoever wants more asks for a file
SESSIONS_PER_HOST: Final = 4  # short commands at once; sshd allows 10 sessions of all kinds
TRANSFER_STALL_S: Final = 60.0
RETRY_AFTER_S: Final = 0.3  # and twice as long each further time
UNANSWERED_INTERVALS: Final = 2
MOST_AGENT_KEYS: Final = 5  # sshd ends the connection after the sixth refused key
OWN_KEYS: Final = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr", "aes128-ctr")
_DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
)
_SHA1 = ["ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss"]
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # of a type of key, if not the same

# What goes wrong is raised here; paramiko would write it, with tracebacks, between our lines.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass(frozen=True)
class Completed:
    """What a command came to.

    Attributes:
        status: -1 when a signal ended it.
    """

    status: int
    stdout: bytes
    stderr: bytes


class _Heard:
    """A socket that remembers when something last came in."""

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
        """End the connection, whoever waits for it; its thread then cleans up."""
        try:
            if isinstance(self._sock, socket.socket):
                self._sock.shutdown(socket.SHUT_RDWR)
            else:
                self._sock.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # it has ended already


@dataclass(eq=False)
class _Line:
    """One live connection.

    Attributes:
        why: the reason, when it was us who ended it.
        sftp: the file session, once there is one.
    """

    connection: Any
    transport: paramiko.Transport
    heard: _Heard
    why: str | None = None
    sessions: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(SESSIONS_PER_HOST)
    )
    sftp: "_Sftp | None" = None
    sftp_lock: trio.Lock = field(default_factory=trio.Lock)

    def why_lost(self) -> str | None:
        """Why it has ended, or None while it lives."""
        if self.transport.is_active():
            return None
        return self.why or "the other side ended it"

    def end(self, why: str | None = None) -> None:
        """End it; may block for an instant."""
        self.why = self.why or why
        self.heard.shut()
        self.transport.join(1.0)
        self.connection.close()


@dataclass(eq=False)
class _Slot:
    """The place of a host's connection, and of everybody who waits for it."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    line: _Line | None = None
    attempts: int = 0
    failure: PubsubctlError | None = None


class SshConnections:
    """Hosts of one inventory, for as long as one command runs.

    An async context manager: at its end all connections are closed. Every method makes the
    connection when there is none, or the last one broke. All of them can be cancelled at any
    time and wait for no thread.

    Raises, from all methods:
        UnknownHostKey, ChangedHostKey: a host, or a gateway on the way, answered with a key
            that the inventory does not know; nothing was sent to it.
        LoginRefused: no key was good enough.
        ConnectionLost: it broke in the middle; whether the command was carried out is open.
        ConnectionFailed: it could not be made, after all retries. All of these are
            Unreachable.
        UserError: a word or path that cannot be sent.
        HostError: the host refused or failed.
    """

    def __init__(self, inventory: Inventory) -> None:
        assert inventory.known_hosts is not None, f"{inventory.name}: no host is reached by ssh"
        self._inventory = inventory
        self._settings: SshSettings = inventory.ssh
        self._known = KnownHosts.load(inventory.known_hosts)
        self._workers = Workers()
        self._slots: dict[tuple[str, str, tuple[str, ...]], _Slot] = {}
        self._connecting = trio.CapacityLimiter(self._settings.forks)
        self._through: dict[str, trio.CapacityLimiter] = {}
        self._nursery: trio.Nursery
        self._nursery_manager: Any = None

    async def __aenter__(self) -> "SshConnections":
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.cancel_scope.cancel()
        lines = [slot.line for slot in self._slots.values() if slot.line is not None]
        # The farthest first: a gateway's connection carries those behind it.
        for line in reversed(lines):
            line.why = "closed by us"
            line.heard.shut()
        with trio.CancelScope(shield=True), trio.move_on_after(2.0):
            async with trio.open_nursery() as closing:
                for line in lines:
                    closing.start_soon(self._workers.run, line.end)
        # What the body raised is raised as it is, not in a group: it does not go in here.
        await self._nursery_manager.__aexit__(None, None, None)

    async def run(
        self,
        host: Host,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> Completed:
        """Run a command to its end.

        The words arrive as they are; the login shell of the host must be a POSIX shell. When
        the connection breaks, the command is not run again: look what it has done, then decide.

        Raises:
            HostError: it took too long, or wrote more than MOST_OUTPUT_BYTES.
        """
        line = await self._line(host)
        errors = bytearray()

        def take_stderr(data: bytes) -> None:
            errors.extend(data[: MOST_OUTPUT_BYTES - len(errors)])

        async with line.sessions, self._command(host, command, take_stderr=take_stderr) as stream:
            with trio.move_on_after(timeout_s) as limit:
                output = await _converse(stream, stdin)
            said = printable(bytes(errors[-500:]))
            if limit.cancelled_caught:
                problem = f"did not end within {timeout_s:g} s" + (f": {said}" if said else "")
                raise HostError(f"{host.name}: `{command[0]}` {problem}")
            if len(output) > MOST_OUTPUT_BYTES:
                problem = f"writes more than {MOST_OUTPUT_BYTES >> 20} MiB"
                raise HostError(f"{host.name}: `{command[0]}` {problem}")
            return Completed(stream.status, bytes(output), bytes(errors))

    def open(
        self, host: Host, command: Sequence[str]
    ) -> AbstractAsyncContextManager[CommandStream]:
        """A command's standard input and output, for as long as it runs.

        Leaving the block closes both. What is raised in the block because the stream broke is
        replaced by the reason: ConnectionLost, or HostError with the command's last words.
        """
        return self._command(host, command)

    async def put(self, host: Host, source: Path, target: str, *, mode: int = 0o600) -> None:
        """Copy a local file to a host; there, it is whole or not at all.

        Args:
            target: absolute, or below the home folder as `~/…`; its folder must exist.
        """
        upload = Upload(source, remote_path(target), mode)
        await self._transfer(host, target, lambda sftp, _: upload.attempt(sftp))

    async def get(
        self, host: Host, source: str, target: Path, *, most_bytes: int | None = None
    ) -> None:
        """Copy a host's regular file here; `target` is whole or not there.

        What an interrupted attempt left is taken up again, as long as the source has the same
        size and time; whether the content is right is for the caller to check.
        """
        path = remote_path(source)
        await self._transfer(
            host, source, lambda sftp, given_up: fetch(sftp, path, target, most_bytes, given_up)
        )

    async def host_key(self, hop: Hop, key_type: str | None = None) -> HostKey:
        """The key that a host or gateway answers with; nothing is asked of it but that.

        Gateways on the way must be known already.

        Args:
            key_type: the kind that is wanted; None for the known or else the best one.
        """
        types = (key_type,) if key_type else self._types_wanted(hop)
        async with self._dialled(hop) as heard:
            return await self._in_time(hop, _read_key, heard, types, self._settings)

    def judge(self, hop: Hop, key: HostKey) -> Standing:
        """What the inventory's known_hosts says of that key."""
        return self._known.judge(hop.address, hop.port, key).standing

    def trust(self, hop: Hop, key: HostKey) -> None:
        """Add that key to the inventory's known_hosts; it counts from now on."""
        self._known.add(hop.address, hop.port, key, hop.name)
        self._known = KnownHosts.load(self._known.path)

    def refusal(self, hop: Hop, key: HostKey) -> HostKeyRefused | None:
        """Why that key is refused; None when it is known."""
        return _refusal(self._known, self._inventory, hop, key)

    def way_to(self, host: Hop) -> tuple[Hop, ...]:
        """The gateways on the way to a host, outermost first, and the host itself."""
        if not host.jump:
            return (host,)
        return (*self.way_to(self._gateway_before(host)), host)

    @asynccontextmanager
    async def _command(
        self,
        host: Host,
        command: Sequence[str],
        *,
        take_stderr: Callable[[bytes], None] | None = None,
    ) -> AsyncIterator[CommandStream]:
        text = command_line(command)
        line, channel = await self._session(host, text, command[0])
        stream = CommandStream(
            channel,
            self._workers,
            host=host.name,
            name=command[0],
            why_lost=line.why_lost,
            take_stderr=take_stderr,
            status_matters=take_stderr is None,
        )
        try:
            yield stream
        except Exception as error:
            if stream.failure is not None and _is_of_a_broken_stream(error):
                raise stream.failure from error
            raise
        finally:
            await stream.aclose()

    async def _session(self, host: Host, text: str, name: str) -> tuple[_Line, Any]:
        """A channel on which the command has begun.

        An attempt on a connection that turns out to be dead is repeated on a new one, because
        nothing has begun then.
        """
        for attempt in range(2):
            line = await self._line(host)
            try:
                with trio.fail_after(self._settings.connect_timeout_s):
                    return line, await self._workers.run(
                        _begin, line.transport, text, discard=_close_quietly
                    )
            except _NotBegun as error:
                if attempt or line.why_lost() is None:
                    raise HostError(f"{host.name}: opens no session ({error})") from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                if (reason := line.why_lost()) is not None:
                    raise ConnectionLost(
                        host.name, f"connection lost at the begin of `{name}`: {reason}"
                    ) from error
                raise HostError(f"{host.name}: refuses to run commands") from error
            except trio.TooSlowError:
                raise ConnectionFailed(
                    host.name,
                    f"no session within {self._settings.connect_timeout_s:g} s",
                    "the machine may be overloaded",
                ) from None
        raise AssertionError("the loop returns or raises")

    async def _transfer(
        self, host: Host, path: str, work: Callable[["_Sftp", Callable[[], bool]], None]
    ) -> None:
        """Do `work` in a file session, again on a new connection when one is lost."""
        for retries_left in reversed(range(self._settings.retries + 1)):
            line = await self._line(host)
            async with line.sftp_lock:
                given_up = threading.Event()
                try:
                    if line.sftp is None:
                        line.sftp = await self._in_time(
                            host, _open_sftp, line.transport, discard=_close_quietly
                        )
                    await self._workers.run(work, line.sftp, given_up.is_set)
                    return
                except (paramiko.SSHException, EOFError, OSError, ConnectionFailed) as error:
                    if line.why_lost() is None:
                        self._drop_sftp(line)
                        raise _of_file(host, path, error) from error
                    if not retries_left:
                        raise ConnectionLost(
                            host.name, f"connection lost at {path}: {line.why_lost()}"
                        ) from error
                except PubsubctlError as error:
                    raise type(error)(*(f"{host.name}: {text}" for text in error.problems)) from (
                        error
                    )
                except BaseException:  # cancelled: its thread must not go on with this session
                    given_up.set()
                    self._drop_sftp(line)
                    raise

    def _drop_sftp(self, line: _Line) -> None:
        sftp, line.sftp = line.sftp, None
        if sftp is not None:
            _in_background(sftp.close)

    async def _line(self, hop: Hop) -> _Line:
        """The connection to a host, made now if need be.

        Whoever waited while somebody else's attempt failed gets that failure: sixteen hosts
        behind one dead gateway wait for it once, not sixteen times.
        """
        slot = self._slots.setdefault((type(hop).__name__, hop.name, hop.jump), _Slot())
        before = slot.attempts
        async with slot.lock:
            if slot.line is not None:
                if slot.line.why_lost() is None:
                    return slot.line
                _in_background(slot.line.end)
                slot.line = None
            if slot.attempts != before and slot.failure is not None:
                raise slot.failure
            try:
                slot.line = await self._connect(hop)
            except PubsubctlError as error:
                slot.failure = error
                slot.attempts += 1
                raise
            self._nursery.start_soon(self._watch, slot.line)
            return slot.line

    async def _connect(self, hop: Hop) -> _Line:
        if hop.jump:
            await self._line(self._gateway_before(hop))  # before we count as connecting ourselves
        for retries_left in reversed(range(self._settings.retries + 1)):
            try:
                async with self._dialled(hop) as heard:
                    return await self._in_time(
                        hop,
                        _open,
                        hop,
                        heard,
                        self._types_wanted(hop),
                        lambda key: _refusal(self._known, self._inventory, hop, key),
                        self._settings,
                        discard=_Line.end,
                    )
            except (HostKeyRefused, LoginRefused):
                raise
            except ConnectionFailed:
                if not retries_left:
                    raise
                await trio.sleep(RETRY_AFTER_S * 2 ** (self._settings.retries - retries_left))
        raise AssertionError("the loop returns or raises")

    @asynccontextmanager
    async def _dialled(self, hop: Hop) -> AsyncIterator[_Heard]:
        """A byte stream to the SSH server of a host; shut unless the block is left in peace."""
        async with self._turn(hop):
            try:
                with trio.fail_after(self._settings.connect_timeout_s):
                    heard = _Heard(await (self._dial_through(hop) if hop.jump else _dial(hop)))
            except trio.TooSlowError:
                raise ConnectionFailed(
                    hop.name,
                    f"{_place(hop)}: no answer within {self._settings.connect_timeout_s:g} s",
                ) from None
            except OSError as error:
                raise ConnectionFailed(hop.name, f"{_place(hop)}: {_said(error)}") from error
            try:
                yield heard
            except BaseException:
                # Not waited for: what hangs in it ends by this.
                _in_background(heard.shut)
                raise

    @asynccontextmanager
    async def _turn(self, hop: Hop) -> AsyncIterator[None]:
        """Permission to make a connection now: sshd drops those that come too many at once."""
        async with self._connecting:
            if not hop.jump:
                yield
                return
            limiter = self._through.setdefault(
                hop.jump[-1], trio.CapacityLimiter(self._settings.forks_per_gateway)
            )
            async with limiter:
                yield

    def _gateway_before(self, hop: Hop) -> Gateway:
        """The last gateway on the way to a host, on the way that the host names."""
        return replace(self._inventory.gateways[hop.jump[-1]], jump=hop.jump[:-1])

    async def _dial_through(self, hop: Hop) -> Any:
        gateway = self._gateway_before(hop)
        line = await self._line(gateway)
        try:
            return await self._workers.run(
                _tunnel, line.transport, hop, self._settings, discard=_close_quietly
            )
        except paramiko.ChannelException as error:
            reason = "not allowed" if error.code == 1 else "no connection"
            raise ConnectionFailed(
                hop.name, f"{_place(hop)}: gateway {gateway.name} says: {reason} ({error.text})"
            ) from error
        except (paramiko.SSHException, EOFError) as error:
            reason = line.why_lost() or _said(error)
            raise ConnectionFailed(
                hop.name, f"{_place(hop)}: gateway {gateway.name}: {reason}"
            ) from error

    async def _in_time(
        self,
        hop: Hop,
        function: Callable[..., T],
        *arguments: object,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """A handshake in a thread, not for ever: each of its steps has a deadline of its own."""
        limit_s = 3 * self._settings.connect_timeout_s
        try:
            with trio.fail_after(limit_s):
                return await self._workers.run(function, *arguments, discard=discard)
        except trio.TooSlowError:
            raise ConnectionFailed(
                hop.name, f"{_place(hop)}: answers, but not within {limit_s:g} s"
            ) from None
        except PubsubctlError:
            raise
        except paramiko.AuthenticationException as error:
            raise LoginRefused(hop.name, f"{_place(hop)}: {error}", _login_remedy(hop)) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(hop.name, f"{_place(hop)}: {_said(error)}") from error

    async def _watch(self, line: _Line) -> None:
        """End a connection over which nothing comes, not even answers to our questions."""
        interval_s = self._settings.keepalive_s
        asked_s: float | None = None
        while line.why_lost() is None:
            await trio.sleep(interval_s / 2)
            now_s = time.monotonic()
            if asked_s is not None and line.heard.at_s >= asked_s:
                asked_s = None
            if asked_s is None and now_s - line.heard.at_s >= interval_s:
                asked_s = now_s
                _in_background(
                    lambda: line.transport.global_request("keepalive@openssh.com", wait=True)
                )
            elif asked_s is not None and now_s - asked_s >= UNANSWERED_INTERVALS * interval_s:
                line.why = f"no sign of life for {now_s - line.heard.at_s:.0f} s"
                _in_background(line.end)
                return

    def _types_wanted(self, hop: Hop) -> tuple[str, ...]:
        """Kinds of host keys, the known ones first, so that a known key is shown if there is."""
        known = self._known.key_types(hop.address, hop.port)
        return tuple(dict.fromkeys((*(kind for kind in known if kind in KEY_TYPES), *KEY_TYPES)))


class _NotBegun(Exception):
    """No session could be opened: nothing of the command was sent."""


class _KnownOnly(paramiko.MissingHostKeyPolicy):
    """Refuses every key that the inventory does not know.

    The client is given no keys of its own, so it asks about each one.
    """

    def __init__(self, refusal: Callable[[HostKey], HostKeyRefused | None]) -> None:
        self._refusal = refusal

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        if (refused := self._refusal(HostKey(key.get_name(), key.asbytes()))) is not None:
            raise refused


class _KeysOnly:
    """Logs in with keys, from a file or from ssh-agent, and in no other way."""

    def __init__(self, hop: Hop) -> None:
        self._user = hop.user or getpass.getuser()
        self._identity = Path(hop.identity).expanduser() if hop.identity else None

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Called by paramiko once the host key has been accepted."""
        tried: list[str] = []
        agent = paramiko.Agent()
        try:
            for where, key in self._keys(agent):
                tried.append(where)
                try:
                    if not transport.auth_publickey(self._user, key):
                        return []
                    tried.append("the host wants more than a key")
                    break
                except paramiko.BadAuthenticationType as error:
                    tried.append(f"the host takes {', '.join(error.allowed_types)}, no keys")
                    break
                except paramiko.AuthenticationException:
                    if not transport.is_active():
                        break
        finally:
            agent.close()
        told = ", ".join(tried) or "there is no key to try"
        raise paramiko.AuthenticationException(f"user {self._user} is not let in ({told})")

    def _keys(self, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        held = {bytes(key.asbytes()): key for key in agent.get_keys()}
        if self._identity is not None:
            yield self._named_key(self._identity, held)
            return
        for key in list(held.values())[:MOST_AGENT_KEYS]:
            yield f"ssh-agent: {HostKey('', key.asbytes()).fingerprint}", key
        for name in OWN_KEYS:
            path = Path(name).expanduser()
            if path.is_file():
                try:
                    yield name, paramiko.PKey.from_path(path)
                except (TypeError, ValueError, OSError, paramiko.SSHException):
                    continue  # locked by a passphrase, or no key: ssh-agent is for these

    def _named_key(
        self, path: Path, held: dict[bytes, paramiko.AgentKey]
    ) -> tuple[str, paramiko.PKey]:
        """The key that the inventory names; from ssh-agent when the file is locked."""
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
                f"{path}: is locked by a passphrase and not in ssh-agent; ssh-add {path}"
            ) from None
        except OSError as error:
            raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, paramiko.SSHException):
            raise UserError(f"{path}: not a private key that can be used") from None


class _Sftp(paramiko.SFTPClient):
    """A file session that can make files with their mode, so that none is ever open to others."""

    def create(self, path: str, mode: int) -> paramiko.SFTPFile:
        """A new file to write; FileExistsError-like failure when there is one."""
        attributes = SFTPAttributes()
        attributes.st_mode = mode
        flags = 0x02 | 0x08 | 0x20  # write, create, exclusively
        kind, message = self._request(  # type: ignore[attr-defined]
            CMD_OPEN, path.encode(), flags, attributes
        )
        if kind != CMD_HANDLE:
            raise paramiko.SSHException("the host gave no handle for a new file")
        file = paramiko.SFTPFile(self, message.get_binary(), "wx", 0)
        file.chmod(mode)  # whatever the umask there is
        return file


def _open(
    hop: Hop,
    heard: _Heard,
    key_types: Sequence[str],
    refusal: Callable[[HostKey], HostKeyRefused | None],
    settings: SshSettings,
) -> _Line:
    """Shake hands, check the host's key, log in: the one place where connections are made.

    fabric would read configuration files, make a way through gateways of its own, and take any
    key of any host; it is given a byte stream, no configuration, and a client that does not.
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
            "sock": heard,
            "timeout": settings.connect_timeout_s,
            "banner_timeout": settings.connect_timeout_s,
            "auth_timeout": settings.connect_timeout_s,
            "channel_timeout": settings.connect_timeout_s,
            "auth_strategy": _KeysOnly(hop),
            "transport_factory": lambda sock, **_: _transport(sock, key_types, settings),
        },
    )
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_KnownOnly(refusal))
    connection.client = client
    try:
        connection.open()
        transport = connection.transport
        if not transport.is_authenticated():
            raise paramiko.AuthenticationException("not let in")
        return _Line(connection, transport, heard)
    except BaseException:
        heard.shut()
        client.close()
        raise


def _transport(sock: Any, key_types: Sequence[str], settings: SshSettings) -> paramiko.Transport:
    transport = paramiko.Transport(
        sock, disabled_algorithms={"keys": _SHA1, "pubkeys": _SHA1, "kex": []}
    )
    transport.handshake_timeout = settings.connect_timeout_s
    options = transport.get_security_options()
    options.ciphers = _CIPHERS
    options.digests = _DIGESTS
    options.key_types = [name for kind in key_types for name in _SIGNATURES.get(kind, (kind,))]
    return transport


def _read_key(heard: _Heard, key_types: Sequence[str], settings: SshSettings) -> HostKey:
    transport = _transport(heard, key_types, settings)
    transport.banner_timeout = settings.connect_timeout_s
    try:
        transport.start_client(timeout=settings.connect_timeout_s)
        key = transport.get_remote_server_key()
        return HostKey(key.get_name(), key.asbytes())
    finally:
        heard.shut()
        transport.close()


def _refusal(
    known: KnownHosts, inventory: Inventory, hop: Hop, key: HostKey
) -> HostKeyRefused | None:
    judgement = known.judge(hop.address, hop.port, key)
    if judgement.standing is Standing.TRUSTED:
        return None
    where = ", ".join(f"{known.path}:{line}" for line in judgement.lines)
    shows = f"{_place(hop)} shows the {key.key_type} key {key.fingerprint}"
    if judgement.standing is Standing.UNKNOWN:
        return UnknownHostKey(
            hop.name,
            f"{shows}, which {known.path} does not know",
            f"`pubsubctl -i {inventory.path} inventory trust {hop.name}` shows it and asks",
            key.fingerprint,
        )
    if judgement.standing is Standing.REVOKED:
        return ChangedHostKey(
            hop.name,
            f"{shows}, which is revoked ({where})",
            "the machine needs a new key",
            key.fingerprint,
            judgement.lines,
        )
    return ChangedHostKey(
        hop.name,
        f"{shows}, but another one is known ({where}): the machine was set up anew, or somebody "
        "answers in its place",
        "if the change was meant, remove these lines and run "
        f"`pubsubctl -i {inventory.path} inventory trust {hop.name}`",
        key.fingerprint,
        judgement.lines,
    )


async def _dial(hop: Hop) -> socket.socket:
    stream = await trio.open_tcp_stream(hop.address, hop.port)
    dialled = socket.socket(fileno=stream.socket.detach())
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialled


def _tunnel(transport: paramiko.Transport, hop: Hop, settings: SshSettings) -> Any:
    return transport.open_channel(
        "direct-tcpip",
        dest_addr=(hop.address, hop.port),
        src_addr=("127.0.0.1", 0),
        timeout=settings.connect_timeout_s,
    )


def _begin(transport: paramiko.Transport, text: str) -> Any:
    try:
        channel = transport.open_session()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _NotBegun(_said(error)) from error
    channel.exec_command(text)
    return channel


async def _converse(stream: CommandStream, stdin: bytes) -> bytearray:
    """Feed a command and take its output until it ends, or there is too much of it."""
    output = bytearray()

    async def feed() -> None:
        try:
            if stdin:
                await stream.send_all(stdin)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # it did not want all of its input, or the connection is lost: receiving tells

    failure: trio.BrokenResourceError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        try:
            while data := await stream.receive_some():
                output += data
                if len(output) > MOST_OUTPUT_BYTES:
                    break
        except trio.BrokenResourceError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return output


def _open_sftp(transport: paramiko.Transport) -> _Sftp:
    sftp = _Sftp.from_transport(transport)
    assert sftp is not None, "a session is opened or refused"
    channel = sftp.get_channel()
    assert channel is not None, "a file session has a channel"
    channel.settimeout(TRANSFER_STALL_S)
    return sftp


def _of_file(host: Host, path: str, error: Exception) -> PubsubctlError:
    if isinstance(error, PubsubctlError):
        return error
    if isinstance(error, TimeoutError):
        return HostError(f"{host.name}: {path}: nothing moves for {TRANSFER_STALL_S:g} s")
    return HostError(f"{host.name}: {path}: {_said(error)}")


def _is_of_a_broken_stream(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_a_broken_stream(inner) for inner in error.exceptions)
    if isinstance(error, ControlError):
        return error.kind == "closed"
    return isinstance(
        error, trio.BrokenResourceError | trio.ClosedResourceError | trio.EndOfChannel
    )


def _login_remedy(hop: Hop) -> str:
    if hop.identity:
        return f"is {hop.identity}.pub in authorized_keys there?"
    return "name a key with `identity`, or ssh-add one"


def _place(hop: Hop) -> str:
    address = f"[{hop.address}]" if ":" in hop.address else hop.address
    return f"{address}:{hop.port}"


def _said(error: BaseException) -> str:
    """What an exception of the libraries means, in words."""
    if isinstance(error, BaseExceptionGroup):
        return _said(error.exceptions[0])
    if isinstance(error, EOFError) or "protocol banner" in str(error):
        return "the other side hung up during the handshake"
    if isinstance(error, OSError):
        inner = error.__cause__
        if isinstance(inner, OSError | BaseExceptionGroup):
            return _said(inner)
        if error.errno and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno).lower()  # the text may repeat the place
        return (error.strerror or str(error) or type(error).__name__).lower()
    text = str(error).strip().rstrip(".") or type(error).__name__
    return text[:1].lower() + text[1:]


def _close_quietly(thing: Any) -> None:
    try:
        thing.close()
    except Exception:  # its connection is going as well
        pass


def _in_background(function: Callable[[], object]) -> None:
    """Do what may block where nobody waits for it, not even the end of the program."""

    def work() -> None:
        try:
            function()
        except Exception:  # whatever it is, the connection is at its end
            pass

    threading.Thread(target=work, daemon=True).start()
