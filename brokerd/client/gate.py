"""A gate between a client and its broker, which can be shut."""

import socket

import trio

from brokerd.runtime.streams import Dial
from brokerd.runtime.tls import transport_of


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
