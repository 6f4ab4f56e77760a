"""Shortest paths in a broker's graph, on which levels never decrease.

A path leaves a cluster, or another unit, once and never returns. So destinations inside a unit are
reached inside the unit.

Paper: [GES] §3 (link cost matrix, best hop at every node).
"""

import heapq
from collections.abc import Callable

from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.ges.view import GraphView

Path = tuple[Unit, ...]
"""Both ends included."""


def link_cost(level: int, link_level: int) -> int:
    """Return the cost of leaving a unit of a level over a link of a level; grows with both.

    Paper: [GES] §3; no more of the paper's matrix is left.
    """
    return (1 + level) * int(5**link_level)


class Paths:
    """The best paths from a broker, over the current graph."""

    def __init__(self, place: Place, view: GraphView) -> None:
        self._place = place
        self._view = view
        self._seen = -1
        self._near: dict[Unit, list[tuple[Unit, int]]] = {}
        self._inside: dict[Unit, dict[Unit, tuple[int, Path]]] = {}

    def best(self, to: Unit) -> tuple[int, Path] | None:
        """Return cost and path to a broker or unit in the graph; None without a path."""
        return self._from_here(()).get(to)

    def leaving(self, unit: Unit, to: Unit) -> tuple[int, Path] | None:
        """Return the same, over brokers and units inside a unit until the last link."""
        found = self._from_here(unit)
        ways = [
            (cost + self._cost(last, to, factor), (*way, to))
            for last, (cost, way) in found.items()
            for other, factor in self._near.get(last, ())
            if other == to
        ]
        return min(ways, key=_rank) if ways else None

    def _from_here(self, within: Unit) -> dict[Unit, tuple[int, Path]]:
        if self._seen != self._view.changes:
            self._seen = self._view.changes
            self._inside = {}
            self._near = {}
            for (a, b), behind in self._view.edges.items():
                factor = min(behind.values())
                self._near.setdefault(a, []).append((b, factor))
                self._near.setdefault(b, []).append((a, factor))
        if within not in self._inside:
            self._inside[within] = self._shortest(lambda unit: is_inside(unit, within))
        return self._inside[within]

    def _shortest(self, may: Callable[[Unit], bool]) -> dict[Unit, tuple[int, Path]]:
        """Return the shortest paths (Dijkstra).

        Among equal costs: fewer hops, then the lowest addresses.
        """
        start = self._place.address
        waiting: list[tuple[int, int, Path]] = [(0, 0, (start,))]
        found: dict[Unit, tuple[int, Path]] = {}
        while waiting:
            cost, hops, way = heapq.heappop(waiting)
            here = way[-1]
            if here in found:
                continue
            found[here] = cost, way
            for other, factor in self._near.get(here, ()):
                if other not in found and may(other) and len(other) <= len(here):
                    more = cost + self._cost(here, other, factor)
                    heapq.heappush(waiting, (more, hops + 1, (*way, other)))
        return found

    def _cost(self, here: Unit, other: Unit, factor: int) -> int:
        level = self._place.level(here)
        return link_cost(level, self._place.link_level(here, other)) * factor


def _rank(found: tuple[int, Path]) -> tuple[int, int, Path]:
    cost, way = found
    return cost, len(way), way
