"""Flow control between neighbours: two send windows per neighbour, in bytes.

One window is for first transmissions, one for answers to nacks, so that neither blocks the other.
At fixed steps of the window the sender probes the receiver. The receiver answers as soon as
it has room to forward as much. A slow broker thus slows down the brokers above, up to the
publishers; pending answers wait at the broker with the knowledge.

Between brokers of one cell the events from each neighbouring cell have windows of their own.
In one window opposite directions would wait for each other: a publication that goes
sideways in two cells, and one that travels against it through both, close a circle of four brokers.

A count of received bytes would drift after the loss of single messages; an answer to a later probe
makes up for a lost answer.

Paper: [DS03] §4.1 (flow control, which it leaves to another paper). Deviates: by windows hop by
hop, because the acks of all cells below also wait for clients and disks.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.gryphon.messages import WindowProbe, WindowUpdate
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Cell, Routes
from brokerd.protocols.interface import Effect, Instant, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

FLOW: Final = "flow"

WindowKey = tuple[BrokerNumber, Cell, bool]
"""A neighbour, a cell, and True for the window of answers.

The cell is the origin of the events; for a neighbour outside of this cell it is the own cell.
"""

EVENT_BYTES: Final = 128
"""Bytes that an event counts in addition to its payload: attributes, numbers and memory."""

PROBES: Final = 8
"""Number of probes per full window."""

FIRST_LIMIT: Final = 4
"""Greatest number of windows of first transmissions, for brokers above that did not slow down."""


def weight_bytes(run: PublicationRun) -> int:
    """Return the weight of a run in a window."""
    return run.payload_bytes() + EVENT_BYTES * len(run)


@dataclass(slots=True)
class SendWindow:
    """The unconfirmed events of one kind on a neighbour's session.

    Attributes:
        limit_bytes: the number of unconfirmed bytes of a full window.
        sent_bytes: total of the session.
        probed_bytes: `sent_bytes` at the last probe.
        taken_bytes: bytes that the neighbour has confirmed.
        moved_ns: the instant of the last confirmation, or of the window's filling after that.
        is_stalled: the window is full without a confirmation for too long, so the broker no longer
            waits for the neighbour.
    """

    limit_bytes: int
    sent_bytes: int = 0
    probed_bytes: int = 0
    taken_bytes: int = 0
    moved_ns: Instant = 0
    is_stalled: bool = False

    @property
    def room_bytes(self) -> int:
        """The free bytes of the window; 0 or less for a full window."""
        return self.limit_bytes + self.taken_bytes - self.sent_bytes


@record
class WindowOpen:
    """A window of a neighbour that has room again.

    Attributes:
        again: True for the window of answers, in which answers may continue.
        missed: the streams and cells whose first transmissions were not sent to the neighbour.
    """

    peer: BrokerNumber
    again: bool
    missed: tuple[tuple[StreamId, Cell], ...]


class FlowControl:
    """The windows of all neighbours of one broker.

    Attributes:
        full: the windows without room.
    """

    def __init__(
        self,
        routes: Routes,
        parameters: GryphonParameters,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._routes = routes
        self._parameters = parameters
        self._deadlines = deadlines
        self._windows: dict[WindowKey, SendWindow] = {}
        self.full: dict[WindowKey, SendWindow] = {}
        self._owed: dict[WindowKey, deque[int]] = {}
        self._granted: dict[WindowKey, int] = {}
        self._missed: dict[WindowKey, dict[tuple[StreamId, Cell], None]] = {}

    # ------------------------------------------------------------ sessions

    def on_session(self, peer: BrokerNumber) -> None:
        """Create empty windows for a neighbour's new session."""
        limits, own = self._parameters, self._routes.cell
        for origin in self._routes.cells if self._routes.cell_by_broker[peer] == own else (own,):
            self._windows[peer, origin, False] = SendWindow(limits.send_window_bytes)
            self._windows[peer, origin, True] = SendWindow(limits.answer_window_bytes)

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Discard the windows of a lost session; the broker no longer waits for the neighbour."""
        for key in [key for key in (*self._windows, *self._owed) if key[0] == peer]:
            self._windows.pop(key, None)
            self.full.pop(key, None)
            self._owed.pop(key, None)
            self._granted.pop(key, None)
            self._missed.pop(key, None)

    # ------------------------------------------------------------ sending

    def _key(self, peer: BrokerNumber, stream: StreamId, again: bool) -> WindowKey:
        own = self._routes.cell
        if self._routes.cell_by_broker[peer] != own:
            return peer, own, again
        origin, _ = self._routes.of(stream)
        assert origin is not None, f"{stream} begins here, and {peer} is of the same cell"
        return peer, origin, again

    def can_send(self, peer: BrokerNumber, stream: StreamId) -> bool:
        """Return True if first transmissions of a stream may be sent to a neighbour."""
        window = self.full.get(self._key(peer, stream, False)) if self.full else None
        return window is None or window.room_bytes > (1 - FIRST_LIMIT) * window.limit_bytes

    def missed(self, peer: BrokerNumber, stream: StreamId, onto: Cell) -> None:
        """Record that the present events of a stream were not sent to a neighbour."""
        self._missed.setdefault(self._key(peer, stream, False), {})[stream, onto] = None

    def answer_room_bytes(self, peer: BrokerNumber, stream: StreamId) -> int:
        """Return the room for answers to a neighbour about a stream; 0 or less: none."""
        window = self._windows.get(self._key(peer, stream, True))
        return 0 if window is None else window.room_bytes

    def charge(
        self, peer: BrokerNumber, run: PublicationRun, now_ns: Instant, *, again: bool
    ) -> WindowProbe | None:
        """Charge a run to the send window; return a WindowProbe at every step."""
        key = self._key(peer, run.source, again)
        window = self._windows.get(key)
        if window is None:
            return None
        probe = None
        window.sent_bytes += weight_bytes(run)
        if (window.sent_bytes - window.probed_bytes) * PROBES >= window.limit_bytes:
            window.probed_bytes = window.sent_bytes
            probe = WindowProbe(key[1], again, window.sent_bytes)
        if window.room_bytes <= 0 and key not in self.full:
            window.moved_ns = now_ns
            self.full[key] = window
            self._schedule(now_ns)
        return probe

    def holds_up(self) -> bool:
        """Return True if publications of this broker's clients must wait for a neighbour."""
        full = self.full
        return bool(full) and any(
            True for _ in self._carriers(full, None, self._routes.cell, again=False)
        )

    def _carriers(
        self,
        windows: dict[WindowKey, SendWindow],
        origin: Cell | None,
        sender: Cell,
        *,
        again: bool,
    ) -> Iterator[SendWindow]:
        """Yield the live windows through which events of one direction continue.

        Args:
            origin: the cell that the events arrive from; None for publications at this broker.
            sender: the cell of the broker that sent the events; events that arrived sideways do not
                continue sideways.
        """
        own = self._routes.cell
        for (peer, of, each), window in windows.items():
            if each != again or window.is_stalled:
                continue
            cell = self._routes.cell_by_broker[peer]
            if (of == origin and sender != own) if cell == own else cell != origin:
                yield window

    # ------------------------------------------------------------ messages of neighbours

    def on_probe(self, peer: BrokerNumber, message: WindowProbe) -> list[Effect]:
        """Return the answers to a neighbour's probe.

        Raises:
            RemoteProtocolError: the probe is impossible, or of a window that does not exist.
        """
        if message.sent_bytes < 0:
            raise RemoteProtocolError(peer, f"impossible number in {message}")
        cell = self._routes.cell_by_broker[peer]
        if message.origin not in (self._routes.cells if cell == self._routes.cell else (cell,)):
            raise RemoteProtocolError(peer, f"no window for this direction in {message}")
        key = peer, message.origin, message.again
        owed = self._owed.setdefault(key, deque())
        is_repeated = message.sent_bytes in owed
        if not is_repeated:
            owed.append(message.sent_bytes)
        effects = self._update(key)
        if is_repeated and message.sent_bytes in owed:  # proves that this broker is alive
            granted = self._granted.get(key, 0)
            effects.append(Send(peer, WindowUpdate(message.origin, message.again, granted)))
        return effects

    def _update(self, key: WindowKey) -> list[Effect]:
        """Return a WindowUpdate, unless onward windows are full; in steps while room is short.

        Events from a cell never return to the cell, so no two brokers wait for each other.
        """
        peer, origin, again = key
        owed, sender = self._owed[key], self._routes.cell_by_broker[peer]
        full = self._carriers(self.full, origin, sender, again=again)
        if not owed or any(True for _ in full):
            return []
        taken = owed.popleft()
        if not self._is_short(origin, sender, again=again):
            taken = max(taken, *owed) if owed else taken
            owed.clear()
        self._granted[key] = taken
        return [Send(peer, WindowUpdate(origin, again, taken))]

    def _is_short(self, origin: Cell, sender: Cell, *, again: bool) -> bool:
        """Return True if less than half of an onward window for these events is free."""
        return any(
            2 * window.room_bytes < window.limit_bytes
            for window in self._carriers(self._windows, origin, sender, again=again)
        )

    def on_update(
        self, peer: BrokerNumber, message: WindowUpdate, now_ns: Instant
    ) -> WindowOpen | None:
        """Record the bytes that a neighbour has taken; return a window with room.

        Raises:
            RemoteProtocolError: the window does not exist, or has fewer bytes.
        """
        cell, own = self._routes.cell_by_broker[peer], self._routes.cell
        key = peer, message.origin if cell == own else own, message.again
        window = self._windows.get(key)
        if window is None or cell != own != message.origin:
            raise RemoteProtocolError(peer, f"no traffic in this direction in {message}")
        if not 0 <= message.taken_bytes <= window.probed_bytes:
            raise RemoteProtocolError(
                peer, f"has taken {message.taken_bytes} bytes of {window.probed_bytes}"
            )
        window.taken_bytes = max(window.taken_bytes, message.taken_bytes)
        window.moved_ns = now_ns
        window.is_stalled = False
        if window.room_bytes <= 0:
            return None
        self.full.pop(key, None)
        missed = () if message.again else tuple(self._missed.pop(key, ()))
        return WindowOpen(peer, message.again, missed)

    # ------------------------------------------------------------ time

    def due(self, now_ns: Instant) -> list[Effect]:
        """Return probes of full windows, since probes may be lost; mark stalled neighbours."""
        effects: list[Effect] = []
        for (peer, origin, again), window in self.full.items():
            if now_ns - window.moved_ns >= self._parameters.send_stall_ns:
                window.is_stalled = True
            window.probed_bytes = window.sent_bytes
            effects.append(Send(peer, WindowProbe(origin, again, window.sent_bytes)))
        self._schedule(now_ns)
        return effects

    def _schedule(self, now_ns: Instant) -> None:
        if self.full and (FLOW, None) not in self._deadlines:
            wait_ns = max(1, self._parameters.send_stall_ns // 4)
            self._deadlines.set((FLOW, None), now_ns + wait_ns)

    def updates(self) -> list[Effect]:
        """Return the updates for which room exists."""
        return [each for key in self._owed for each in self._update(key)]
