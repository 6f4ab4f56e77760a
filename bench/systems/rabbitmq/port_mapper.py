"""A replacement of Erlang's port mapper for one server of a cluster, which starts the server.

    python port_mapper.py PORT NAME=PORT,… COMMAND …

The mapper returns the given ports of other nodes, which may be ports of a relay, and registered
ports otherwise. It supports the requests of nodes in Erlang's distribution protocol ("EPMD
protocol"): registration for the time of a connection, a port, and the names. The command replaces
this process, and the mapper ends with the command. Linux only.
"""

import asyncio
import ctypes
import os
import random
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Final

_REGISTER: Final = b"x"
_REGISTERED: Final = b"v"
_PORT: Final = b"z"
_PORT_IS: Final = b"w"
_NAMES: Final = b"n"
_DIE_WITH_PARENT: Final = 1
_VISIBLE: Final = 77
_VERSIONS: Final = (6, 5)


class PortMapper:
    """A map of nodes to ports: `others` always, and registered nodes."""

    def __init__(self, port: int, others: Mapping[str, int]) -> None:
        self._port = port
        self._others = others
        self._registered: dict[str, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the only request of a connection."""
        name = ""
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            request = await reader.readexactly(length)
            if request[:1] == _REGISTER:
                port, size = struct.unpack_from("!H6xH", request, 1)
                name = request[11 : 11 + size].decode()
                self._registered[name] = port
            writer.write(self.answer(request))
            await writer.drain()
            if name:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError, struct.error):
            pass  # nodes repeat their requests
        finally:
            self._registered.pop(name, None)
            writer.close()

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request; b"" for an unknown request."""
        kind, name = request[:1], request[1:].decode(errors="replace")
        if kind == _REGISTER:
            return _REGISTERED + struct.pack("!BI", 0, random.randrange(4, 1 << 32))
        if kind == _NAMES:
            known = (f"name {name} at port {port}\n" for name, port in self._registered.items())
            return struct.pack("!I", self._port) + "".join(known).encode()
        if kind != _PORT:
            return b""
        port = self._others.get(name) or self._registered.get(name)
        if port is None:
            return _PORT_IS + b"\1"
        reply = struct.pack("!BHBBHHH", 0, port, _VISIBLE, 0, *_VERSIONS, len(name))
        return _PORT_IS + reply + name.encode() + b"\0\0"


async def _serve(listener: socket.socket, mapper: PortMapper) -> None:
    server = await asyncio.start_server(mapper.serve, sock=listener)
    await server.serve_forever()


def main(port: str, others: str, *command: str) -> None:
    """Listen, so that the server finds the mapper, and become the server."""
    rows = [row.partition("=") for row in others.split(",") if row]
    mapper = PortMapper(int(port), {name: int(there) for name, _, there in rows})
    listener = socket.create_server(("127.0.0.1", int(port)))
    parent = os.getpid()
    if os.fork():
        listener.close()
        os.execv(command[0], command)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() == parent:
        asyncio.run(_serve(listener, mapper))


if __name__ == "__main__":
    main(*sys.argv[1:])
