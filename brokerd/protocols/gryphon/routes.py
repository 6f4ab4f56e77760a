"""Where each stream comes from and goes to: the tree of cells, from the cell of its pubend on.

Paper: [GD02] §3 (virtual brokers, spanning trees). Deviates: every cell is one broker.
"""

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.topology import Topology

KIND = "cells"


def check_cells(topology: Topology, where: str) -> None:
    """Make sure that every cell is one broker.

    Raises:
        ConfigError: one has several; names it.
    """
    graph = topology.overlay(KIND)
    assert isinstance(graph, CellGraph), f"{topology.name} is of kind {topology.kind}"
    for cell, members in zip(graph.cells, graph.members, strict=True):
        if len(members) > 1:
            names = ", ".join(graph.brokers[number] for number in members)
            raise ConfigError(
                f"{where}: cells.members.{cell} = {names}; gryphon runs on cells of one broker "
                "each as yet"
            )


class Routes:
    """What one broker knows of the tree of brokers.

    Attributes:
        neighbours: whom it is linked to, in ascending order.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, pubends: int) -> None:
        graph = topology.overlay(KIND)
        self.neighbours = graph.surroundings(broker)
        self._broker = broker
        self._pubends = pubends
        near: dict[BrokerNumber, list[BrokerNumber]] = {}
        for a, b in graph.links:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        self._towards: dict[BrokerNumber, BrokerNumber] = {}
        for neighbour in self.neighbours:
            self._towards[neighbour] = neighbour
            behind = [neighbour]
            for each in behind:
                for other in near[each]:
                    if other != broker and other not in self._towards:
                        self._towards[other] = neighbour
                        behind.append(other)

    def of(self, stream: StreamId) -> tuple[BrokerNumber | None, tuple[BrokerNumber, ...]]:
        """The neighbour that a stream comes from, None at its pubend, and those it goes to."""
        if stream.broker == self._broker:
            return None, self.neighbours
        upstream = self._towards[stream.broker]
        return upstream, tuple(each for each in self.neighbours if each != upstream)

    def upstream(self, peer: BrokerNumber, stream: StreamId) -> BrokerNumber | None:
        """The neighbour that a stream comes from; None at its pubend.

        Raises:
            RemoteProtocolError: there is no such stream; `peer` has named it.
        """
        is_here = stream.broker == self._broker
        known = is_here or stream.broker in self._towards
        if not known or stream.publisher >= self._pubends or stream.incarnation:
            raise RemoteProtocolError(peer, f"no pubend has the stream {tuple(stream)}")
        return None if is_here else self._towards[stream.broker]
