"""The routes of streams: the tree of cells, and the brokers of neighbouring cells.

The tree of a stream is rooted at the cell of its pubend. Each broker announces the cells that it
reaches to its neighbours, over its own links and over those of other members of its cell. Fail-over
and fail-back follow from that: the best broker at present is chosen, and among equals a fixed order
of each pubend decides.

Paper: [GD02] §3 (virtual brokers, spanning trees, links between the brokers of neighbouring cells),
§3.1 (link bundles, static rotation, sideways routing, link status). Deviates: a status covers all
cells behind a link and is sent when it changes, because sessions lose nothing.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.gryphon.messages import EVERYWHERE, LinkStatus
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import (
    Effect,
    Instant,
    OpenSession,
    Send,
    SessionEstablished,
    SessionLost,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.neighbours import dials_at_once, next_wait_ns

KIND = "cells"

Cell = int
"""The number of a cell, its place in the overlay."""


def hosts_clients(topology: Topology, broker: BrokerNumber) -> bool:
    """Return True if a broker may have clients: only the single broker of a cell may.

    Paper: [GD02] §3 ("the cells of publisher and subscriber hosting brokers are singletons").
    """
    graph = cells_of(topology)
    return len(graph.members[graph.cell_of(broker)]) == 1


def cells_of(topology: Topology) -> CellGraph:
    graph = topology.overlay(KIND)
    assert isinstance(graph, CellGraph), f"{topology.name} is of kind {topology.kind}"
    return graph


class Routes:
    """The tree of cells as seen from one broker; sets of cells are bit sets.

    Attributes:
        neighbours: the linked brokers, in ascending order.
        cell: the broker's cell.
        peers: the other members of the cell, in the order of the topology.
        is_host: this broker may have clients.
        cells: the neighbouring cells.
        linked: per cell, the members that are linked to this broker.
        cell_by_broker: the cell of each broker.
        behind: per neighbouring cell, the cell and all cells behind it.
        cell_count: number of all cells.
        is_plain: every cell has one broker, so that one path leads to each.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, pubends: int) -> None:
        graph = cells_of(topology)
        self.neighbours = graph.surroundings(broker)
        self.cell = graph.cell_of(broker)
        self.peers = tuple(each for each in graph.members[self.cell] if each != broker)
        self.is_host = not self.peers
        self.cell_count = len(graph.cells)
        self.is_plain = all(len(members) == 1 for members in graph.members)
        self._broker = broker
        self._pubends = pubends
        self._members = graph.members
        self.linked = tuple(
            tuple(each for each in members if each in self.neighbours) for members in graph.members
        )
        self.cell_by_broker = {each: cell for cell, row in enumerate(graph.members) for each in row}
        self._near = near = dict[Cell, list[Cell]]()
        for a, b in graph.bundles:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        self.cells = tuple(sorted(near.get(self.cell, ())))
        self.behind: dict[Cell, int] = {}
        self._towards: dict[Cell, Cell] = {}
        for start in self.cells:
            found = [start]
            for cell in found:
                self._towards[cell] = start
                found += [each for each in near[cell] if each not in (self.cell, *found)]
            self.behind[start] = sum(1 << cell for cell in found)

    def pubend_streams(self) -> tuple[StreamId, ...]:
        return tuple(
            StreamId(broker, pubend, 0) for broker in self.hosts for pubend in range(self._pubends)
        )

    @property
    def hosts(self) -> tuple[BrokerNumber, ...]:
        """The brokers that may have clients and pubends, in order."""
        return tuple(
            broker
            for broker in sorted(self.cell_by_broker)
            if len(self._members[self.cell_by_broker[broker]]) == 1
        )

    def is_leaf(self, broker: BrokerNumber) -> bool:
        """Return True if a cell is this broker alone, and no broker lies behind it."""
        cell = self.cell_by_broker.get(broker)
        return (
            cell is not None
            and len(self._members[cell]) == 1
            and len(self._near.get(cell, ())) == 1
        )

    def cell_towards(self, broker: BrokerNumber) -> Cell:
        """Return the neighbouring cell that leads to a broker; this cell for its members."""
        cell = self.cell_by_broker[broker]
        return self._towards.get(cell, cell)

    def cell_of(self, broker: BrokerNumber) -> Cell:
        return self.cell_by_broker[broker]

    def of(self, stream: StreamId) -> tuple[Cell | None, tuple[Cell, ...]]:
        """Return the upstream cell of a stream, None at its pubend, and its downstream cells."""
        if stream.broker == self._broker:
            return None, self.cells
        upstream = self._towards[self.cell_by_broker[stream.broker]]
        return upstream, tuple(each for each in self.cells if each != upstream)

    def upstream(self, peer: BrokerNumber, stream: StreamId) -> Cell | None:
        """Return the upstream cell of a stream; None at its pubend.

        Raises:
            RemoteProtocolError: the stream does not exist; `peer` has named it.
        """
        is_here = stream.broker == self._broker and self.is_host
        cell = self.cell_by_broker.get(stream.broker)
        known = is_here or (cell in self._towards and len(self._members[cell]) == 1)
        if not known or not 0 <= stream.publisher < self._pubends or stream.incarnation:
            raise RemoteProtocolError(peer, f"no pubend has the stream {tuple(stream)}")
        return None if is_here else self._towards[self.cell_by_broker[stream.broker]]


Receiver = tuple[BrokerNumber, Cell]
"""The receiver, and the only target cell; EVERYWHERE for all cells below the receiver."""

_NOTHING: Final = (0, 0)


class Links:
    """The present routes to neighbouring cells from one broker.

    Args:
        sessions: the neighbours with a session, as they are at any time.

    Attributes:
        receivers: per pubend and cell below, the receivers that were found since the last change:
            without, and with sideways ones; see `down`.
        senders: per broker with pubends, the linked brokers upstream that reach the broker, as
            found since the last change; see `up`.
    """

    def __init__(self, routes: Routes, sessions: Container[BrokerNumber]) -> None:
        self._routes = routes
        self._sessions = sessions
        self._received: dict[BrokerNumber, tuple[int, int]] = {}
        self._sent: dict[BrokerNumber, LinkStatus] = {}
        self.receivers: dict[
            tuple[int, Cell], tuple[tuple[Receiver, ...], tuple[Receiver, ...]]
        ] = {}
        self.senders: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}

    def on_session_change(self, peer: BrokerNumber) -> None:
        """Discard the status of a neighbour after the start or end of a session."""
        self._received.pop(peer, None)
        self._sent.pop(peer, None)
        self.receivers.clear()
        self.senders.clear()

    def record_cells(self, peer: BrokerNumber, message: LinkStatus) -> None:
        """Record the cells that a neighbour reaches.

        Raises:
            RemoteProtocolError: a cell does not exist.
        """
        known = range(self._routes.cell_count)
        if any(cell not in known for cell in (*message.direct, *message.around)):
            raise RemoteProtocolError(peer, f"cells of {len(known)}: {message}"[:300])
        self._received[peer] = _bits(message.direct), _bits(message.around)
        self.receivers.clear()
        self.senders.clear()

    def changes(self) -> Iterator[Send]:
        """Yield the link status of this broker for neighbours with an older status."""
        routes = self._routes
        if routes.is_plain:
            return
        direct = {cell: self._direct(cell) for cell in routes.cells}
        around = {cell: self._around(cell) & ~direct[cell] for cell in routes.cells}
        for peer in routes.neighbours:
            if peer not in self._sessions:
                continue
            onward = [cell for cell in routes.cells if cell != routes.cell_of(peer)]
            beside = () if peer in routes.peers else onward
            status = LinkStatus(
                _cells(sum(direct[cell] for cell in onward)),
                _cells(sum(around[cell] for cell in beside)),
            )
            if self._sent.get(peer) != status:
                self._sent[peer] = status
                yield Send(peer, status)

    # ------------------------------------------------------------ receivers

    def present(self, cell: Cell) -> list[BrokerNumber]:
        """Return the linked members of a cell that have a session."""
        return [each for each in self._routes.linked[cell] if each in self._sessions]

    def down(self, stream: StreamId, cell: Cell, *, sideways: bool = True) -> tuple[Receiver, ...]:
        """Return the receivers for a cell below: one broker, unless no broker reaches all cells.

        Args:
            sideways: whether another member of this broker's cell may forward.
        """
        key = stream.publisher, cell
        found = self.receivers.get(key)
        if found is None:
            found = self.receivers[key] = self._find_down(*key)
        return found[sideways]

    def targets(
        self, stream: StreamId, children: Sequence[Cell], onto: Cell
    ) -> list[tuple[Cell, tuple[Receiver, ...]]]:
        """Return the receivers of each cell below, or of `onto` alone, without sideways ones."""
        if onto != EVERYWHERE:
            return [(onto, self.down(stream, onto, sideways=False))]
        return [(cell, self.down(stream, cell)) for cell in children]

    def cover(self, cell: Cell) -> tuple[BrokerNumber, ...]:
        """Return the neighbours that together reach all cells behind a neighbouring cell."""
        return tuple(peer for peer, _ in self.down(StreamId(0, 0, 0), cell))

    def up(
        self, stream: StreamId, via: BrokerNumber | None, *, sideways: bool = True
    ) -> tuple[BrokerNumber, ...]:
        """Return the receivers of nacks of a stream: `via`, or else all that reach its pubend.

        Args:
            via: the broker that last sent events of the stream.
        """
        near = self.senders.get(stream.broker)
        if near is None:
            near = self.senders[stream.broker] = self._find_up(stream)
        if via is not None and via in near:
            return (via,)
        return self._beside(stream) if sideways and not near else near

    def _find_up(self, stream: StreamId) -> tuple[BrokerNumber, ...]:
        upstream, _ = self._routes.of(stream)
        assert upstream is not None, f"{stream} has its pubend here"
        goal = 1 << self._routes.cell_of(stream.broker)
        return tuple(
            each for each in self.present(upstream) if sum(self._reach(upstream, each)) & goal
        )

    def _beside(self, stream: StreamId) -> tuple[BrokerNumber, ...]:
        """Return the member of this broker's cell that reaches the pubend of a stream, if any."""
        routes, goal = self._routes, 1 << self._routes.cell_of(stream.broker)
        beside = [each for each in routes.peers if self._received.get(each, _NOTHING)[0] & goal]
        return tuple(_rotate(beside, stream.publisher)[:1])

    def _find_down(
        self, pubend: int, cell: Cell
    ) -> tuple[tuple[Receiver, ...], tuple[Receiver, ...]]:
        near = [
            (each, *self._reach(cell, each))
            for each in _rotate(self._routes.linked[cell], pubend)
            if each in self._sessions
        ]
        near.sort(key=lambda item: -item[1].bit_count())  # stable: then the order of rotation
        covered = 0
        below: list[Receiver] = []
        for each, direct, around in near:
            if (direct | around) & ~covered:
                covered |= direct | around
                below.append((each, EVERYWHERE))
        beside: list[Receiver] = []
        for each in _rotate(self._routes.peers, pubend):
            direct = self._received.get(each, _NOTHING)[0] & self._routes.behind[cell]
            if each in self._sessions and direct & ~covered:
                covered |= direct
                beside.append((each, cell))
        return tuple(below), (*below, *beside)

    # ------------------------------------------------------------ reachable cells

    def _reach(self, cell: Cell, member: BrokerNumber) -> tuple[int, int]:
        """Return the cells behind `cell` that a member reaches: directly, and around.

        A member without a status is assumed to reach all cells.
        """
        behind = self._routes.behind[cell]
        if member not in self._received:
            return behind, 0
        direct, around = self._received[member]
        return (direct & behind) | 1 << cell, around & behind & ~direct & ~(1 << cell)

    def _direct(self, cell: Cell) -> int:
        found = 0
        for member in self.present(cell):
            direct, around = self._reach(cell, member)
            found |= direct | around
        return found

    def _around(self, cell: Cell) -> int:
        found = 0
        for peer in self._routes.peers:
            if peer in self._sessions:
                found |= self._received.get(peer, _NOTHING)[0]
        return found & self._routes.behind[cell]


def _rotate(members: Sequence[BrokerNumber], by: int) -> list[BrokerNumber]:
    place = by % len(members) if members else 0
    return [*members[place:], *members[:place]]


def _bits(cells: Sequence[Cell]) -> int:
    found = 0
    for cell in cells:
        found |= 1 << cell
    return found


def _cells(bits: int) -> tuple[Cell, ...]:
    return tuple(cell for cell in range(bits.bit_length()) if bits >> cell & 1)


RETRY: Final = "retry"
"""Purpose of the deadline at which a neighbour is dialled again."""


class Neighbours:
    """The neighbours of a broker.

    Attributes:
        sessions: the established ones.
        incarnations: of neighbours, at their last sessions.
        retired: the neighbours that are neither dialled nor heeded any more.
    """

    def __init__(
        self,
        peers: Sequence[BrokerNumber],
        parameters: GryphonParameters,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self.sessions: dict[BrokerNumber, int] = {}
        self.incarnations: dict[BrokerNumber, int] = {}
        self.retired: dict[BrokerNumber, None] = {}
        self._peers = peers
        self._parameters = parameters
        self._deadlines = deadlines
        self._waited_ns: dict[BrokerNumber, Instant] = {}
        self._established_ns: dict[BrokerNumber, Instant] = {}

    def wanted(self) -> tuple[BrokerNumber, ...]:
        """Return the neighbours, without retired ones."""
        return tuple(each for each in self._peers if each not in self.retired)

    def retire(self, broker: BrokerNumber) -> None:
        """Dial a broker no more, and ignore its messages."""
        self.retired[broker] = None
        self._deadlines.cancel((RETRY, broker))

    def is_restart(self, peer: BrokerNumber, event: SessionEstablished) -> bool:
        """Return True if a session is the first with an incarnation of a neighbour."""
        return self.incarnations.get(peer) != event.incarnation

    def on_established(
        self, peer: BrokerNumber, event: SessionEstablished, now_ns: Instant
    ) -> None:
        """Record a session."""
        assert peer not in self.sessions, f"second session with {peer}"
        self.sessions[peer] = event.session
        self.incarnations[peer] = event.incarnation
        self._established_ns[peer] = now_ns
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)

    def on_lost(self, peer: BrokerNumber, event: SessionLost) -> None:
        """Record the end of a session; the caller then calls `redial`."""
        assert self.sessions.get(peer) == event.session, f"no session for {event}"
        del self.sessions[peer]

    def redial(self, peer: BrokerNumber, event: SessionLost, now_ns: Instant) -> list[Effect]:
        """Dial a neighbour again, at once or later, after the end of a session."""
        if peer in self.retired:
            return []
        established_ns = self._established_ns.pop(peer)
        if dials_at_once(event.reason, established_ns, now_ns, self._parameters):
            return [OpenSession(peer)]
        self.retry_later(peer, now_ns)
        return []

    def retry_later(self, peer: Peer, now_ns: Instant) -> None:
        """Dial a neighbour again after a wait, unless it has a session."""
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self.sessions or peer in self.retired:
            return
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), now_ns + wait_ns)
