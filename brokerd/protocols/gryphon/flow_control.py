"""How much neighbours are told before they have taken it: two windows each, in bytes.

One is for events that are told for the first time, one for those that were asked for, so that
neither keeps the other out. Every so many bytes the sender asks whether all of them were taken;
the receiver says so as soon as it has room to pass on as much. Who is slow so slows down those
above, up to the publishers; what was asked for waits where it is known.

Between brokers of one cell the events from each neighbouring cell have windows of their own.
In one window those of opposite directions would wait for each other: a publication that goes
sideways in two cells, and one that comes towards it through both, close a circle of four brokers.

A count of what came would drift where single messages are lost; an answer to a later question
makes up for one that is lost.

Paper: [DS03] §4.1 (flow control, which it leaves to another paper). Deviates: by windows hop by
hop, because how far all below are done also waits for clients and disks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.messages import WindowProbe, WindowUpdate
from brokerd.protocols.gryphon.routes import Cell, Routes
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

FLOW: Final = "flow"

WindowKey = tuple[BrokerNumber, Cell, bool]
"""A neighbour; the cell that events come from, this one for a neighbour outside of it; whether they
were asked for."""

EVENT_BYTES: Final = 128
"""An event counts as its payload and so much: attributes, numbers and memory."""

PROBES: Final = 8
"""So many questions are asked in the time that a window takes."""

FIRST_LIMIT: Final = 4
"""So many windows of events are told for the first time at most, whoever did not slow down."""


class WindowParameters(Protocol):
    """How large windows are."""

    @property
    def send_window_bytes(self) -> int:
        """Of events that are told for the first time."""

    @property
    def answer_window_bytes(self) -> int:
        """Of events that were asked for."""

    @property
    def send_stall_ns(self) -> int:
        """How long others wait for a neighbour that takes nothing."""


def weight_bytes(run: PublicationRun) -> int:
    """What a run counts in a window."""
    return run.payload_bytes() + EVENT_BYTES * len(run)


@dataclass(slots=True)
class SendWindow:
    """What a neighbour was told on its session, of one kind.

    Attributes:
        limit_bytes: from so many untaken ones on it is full.
        sent_bytes: all in all.
        probed_bytes: of these, what was asked about.
        taken_bytes: of these, what it says that it has taken.
        moved_ns: when it said so last, or became full after that.
        is_stalled: it is full and has said nothing for too long, so nobody waits for it.
    """

    limit_bytes: int
    sent_bytes: int = 0
    probed_bytes: int = 0
    taken_bytes: int = 0
    moved_ns: Instant = 0
    is_stalled: bool = False

    @property
    def room_bytes(self) -> int:
        """What may be sent until it is full; not above 0 when it is."""
        return self.limit_bytes + self.taken_bytes - self.sent_bytes


class FlowControl:
    """The windows of all neighbours of one broker.

    Args:
        on_answers: what a neighbour has asked for may be answered on.
        on_missed: a neighbour has room again and was not told of these streams, for these cells.
        on_room: nobody has to be waited for any more.
    """

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        parameters: WindowParameters,
        deadlines: DeadlineQueue[tuple[str, object]],
        *,
        on_answers: Callable[[BrokerNumber], None],
        on_missed: Callable[[BrokerNumber, dict[tuple[StreamId, Cell], None]], None],
        on_room: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._parameters = parameters
        self._deadlines = deadlines
        self._on_answers = on_answers
        self._on_missed = on_missed
        self._on_room = on_room
        self._windows: dict[WindowKey, SendWindow] = {}
        self._full: dict[WindowKey, SendWindow] = {}
        self._owed: dict[WindowKey, deque[int]] = {}
        self._granted: dict[WindowKey, int] = {}
        self._missed: dict[WindowKey, dict[tuple[StreamId, Cell], None]] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which message of a neighbour."""
        return {WindowProbe: self._on_probe, WindowUpdate: self._on_update}

    # ------------------------------------------------------------ sessions

    def met(self, peer: BrokerNumber) -> None:
        """A neighbour has a session, on which nothing was sent."""
        limits, own = self._parameters, self._routes.cell
        for origin in self._routes.cells if self._routes.cell_of(peer) == own else (own,):
            self._windows[peer, origin, False] = SendWindow(limits.send_window_bytes)
            self._windows[peer, origin, True] = SendWindow(limits.answer_window_bytes)

    def lost(self, peer: BrokerNumber) -> None:
        """A neighbour's session is over: nobody waits for it."""
        for key in [key for key in (*self._windows, *self._owed) if key[0] == peer]:
            self._windows.pop(key, None)
            self._full.pop(key, None)
            self._owed.pop(key, None)
            self._granted.pop(key, None)
            self._missed.pop(key, None)
        self._settle()

    # ------------------------------------------------------------ sending

    def _key(self, peer: BrokerNumber, stream: StreamId, again: bool) -> WindowKey:
        own = self._routes.cell
        if self._routes.cell_of(peer) != own:
            return peer, own, again
        origin, _ = self._routes.of(stream)
        assert origin is not None, f"{stream} begins here, and {peer} is of the same cell"
        return peer, origin, again

    def may_tell(self, peer: BrokerNumber, stream: StreamId) -> bool:
        """Whether a neighbour may be told more of a stream for the first time."""
        window = self._full.get(self._key(peer, stream, False)) if self._full else None
        return window is None or window.room_bytes > (1 - FIRST_LIMIT) * window.limit_bytes

    def missed(self, peer: BrokerNumber, stream: StreamId, onto: Cell) -> None:
        """A neighbour was not told of what is in a stream now."""
        self._missed.setdefault(self._key(peer, stream, False), {})[stream, onto] = None

    def answer_room_bytes(self, peer: BrokerNumber, stream: StreamId) -> int:
        """How much that a neighbour asks of a stream may be sent now; not above 0: nothing."""
        window = self._windows.get(self._key(peer, stream, True))
        return 0 if window is None else window.room_bytes

    def sent(self, peer: BrokerNumber, run: PublicationRun, *, again: bool) -> None:
        """Events have been sent."""
        key = self._key(peer, run.source, again)
        window = self._windows.get(key)
        if window is None:
            return
        window.sent_bytes += weight_bytes(run)
        if (window.sent_bytes - window.probed_bytes) * PROBES >= window.limit_bytes:
            window.probed_bytes = window.sent_bytes
            self._machine.send(peer, WindowProbe(key[1], again, window.sent_bytes))
        if window.room_bytes <= 0 and key not in self._full:
            window.moved_ns = self._machine.now_ns
            self._full[key] = window
            self._look_again()

    def holds_up(self) -> bool:
        """Whether what is published here has to wait for somebody."""
        return any(True for _ in self._carriers(self._full, None, self._routes.cell, again=False))

    def _carriers(
        self,
        windows: dict[WindowKey, SendWindow],
        origin: Cell | None,
        sender: Cell,
        *,
        again: bool,
    ) -> Iterator[SendWindow]:
        """Those, of neighbours that may be waited for, on which events of one way go on.

        Args:
            origin: the cell that the events come from, None for what is published here.
            sender: of which cell the broker is that sent them; what came sideways goes sideways
                no further.
        """
        own = self._routes.cell
        for (peer, of, each), window in windows.items():
            if each != again or window.is_stalled:
                continue
            cell = self._routes.cell_of(peer)
            if (of == origin and sender != own) if cell == own else cell != origin:
                yield window

    # ------------------------------------------------------------ what neighbours say

    def _on_probe(self, peer: BrokerNumber, message: WindowProbe) -> None:
        if message.sent_bytes < 0:
            raise RemoteProtocolError(peer, f"impossible number in {message}")
        cell = self._routes.cell_of(peer)
        if message.origin not in (self._routes.cells if cell == self._routes.cell else (cell,)):
            raise RemoteProtocolError(peer, f"nothing comes that way in {message}")
        key = peer, message.origin, message.again
        owed = self._owed.setdefault(key, deque())
        is_repeated = message.sent_bytes in owed
        if not is_repeated:
            owed.append(message.sent_bytes)
        self._say_taken(key)
        if is_repeated and message.sent_bytes in owed:  # it is to know that somebody is here
            granted = self._granted.get(key, 0)
            self._machine.send(peer, WindowUpdate(message.origin, message.again, granted))

    def _say_taken(self, key: WindowKey) -> None:
        """Say so, unless as much as that could not be passed on; step by step while room is short.

        What comes from a cell never goes back to it, so no two wait for each other.
        """
        peer, origin, again = key
        owed, sender = self._owed[key], self._routes.cell_of(peer)
        full = self._carriers(self._full, origin, sender, again=again)
        if owed and not any(True for _ in full):
            taken = owed.popleft()
            if not self._is_short(origin, sender, again=again):
                taken = max(taken, *owed) if owed else taken
                owed.clear()
            self._granted[key] = taken
            self._machine.send(peer, WindowUpdate(origin, again, taken))

    def _is_short(self, origin: Cell, sender: Cell, *, again: bool) -> bool:
        """Whether less than half of a window is free on which such events go on."""
        return any(
            2 * window.room_bytes < window.limit_bytes
            for window in self._carriers(self._windows, origin, sender, again=again)
        )

    def _on_update(self, peer: BrokerNumber, message: WindowUpdate) -> None:
        cell, own = self._routes.cell_of(peer), self._routes.cell
        key = peer, message.origin if cell == own else own, message.again
        window = self._windows.get(key)
        if window is None or cell != own != message.origin:
            raise RemoteProtocolError(peer, f"nothing goes that way in {message}")
        if not 0 <= message.taken_bytes <= window.probed_bytes:
            raise RemoteProtocolError(
                peer, f"has taken {message.taken_bytes} bytes of {window.probed_bytes}"
            )
        window.taken_bytes = max(window.taken_bytes, message.taken_bytes)
        window.moved_ns = self._machine.now_ns
        window.is_stalled = False
        if window.room_bytes > 0:
            self._full.pop(key, None)
            if message.again:
                self._on_answers(peer)
            elif missed := self._missed.pop(key, None):
                self._on_missed(peer, missed)
            self._settle()

    # ------------------------------------------------------------ time

    def due(self) -> None:
        """Ask again who is full, for questions may be lost; wait no more for who stands still."""
        now_ns = self._machine.now_ns
        for (peer, origin, again), window in self._full.items():
            if now_ns - window.moved_ns >= self._parameters.send_stall_ns:
                window.is_stalled = True
            window.probed_bytes = window.sent_bytes
            self._machine.send(peer, WindowProbe(origin, again, window.sent_bytes))
        self._settle()
        self._look_again()

    def _look_again(self) -> None:
        if self._full and (FLOW, None) not in self._deadlines:
            wait_ns = max(1, self._parameters.send_stall_ns // 4)
            self._deadlines.set((FLOW, None), self._machine.now_ns + wait_ns)

    def _settle(self) -> None:
        """There may be room to pass on what others have sent, and what is published here."""
        for key in list(self._owed):
            self._say_taken(key)
        if not self.holds_up():
            self._on_room()
