"""An established session on a stream: reader, writer and end."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio

from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Acknowledge
from brokerd.model.identity import Peer
from brokerd.model.message_kind import JOINED_BYTES
from brokerd.protocols.interface import Event, LossReason, MessageReceived
from brokerd.runtime.sweeper import process_sweeper
from brokerd.runtime.tls import TlsError, TlsStream, transport_of
from brokerd.sessions.failure_detector import FailureDetector
from brokerd.sessions.link_faults import CLEAR, LinkTreatment
from brokerd.sessions.messages import Farewell, Heartbeat, Hello, StateAdvanced
from brokerd.sessions.outbox import Outbox, Pace
from brokerd.sessions.session import Session
from brokerd.units import SECOND_NS
from brokerd.wire.codec import KINDS, encode, frames
from brokerd.wire.fast_path import StraightReader
from brokerd.wire.framing import gather

GATHER_NS: Final = 100_000
"""Writes of one connection at shorter intervals than this are left to its writer."""
RECEIVE_BYTES: Final = 1 << 16
"""Size of a read, unless the last read was full.

The C library takes a buffer of 128 KiB or more from the kernel, as a memory map of its own, of
which a process has some 65,000. A buffer that is kept for a small publication would keep its map.
"""
FLOOD_RECEIVE_BYTES: Final = 1 << 21
"""Size of a read after a full read.

If publications have many destinations, every destination gets the publications of one read in one
frame.
"""
MANY: Final = 16
"""From this number of destinations on, joined messages may be as long as a flood read.

Below, a joined message is no longer than a single frame.
"""
WRITE_BYTES: Final = 1 << 18
CLOSING_S: Final = 1.0
FRAME_DEADLINE_NS: Final = 10 * SECOND_NS
CLIENT_MARGIN_BYTES: Final = 8_192
"""Bytes that a broker may have to add to a client's frame before passing the frame on."""
BROKER_FACTOR: Final = 16
"""A list of all subscriptions is one message; brokers accept such messages of any length."""

_HEARTBEAT: Final = b"".join(encode(Heartbeat()))
_SLICES_PER_SECOND: Final = 50


Post = Callable[[Sequence[Event]], int]
"""Handles events, in order, together with all their consequences.

Returns the number of connections that received messages as a consequence.
"""


def clock_ns() -> int:
    """Return trio's clock in nanoseconds, so that a test's clock drives everything."""
    return round(trio.current_time() * SECOND_NS)


class Owner(Protocol):
    """The owner of connections."""

    def received(
        self, connection: "Connection", events: list[MessageReceived], size_bytes: int
    ) -> None:
        """Handle messages, in order; `size_bytes` is the size of all messages on the wire."""

    def refill(self, connection: "Connection") -> None:
        """Queue further messages, if any: all queued messages are written."""

    def can_read(self, connection: "Connection") -> bool:
        """Return True if the connection may read now; `Connection.wake` announces a change."""

    def on_ended(self, connection: "Connection", reason: LossReason) -> None:
        """Handle the end of the session; no further messages of the session follow."""


class Connection:
    """A stream with an established session, served by `serve` until it ends.

    Attributes:
        post: receives messages directly; the owner is bypassed for incoming messages, and must
            ensure that nothing prevents the connection from reading. None: messages go to the
            owner.
        on_sent: called with each queued message; None if not needed.
        on_state_advanced: takes the durable state that a neighbour reports, and returns the fault
            in the report, or None; None: the other end is no neighbour.
        inward, outward: effects of link faults; set from outside, followed by `wake`.
        is_closed: True once the session has ended and `ended` was called; the stream may take a
            moment longer.
        reading_stopped: True while the connection may not read, so that silence means nothing.
        farewell: the Farewell that the other end sent.
        is_stuck: True if the session ended because the other end did not read the waiting messages.
        closed: set when `serve` has returned.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        session: Session,
        decoder: StraightReader,
        parameters: SessionParameters,
        owner: Owner,
        *,
        begins_acknowledgements: bool = False,
    ) -> None:
        limit_bytes = parameters.frame_limit_bytes
        if isinstance(session.peer, str):
            decoder.limit_bytes = limit_bytes - CLIENT_MARGIN_BYTES
        else:
            decoder.limit_bytes = limit_bytes * BROKER_FACTOR
        self.session = session
        self.stream = stream
        self.post: Post | None = None
        self.on_sent: Callable[[Connection, Any], None] | None = None
        self.on_state_advanced: Callable[[Peer, StateAdvanced], str | None] | None = None
        self.inward: LinkTreatment = CLEAR
        self.outward: LinkTreatment = CLEAR
        self.is_closed = False
        self.reading_stopped = False
        self.farewell: Farewell | None = None
        self.is_stuck = False
        self.closed = trio.Event()
        self.outbox = Outbox(parameters.outbox_limit_bytes, _HEARTBEAT)
        self.detector = FailureDetector(parameters, clock_ns())
        self._decoder = decoder
        self._frame_limit_bytes = limit_bytes
        self._owner = owner
        self._frame_began_ns: int | None = None
        self._delayed: deque[tuple[int, list[MessageReceived], int]] = deque()
        self._last_words = b""
        self._rest = b""
        self._is_idle = self._is_parked = self._hurried = False
        self._pace = Pace(begins_acknowledgements, isinstance(session.peer, str))
        self._acknowledged = 0
        self._sweeper = process_sweeper()
        self._received_ns = self._reported_ns = clock_ns()
        self._tls = stream if isinstance(stream, TlsStream) else None
        self._transport = transport = transport_of(stream)
        self._receive_bytes = RECEIVE_BYTES
        self._joined_bytes = JOINED_BYTES
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

    @property
    def peer(self) -> Peer:
        return self.session.peer

    @property
    def is_idle(self) -> bool:
        """Return True if everything to be sent is with the operating system."""
        return self._is_idle

    # ------------------------------------------------------------ requests of the owner

    def send(self, message: Any) -> int:
        """Queue a message, for `flush` to write.

        Returns the number of frames; 0 if the message ended the session.
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
        if not KINDS[type(message)].may_wait:
            self._hurried = True
        if self.on_sent is not None:
            self.on_sent(self, message)
        return count

    def flush(self, now_ns: int, hurried: bool = False, acknowledged: int = 0) -> None:
        """Write the queued messages, now if possible; to be called when no more follow for now.

        A lone message does not wait for a task to be scheduled. In a flood the writing is left to
        the writer, so that every write takes more. If only acknowledgements, of `acknowledged`
        publications, are queued, they are gathered for a while, unless `hurried`.
        """
        self._is_idle = False
        if self.is_closed:
            return
        if not (hurried or self._hurried):
            in_flood = self._receive_bytes > RECEIVE_BYTES
            due_ns = self._pace.due_ns(now_ns, acknowledged, self._received_ns, in_flood)
            if due_ns > now_ns:
                self._acknowledged = acknowledged
                self._sweeper.call(self._end_pause, due_ns)
                return
        self._hurried = False
        direct = self._is_parked and self._descriptor >= 0 and not self._rest
        if not direct or self.outward is not CLEAR or now_ns - self._pace.left_ns < GATHER_NS:
            self._writer_event.set()
            return
        data = self._next_write(now_ns)
        if not data or self.is_closed:
            self._is_idle = True
            return
        self._note_write(now_ns)
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0  # no room, or broken: the writer finds out which
        if written == len(data):
            self.outbox.is_writing = False
        else:
            self._rest = data[written:]
        if self._rest or self.outbox.waiting_bytes:
            self._writer_event.set()
        else:
            self._is_idle = True

    def _end_pause(self, now_ns: int) -> None:
        """Write the acknowledgements that were gathered."""
        if not self.is_closed:
            self.flush(now_ns, acknowledged=self._acknowledged)

    def beat(self) -> None:
        """Send a heartbeat at the next frame boundary."""
        if not self.outward.blackholed:
            self.outbox.beat()
            self.flush(clock_ns(), hurried=True)

    def wake(self) -> None:
        """Check again which reads and writes are permitted."""
        self._writer_event.set()
        self._reader_event.set()
        self._delayed_event.set()

    def end(self, reason: LossReason, last_words: Farewell | None = None) -> None:
        """End the session now, and the stream once the last words are written."""
        if self.is_closed:
            return
        self.is_closed = True
        self._sweeper.forget(self._end_pause)
        self._reader_scope.cancel()
        if last_words is None:
            self._scope.cancel()
        else:
            self._last_words = b"".join(encode(last_words))
            self._scope.deadline = trio.current_time() + CLOSING_S
        self.wake()
        self._owner.on_ended(self, reason)

    def evict(self) -> None:
        """End the session of a client that reads nothing while other clients wait for it."""
        self.is_stuck = True
        self.end("overflow")

    def wait_for_progress(self, waited_ns: int) -> None:
        """Add to the time for which others have waited for this client.

        Evict the client after too long.
        """
        if self._has_acknowledged or self.inward is not CLEAR or self.outward is not CLEAR:
            self._has_acknowledged = False
            self._waited_ns = 0
            return
        self._waited_ns += waited_ns
        if self._waited_ns > self._slow_after_ns:
            self.evict()

    def check(self, now_ns: int) -> None:
        """End the session if the peer is silent, or takes too long to send a frame."""
        if self.reading_stopped:
            self._received_ns = now_ns
        # The detector is not notified of each arrival: it measures silences longer than the check
        # interval.
        if self._received_ns > self._reported_ns:
            self._reported_ns = self._received_ns
            self.detector.record_life(self._received_ns)
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
        """Read and write until the session has ended, and the last words are written.

        The stream is left open: active faults determine when the caller closes it.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._hand_on_delayed)
                nursery.start_soon(self._read)
        if self._last_words and not self.outward.blackholed:
            words = self.outbox.last_words(self._last_words)
            with trio.move_on_after(CLOSING_S):
                try:
                    await self._transport.send_all(self._seal(words))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # the other end was faster
        self.closed.set()

    async def _read(self) -> None:
        with self._reader_scope:
            # Messages that arrived together with the Hello.
            self._take(b"")
            while not self.is_closed:
                if self.post is None or self._descriptor < 0 or self.inward is not CLEAR:
                    await self._read_once()
                    continue
                # The usual case needs no further coroutines, which cost as much as the reading.
                self.reading_stopped = False
                try:
                    await trio.lowlevel.wait_readable(self._descriptor)
                except trio.ClosedResourceError:
                    self.end("closed_by_peer")
                    return
                if self.post is not None and self.inward is CLEAR:
                    self._read_socket()

    def _read_socket(self) -> None:
        """Read the socket, and handle the received bytes."""
        limit = self._receive_bytes
        try:
            chunk = os.read(self._descriptor, limit)
        except BlockingIOError:
            return  # woken for nothing
        except OSError:
            chunk = b""
        self._received_ns = clock_ns()
        self._take_chunk(self._take_read(chunk, limit))

    async def _read_once(self) -> None:
        """Read when permitted, at the rate of the link's fault."""
        await self._wait_until_allowed()
        chunk = await self._receive()
        await self._wait_until_allowed()
        self._received_ns = clock_ns()
        if self.inward.bytes_per_second:
            self.reading_stopped = True
            await trio.sleep(len(chunk) / self.inward.bytes_per_second)
        self._take_chunk(chunk)

    def _take_chunk(self, chunk: bytes) -> None:
        """Handle received bytes; no bytes are the end of the stream."""
        if not chunk:
            self.end("closed_by_peer")
            return
        data = chunk if self._tls is None else self._open(chunk)
        if data:
            self._take(data)
        if self._tls is not None and self._tls.is_ended:
            self.end("closed_by_peer")

    async def _receive(self) -> bytes:
        """Return the next bytes; no bytes at the end, for any cause."""
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
                return self._take_read(os.read(self._descriptor, limit), limit)
            except BlockingIOError:
                continue  # woken for nothing
            except (OSError, trio.ClosedResourceError):
                return b""

    def _take_read(self, data: bytes, limit: int) -> bytes:
        """Return the bytes read, in a buffer of their size, and set the size of the next read."""
        if len(data) == limit >= RECEIVE_BYTES:
            self._receive_bytes = FLOOD_RECEIVE_BYTES
        elif len(data) <= RECEIVE_BYTES < limit:
            self._receive_bytes = RECEIVE_BYTES
            return bytes(memoryview(data))
        return data

    async def _wait_until_allowed(self) -> None:
        while self.post is None and (self.inward.blackholed or not self._owner.can_read(self)):
            # A blackhole must be detected as silence; other pauses in reading must not.
            self.reading_stopped = not self.inward.blackholed
            self._reader_event = trio.Event()
            await self._reader_event.wait()
        self.reading_stopped = False

    def _open(self, chunk: bytes) -> bytes:
        """Return the plaintext of received bytes of a TLS stream."""
        assert self._tls is not None, self.peer
        try:
            data = self._tls.decrypt(chunk)
        except TlsError as error:
            self.end("protocol_error", Farewell("fault", str(error)))
            return b""
        if not data and self._frame_began_ns is None:
            self._frame_began_ns = clock_ns()  # a record that trickles is a frame that does
        return data

    def _seal(self, data: bytes) -> bytes:
        """Return the bytes to write so that the peer reads `data`."""
        return data if self._tls is None else self._tls.encrypt(data)

    def _take(self, chunk: bytes) -> None:
        decoder, peer = self._decoder, self.peer
        messages: list[Any] = []
        size_bytes = 0
        fault: str | None = None
        has_state = False
        try:
            size_bytes = decoder.read(chunk, peer, messages)
        except RemoteProtocolError as error:
            fault = error.reason
        if not decoder.is_inside:
            self._frame_began_ns = None
        elif messages or self._frame_began_ns is None:
            self._frame_began_ns = clock_ns()
        for place, message in enumerate(messages):
            kind = type(message)
            if kind is Farewell:
                self.farewell = message
                del messages[place:]
                break
            if kind is Hello:
                fault = "a second Hello"
                del messages[place:]
                break
            if kind is StateAdvanced:
                fault = self._take_state(message)
                if fault is not None:
                    del messages[place:]
                    break
                has_state = True
        if has_state:
            messages = [each for each in messages if type(each) is not StateAdvanced]
        self._hand_on(messages, size_bytes)
        if self.farewell is not None:
            self.end("closed_by_peer")
        elif fault is not None:
            self.end("protocol_error", Farewell("fault", fault))

    def _take_state(self, message: StateAdvanced) -> str | None:
        """Pass on the durable state of a neighbour; return the fault in it, or None."""
        if self.on_state_advanced is None:
            return "a client has no neighbours"
        return self.on_state_advanced(self.peer, message)

    def _hand_on(self, messages: list[Any], size_bytes: int) -> None:
        """Deliver messages to their receiver.

        `size_bytes` is the size of all messages on the wire.
        """
        if not messages or self.is_closed:
            return
        peer, number = self.session.peer, self.session.number
        if type(peer) is str and any(type(each) is Acknowledge for each in messages):
            self._has_acknowledged = True
        if len(messages) > 1:
            messages = gather(messages, self._joined_bytes)
        events = [MessageReceived(peer, number, each) for each in messages]
        if self.inward.delay_ns or self._delayed:
            self._delayed.append((clock_ns() + self.inward.delay_ns, events, size_bytes))
            self._delayed_event.set()
        else:
            self._notify(events, size_bytes)

    def _notify(self, events: list[MessageReceived], size_bytes: int) -> None:
        if self.post is not None:
            is_spread = self.post(events) >= MANY
            self._joined_bytes = FLOOD_RECEIVE_BYTES if is_spread else JOINED_BYTES
        else:
            self._owner.received(self, events, size_bytes)

    async def _hand_on_delayed(self) -> None:
        while not self.is_closed:
            while self._delayed and self._delayed[0][0] <= clock_ns() and not self.is_closed:
                _, events, size_bytes = self._delayed.popleft()
                self._notify(events, size_bytes)
            self._delayed_event = trio.Event()
            due_ns = self._delayed[0][0] if self._delayed else None
            await _wait(self._delayed_event, due_ns)

    async def _write(self) -> None:
        outbox = self.outbox
        try:
            while not self.is_closed:
                data = self._rest or self._next_write(clock_ns())
                if data:
                    self._note_write(clock_ns())
                    await self._send(data)
                    self._rest = b""
                    outbox.is_writing = False
                    continue
                self._writer_event = trio.Event()
                self._is_idle = self._is_parked = True
                held = self.outward.blackholed or self.outward.absorbs
                await _wait(self._writer_event, None if held else outbox.next_due_ns())
                self._is_parked = False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end("closed_by_peer")

    def _note_write(self, now_ns: int) -> None:
        self._pace.left_ns, self._pace.held_ns = now_ns, 0

    def _next_write(self, now_ns: int) -> bytes:
        if self.outward.blackholed:
            return b""
        data = self.outbox.take(WRITE_BYTES, now_ns, self.outward.absorbs)
        if not data and not self.outbox.waiting_bytes:
            self._owner.refill(self)
            data = self.outbox.take(WRITE_BYTES, now_ns, self.outward.absorbs)
        return self._seal(data)

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
        """Write everything; as `send_all`, but the progress of the peer can be observed."""
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
