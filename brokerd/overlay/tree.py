"""The primary tree: paths, distances, and one broker's view of its Δ-neighbourhood.

Sets of brokers are ints used as bit sets: bit n stands for broker number n.

Paper: [DFT11] §II-III.
"""

from dataclasses import dataclass, replace

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology

Path = tuple[BrokerNumber, ...]


class PrimaryTree:
    """Paths and distances of the whole tree; for tools, the simulator and the checker's side.

    A broker itself knows no more than its Neighbourhood.

    Attributes:
        present: the brokers that have not left.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.present = _present(topology)
        self._neighbours = topology.neighbours()
        self._towards: dict[BrokerNumber, list[BrokerNumber]] = {}

    def change(self, topology: Topology) -> None:
        """Go on with another tree: the same, but for leaves that have joined or left."""
        self.topology = topology
        self.present = _present(topology)
        self._neighbours = topology.neighbours()
        self._towards.clear()

    @property
    def newcomers(self) -> BrokerNumber:
        """The first number that a broker which joined at run time may have."""
        return len(self.topology.brokers) - len(self.topology.joined)

    def path(self, start: BrokerNumber, end: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """All brokers from `start` to `end`, both included."""
        towards = self._parents_towards(end)
        path = [start]
        while path[-1] != end:
            assert towards[path[-1]] >= 0, f"broker {end} or {start} has left the tree"
            path.append(towards[path[-1]])
        return tuple(path)

    def distance(self, start: BrokerNumber, end: BrokerNumber) -> int:
        """How many links lie between."""
        return len(self.path(start, end)) - 1

    def ball(self, center: BrokerNumber, radius: int) -> dict[BrokerNumber, Path]:
        """Brokers within `radius` links of `center`, nearest first (not itself), with the path.

        The path leads from `center` to the broker, both included. Brokers at the same distance
        come in link order, so the result is the same on every machine.
        """
        found: dict[BrokerNumber, Path] = {}
        ring: list[tuple[BrokerNumber, ...]] = [(center,)]
        for _ in range(radius):
            ring = [
                (*path, neighbour)
                for path in ring
                for neighbour in self._neighbours[path[-1]]
                if len(path) == 1 or neighbour != path[-2]
            ]
            for path in ring:
                found[path[-1]] = path
        return found

    def surroundings(self, center: BrokerNumber) -> "Neighbourhood":
        """What a broker is told of the tree: whom it may know, dial, and be dialled by."""
        return self.neighbourhood(center, self.topology.delta + 1)

    def neighbourhood(self, center: BrokerNumber, radius: int) -> "Neighbourhood":
        """What broker `center` knows of the tree when the radius is Δ = `radius`."""
        ball = self.ball(center, radius)
        neighbours = {
            broker: tuple(
                near for near in self._neighbours[broker] if near in ball or near == center
            )
            for broker in (center, *ball)
        }
        return Neighbourhood(center, radius, ball, neighbours, self.newcomers, self._left())

    def _left(self) -> tuple[BrokerNumber, ...]:
        return tuple(map(self.topology.brokers.index, self.topology.left))

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


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The part of the tree within Δ links of one broker: all a broker knows of it.

    Attributes:
        center: the broker whose neighbourhood it is.
        radius: Δ = δ + 1.
        paths: broker → path from `center` to it, both included; nearest first.
        neighbours: broker (center too) → its neighbours inside the neighbourhood, in link order.
        newcomers: brokers from this number on have joined the tree while it ran.
        left: brokers that are known to have left the tree, wherever they were.

    Paper: [DFT11] §II ("Δ-neighbourhood").
    """

    center: BrokerNumber
    radius: int
    paths: dict[BrokerNumber, Path]
    neighbours: dict[BrokerNumber, Path]
    newcomers: BrokerNumber
    left: tuple[BrokerNumber, ...] = ()

    def direction(self, broker: BrokerNumber) -> BrokerNumber:
        """The tree neighbour of the center on whose side `broker` (in the ball) lies."""
        return self.paths[broker][1]

    def beyond(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Neighbours of `broker` that lie one link farther from the center, in link order."""
        nearer = self.paths[broker][-2] if broker != self.center else -1
        return tuple(near for near in self.neighbours[broker] if near != nearer)

    def grown(self, broker: BrokerNumber, parent: BrokerNumber) -> "Neighbourhood":
        """The neighbourhood with a new leaf behind `parent`, which is near enough for that."""
        assert broker not in self.neighbours, f"broker {broker} is there already"
        before = self.paths[parent] if parent != self.center else (self.center,)
        assert len(before) <= self.radius, f"broker {broker} is {len(before)} links away"
        paths = {near: path for near, path in self.paths.items() if len(path) <= len(before) + 1}
        paths[broker] = (*before, broker)
        neighbours = {**self.neighbours, parent: (*self.neighbours[parent], broker)}
        neighbours[broker] = (parent,)
        paths = {**paths, **self.paths}
        return replace(self, paths=paths, neighbours=neighbours)

    def shrunk(self, broker: BrokerNumber) -> "Neighbourhood":
        """The neighbourhood without a leaf."""
        assert len(self.neighbours[broker]) == 1, f"broker {broker} is no leaf"
        paths = {near: path for near, path in self.paths.items() if near != broker}
        neighbours = {
            near: tuple(other for other in others if other != broker)
            for near, others in self.neighbours.items()
            if near != broker
        }
        left = (*self.left, broker)
        return replace(self, paths=paths, neighbours=neighbours, left=left)


def _present(topology: Topology) -> tuple[BrokerNumber, ...]:
    left = topology.left
    return tuple(n for n, name in enumerate(topology.brokers) if name not in left)
