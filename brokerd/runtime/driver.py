"""The driver of a broker's core, and the only code in a broker process that calls the core.

`post` passes events to the core and carries out the resulting effects, in order, and never waits:
so no two events interleave, and no task switch, channel or lock stands between a received frame and
the frames that follow from it. Events that effects cause (a session that overflows) are handled
after the effects before them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from brokerd.errors import BrokerMustEnd, RemoteProtocolError
from brokerd.model.client_messages import Redirect
from brokerd.model.identity import Peer
from brokerd.protocols.interface import (
    Append,
    Chop,
    CloseSession,
    Commit,
    DeadlineReached,
    Deliver,
    DeliveryProtocol,
    Event,
    Instant,
    LogEffect,
    MessageReceived,
    OpenSession,
    Read,
    Record,
    RedirectClient,
    Send,
    SessionLost,
    Shutdown,
    Truncate,
)
from brokerd.runtime.connection import Connection, clock_ns
from brokerd.runtime.disk import Disk, LogWriter
from brokerd.runtime.links import Links
from brokerd.units import SECOND_NS

RecordEvent = Callable[[str, dict[str, Any]], None]


class Driver:
    """The driver of one core.

    `connect_to` must be called before the first event.
    """

    def __init__(self, core: DeliveryProtocol, record: RecordEvent) -> None:
        self.core = core
        self._record = record
        self._links: Links
        self._connections: Mapping[Peer, Connection] = {}
        self._unflushed: dict[Connection, None] = {}
        self._disk: Disk
        self._log: LogWriter | None = None
        self._events: deque[Event] = deque()
        self._running = False
        self._refused: set[tuple[Peer, int]] = set()
        self._deadline: Instant | None = None
        self._deadline_moved = trio.Event()
        self._perform: dict[type, Callable[[Any], None]] = {
            RedirectClient: self._perform_redirect,
            OpenSession: self._perform_open,
            CloseSession: self._perform_close,
            Commit: self._perform_commit,
            Append: self._perform_log,
            Read: self._perform_log,
            Chop: self._perform_log,
            Truncate: self._perform_log,
            Record: self._perform_record,
            Shutdown: self._perform_shutdown,
        }

    def connect_to(self, links: Links, disk: Disk, log: LogWriter | None = None) -> None:
        """Set the parts that carry out effects."""
        self._links = links
        self._connections = links.connections
        self._disk = disk
        self._log = log

    def post(self, events: Sequence[Event]) -> int:
        """Pass these events, and all events that follow from them at once, to the core.

        Returns:
            The number of connections that received messages; 0 if another call handles the events
                later.

        Raises:
            BrokerMustEnd: this broker must end now.
        """
        self._events.extend(events)
        if self._running:
            return 0
        self._running = True
        try:
            now_ns = clock_ns()
            while self._events:
                self._handle(self._events.popleft(), now_ns)
        finally:
            self._running = False
        for connection in self._unflushed:
            connection.flush(now_ns)
        count = len(self._unflushed)
        self._unflushed.clear()
        deadline = self.core.next_deadline()
        if deadline != self._deadline:
            self._deadline = deadline
            self._deadline_moved.set()
        return count

    async def run(self) -> None:
        """Notify the core of its deadlines, for ever."""
        while True:
            deadline = self._deadline
            if deadline is not None and deadline <= clock_ns():
                # A core that leaves its deadline in the past would otherwise block all other tasks.
                await trio.lowlevel.checkpoint()
                self.post([DeadlineReached()])
                continue
            self._deadline_moved = trio.Event()
            until = trio.current_time() + 3600.0 if deadline is None else deadline / SECOND_NS
            with trio.move_on_at(until):
                await self._deadline_moved.wait()

    def _handle(self, event: Event, now_ns: Instant) -> None:
        if self._refused and self._is_refused(event):
            return
        try:
            effects = self.core.handle(event, now_ns)
        except RemoteProtocolError as error:
            self._refuse(event, error)
            return
        for effect in effects:
            if type(effect) is Send:
                self._send(effect.peer, effect.message)
            elif type(effect) is Deliver:
                self._send(effect.client, effect.item)
            else:
                self._perform[type(effect)](effect)

    def _send(self, peer: Peer, message: Any) -> None:
        """Queue a message on the peer's connection; dropped if there is none."""
        connection = self._connections.get(peer)
        if connection is not None:
            self._unflushed[connection] = None
            connection.send(message)

    def _refuse(self, event: Event, error: RemoteProtocolError) -> None:
        assert isinstance(event, MessageReceived), f"{event} was refused: {error}"
        # Messages behind the refused message must not be handled without it.
        self._refused.add((event.peer, event.session))
        self._links.refuse(event.peer, event.session, error.reason)

    def _is_refused(self, event: Event) -> bool:
        if isinstance(event, SessionLost):
            self._refused.discard((event.peer, event.session))
        return isinstance(event, MessageReceived) and (event.peer, event.session) in self._refused

    def _perform_redirect(self, effect: RedirectClient) -> None:
        addresses = self._links.addresses_of(effect.brokers)
        if addresses:
            self._send(effect.client, Redirect(addresses))

    def _perform_open(self, effect: OpenSession) -> None:
        assert isinstance(effect.peer, int), f"clients are not dialled: {effect.peer!r}"
        self._links.open(effect.peer)

    def _perform_close(self, effect: CloseSession) -> None:
        self._links.close(effect.peer, effect.reason)

    def _perform_commit(self, effect: Commit) -> None:
        self._disk.commit(effect)

    def _perform_log(self, effect: LogEffect) -> None:
        assert self._log is not None, f"{effect} of a broker without logs"
        self._log.take(effect)

    def _perform_shutdown(self, effect: Shutdown) -> None:
        self._record("shut_down", {"reason": effect.reason})
        raise BrokerMustEnd(effect.reason)

    def _perform_record(self, effect: Record) -> None:
        self._record(effect.event, dict(effect.details))
