"""Links of brokers over memory streams: the real link layer without sockets or a real clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
import trio.testing

from brokerd.config import SessionParameters
from brokerd.model.identity import Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import PublicationCopy
from brokerd.protocols.interface import Event, MessageReceived, SessionEstablished, SessionLost
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.links import Links
from brokerd.runtime.streams import Dial
from brokerd.runtime.tls import TlsCredentials
from brokerd.sessions.link_faults import read_fault
from brokerd.sessions.session import SelfDescription, SessionTable

Stream = trio.testing.MemorySendStream


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """A listener that accepts connections dialled through a `MemoryNet`.

    Attributes:
        failures: raised by `accept`, one after another, before the next connection.
    """

    def __init__(self) -> None:
        self.failures: list[OSError] = []
        self.dialled, self._accepted = trio.open_memory_channel[trio.abc.Stream](1_000)

    async def accept(self) -> trio.abc.Stream:
        stream = await self._accepted.receive()
        if not self.failures:
            return stream
        self.dialled.send_nowait(stream)  # it still waits
        raise self.failures.pop()

    async def aclose(self) -> None:
        self._accepted.close()


class NarrowStream(trio.abc.Stream):
    """A memory stream that blocks the writer while too many bytes are unread, as a socket does."""

    def __init__(self, inner: trio.abc.Stream, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.unread_bytes = 0
        self.other: NarrowStream = self
        self._inner = inner
        self._read_some = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        await trio.lowlevel.checkpoint()
        while len(view):
            while self.unread_bytes >= self.room_bytes:
                await self._read_some.wait()
            part = view[: self.room_bytes - self.unread_bytes]
            self.unread_bytes += len(part)
            await self._inner.send_all(bytes(part))
            view = view[len(part) :]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        self.other.unread_bytes -= len(data)
        self.other._read_some.set()
        self.other._read_some = trio.Event()
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


def narrow_pair(room_bytes: int) -> tuple[NarrowStream, NarrowStream]:
    """Return two connected streams that buffer at most `room_bytes`."""
    a, b = (NarrowStream(end, room_bytes) for end in trio.testing.memory_stream_pair())
    a.other, b.other = b, a
    return a, b


class MemoryNet:
    """Listeners by address, and the streams between them."""

    def __init__(self, room_bytes: int = 1 << 16) -> None:
        self.listeners: dict[str, MemoryListener] = {}
        self.room_bytes = room_bytes
        self.latency_s = 0.001

    def listen(self, address: str) -> MemoryListener:
        self.listeners[address] = MemoryListener()
        return self.listeners[address]

    async def dial(self, address: str) -> trio.abc.Stream:
        await trio.sleep(self.latency_s)
        if address not in self.listeners:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        near, far = narrow_pair(self.room_bytes)
        self.listeners[address].dialled.send_nowait(far)
        return near


def securely(dial: Dial, credentials: TlsCredentials | None) -> Dial:
    """Return the dial function, with TLS if there are credentials."""
    if credentials is None:
        return dial
    secure = credentials.dial

    async def dial_securely(address: str) -> trio.abc.Stream:
        return await secure(await dial(address))

    return dial_securely


class LinkedBroker:
    """The links of one broker; records the events for a core."""

    def __init__(
        self,
        net: MemoryNet,
        number: int,
        parameters: SessionParameters | None = None,
        incarnation: int = 1,
        brokers: int = 3,
        credentials: TlsCredentials | None = None,
    ) -> None:
        self.number = number
        self.events: list[Event] = []
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._net = net
        self._happened = trio.Event()
        self.names = {other: f"b{other}" for other in range(brokers) if other != number}
        own = SelfDescription("p", "d", "t", f"b{number}", number, incarnation, self.names)
        self.links = Links(
            SessionTable(own),
            parameters or SessionParameters(),
            self.names,
            self._post,
            lambda event, details: self.records.append((event, details)),
            dial=securely(net.dial, credentials),
            welcome=None if credentials is None else credentials.welcome,
        )

    def send(self, peer: Peer, message: Any) -> None:
        """Write a message, as a driver does at the end of a turn."""
        connection = self.links.connections.get(peer)
        if connection is not None:
            connection.send(message)
            connection.flush(clock_ns())

    def _post(self, events: Sequence[Event]) -> int:
        self.events.extend(events)
        self._happened.set()
        self._happened = trio.Event()
        return 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = self._net.listen(f"b{self.number}")
        await self.links.run([listener], self.heal, task_status=task_status)

    async def wait_for(self, kind: type, count: int = 1) -> Any:
        """Wait for the `count`th event of this kind and return the event."""
        while True:
            found = [event for event in self.events if isinstance(event, kind)]
            if len(found) >= count:
                return found[count - 1]
            await self._happened.wait()

    def of(self, kind: type) -> list[Any]:
        """Return the received events of this kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def messages(self, peer: Peer) -> list[Any]:
        """Return the messages received from a peer."""
        return [event.message for event in self.of(MessageReceived) if event.peer == peer]

    def sequences(self, peer: Peer) -> list[int]:
        """Return the sequence numbers of publications received from a peer."""
        return [sequence for message in self.messages(peer) for sequence in message.run.sequences]

    def fault(
        self, verb: str, peer: Peer | None = None, direction: str = "both",
        ends_ns: int | None = None, **parameters: Any,
    ) -> None:  # fmt: skip
        """Apply a fault with this id."""
        self.links.faults.apply(read_fault(verb, verb, peer, direction, parameters, ends_ns))
        self.links.faults_changed()

    def heal(self, fault_id: str) -> None:
        """End a fault."""
        assert self.links.faults.heal(fault_id) is not None, fault_id
        self.links.faults_changed()

    def counters(self, fault_id: str) -> dict[str, int]:
        """Return the counters of a fault in force."""
        (counters,) = [f.counters for f in self.links.faults if f.fault_id == fault_id]
        return counters

    def assert_sessions_end_once(self) -> None:
        """Check for one SessionLost per SessionEstablished, and no later event of a session."""
        up: dict[tuple[Peer, int], bool] = {}
        for event in self.events:
            if isinstance(event, SessionEstablished):
                assert (event.peer, event.session) not in up, f"{event} twice"
                assert not any(is_up for (peer, _), is_up in up.items() if peer == event.peer)
                up[event.peer, event.session] = True
            elif isinstance(event, SessionLost):
                assert up[event.peer, event.session], f"{event} twice"
                up[event.peer, event.session] = False
            elif isinstance(event, MessageReceived):
                assert up[event.peer, event.session], f"{event} after the end of its session"


async def join_brokers(nursery: trio.Nursery, *brokers: LinkedBroker) -> None:
    """Start the brokers and open a session from the first broker to each other broker."""
    for broker in brokers:
        await nursery.start(broker.run)
    for other in brokers[1:]:
        brokers[0].links.open(other.number)
        await other.wait_for(SessionEstablished)
    await brokers[0].wait_for(SessionEstablished, len(brokers) - 1)


@asynccontextmanager
async def nursery_of_the_test() -> AsyncIterator[trio.Nursery]:
    """Open a nursery; cancel its tasks at the end of the block."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


OneBroker = AbstractAsyncContextManager[tuple[MemoryNet, LinkedBroker, trio.Nursery]]


@asynccontextmanager
async def one_broker(
    credentials: TlsCredentials | None = None,
) -> AsyncIterator[tuple[MemoryNet, LinkedBroker, trio.Nursery]]:
    """Run b0; yield its net, b0, and a nursery for peers."""
    net = MemoryNet()
    broker = LinkedBroker(net, 0, credentials=credentials)
    async with nursery_of_the_test() as nursery:
        await nursery.start(broker.run)
        yield net, broker, nursery


def copy(first: int, size: int = 10) -> PublicationCopy:
    """Return a copy of one publication with `size` bytes."""
    source = SourceId(0, 0, 1)
    run = PublicationRun(source, range(first, first + 1), (b"a",), b"\0", size, (bytes(size),))
    return PublicationCopy(run, (0, 1))
