"""The primary tree: paths, distances, and one broker's view of its Δ-neighbourhood.

Sets of brokers are ints used as bit sets: bit n stands for broker number n.

Paper: [DFT11] §II-III.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph, Path
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import TREE, Topology


class PrimaryTree(OverlayGraph):
    """Paths and distances of the whole tree; for tools, the simulator and the checker's side.

    A broker itself knows no more than its Neighbourhood.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, TREE)

    @property
    def newcomers(self) -> BrokerNumber:
        """The first number that a broker which joined at run time may have."""
        return len(self.topology.brokers) - len(self.topology.joined)

    def near(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """See OverlayGraph; nearest first."""
        return tuple(self.ball(broker, self.topology.delta + 1))

    def pairs_across(self, here: BrokerNumber, there: BrokerNumber) -> list[Link]:
        """All who are near enough to have a session past a link of the tree."""
        radius = self.topology.delta + 1
        return [
            (path[0], path[-1])
            for near in (here, *self.ball(here, radius - 1))
            for path in self.ball(near, radius).values()
            if (here, there) in pairwise(path)
        ]

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


def graph_of(topology: Topology, kind: str = "") -> OverlayGraph:
    """One of the overlays that a topology carries; the first one, unless another is named."""
    kind = kind or topology.kind
    return PrimaryTree(topology) if kind == TREE else OverlayGraph(topology, kind)


def tree_of(graph: OverlayGraph) -> PrimaryTree:
    """The graph of a protocol that runs on trees."""
    assert isinstance(graph, PrimaryTree), f"{graph.topology.name} is of kind {graph.kind}"
    return graph


@lru_cache(maxsize=2)
def primary_tree(topology: Topology) -> PrimaryTree:
    """The tree of a topology, for as many of its brokers as ask; nobody may change it."""
    return PrimaryTree(topology)


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
