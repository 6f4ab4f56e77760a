"""A process that takes the session of a broker's neighbour, and sends forbidden messages.

Over TLS the process needs the key of a broker of the deployment; over plain TCP any local user can
take the session.
"""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

import trio

from brokerd.runtime.links import PAUSES
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Heartbeat, Hello
from brokerd.wire.codec import decode
from brokerd.wire.framing import FrameDecoder
from tests.helpers.patience import PATIENCE_S
from tests.helpers.raw_peer import answer, say

_SESSIONS: Final = count(1 << 20)


class FalseNeighbour:
    """A session in the name of a neighbour."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()

    async def send(self, *messages: Any) -> None:
        """Send messages of the protocol in one write."""
        await say(self._stream, *messages)

    async def wait_for_farewell(self) -> Farewell | None:
        """Return the broker's last message, or None if the broker closes without a farewell."""
        with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
            while True:
                while (frame := self._decoder.next_frame()) is not None:
                    message = decode(*frame)
                    if isinstance(message, Farewell):
                        return message
                chunk = await self._stream.receive_some(1 << 16)
                if not chunk:
                    return None
                self._decoder.feed(bytes(chunk))
        return None

    async def live(self) -> None:
        """Send heartbeats until the session ends."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await say(self._stream, Heartbeat())
                await trio.sleep(0.1)


@asynccontextmanager
async def false_neighbour(
    address: str, status: Mapping[str, Any], name: str, number: int, incarnation: int = 1
) -> AsyncIterator[FalseNeighbour]:
    """Open a session with a broker in the name of a neighbour that is down.

    Args:
        status: the status of the attacked broker.
    """
    agreed = (status["protocol"], status["deployment_id"], status["topology_digest"])
    about = ("broker", name, number, incarnation)
    host, _, port = address.rpartition(":")
    with trio.fail_after(PATIENCE_S) as patience:
        while True:  # an attempt of the broker's own, which nobody answers, may cross
            hello = Hello(WIRE_VERSION, *agreed, *about, next(_SESSIONS), 0, False, ())
            stream = await trio.open_tcp_stream(host, int(port))
            await say(stream, hello)
            greeting = await answer(stream)
            if isinstance(greeting, Hello):
                break
            assert isinstance(greeting, Farewell), greeting
            await stream.aclose()
            if greeting.reason == PAUSES:  # an earlier session ended with a protocol error
                await trio.sleep(0.2)
                continue
            assert greeting.kind == "crossed" or "is up" in greeting.reason, greeting
        patience.deadline = math.inf
        async with stream:
            yield FalseNeighbour(stream)
