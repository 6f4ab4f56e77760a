"""Streams before a session is established: accepted, dialled, greeted, and closed.

Linux reports the pending network errors of a new connection as errors of `accept`. A process that
has no free file descriptor cannot accept either. Neither is a fault of the listener.
"""

# Otherwise each process forked off one image imports it with its first address: a MiB each.
import encodings.idna  # noqa: F401
import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from brokerd.errors import RemoteProtocolError
from brokerd.runtime.tls import TlsCredentials, is_loopback
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
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host.strip("[]"), int(port))


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
