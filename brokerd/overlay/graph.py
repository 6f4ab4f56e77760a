"""The overlay of one protocol: brokers present, their neighbours, and lost connections."""

from collections.abc import Iterable, Iterator

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


class Connectivity:
    """The pairs of brokers in a tree that reach each other after failures.

    The topology's own delta is not used; each method has an argument for delta or radius.
    """

    def __init__(self, topology: Topology) -> None:
        self._neighbours = topology.neighbours()
        parents = [-1] * len(self._neighbours)
        order = [0]
        for broker in order:
            for near in self._neighbours[broker]:
                if near != parents[broker]:
                    parents[near] = broker
                    order.append(near)
        self._parents = parents
        self._leaves_first = order[:0:-1]

    def live_pairs(self, failed: Iterable[BrokerNumber]) -> int:
        """Return the number of pairs of brokers that have not failed."""
        live = len(self._neighbours) - sum(self._marks(failed))
        return live * (live - 1) // 2

    def count_disconnected_pairs(self, failed: Iterable[BrokerNumber], delta: int) -> int:
        """Return the number of live pairs with more than `delta` failed brokers in a row between.

        One pass over the tree, O(brokers · δ + failed · δ²).

        Paper: [DFT11] §IX-A, Fig. 9.
        """
        marks = self._marks(failed)
        connected = 0
        # Live brokers below each broker that reach it, including the broker itself if live.
        reached = [1 - mark for mark in marks]
        # Below each failed broker, by the number of failed brokers at the end of the path to it,
        # itself included.
        runs = {broker: [0] * (delta + 1) for broker, mark in enumerate(marks) if mark}
        for broker in self._leaves_first:
            parent = self._parents[broker]
            if not marks[parent]:
                below = sum(runs[broker]) if marks[broker] else reached[broker]
                connected += reached[parent] * below
                reached[parent] += below
                continue
            # The path from below ends with `length` failed brokers, the parent not yet counted.
            ending = runs[broker] if marks[broker] else [reached[broker]]
            across = runs[parent]
            for length, below in enumerate(ending[:delta]):
                if below:
                    # `across` counts the parent already: together they may have δ at most.
                    connected += below * sum(across[1 : delta + 1 - length])
            for length, below in enumerate(ending[:delta]):
                across[length + 1] += below
        return self.live_pairs(failed) - connected

    def find_reached(
        self, broker: BrokerNumber, failed: Iterable[BrokerNumber], delta: int
    ) -> list[BrokerNumber]:
        """Return the live brokers that `broker` reaches past at most `delta` failed ones in a row.

        The same result as `count_disconnected_pairs`, for a single broker, by a plain walk.
        """
        marks = self._marks(failed)
        reached = []
        walk = [(broker, -1, 0)]
        for at, before, in_a_row in walk:
            in_a_row = in_a_row + 1 if marks[at] else 0
            if in_a_row > delta:
                continue
            if not marks[at]:
                reached.append(at)
            walk += [(near, at, in_a_row) for near in self._neighbours[at] if near != before]
        return reached

    def neighbourhood_sizes(self, radius: int) -> list[int]:
        """Return the number of other brokers within `radius` = Δ links, per broker.

        Paper: [DFT11] §II, §IX-C, Fig. 11.
        """
        everywhere = self._marks(range(len(self._neighbours)))
        return [
            sum(map(len, self._rings(broker, radius, everywhere)))
            for broker in range(len(everywhere))
        ]

    def active_sessions(self, failed: Iterable[BrokerNumber], radius: int) -> dict[int, int]:
        """Return the number of active sessions per live broker, after every failure is bypassed.

        Active sessions lead to the live brokers within `radius` = Δ links with only failed brokers
        between.

        Paper: [DFT11] §II (active sessions), §IX-D, Fig. 12.
        """
        marks = self._marks(failed)
        return {
            broker: sum(
                not marks[met] for ring in self._rings(broker, radius, marks) for met in ring
            )
            for broker, mark in enumerate(marks)
            if not mark
        }

    def _marks(self, failed: Iterable[BrokerNumber]) -> bytearray:
        marks = bytearray(len(self._neighbours))
        for broker in failed:
            assert 0 <= broker < len(marks), f"no broker {broker} among {len(marks)}"
            marks[broker] = 1
        return marks

    def _rings(
        self, center: BrokerNumber, radius: int, passable: bytearray
    ) -> Iterator[list[BrokerNumber]]:
        """Yield the brokers at distance 1, 2, … that are reached through passable brokers only."""
        ring = [(center, -1)]
        for _ in range(radius):
            ring = [
                (near, broker)
                for broker, before in ring
                for near in self._neighbours[broker]
                if near != before
            ]
            yield [broker for broker, _ in ring]
            ring = [step for step in ring if passable[step[0]]]
