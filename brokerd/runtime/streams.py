"""Streams before a session is established: accepted, dialled, gated, greeted, and closed.

Linux reports the pending network errors of a new connection as errors of `accept`. A process that
has no free file descriptor cannot accept either. Neither is a fault of the listener.
"""

# Otherwise each process forked off one image imports it with its first address: a MiB each.
import encodings.idna  # noqa: F401
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from brokerd.errors import RemoteProtocolError
from brokerd.interpreter import NO_PROCESS, has_met_process_limit
from brokerd.runtime.tls import TlsCredentials, is_loopback, transport_of
from brokerd.sessions.messages import Farewell, Hello

if TYPE_CHECKING:
    from brokerd.wire.framing import FrameDecoder

HELLO_RECEIVE_BYTES: Final = 1 << 16

Dial = Callable[[str], Awaitable[trio.abc.Stream]]

ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a failed `accept`: a connection that waits keeps the listener readable."""
_OF_LISTENER: Final = (errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK)

Accepted = TypeVar("Accepted")


class PlaintextRefused(ConnectionRefusedError):
    """A connection off loopback without TLS."""


async def dial_tcp(address: str) -> trio.abc.Stream:
    """Return a connection to "host:port" on this machine.

    Raises:
        PlaintextRefused: the address is that of another machine, which needs TLS.
    """
    if not is_loopback(address):
        raise PlaintextRefused(f"{address} is not on this machine: it takes certificates (`tls`)")
    return await _open_tcp(address)


def dial_tls(credentials: TlsCredentials) -> Dial:
    """Return a function that dials with TLS, for any address."""

    async def dial(address: str) -> trio.abc.Stream:
        return await credentials.dial(await _open_tcp(address))

    return dial


async def _open_tcp(address: str) -> trio.SocketStream:
    """Return a connection to "host:port".

    Raises:
        OSError: no address of the host accepts the connection; the text is the cause of each.
    """
    host, _, port = address.rpartition(":")
    try:
        return await trio.open_tcp_stream(host.strip("[]"), int(port))
    except OSError as error:
        failed = error.__cause__
        causes = failed.exceptions if isinstance(failed, BaseExceptionGroup) else (failed or error,)
        texts = [_words_of(each) for each in causes if isinstance(each, OSError)]
        raise OSError(", ".join(dict.fromkeys(texts)) or str(error)) from error
    except RuntimeError as error:  # a thread resolves the host's name
        if not has_met_process_limit(error):
            raise
        raise OSError(NO_PROCESS) from error


def _words_of(error: OSError) -> str:
    """Return the cause without the address, which the caller names."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


async def first_message(stream: trio.abc.Stream, decoder: "FrameDecoder") -> Any:
    """Return the Hello or Farewell that a connection begins with.

    Raises:
        RemoteProtocolError: the connection begins with another message, or ends before.
    """
    # Clients of control sockets need no codec: it imports every protocol.
    from brokerd.wire.codec import decode

    while True:
        chunk = await stream.receive_some(HELLO_RECEIVE_BYTES)
        if not chunk:
            raise RemoteProtocolError("unknown", "closed before its Hello")
        decoder.feed(bytes(chunk))
        frame = decoder.next_frame()
        if frame is not None:
            message = decode(*frame)
            if not isinstance(message, Hello | Farewell):
                raise RemoteProtocolError("unknown", f"{type(message).__name__} before Hello")
            return message


async def close_stream(stream: trio.abc.Stream) -> None:
    """Close a stream that may be broken already."""
    try:
        await stream.aclose()
    except trio.BrokenResourceError:
        pass  # it was closed from the other side


async def accept_next(
    accept: Callable[[], Awaitable[Accepted]], report: Callable[[OSError], None]
) -> Accepted:
    """Return the next connection.

    Args:
        accept: accepts one connection.
        report: called with the first of consecutive failures; the others follow from the first.

    Raises:
        OSError: the listener itself cannot be used.
    """
    is_reported = False
    while True:
        try:
            return await accept()
        except OSError as error:
            if error.errno in _OF_LISTENER:
                raise
            if not is_reported:
                report(error)
            is_reported = True
            await trio.sleep(ACCEPT_PAUSE_S)


class Gate:
    """A gate for one client: while shut, its connections end and no new connection is made.

    Existing connections end without a close, as if the client's machine had lost its network, so
    the broker keeps its state for a client that returns.
    """

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()
        self._streams: list[trio.abc.Stream] = []

    @property
    def is_shut(self) -> bool:
        """Return True if no connection is made."""
        return not self._opened.is_set()

    def shut(self) -> None:
        """Disconnect the client, and keep all new connections waiting until `open`."""
        if not self.is_shut:
            self._opened = trio.Event()
        streams, self._streams = self._streams, []
        for stream in streams:
            _cut_off(stream)

    def open(self) -> None:
        """Permit connections again."""
        self._opened.set()

    def before(self, dial: Dial) -> Dial:
        """Return a function that dials in the same way, once the gate is open."""

        async def through(address: str) -> trio.abc.Stream:
            await self._opened.wait()
            stream = await dial(address)
            if self.is_shut:
                await trio.aclose_forcefully(stream)
                raise ConnectionAbortedError(f"blocked from {address} by a fault")
            self._streams = [*filter(_is_open, self._streams), stream]
            return stream

        return through


def _is_open(stream: trio.abc.Stream) -> bool:
    transport = transport_of(stream)
    return not isinstance(transport, trio.SocketStream) or transport.socket.fileno() >= 0


def _cut_off(stream: trio.abc.Stream) -> None:
    """End a connection while it is in use; the user of its socket still closes the socket."""
    transport = transport_of(stream)
    if isinstance(transport, trio.SocketStream) and transport.socket.fileno() >= 0:
        try:
            transport.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was faster


def peer_address(stream: trio.abc.Stream) -> str:
    """Return the address of the other end, without the port; empty without addresses."""
    transport = transport_of(stream)
    if not isinstance(transport, trio.SocketStream):
        return ""
    try:
        return str(transport.socket.getpeername()[0])
    except OSError:
        return ""  # the socket is closed already


async def drop_stream(stream: trio.abc.Stream) -> None:
    """Close a stranger's connection, by a single system call if possible."""
    transport = transport_of(stream)
    if isinstance(transport, trio.SocketStream):
        transport.socket.close()
    else:
        await trio.aclose_forcefully(stream)
