"""One established session on a stream: its reader, its writer, and how it ends."""

import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import trio

from brokerd.config import MILLISECOND_NS, SECOND_NS, SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Acknowledge
from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason, MessageReceived
from brokerd.runtime.tls import TlsCredentials, TlsError, TlsStream, is_loopback, transport_of
from brokerd.sessions.failure_detector import FailureDetector
from brokerd.sessions.framing import FrameDecoder
from brokerd.sessions.link_faults import CLEAR, Way
from brokerd.sessions.messages import Farewell, Heartbeat, Hello
from brokerd.sessions.outbox import Outbox
from brokerd.sessions.session import Session
from brokerd.wire.codec import decode, encode, frames
from brokerd.wire.gathering import gather
from brokerd.wire.registry import KINDS

GATHER_NS: Final = 100_000
"""Writes of one connection that follow each other faster than this are left to its writer."""
PACE_NS: Final = 2 * MILLISECOND_NS
"""Acknowledgements that follow each other faster than this go together.

Each write costs sender and receiver about as much as a publication, and nobody's delivery waits
for them.
"""
RECEIVE_BYTES: Final = 1 << 16
"""What is read at once, unless more waits.

The C library takes a buffer of 128 KiB or more from the kernel, as a memory map of its own, of
which a process has some 65,000. One that is kept for a small publication would keep its map.
"""
FLOOD_RECEIVE_BYTES: Final = 1 << 19
"""What is read at once after a read that came full."""
HELLO_RECEIVE_BYTES: Final = 1 << 16
WRITE_BYTES: Final = 1 << 18
CLOSING_S: Final = 1.0
FRAME_DEADLINE_NS: Final = 10 * SECOND_NS
CLIENT_MARGIN_BYTES: Final = 8_192
"""What a broker may have to add to a client's frame before it passes it on."""
BROKER_FACTOR: Final = 16
"""A list of all subscriptions is one message; brokers take each other's, however long."""

_HEARTBEAT: Final = b"".join(encode(Heartbeat()))
_SLICES_PER_SECOND: Final = 50


class PlaintextRefused(ConnectionRefusedError):
    """Nothing is said off loopback without TLS."""


Dial = Callable[[str], Awaitable[trio.abc.Stream]]
Incoming = tuple[MessageReceived, int]
"""A message, and about how large it was on the wire."""


def clock_ns() -> int:
    """Trio's clock in nanoseconds, so that a test's clock drives everything."""
    return round(trio.current_time() * SECOND_NS)


class Owner(Protocol):
    """Whoever has connections."""

    def received(self, connection: "Connection", incoming: list[Incoming]) -> None:
        """Messages came, in order."""

    def refill(self, connection: "Connection") -> None:
        """Everything queued is written: whatever else is to be sent now may be queued."""

    def may_read(self, connection: "Connection") -> bool:
        """Whether the connection may take more in now; `Connection.wake` says when to ask anew."""

    def ended(self, connection: "Connection", reason: LossReason) -> None:
        """The session is over, now; nothing comes of it any more."""


class Connection:
    """A stream with an established session, served by `serve` until it ends.

    Attributes:
        inward, outward: what link faults do to it; set from outside, followed by `wake`.
        over: the session has ended, `ended` was called; the stream may take a moment longer.
        reading_stopped: it does not read because it may not, so silence means nothing.
        farewell: what the other end closed with.
        is_stuck: it ended because the other end took nothing of what waited for it.
        gone: set when `serve` has returned.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        session: Session,
        decoder: FrameDecoder,
        parameters: SessionParameters,
        owner: Owner,
    ) -> None:
        limit_bytes = parameters.frame_limit_bytes
        if isinstance(session.peer, str):
            decoder.limit_bytes = limit_bytes - CLIENT_MARGIN_BYTES
        else:
            decoder.limit_bytes = limit_bytes * BROKER_FACTOR
        self.session = session
        self.stream = stream
        self.inward: Way = CLEAR
        self.outward: Way = CLEAR
        self.over = False
        self.reading_stopped = False
        self.farewell: Farewell | None = None
        self.is_stuck = False
        self.gone = trio.Event()
        self.outbox = Outbox(parameters.outbox_limit_bytes, _HEARTBEAT)
        self.detector = FailureDetector(parameters, clock_ns())
        self._decoder = decoder
        self._frame_limit_bytes = limit_bytes
        self._owner = owner
        self._frame_began_ns: int | None = None
        self._delayed: deque[tuple[int, list[Incoming]]] = deque()
        self._last_words = b""
        self._rest = b""
        self._is_idle = self._is_parked = self._is_pacing = self._hurried = False
        self._flushed_ns = 0
        self._tls = stream if isinstance(stream, TlsStream) else None
        self._transport = transport = transport_of(stream)
        self._receive_bytes = RECEIVE_BYTES
        self._descriptor = -1
        if isinstance(transport, trio.SocketStream):
            self._descriptor = transport.socket.fileno()
        self._write_began_ns: int | None = None
        self._slow_after_ns = parameters.slow_after_ns
        self._waited_ns = 0
        self._has_acknowledged = False
        self._reader_scope = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._writer_event = trio.Event()
        self._reader_event = trio.Event()
        self._delayed_event = trio.Event()
        self._pace_event = trio.Event()

    @property
    def peer(self) -> Peer:
        """Whom it leads to."""
        return self.session.peer

    @property
    def is_idle(self) -> bool:
        """Whether everything that was to be sent is with the operating system."""
        return self._is_idle

    # ------------------------------------------------------------ what the owner asks for

    def send(self, message: Any) -> int:
        """Queue a message, for `flush` to write.

        Returns how many frames that took; 0 when the session ended of it.
        """
        due_ns = clock_ns() + self.outward.delay_ns if self.outward.delay_ns else 0
        count = 0
        for pieces, size in frames(message, self._frame_limit_bytes):
            if not self.outbox.add(pieces, size, due_ns):
                waited_ns = clock_ns() - (self._write_began_ns or clock_ns())
                if waited_ns > self._slow_after_ns and isinstance(self.peer, str):
                    self.evict()
                else:
                    self.end("overflow")
                return 0
            count += 1
        self._hurried = self._hurried or not KINDS[type(message)].may_wait
        return count

    def flush(self, now_ns: int, hurried: bool = False) -> None:
        """Write what is queued, now if possible: to be called when there is no more for now.

        A lone message does not wait for a task to be scheduled. In a flood the writer is left
        to it, so that more gathers for each write. Where only acknowledgements are queued, and
        some have just left, they wait for company, unless `hurried`.
        """
        self._is_idle = False
        if self.over:
            return
        if not (hurried or self._hurried) and now_ns - self._flushed_ns < PACE_NS:
            if not self._is_pacing:
                self._is_pacing = True
                self._pace_event.set()
            return
        self._hurried = False
        direct = self._is_parked and self._descriptor >= 0 and not self._rest
        if not direct or self.outward is not CLEAR or now_ns - self._flushed_ns < GATHER_NS:
            self._writer_event.set()
            return
        data = self._next_write(now_ns)
        if not data or self.over:
            self._is_idle = True
            return
        self._flushed_ns = now_ns
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0  # no room, or broken: the writer finds out which
        if written == len(data):
            self.outbox.written()
        else:
            self._rest = data[written:]
        if self._rest or self.outbox.waiting_frames:
            self._writer_event.set()
        else:
            self._is_idle = True

    def beat(self) -> None:
        """Send a heartbeat at the next frame boundary."""
        if not self.outward.blackholed:
            self.outbox.beat()
            self.flush(clock_ns(), hurried=True)

    def wake(self) -> None:
        """Look anew at what may be read and written."""
        self._writer_event.set()
        self._reader_event.set()
        self._delayed_event.set()
        self._pace_event.set()

    def end(self, reason: LossReason, last_words: Farewell | None = None) -> None:
        """End the session now, and the stream as soon as its last words are out."""
        if self.over:
            return
        self.over = True
        self._reader_scope.cancel()
        if last_words is None:
            self._scope.cancel()
        else:
            self._last_words = b"".join(encode(last_words))
            self._scope.deadline = trio.current_time() + CLOSING_S
        self.wake()
        self._owner.ended(self, reason)

    def evict(self) -> None:
        """End the session of a client that takes nothing while others wait for it."""
        self.is_stuck = True
        self.end("overflow")

    def wait_for_progress(self, waited_ns: int) -> None:
        """Others have waited so much longer for this client; it is evicted if that is too long."""
        if self._has_acknowledged or self.inward is not CLEAR or self.outward is not CLEAR:
            self._has_acknowledged = False
            self._waited_ns = 0
            return
        self._waited_ns += waited_ns
        if self._waited_ns > self._slow_after_ns:
            self.evict()

    def check(self, now_ns: int) -> None:
        """End the session if its peer is silent, or takes too long over a frame."""
        if self.reading_stopped:
            self.detector.heard(now_ns)
        if self.detector.check(now_ns):
            self.end("silent")
        elif (
            self._frame_began_ns is not None
            and isinstance(self.peer, str)
            and self.inward is CLEAR
            and now_ns - self._frame_began_ns > FRAME_DEADLINE_NS
        ):
            self.end("protocol_error", Farewell("fault", "a frame took more than 10 s"))

    # ------------------------------------------------------------ tasks

    async def serve(self) -> None:
        """Read and write until the session has ended, and the last words are out.

        The stream is left open: what becomes of it depends on faults.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._hand_on_delayed)
                nursery.start_soon(self._pace)
                with self._reader_scope:
                    await self._read()
        if self._last_words and not self.outward.blackholed:
            words = self.outbox.last_words(self._last_words)
            with trio.move_on_after(CLOSING_S):
                try:
                    await self._transport.send_all(self._sealed(words))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # the other end was faster
        self.gone.set()

    async def _read(self) -> None:
        # What had come together with the Hello.
        self._take(b"")
        while not self.over:
            await self._wait_until_allowed()
            chunk = await self._receive()
            await self._wait_until_allowed()
            if not chunk:
                self.end("closed_by_peer")
                return
            self.detector.heard(clock_ns())
            if self.inward.bytes_per_second:
                self.reading_stopped = True
                await trio.sleep(len(chunk) / self.inward.bytes_per_second)
            data = self._opened(chunk)
            if data:
                self._take(data)
            if self._tls is not None and self._tls.is_ended:
                self.end("closed_by_peer")

    async def _receive(self) -> bytes:
        """The next bytes; empty at the end, however it came."""
        limit = self._receive_bytes
        if self.inward.bytes_per_second:
            limit = max(1, self.inward.bytes_per_second // _SLICES_PER_SECOND)
        if self._descriptor < 0:
            try:
                return bytes(await self._transport.receive_some(limit))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        while True:
            try:
                # Waiting first costs one system call for a lone message; reading first, two.
                await trio.lowlevel.wait_readable(self._descriptor)
                return self._fitted(os.read(self._descriptor, limit), limit)
            except BlockingIOError:
                continue  # woken for nothing
            except (OSError, trio.ClosedResourceError):
                return b""

    def _fitted(self, data: bytes, limit: int) -> bytes:
        """What was read, in a buffer of its size; and how much to read next time."""
        if len(data) == limit >= RECEIVE_BYTES:
            self._receive_bytes = FLOOD_RECEIVE_BYTES
        elif len(data) <= RECEIVE_BYTES < limit:
            self._receive_bytes = RECEIVE_BYTES
            return bytes(memoryview(data))
        return data

    async def _wait_until_allowed(self) -> None:
        while self.inward.blackholed or not self._owner.may_read(self):
            # A blackhole is to be noticed; that we do not read for other reasons is not.
            self.reading_stopped = not self.inward.blackholed
            self._reader_event = trio.Event()
            await self._reader_event.wait()
        self.reading_stopped = False

    def _opened(self, chunk: bytes) -> bytes:
        """What the peer has written, out of what came."""
        if self._tls is None:
            return chunk
        try:
            data = self._tls.decrypt(chunk)
        except TlsError as error:
            self.end("protocol_error", Farewell("fault", str(error)))
            return b""
        if not data and self._frame_began_ns is None:
            self._frame_began_ns = clock_ns()  # a record that trickles is a frame that does
        return data

    def _sealed(self, data: bytes) -> bytes:
        """What is to be written so that the peer reads `data`."""
        return data if self._tls is None else self._tls.encrypt(data)

    def _take(self, chunk: bytes) -> None:
        decoder, peer = self._decoder, self.peer
        messages: list[Any] = []
        size = 0
        fault: str | None = None
        if chunk:
            decoder.feed(chunk)
        try:
            while (frame := decoder.next_frame()) is not None:
                message = decode(*frame, peer)
                kind = type(message)
                if kind is Heartbeat:
                    continue
                if kind is Farewell:
                    self.farewell = message
                    self._hand_on(messages, size)
                    self.end("closed_by_peer")
                    return
                if kind is Hello:
                    raise RemoteProtocolError(peer, "a second Hello")
                size += len(frame[0]) + len(frame[1])
                messages.append(message)
        except RemoteProtocolError as error:
            fault = error.reason
        if not decoder.incomplete:
            self._frame_began_ns = None
        elif messages or self._frame_began_ns is None:
            self._frame_began_ns = clock_ns()
        self._hand_on(messages, size)
        if fault is not None:
            self.end("protocol_error", Farewell("fault", fault))

    def _hand_on(self, messages: list[Any], size: int) -> None:
        """Give messages to the owner; `size` is that of all of them on the wire."""
        if not messages or self.over:
            return
        if isinstance(self.peer, str) and any(type(each) is Acknowledge for each in messages):
            self._has_acknowledged = True
        if len(messages) > 1:
            messages = gather(messages)
        number, share = self.session.number, size // len(messages)
        incoming = [(MessageReceived(self.peer, number, each), share) for each in messages]
        if self.inward.delay_ns or self._delayed:
            self._delayed.append((clock_ns() + self.inward.delay_ns, incoming))
            self._delayed_event.set()
        else:
            self._owner.received(self, incoming)

    async def _hand_on_delayed(self) -> None:
        while not self.over:
            while self._delayed and self._delayed[0][0] <= clock_ns() and not self.over:
                _, incoming = self._delayed.popleft()
                self._owner.received(self, incoming)
            self._delayed_event = trio.Event()
            due_ns = self._delayed[0][0] if self._delayed else None
            await _wait(self._delayed_event, due_ns)

    async def _pace(self) -> None:
        """Let acknowledgements go that have waited for company."""
        while not self.over:
            await self._pace_event.wait()
            self._pace_event = trio.Event()
            await trio.sleep_until((self._flushed_ns + PACE_NS) / SECOND_NS)
            if self._is_pacing and not self.over:
                self._is_pacing = False
                self.flush(clock_ns(), hurried=True)

    async def _write(self) -> None:
        outbox = self.outbox
        try:
            while not self.over:
                data = self._rest or self._next_write(clock_ns())
                if data:
                    self._flushed_ns = clock_ns()
                    await self._send(data)
                    self._rest = b""
                    outbox.written()
                    continue
                self._writer_event = trio.Event()
                self._is_idle = self._is_parked = True
                held = self.outward.blackholed or self.outward.absorbs
                await _wait(self._writer_event, None if held else outbox.next_due_ns())
                self._is_parked = False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end("closed_by_peer")

    def _next_write(self, now_ns: int) -> bytes:
        if self.outward.blackholed:
            return b""
        data = self.outbox.take(WRITE_BYTES, now_ns, self.outward.absorbs)
        if not data and not self.outbox.waiting_frames:
            self._owner.refill(self)
            data = self.outbox.take(WRITE_BYTES, now_ns, self.outward.absorbs)
        return self._sealed(data)

    async def _send(self, data: bytes) -> None:
        self._write_began_ns = clock_ns()
        rate = self.outward.bytes_per_second
        if rate:
            view, slice_bytes = memoryview(data), max(1, rate // _SLICES_PER_SECOND)
            while len(view):
                await self._transport.send_all(bytes(view[:slice_bytes]))
                await trio.sleep(min(slice_bytes, len(view)) / rate)
                view = view[slice_bytes:]
        elif self._descriptor < 0:
            await self._transport.send_all(data)
        else:
            await self._send_to_socket(memoryview(data))
        self._write_began_ns = None

    async def _send_to_socket(self, view: memoryview) -> None:
        """Write everything; as `send_all`, but whether the peer takes anything can be seen."""
        while True:
            await trio.lowlevel.wait_writable(self._descriptor)
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                continue  # woken for nothing
            except OSError as error:
                raise trio.BrokenResourceError from error
            if not len(view):
                return
            self._write_began_ns = clock_ns()


async def _wait(event: trio.Event, until_ns: int | None) -> None:
    if until_ns is None:
        await event.wait()
        return
    with trio.move_on_at(until_ns / SECOND_NS):
        await event.wait()


async def dial_tcp(address: str) -> trio.abc.Stream:
    """A connection to "host:port" on this machine.

    Raises:
        PlaintextRefused: the address is that of another machine, which needs TLS.
    """
    if not is_loopback(address):
        raise PlaintextRefused(f"{address} is not on this machine: it takes certificates (`tls`)")
    return await _open_tcp(address)


def dial_tls(credentials: TlsCredentials) -> Dial:
    """Dials with TLS, whatever the address."""

    async def dial(address: str) -> trio.abc.Stream:
        return await credentials.dial(await _open_tcp(address))

    return dial


async def _open_tcp(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host.strip("[]"), int(port))


async def first_message(stream: trio.abc.Stream, decoder: FrameDecoder) -> Any:
    """The Hello or Farewell that a connection begins with.

    Raises:
        RemoteProtocolError: it begins with something else, or ends before that.
    """
    while True:
        chunk = await stream.receive_some(HELLO_RECEIVE_BYTES)
        if not chunk:
            raise RemoteProtocolError("unknown", "closed before it said Hello")
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
