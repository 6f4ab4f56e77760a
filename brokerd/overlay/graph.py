"""The overlay that one protocol runs on, as a whole: brokers present and their neighbours.

For tools and simulations. A broker itself has its own surroundings only.
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Route, is_open
from brokerd.overlay.topology import Topology

Path = tuple[BrokerNumber, ...]


class OverlayGraph:
    """An overlay of a topology.

    Attributes:
        topology: the present topology.
        kind: kind of the overlay.
        present: the brokers that have not left.
    """

    def __init__(self, topology: Topology, kind: str = "") -> None:
        self.kind = kind or topology.kind
        self.change(topology)

    def change(self, topology: Topology) -> None:
        """Replace the topology by one that differs in joined or departed brokers only."""
        self.topology = topology
        left = topology.left
        self.present = tuple(n for n, name in enumerate(topology.brokers) if name not in left)
        self.overlay = topology.overlay(self.kind)
        near: list[list[BrokerNumber]] = [[] for _ in topology.brokers]
        for a, b in self.overlay.links:
            near[a].append(b)
            near[b].append(a)
        self._neighbours = tuple(map(tuple, near))
        self._towards: dict[BrokerNumber, list[BrokerNumber]] = {}

    def neighbours(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the brokers that a broker is linked to, in link order."""
        return self._neighbours[broker]

    def near(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the possible session peers of a broker.

        The order depends on the topology alone.
        """
        return self.overlay.surroundings(broker)

    def path(self, start: BrokerNumber, end: BrokerNumber) -> Path:
        """Return all brokers on a shortest path from `start` to `end`, both included."""
        towards = self._parents_towards(end)
        path = [start]
        while path[-1] != end:
            assert towards[path[-1]] >= 0, f"broker {end} or {start} has left"
            path.append(towards[path[-1]])
        return tuple(path)

    def distance(self, start: BrokerNumber, end: BrokerNumber) -> int:
        """Return the number of links on a shortest path."""
        return len(self.path(start, end)) - 1

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the route of a stream from an origin to a home."""
        return self.overlay.route(origin, home)

    def is_open(
        self, origin: BrokerNumber, home: BrokerNumber, broken: Iterable[Link] = ()
    ) -> bool:
        """Return True if a stream passes from one broker to another without the broken links."""
        return is_open(self.route(origin, home), (), broken)

    def pairs_across(self, here: BrokerNumber, there: BrokerNumber) -> list[Link]:
        """Return the pairs that must lose their session to cut one end off from the other.

        If there may be paths around a link, one of its ends is cut off entirely.
        """
        return [(near, there) for near in self.near(there)]

    def _parents_towards(self, end: BrokerNumber) -> list[BrokerNumber]:
        if end not in self._towards:
            parents = [-1] * len(self._neighbours)
            parents[end] = end
            frontier = [end]
            for broker in frontier:
                for near in self._neighbours[broker]:
                    if parents[near] < 0:
                        parents[near] = broker
                        frontier.append(near)
            self._towards[end] = parents
        return self._towards[end]
