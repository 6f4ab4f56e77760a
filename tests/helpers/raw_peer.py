"""A peer at the other end of a memory stream that sends malformed messages."""

import contextlib
import struct
from typing import Any

import trio

from brokerd.runtime.streams import first_message
from brokerd.sessions.messages import WIRE_VERSION, Heartbeat, Hello
from brokerd.wire.codec import decode, encode
from brokerd.wire.framing import FrameDecoder
from tests.helpers.memory_links import MemoryNet


def words(*messages: Any) -> bytes:
    """Return messages as bytes on the wire."""
    return b"".join(piece for message in messages for piece in encode(message))


async def say(stream: trio.abc.Stream, *messages: Any) -> None:
    """Write messages, all at once."""
    await stream.send_all(words(*messages))


async def answer(stream: trio.abc.Stream) -> Any:
    """Return the next message, or None if the other end closes."""
    return await first_message(stream, FrameDecoder())


def broker_hello(name: str = "b1", session: int = 3, **changes: Any) -> Hello:
    """Return the first message of a broker b<number> in the deployment of `LinkedBroker`."""
    values = {
        "wire_version": WIRE_VERSION,
        "protocol": "p",
        "deployment_id": "d",
        "topology_digest": "t",
        "role": "broker",
        "name": name,
        "number": int(name.removeprefix("b")),
        "incarnation": 1,
        "session": session,
        "newest": 0,
        "recovering": False,
        "capabilities": (),
    }
    return Hello(**{**values, **changes})


class RawPeer:
    """A peer that sends raw bytes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.received = b""

    async def say(self, *messages: Any) -> None:
        await say(self.stream, *messages)

    async def trickle(self, data: bytes, pause_s: float) -> None:
        for byte in data:
            await self.stream.send_all(bytes([byte]))
            await trio.sleep(pause_s)

    async def live(self) -> None:
        """Send heartbeats while the other end accepts them."""
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await self.say(Heartbeat())
                await trio.sleep(0.25)

    async def read_to_the_end(self) -> bytes:
        with contextlib.suppress(trio.BrokenResourceError):
            while chunk := await self.stream.receive_some(10_000):
                self.received += bytes(chunk)
        return self.received

    def messages(self) -> list[Any]:
        """Return the received messages without heartbeats; all frames must be complete."""
        found, rest = [], self.received
        while rest:
            length, header = struct.unpack_from(">II", rest)
            assert len(rest) >= length + 4, f"{len(rest)} bytes of a frame of {length + 4}"
            found.append(decode(rest[8 : 8 + header], memoryview(rest)[8 + header : length + 4]))
            rest = rest[length + 4 :]
        return [message for message in found if message != Heartbeat()]


async def raw_peer(net: MemoryNet, *hello: Any, broker: str = "b0") -> RawPeer:
    """Dial a broker and send these messages."""
    peer = RawPeer(await net.dial(broker))
    await peer.say(*hello)
    return peer


async def all_that_comes(stream: trio.abc.Stream) -> bytes:
    """Return all bytes until the other end closes, in whatever way."""
    return await RawPeer(stream).read_to_the_end()
