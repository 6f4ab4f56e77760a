"""Connections to the hosts of an inventory, opened on demand and shared until the end.

All requests to a host share a connection. `line.open_line` opens the connection and every hop on
the route, and accepts only a host key from the inventory's own known_hosts.
"""

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import trio

from brokerd.errors import ControlError
from pubsubctl.errors import HostError, PubsubctlError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.client_config import UserConfig
from pubsubctl.hosts.ssh.config_syntax import command_line, remote_path
from pubsubctl.hosts.ssh.errors import (
    AuthenticationRefused,
    ChangedHostKey,
    ConnectionFailed,
    ConnectionLost,
    Garbled,
    HostKeyRefused,
    LineError,
    LineLoss,
    LoginRefused,
    NotBegun,
    UnknownHostKey,
    describe_error,
)
from pubsubctl.hosts.ssh.fabric_connection import (
    FabricConnection,
    Hop,
    TimedByteStream,
    open_line,
    read_host_key,
    run_in_background,
)
from pubsubctl.hosts.ssh.file_transfers import Download, Sftp, Upload
from pubsubctl.hosts.ssh.known_hosts import KEY_TYPES, HostKey, KnownHosts, Standing
from pubsubctl.hosts.ssh.stream import CommandStream, Workers, close_quietly, printable
from pubsubctl.hosts.ssh.tunnels import dial_through_command, stream_through
from pubsubctl.inventory.inventory import Gateway, Host, Inventory, SshSettings

T = TypeVar("T")

MOST_OUTPUT_BYTES: Final = 64 << 20  # of one command; larger output must be transferred as a file
COMMANDS_PER_HOST: Final = 4  # at once; sshd allows 10 sessions, and streams need some, too
RETRY_AFTER_S: Final = 0.3  # and twice as long each further time
UNANSWERED_INTERVALS: Final = 2
CLOSE_DEADLINE_S: Final = 2.0


@dataclass(frozen=True)
class CommandOutcome:
    """The outcome of a command.

    Attributes:
        status: the exit status; -1 after a signal.
    """

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(eq=False)
class _Slot:
    """The slot of a host's connection, shared by all tasks that wait for the connection.

    Attributes:
        failures: the number of failed attempts; `failure` is the last failure.
        commands: limits the commands at the same time.
        transfers: one at a time.
    """

    connecting: trio.Lock = field(default_factory=trio.Lock)
    line: FabricConnection | None = None
    failures: int = 0
    failure: PubsubctlError | None = None
    commands: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(COMMANDS_PER_HOST)
    )
    transfers: trio.Lock = field(default_factory=trio.Lock)


class SshConnections:
    """The SSH connections to the hosts of an inventory, for the duration of a command.

    An async context manager that closes all connections at the end. Every method opens a connection
    if there is none, or the last connection broke. All methods can be cancelled at any time, and
    then wait for no thread.

    Raises, from all methods:
        UnknownHostKey, ChangedHostKey: a host, or a gateway on the route, answered with a key
            that the inventory does not contain; nothing was sent to the host.
        LoginRefused: the host accepted no key.
        ConnectionLost: the connection broke; the command may have been carried out or not.
        ConnectionFailed: no connection after all retries. All errors above are
            Unreachable.
        UserError: a word or path cannot be sent, or a key file cannot be used.
        HostError: the host refused or failed.
    """

    def __init__(self, inventory: Inventory) -> None:
        assert inventory.known_hosts is not None, f"{inventory.name}: no host is reached by ssh"
        self._inventory = inventory
        self._settings: SshSettings = inventory.ssh
        self._known_hosts = KnownHosts.load(inventory.known_hosts)
        self._own: UserConfig | None = None
        if self._settings.user_config is not None:
            self._own = UserConfig(inventory, self._settings.user_config)
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
        self._slots.clear()
        for line in lines:
            line.cut("closed by us")
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_DEADLINE_S):
            async with trio.open_nursery() as closing:
                for line in lines:
                    closing.start_soon(self._workers.run, line.end)
        # An exception of the body is raised unchanged, not in a group: this call does not get the
        # exception.
        await self._nursery_manager.__aexit__(None, None, None)

    async def run(
        self,
        host: Host,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> CommandOutcome:
        """Run a command to completion.

        The words arrive unchanged; the login shell of the host must be a POSIX shell. After a lost
        connection the command is not repeated: the caller must inspect the effects first.

        Raises:
            HostError: the command exceeded `timeout_s`, or wrote more than MOST_OUTPUT_BYTES.
        """
        errors = bytearray()

        def take_stderr(data: bytes) -> None:
            errors.extend(data[: MOST_OUTPUT_BYTES - len(errors)])

        async with (
            self._slot(host).commands,
            self._command(host, command, take_stderr=take_stderr) as stream,
        ):
            with trio.move_on_after(timeout_s) as limit:
                output = await _converse(stream, stdin)
            if limit.cancelled_caught:
                words = printable(bytes(errors[-500:]))
                problem = f"did not end within {timeout_s:g} s" + (f": {words}" if words else "")
                raise HostError(f"{host.name}: `{command[0]}` {problem}")
            if len(output) > MOST_OUTPUT_BYTES:
                problem = f"writes more than {MOST_OUTPUT_BYTES >> 20} MiB"
                raise HostError(f"{host.name}: `{command[0]}` {problem}")
            return CommandOutcome(stream.status, bytes(output), bytes(errors))

    def open(
        self, host: Host, command: Sequence[str]
    ) -> AbstractAsyncContextManager[CommandStream]:
        """Open a command's standard input and output, for the command's duration.

        The exit closes both. An exception that the block raised because the stream broke is
        replaced by the reason: ConnectionLost, or HostError with the command's last words.
        """
        return self._command(host, command)

    async def put(self, host: Host, source: Path, target: str, *, mode: int = 0o600) -> None:
        """Copy a local file to a host; the remote file is whole or absent.

        Args:
            target: absolute, or below the home folder as `~/…`; the folder must exist.
        """
        upload = Upload(source, remote_path(target), mode, where=f"{host.name}: {target}")
        await self._transfer(host, target, lambda sftp, _: upload.attempt(sftp))

    async def try_transfer(self, host: Host) -> None:
        """Begin a file session with a host, and transfer nothing."""
        await self._transfer(host, "a file transfer", lambda *_: None)

    async def get(
        self, host: Host, source: str, target: Path, *, most_bytes: int | None = None
    ) -> None:
        """Copy a host's regular file here; `target` is whole or absent.

        The copy resumes after an interrupted attempt while size and time of the source are the
        same; the caller has to verify the content.

        Raises:
            PreflightFailed: the file cannot be written here.
        """
        where = f"{host.name}: {source}"
        download = Download(remote_path(source), target, most_bytes, where=where)
        await self._transfer(host, source, download.attempt)

    async def reach_gateway(self, host: Host) -> bool:
        """Connect to the last gateway before a host; return False for a host without a gateway."""
        return await self._gateway_line(self._settle(host)) is not None

    async def tunnel(self, host: Host, address: str, port: int) -> trio.SocketStream:
        """Return a stream to an address that the last gateway before a host can reach.

        Raises:
            ConnectionFailed: the gateway cannot connect; see the class for other errors.
        """
        gateway = await self._gateway_line(self._settle(host))
        assert gateway is not None, f"{host.name} is behind no gateway"
        try:
            channel = await self._workers.run(gateway.tunnel, address, port, discard=close_quietly)
        except LineError as error:
            raise ConnectionFailed(host.name, f"through {host.jump[-1]}: {error}") from error
        return trio.SocketStream(trio.socket.from_stdlib_socket(stream_through(channel)))

    async def host_key(self, hop: Hop, key_type: str | None = None) -> HostKey:
        """Return the key of a host or gateway; the server receives only the handshake.

        The keys of gateways on the route must be in the key file already.

        Args:
            key_type: the wanted key type; None for the type in the key file, or else the best type.
        """
        hop = self._settle(hop)
        types = (key_type,) if key_type else self._types_wanted(hop)
        gateway = await self._gateway_line(hop)
        async with self._open_stream(hop, gateway) as stream:
            return await self._run_in_time(
                hop, read_host_key, stream, types, self._settings.connect_timeout_s
            )

    def judge(self, hop: Hop, key: HostKey) -> Standing:
        """Return the standing of a key in the inventory's key file."""
        hop = self._settle(hop)
        return self._known_hosts.judge(hop.address, hop.port, key).standing

    def trust(self, hop: Hop, key: HostKey) -> None:
        """Add a key to the inventory's key file, effective from now on."""
        hop = self._settle(hop)
        self._known_hosts.add(hop.address, hop.port, key, hop.name)
        self._known_hosts = KnownHosts.load(self._known_hosts.path)

    def refusal(self, hop: Hop, key: HostKey) -> HostKeyRefused | None:
        """Return the reason for which a key is refused; None for a trusted key."""
        hop = self._settle(hop)
        judgement = self._known_hosts.judge(hop.address, hop.port, key)
        if judgement.standing is Standing.TRUSTED:
            return None
        file = self._known_hosts.path
        where = ", ".join(f"{file}:{line}" for line in judgement.lines)
        is_named = isinstance(hop, Host) or hop.name in self._inventory.gateways
        name = hop.name if is_named else "HOST"  # a gateway of the person's own configuration
        trust = f"`pubsubctl -i {self._inventory.path} inventory trust {name}`"
        shows = f"{_place(hop)} shows the {key.key_type} key {key.fingerprint}"
        if judgement.standing is Standing.UNKNOWN:
            return UnknownHostKey(
                hop.name,
                f"{shows}, which {file} does not have",
                f"{trust} shows it and asks",
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
            f"{shows}, but known_hosts has another key ({where}): the machine was reinstalled, or "
            "another machine answers",
            f"if the change was meant, remove these lines and run {trust}",
            key.fingerprint,
            judgement.lines,
        )

    def route_to(self, hop: Hop) -> tuple[Hop, ...]:
        """Return the gateways on the route to a host, outermost first, and the host."""
        hop = self._settle(hop)
        if not hop.jump:
            return (hop,)
        return (*self.route_to(self._gateway_before(hop)), hop)

    @asynccontextmanager
    async def _command(
        self,
        host: Host,
        command: Sequence[str],
        *,
        take_stderr: Callable[[bytes], None] | None = None,
    ) -> AsyncIterator[CommandStream]:
        text = command_line(command)
        line, channel = await self._begin(host, text, command[0])
        stream = CommandStream(
            channel,
            self._workers,
            host=host.name,
            name=command[0],
            why_lost=line.wait_loss_reason,
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

    async def _begin(self, host: Host, text: str, name: str) -> tuple[FabricConnection, Any]:
        """Return the connection and a channel on which the command has begun.

        An attempt on a dead connection is repeated on a new connection, because the command has not
        begun then.
        """
        for attempt in range(2):
            line = await self._line(host)
            try:
                with trio.fail_after(self._settings.connect_timeout_s):
                    return line, await self._workers.run(line.begin, text, discard=close_quietly)
            except NotBegun as error:
                if attempt or line.loss_reason() is None:
                    raise HostError(f"{host.name}: opens no session ({error})") from None
            except LineLoss as error:
                raise ConnectionLost(
                    host.name, f"connection lost at the begin of `{name}`: {error}"
                ) from error
            except LineError as error:
                raise HostError(f"{host.name}: {error}") from error
            except trio.TooSlowError:
                raise ConnectionFailed(
                    host.name,
                    f"no session within {self._settings.connect_timeout_s:g} s",
                    "the machine may be overloaded",
                ) from None
        raise AssertionError("the loop returns or raises")

    async def _transfer(
        self, host: Host, path: str, work: Callable[[Sftp, Callable[[], bool]], None]
    ) -> None:
        """Run `work` in a file session, again on a new connection after a lost connection."""
        async with self._slot(host).transfers:
            for retries_left in reversed(range(self._settings.retries + 1)):
                line = await self._line(host)
                given_up = threading.Event()
                try:
                    await self._workers.run(
                        line.transfer, lambda sftp, flag=given_up: work(sftp, flag.is_set)
                    )
                    return
                except trio.Cancelled:  # its thread must not go on with this session
                    given_up.set()
                    line.drop_files()
                    raise
                except LineLoss as error:
                    if not retries_left:
                        raise ConnectionLost(
                            host.name, f"connection lost at {path}: {error}"
                        ) from error
                except Garbled as error:
                    raise ConnectionFailed(
                        host.name,
                        f"its login prints {shown(str(error))} into file transfers",
                        "print in terminals only, for example after `[ -t 1 ] &&` in ~/.bashrc",
                    ) from error
                except LineError as error:
                    raise HostError(f"{host.name}: {path}: {error}") from error

    def _slot(self, hop: Hop) -> _Slot:
        return self._slots.setdefault((type(hop).__name__, hop.name, hop.jump), _Slot())

    async def _line(self, hop: Hop) -> FabricConnection:
        """Return the connection to a host, opened now if necessary.

        A task that waited during another task's failed attempt gets the same failure: sixteen hosts
        behind a dead gateway wait for the gateway once, not sixteen times.
        """
        hop = self._settle(hop)
        slot = self._slot(hop)
        failures = slot.failures
        async with slot.connecting:
            if slot.line is not None:
                if slot.line.loss_reason() is None:
                    return slot.line
                run_in_background(slot.line.end)
                slot.line = None
            if slot.failures != failures and slot.failure is not None:
                raise slot.failure
            try:
                slot.line = await self._connect(hop)
            except PubsubctlError as error:
                slot.failure = error
                slot.failures += 1
                raise
            self._nursery.start_soon(self._watch, slot.line)
            return slot.line

    async def _connect(self, hop: Hop) -> FabricConnection:
        def accept(key: HostKey) -> None:
            if (refused := self.refusal(hop, key)) is not None:
                raise refused

        for attempt in range(self._settings.retries + 1):
            gateway = await self._gateway_line(hop)  # has own retries
            try:
                async with self._open_stream(hop, gateway) as stream:
                    return await self._run_in_time(
                        hop,
                        open_line,
                        hop,
                        stream,
                        self._types_wanted(hop),
                        accept,
                        self._settings.connect_timeout_s,
                        discard=FabricConnection.end,
                    )
            except (HostKeyRefused, LoginRefused):
                raise
            except ConnectionFailed:
                if attempt == self._settings.retries:
                    raise
                await trio.sleep(RETRY_AFTER_S * 2**attempt)
        raise AssertionError("the loop returns or raises")

    async def _gateway_line(self, hop: Hop) -> FabricConnection | None:
        return await self._line(self._gateway_before(hop)) if hop.jump else None

    def _gateway_before(self, hop: Hop) -> Gateway:
        """Return the last gateway on the host's route."""
        gateways = self._inventory.gateways if self._own is None else self._own.gateways
        return replace(gateways[hop.jump[-1]], jump=hop.jump[:-1])

    def _settle(self, hop: Hop) -> Hop:
        return hop if self._own is None else self._own.settle(hop)

    @asynccontextmanager
    async def _open_stream(
        self, hop: Hop, gateway: FabricConnection | None
    ) -> AsyncIterator[TimedByteStream]:
        """Open a byte stream to the SSH server of a host; shut the stream if the block raises.

        The number of simultaneous handshakes is bounded, because sshd drops connections above a
        limit.
        """
        async with self._connecting, self._turn(hop):
            try:
                with trio.fail_after(self._settings.connect_timeout_s):
                    stream = TimedByteStream(await self._dial(hop, gateway))
            except trio.TooSlowError:
                raise ConnectionFailed(
                    hop.name,
                    f"{_place(hop)}: no answer within {self._settings.connect_timeout_s:g} s",
                ) from None
            except LineError as error:
                via = f"gateway {hop.jump[-1]}: " if hop.jump else ""
                raise ConnectionFailed(hop.name, f"{_place(hop)}: {via}{error}") from error
            except OSError as error:
                raise ConnectionFailed(
                    hop.name, f"{_place(hop)}: {describe_error(error)}"
                ) from error
            try:
                yield stream
            except BaseException:
                run_in_background(stream.shut)  # unblocks the threads that use the stream
                raise

    def _turn(self, hop: Hop) -> trio.CapacityLimiter:
        name = hop.jump[-1] if hop.jump else ""
        most = self._settings.forks_per_gateway if hop.jump else self._settings.forks
        return self._through.setdefault(name, trio.CapacityLimiter(most))

    async def _dial(self, hop: Hop, gateway: FabricConnection | None) -> Any:
        if gateway is not None:
            return await self._workers.run(
                gateway.tunnel, hop.address, hop.port, discard=close_quietly
            )
        if self._own is not None and (command := self._own.proxy_command(hop)) is not None:
            return dial_through_command(command)
        stream = await trio.open_tcp_stream(hop.address, hop.port)
        dialled = socket.socket(fileno=stream.socket.detach())
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return dialled

    async def _run_in_time(
        self,
        hop: Hop,
        function: Callable[..., T],
        *arguments: object,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Run a handshake in a thread, with a deadline for every step and for the whole."""
        limit_s = 3 * self._settings.connect_timeout_s
        try:
            with trio.fail_after(limit_s):
                return await self._workers.run(function, *arguments, discard=discard)
        except trio.TooSlowError:
            reason = f"{_place(hop)}: answers, but not within {limit_s:g} s"
            raise ConnectionFailed(hop.name, reason) from None
        except AuthenticationRefused as error:
            remedy = "name a key with `identity`, or ssh-add one"
            if hop.identities:
                public = " or ".join(f"{path}.pub" for path in hop.identities)
                remedy = f"is {public} in authorized_keys there?"
            raise LoginRefused(hop.name, f"{_place(hop)}: {error}", remedy) from error
        except LineError as error:
            raise ConnectionFailed(hop.name, f"{_place(hop)}: {error}") from error

    async def _watch(self, line: FabricConnection) -> None:
        """End a connection over which nothing arrives, not even answers to keepalives."""
        interval_s = self._settings.keepalive_s
        requested_s: float | None = None
        while line.loss_reason() is None:
            await trio.sleep(interval_s / 2)
            now_s = time.monotonic()
            if requested_s is not None and line.last_received_s >= requested_s:
                requested_s = None
            if requested_s is None and now_s - line.last_received_s >= interval_s:
                requested_s = now_s
                run_in_background(line.probe)
            elif (
                requested_s is not None and now_s - requested_s >= UNANSWERED_INTERVALS * interval_s
            ):
                line.cut(f"no sign of life for {now_s - line.last_received_s:.0f} s")
                run_in_background(line.end)
                return

    def _types_wanted(self, hop: Hop) -> tuple[str, ...]:
        """Return host key types, the types in the key file first, to obtain such a key."""
        known = self._known_hosts.key_types(hop.address, hop.port)
        return tuple(dict.fromkeys((*(kind for kind in known if kind in KEY_TYPES), *KEY_TYPES)))


async def _converse(stream: CommandStream, stdin: bytes) -> bytearray:
    """Feed a command and collect the output, until the end or beyond the maximum."""
    output = bytearray()

    async def feed() -> None:
        try:
            if stdin:
                await stream.send_all(stdin)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # its input is closed or the connection lost; receiving finds the reason

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


def _is_of_a_broken_stream(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_a_broken_stream(inner) for inner in error.exceptions)
    if isinstance(error, ControlError):
        return error.kind == "closed"
    return isinstance(
        error, trio.BrokenResourceError | trio.ClosedResourceError | trio.EndOfChannel
    )


def _place(hop: Hop) -> str:
    address = f"[{hop.address}]" if ":" in hop.address else hop.address
    return f"{address}:{hop.port}"
