"""A fake broker for one durable subscriber, with one stream of events.

In each session the broker sends the events after the token that the client presents, and records
the client's acknowledgements. Events have positions 10, 20, 30 … and numbers 1, 2, 3 …
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from brokerd.client.client import connect
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Detach,
    Gap,
    Silence,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Heartbeat, Hello
from brokerd.wire.codec import decode, encode
from brokerd.wire.framing import FrameDecoder
from tests.helpers.memory_links import MemoryNet
from tests.helpers.stream_runs import origin_runs

PUBEND = StreamId(3, 0, 1)
ANN = SourceId(0, 0, 1)
STEP = 10


def event(number: int) -> PublicationRun:
    """Return the event with this number, as the broker sends it."""
    place = (number * STEP,)
    origins = origin_runs([(ANN, number)])
    return PublicationRun(PUBEND, place, (b"\xa0",), b"\0", 1, (b"%d" % (number % 10),), origins)


@dataclass
class KeepingBroker:
    """A broker with one durable stream.

    Attributes:
        protocol: the announced protocol.
        acknowledged: the position up to which the client has acknowledged, in any session.
        presented: the presented tokens, one per session: the position, or None without a token.
    """

    protocol: str = "durable"
    acknowledged: int = 0
    presented: list[int | None] = field(default_factory=list)
    net: MemoryNet = field(default_factory=MemoryNet)
    _events: int = 0
    _silent: int = 0
    _sent: int = 0
    _subscribed: bool = False
    _session: trio.abc.Stream | None = None
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def publish(self, count: int = 1) -> None:
        """Publish `count` more events."""
        self._events += count
        await self._give()

    async def silence(self) -> None:
        """Announce silence up to right before the next event."""
        self._silent = self._events * STEP + STEP - 1
        assert self._session is not None
        await self._say(Silence((1,), PUBEND, self._events * STEP + 1, self._silent))

    async def gap(self, number: int, lost: int | None = None) -> None:
        """Announce the permanent loss of the next event, which has this number.

        Args:
            lost: the last lost event of the gap, if earlier.
        """
        self._events = self._sent = number
        at, named = number * STEP, number if lost is None else lost
        await self._say(Gap((1,), PUBEND, at - STEP + 1, at, "released", ((ANN, named, named),)))

    async def drop(self) -> None:
        """End the session, as a crash does."""
        assert self._session is not None
        await self._session.aclose()
        self._session = None

    async def settle(self) -> None:
        """Run until no task has more to do."""
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)

    async def serve(self) -> None:
        """Serve one session after another."""
        listener = self.net.listen("b")
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_session, await listener.accept())

    async def _serve_session(self, stream: trio.abc.Stream) -> None:
        decoder = FrameDecoder(1 << 20)
        self._session = stream
        try:
            while chunk := await stream.receive_some(100_000):
                decoder.feed(bytes(chunk))
                while (frame := decoder.next_frame()) is not None:
                    await self._take(decode(*frame))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _take(self, message: Any) -> None:
        match message:
            case Hello():
                await self._say(
                    Hello(
                        WIRE_VERSION, self.protocol, "d", "t", "broker", "b", 0, 1,
                        message.session, 0, False, (),
                    )
                )  # fmt: skip
            case Connect():
                had = dict(message.resume).get(1)
                position = None if had is None else dict(had).get(PUBEND)
                self.presented.append(position)
                self._sent = (self.acknowledged if position is None else position) // STEP
                await self._say(Connected(None, 1))
            case Subscribe():
                await self._say(Subscribed(1, "started", ((PUBEND, self._sent * STEP),)))
                self._subscribed = True
                await self._give()
            case Acknowledge(_, _, last):
                self.acknowledged = max(self.acknowledged, last)
            case Unsubscribe(number):
                await self._say(Unsubscribed(number))
            case Detach():
                self._subscribed = False
                await self._say(Unsubscribed(0))
            case Heartbeat():
                await self._say(Heartbeat())
            case Farewell():
                pass

    async def _give(self) -> None:
        while self._subscribed and self._session is not None and self._sent < self._events:
            self._sent += 1
            await self._say(Deliveries(event(self._sent), (1,)))

    async def _say(self, message: Any) -> None:
        assert self._session is not None, f"nobody to tell {message}"
        async with self._turn:
            if self._session is not None:
                await self._session.send_all(b"".join(encode(message)))


@asynccontextmanager
async def serve(broker: KeepingBroker) -> AsyncIterator[KeepingBroker]:
    """Run a broker as a context."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve)
        await trio.lowlevel.checkpoint()
        yield broker
        nursery.cancel_scope.cancel()


def client_of(broker: KeepingBroker, **options: Any) -> Any:
    """Return the client of a broker."""
    return connect("b", "dora", dial=broker.net.dial, **options)
