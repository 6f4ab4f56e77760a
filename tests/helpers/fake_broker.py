"""A broker for clients only, on loopback: it delivers each publication to all matching clients.

The broker stores nothing and acknowledges at once. Tests inject faults.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Detach,
    Publish,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Heartbeat, Hello
from brokerd.wire.attributes import decode_attributes
from brokerd.wire.codec import decode, encode
from brokerd.wire.framing import FrameDecoder


def hand_on(run: PublicationRun) -> list[PublicationRun]:
    """Return the deliveries of a correct broker."""
    return [run]


@dataclass(eq=False)
class _Client:
    stream: trio.SocketStream
    name: str
    publisher: int
    wanted: dict[int, Predicate] = field(default_factory=dict)
    outbox: list[bytes] = field(default_factory=list)
    to_write: trio.Event = field(default_factory=trio.Event)

    def send(self, message: Any) -> None:
        self.outbox.append(b"".join(encode(message)))
        self.to_write.set()


@dataclass(eq=False)
class FakeBroker:
    """A broker with number 0.

    Attributes:
        spoil: maps the correct deliveries to the deliveries that are made.
        acknowledges: whether publications are acknowledged.
        address: set once the broker serves.
        protocol: the announced protocol.
        acknowledged: (client, source, first, last) as subscribers acknowledged.
        subscriptions: number of Subscribe messages.
    """

    spoil: Callable[[PublicationRun], list[PublicationRun]] = hand_on
    acknowledges: bool = True
    address: str = ""
    protocol: str = ""
    acknowledged: list[tuple[str, SourceId, int, int]] = field(default_factory=list)
    clients: dict[str, _Client] = field(default_factory=dict)
    subscriptions: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = "{}:{}".format(*listener.socket.getsockname())
        task_status.started()
        await trio.serve_listeners(self._serve_client, [listener])

    def drop_sessions(self) -> None:
        """End every session, as a crash does."""
        for client in self.clients.values():
            client.stream.socket.close()

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        decoder = FrameDecoder(1 << 20)
        client: _Client | None = None
        try:
            async with trio.open_nursery() as nursery:
                while chunk := await stream.receive_some(1 << 18):
                    decoder.feed(bytes(chunk))
                    while (frame := decoder.next_frame()) is not None:
                        message = decode(*frame)
                        if isinstance(message, Hello):
                            number = self._numbers.setdefault(message.name, len(self._numbers))
                            client = _Client(stream, message.name, number)
                            self.clients[message.name] = client
                            nursery.start_soon(self._write, client)
                            client.send(_hello(message.session, self.protocol))
                        else:
                            assert client is not None, f"{message} before Hello"
                            self._take(client, message)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client left, or drop_sessions
        finally:
            if client is not None and self.clients.get(client.name) is client:
                del self.clients[client.name]

    async def _write(self, client: _Client) -> None:
        while True:
            data, client.outbox = b"".join(client.outbox), []
            await client.stream.send_all(data)
            client.to_write = trio.Event()
            if not client.outbox:
                with trio.move_on_after(0.2) as waiting:
                    await client.to_write.wait()
                if waiting.cancelled_caught:
                    client.send(Heartbeat())

    def _take(self, client: _Client, message: Any) -> None:
        match message:
            case Connect(publishes, incarnation):
                source = SourceId(0, client.publisher, incarnation) if publishes else None
                client.send(Connected(source, 1))
            case Subscribe(number, predicate):
                client.wanted[number] = predicate
                self.subscriptions += 1
                client.send(Subscribed(number, "pending"))
                client.send(Subscribed(number, "started"))
            case Unsubscribe(number):
                client.wanted.pop(number, None)
                client.send(Unsubscribed(number))
            case Detach():
                client.wanted.clear()
                client.send(Unsubscribed(0))
            case Publish(run):
                for wrong in self.spoil(run):
                    self._deliver(wrong)
                if self.acknowledges:
                    client.send(PublishAcknowledged(run.first, run.last))
            case Acknowledge(source, first, last):
                self.acknowledged.append((client.name, source, first, last))
            case Heartbeat() | Farewell():
                pass
            case _:
                raise AssertionError(f"a client said {message}")

    def _deliver(self, run: PublicationRun) -> None:
        attributes = [decode_attributes(blob) for blob in run.attribute_table]
        for client in self.clients.values():
            for number, predicate in client.wanted.items():
                wanted = [predicate.matches(each) for each in attributes]
                positions = [p for p in range(len(run)) if wanted[run.attribute_index[p]]]
                if positions:
                    client.send(Deliveries(run.select(positions), (number,)))


def _hello(session: int, protocol: str) -> Hello:
    return Hello(WIRE_VERSION, protocol, "d1", "", "broker", "p1", 0, 1, session, 0, False, ())
