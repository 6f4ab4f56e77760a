"""Acks to upstream brokers, and to the other members of this broker's cell.

Paper: [GD02] §3.1 (acks). Deviates: members of a cell forward acks from below to each other,
because a broker below sends an ack to one member only.
"""

from collections.abc import Callable, Iterable

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.messages import Done
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.state import Stream
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

ACKS = "acks"


class Acks:
    """A batch of acks for streams with a new final tick, sent after an interval."""

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        links: Links,
        deadlines: DeadlineQueue[tuple[str, object]],
        interval_ns: Instant,
        on_final: Callable[[Stream], None],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._links = links
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._on_final = on_final
        self._up: dict[StreamId, Stream] = {}
        self._beside: dict[tuple[Cell, StreamId], Stream] = {}

    def on_final_advanced(self, stream: Stream) -> None:
        """Add a stream with a new final tick to the batch; at its pubend, call `on_final`."""
        if stream.upstream is None:
            self._on_final(stream)
        else:
            self._up[stream.identity] = stream
            self._schedule()

    def pass_on(self, stream: Stream, cell: Cell) -> None:
        """Add an ack of a cell below to the batch, for the other members of this cell.

        The ack has arrived here, or follows from the cell's filter.
        """
        if self._routes.peers:
            self._beside[cell, stream.identity] = stream
            self._schedule()

    def due(self) -> None:
        """Send the batch."""
        up: dict[BrokerNumber, list[Stream]] = {}
        for stream in self._up.values():
            for peer in self._links.up(stream.identity, stream.via, sideways=False):
                up.setdefault(peer, []).append(stream)
        beside: dict[Cell, list[Stream]] = {}
        for (cell, _), stream in self._beside.items():
            beside.setdefault(cell, []).append(stream)
        self._up.clear()
        self._beside.clear()
        for peer, streams in up.items():
            self._send_final(peer, streams)
        for peer in self._routes.peers:
            for cell, streams in beside.items():
                self._send_done(peer, cell, streams)

    def offer(self, streams: Iterable[Stream], peer: BrokerNumber) -> None:
        """Send all acks to a neighbour with a new session; earlier acks may be lost."""
        theirs = self._routes.cell_of(peer)
        if theirs != self._routes.cell:
            self._send_final(peer, [each for each in streams if each.upstream == theirs])
            return
        for cell in self._routes.cells:
            self._send_done(peer, cell, [each for each in streams if cell in each.children])

    def _send_final(self, peer: BrokerNumber, streams: Iterable[Stream]) -> None:
        through = [(each.identity, each.knowledge.final) for each in streams]
        self._send(peer, self._routes.cell, through)

    def _send_done(self, peer: BrokerNumber, cell: Cell, streams: Iterable[Stream]) -> None:
        self._send(peer, cell, [(each.identity, each.acknowledged_by(cell)) for each in streams])

    def _send(self, peer: BrokerNumber, cell: Cell, through: list[tuple[StreamId, int]]) -> None:
        told = tuple((identity, last) for identity, last in through if last)
        if told:
            self._machine.send(peer, Done(cell, told))

    def _schedule(self) -> None:
        if (ACKS, None) not in self._deadlines:
            self._deadlines.set((ACKS, None), self._machine.now_ns + self._interval_ns)
