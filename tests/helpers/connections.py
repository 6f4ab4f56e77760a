"""Many simultaneous connections, all closed at the end even if the story fails."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def many_connections(
    count: int, connect: Callable[[], Awaitable[trio.SocketStream]]
) -> AsyncIterator[list[trio.SocketStream]]:
    """Open `count` connections, one after another."""
    opened: list[trio.SocketStream] = []
    try:
        for _ in range(count):
            opened.append(await connect())
        yield opened
    finally:
        for stream in opened:
            stream.socket.close()
