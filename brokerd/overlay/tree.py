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

    A broker itself has its Neighbourhood only.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, TREE)

    @property
    def newcomers(self) -> BrokerNumber:
        """The lowest number of a broker that joined at run time."""
        return len(self.topology.brokers) - len(self.topology.joined)

    def near(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """See OverlayGraph; nearest first."""
        return tuple(self.ball(broker, self.topology.delta + 1))

    def pairs_across(self, here: BrokerNumber, there: BrokerNumber) -> list[Link]:
        """Return all pairs that are near enough to have a session across a link of the tree."""
        radius = self.topology.delta + 1
        return [
            (path[0], path[-1])
            for near in (here, *self.ball(here, radius - 1))
            for path in self.ball(near, radius).values()
            if (here, there) in pairwise(path)
        ]

    def ball(self, center: BrokerNumber, radius: int) -> dict[BrokerNumber, Path]:
        """Return the brokers within `radius` links of `center`, nearest first, with the path.

        The path leads from `center` to the broker, both included. `center` itself is left out.
        Brokers at the same distance are in link order, so the result is the same on every machine.
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
        """Return the part of the tree that a broker receives: the possible session peers."""
        return self.neighbourhood(center, self.topology.delta + 1)

    def neighbourhood(self, center: BrokerNumber, radius: int) -> "Neighbourhood":
        """Return the part of the tree that broker `center` has for the radius Δ = `radius`."""
        ball = self.ball(center, radius)
        neighbours = {
            broker: tuple(
                near for near in self._neighbours[broker] if near in ball or near == center
            )
            for broker in (center, *ball)
        }
        return Neighbourhood(center, radius, ball, neighbours, self.newcomers, self._count_left())

    def _count_left(self) -> tuple[BrokerNumber, ...]:
        return tuple(map(self.topology.brokers.index, self.topology.left))


def graph_of(topology: Topology, kind: str) -> OverlayGraph:
    """Return an overlay of a topology; the first, unless another kind is named."""
    kind = kind or topology.kind
    return PrimaryTree(topology) if kind == TREE else OverlayGraph(topology, kind)


def tree_of(graph: OverlayGraph) -> PrimaryTree:
    """Return the graph of a protocol that runs on trees."""
    assert isinstance(graph, PrimaryTree), f"{graph.topology.name} is of kind {graph.kind}"
    return graph


@lru_cache(maxsize=2)
def primary_tree(topology: Topology) -> PrimaryTree:
    """Return the tree of a topology, shared by all callers; it must not be changed."""
    return PrimaryTree(topology)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The part of the tree within Δ links of one broker, and the only part that a broker has.

    Attributes:
        center: the broker in the middle.
        radius: Δ = δ + 1.
        paths: broker → path from `center` to the broker, both included; nearest first.
        neighbours: broker (center too) → its neighbours inside the neighbourhood, in link order.
        newcomers: brokers from this number on have joined the tree at run time.
        left: brokers reported to have left the tree, from any place.

    Paper: [DFT11] §II ("Δ-neighbourhood").
    """

    center: BrokerNumber
    radius: int
    paths: dict[BrokerNumber, Path]
    neighbours: dict[BrokerNumber, Path]
    newcomers: BrokerNumber
    left: tuple[BrokerNumber, ...] = ()

    def direction(self, broker: BrokerNumber) -> BrokerNumber:
        """Return the tree neighbour of the center on the side of `broker`, which is in the ball."""
        return self.paths[broker][1]

    def beyond(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the neighbours of `broker` one link farther from the center, in link order."""
        nearer = self.paths[broker][-2] if broker != self.center else -1
        return tuple(near for near in self.neighbours[broker] if near != nearer)

    def with_leaf(self, broker: BrokerNumber, parent: BrokerNumber) -> "Neighbourhood":
        """Return the neighbourhood with a new leaf behind `parent`, which must be near enough."""
        assert broker not in self.neighbours, f"broker {broker} is there already"
        before = self.paths[parent] if parent != self.center else (self.center,)
        assert len(before) <= self.radius, f"broker {broker} is {len(before)} links away"
        paths = {near: path for near, path in self.paths.items() if len(path) <= len(before) + 1}
        paths[broker] = (*before, broker)
        neighbours = {**self.neighbours, parent: (*self.neighbours[parent], broker)}
        neighbours[broker] = (parent,)
        paths = {**paths, **self.paths}
        return replace(self, paths=paths, neighbours=neighbours)

    def without_leaf(self, broker: BrokerNumber) -> "Neighbourhood":
        assert len(self.neighbours[broker]) == 1, f"broker {broker} is no leaf"
        paths = {near: path for near, path in self.paths.items() if near != broker}
        neighbours = {
            near: tuple(other for other in others if other != broker)
            for near, others in self.neighbours.items()
            if near != broker
        }
        left = (*self.left, broker)
        return replace(self, paths=paths, neighbours=neighbours, left=left)
