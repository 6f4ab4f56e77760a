"""The source and the targets of streams: the tree of cells, rooted at the cell of a pubend.

Paper: [GD02] §3 (virtual brokers, spanning trees, link bundles).
"""

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.topology import Topology

KIND = "cells"

Cell = int
"""The number of a cell, its place in the overlay."""


def hosts_clients(topology: Topology, broker: BrokerNumber) -> bool:
    """Return True if a broker may have clients: only the single broker of a cell may.

    Paper: [GD02] §3 ("the cells of publisher and subscriber hosting brokers are singletons").
    """
    graph = _cells_of(topology)
    return len(graph.members[graph.cell_of(broker)]) == 1


def _cells_of(topology: Topology) -> CellGraph:
    graph = topology.overlay(KIND)
    assert isinstance(graph, CellGraph), f"{topology.name} is of kind {topology.kind}"
    return graph


class Routes:
    """The tree of cells as seen from one broker; sets of cells are bit sets.

    Attributes:
        neighbours: the linked brokers, in ascending order.
        cell: the broker's cell.
        peers: the other members of the cell, in the order of the topology.
        cells: the neighbouring cells.
        behind: per neighbouring cell, the cell and all cells behind it.
        cell_count: number of all cells.
        is_plain: every cell has one broker, so that one path leads to each.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, pubends: int) -> None:
        graph = _cells_of(topology)
        self.neighbours = graph.surroundings(broker)
        self.cell = graph.cell_of(broker)
        self.peers = tuple(each for each in graph.members[self.cell] if each != broker)
        self.cell_count = len(graph.cells)
        self.is_plain = all(len(members) == 1 for members in graph.members)
        self._broker = broker
        self._pubends = pubends
        self._members = graph.members
        self._cells = {each: cell for cell, row in enumerate(graph.members) for each in row}
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

    @property
    def is_host(self) -> bool:
        """True if this broker may have clients."""
        return not self.peers

    def pubend_streams(self) -> tuple[StreamId, ...]:
        """Return the streams of all pubends, in order."""
        return tuple(
            StreamId(broker, pubend, 0) for broker in self.hosts for pubend in range(self._pubends)
        )

    @property
    def hosts(self) -> tuple[BrokerNumber, ...]:
        """The brokers that may have clients and pubends, in order."""
        return tuple(
            broker for broker in sorted(self._cells) if len(self._members[self._cells[broker]]) == 1
        )

    def is_leaf(self, broker: BrokerNumber) -> bool:
        """Return True if the broker exists, and no broker lies behind it."""
        return broker in self._cells and len(self._near.get(self._cells[broker], ())) == 1

    def cell_towards(self, broker: BrokerNumber) -> Cell:
        """Return the neighbouring cell that leads to a broker; this cell for its members."""
        cell = self._cells[broker]
        return self._towards.get(cell, cell)

    def cell_of(self, broker: BrokerNumber) -> Cell:
        """Return the cell of a broker."""
        return self._cells[broker]

    def linked_members(self, cell: Cell) -> tuple[BrokerNumber, ...]:
        """Return the members of a neighbouring cell that are linked to this broker."""
        return tuple(each for each in self._members[cell] if each in self.neighbours)

    def of(self, stream: StreamId) -> tuple[Cell | None, tuple[Cell, ...]]:
        """Return the upstream cell of a stream, None at its pubend, and its downstream cells."""
        if stream.broker == self._broker:
            return None, self.cells
        upstream = self._towards[self._cells[stream.broker]]
        return upstream, tuple(each for each in self.cells if each != upstream)

    def upstream(self, peer: BrokerNumber, stream: StreamId) -> Cell | None:
        """Return the upstream cell of a stream; None at its pubend.

        Raises:
            RemoteProtocolError: the stream does not exist; `peer` has named it.
        """
        is_here = stream.broker == self._broker and self.is_host
        cell = self._cells.get(stream.broker)
        known = is_here or (cell in self._towards and len(self._members[cell]) == 1)
        if not known or not 0 <= stream.publisher < self._pubends or stream.incarnation:
            raise RemoteProtocolError(peer, f"no pubend has the stream {tuple(stream)}")
        return None if is_here else self._towards[self._cells[stream.broker]]
