"""The overlay that one protocol runs on, seen as a whole: who is there, who is near whom.

For tools and simulations. A broker itself knows its own surroundings only.
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Route, is_open
from brokerd.overlay.topology import Topology

Path = tuple[BrokerNumber, ...]


class OverlayGraph:
    """One of the overlays that a topology carries.

    Attributes:
        topology: as it is now.
        kind: which of its overlays.
        present: the brokers that have not left.
    """

    def __init__(self, topology: Topology, kind: str = "") -> None:
        self.kind = kind or topology.kind
        self.change(topology)

    def change(self, topology: Topology) -> None:
        """Go on with another one: the same, but for brokers that have joined or left."""
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
        """Whom a broker is linked to, in link order."""
        return self._neighbours[broker]

    def near(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Whom a broker may have sessions with, in an order that depends on the topology alone."""
        return self.overlay.surroundings(broker)

    def path(self, start: BrokerNumber, end: BrokerNumber) -> Path:
        """All brokers on a shortest way from `start` to `end`, both included."""
        towards = self._parents_towards(end)
        path = [start]
        while path[-1] != end:
            assert towards[path[-1]] >= 0, f"broker {end} or {start} has left"
            path.append(towards[path[-1]])
        return tuple(path)

    def distance(self, start: BrokerNumber, end: BrokerNumber) -> int:
        """How many links lie between, at least."""
        return len(self.path(start, end)) - 1

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """What a stream needs on its way from an origin to a home."""
        return self.overlay.route(origin, home)

    def is_open(
        self, origin: BrokerNumber, home: BrokerNumber, broken: Iterable[Link] = ()
    ) -> bool:
        """Whether a stream gets from one broker to another without these links."""
        return is_open(self.route(origin, home), (), broken)

    def pairs_across(self, here: BrokerNumber, there: BrokerNumber) -> list[Link]:
        """The pairs that may have no session, so that nothing passes from one end to the other.

        Where there may be ways around a link, one end of it is on its own.
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
