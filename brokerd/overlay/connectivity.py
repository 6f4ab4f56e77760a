"""The effect of failed brokers on a δ tree, from its shape alone: no protocol runs here.

Publications follow primary paths, and a row of more than δ failed brokers on a path stops
publications, even if other connections exist. These are upper bounds for the protocol and lower
bounds for its cost.

Paper: [DFT11] §IX, Figs. 9, 11, 12.
"""

from collections.abc import Iterable, Iterator

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology


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

    def disconnected_pairs(self, failed: Iterable[BrokerNumber], delta: int) -> int:
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

    def reached_from(
        self, broker: BrokerNumber, failed: Iterable[BrokerNumber], delta: int
    ) -> list[BrokerNumber]:
        """Return the live brokers that `broker` reaches past at most `delta` failed ones in a row.

        The same result as `disconnected_pairs`, for a single broker, by a plain walk.
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
