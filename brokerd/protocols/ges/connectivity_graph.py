"""The connectivity graph of a broker: connections around the broker, and outlines beyond.

Both ends of a connection state, with separate versions, if the connection is up and at which cost;
a connection is up while both ends state so. A statement is flooded hop by hop. A broker that sends
a statement out of a unit replaces an end inside by the unit. So a broker sees its own cluster, and
farther away units of every size that do not contain the broker.

Paper: [GES] §3 (connectivity graph, link counts, dissemination).
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.messages import DOWN, Path, Statement
from brokerd.protocols.ges.units import (
    FIRST,
    Place,
    Unit,
    Version,
    after,
    is_inside,
    is_its_own,
    substitute_version,
)
from brokerd.protocols.parts.bounds import is_leap

Edge = tuple[Unit, Unit]
"""The smaller address first."""


class GraphView:
    """The connectivity graph of a broker.

    Attributes:
        changes: increases with every change of an edge or of a cost.
        edges: between brokers and units, with the factors of the connections behind.
    """

    def __init__(self, broker: BrokerNumber, place: Place, incarnation: int = 0) -> None:
        self.changes = 0
        self.edges: dict[Edge, dict[Link, int]] = {}
        self._broker = broker
        self._place = place
        self._incarnation = incarnation
        self._counter = FIRST
        self._latest: dict[Link, dict[BrokerNumber, Statement]] = {}
        self._edge_of: dict[Link, Edge] = {}

    def start(self, incarnation: int) -> None:
        """Start an incarnation, with statements that replace those of earlier incarnations."""
        self._incarnation = incarnation

    def forget(self) -> None:
        """Forget the graph, for another place; the versions of this broker continue."""
        self.changes += 1
        self.edges.clear()
        self._latest.clear()
        self._edge_of.clear()

    def state(self, peer: BrokerNumber, address: Address, factor: int) -> Statement:
        """Return a statement of this broker about an own connection, and add it to the graph."""
        self._counter = after(self._counter)
        version = self._incarnation, self._counter
        own, other = (self._broker, self._place.address), (peer, address)
        (low, low_end), (high, high_end) = sorted((own, other))
        made = Statement(
            low,
            high,
            self._broker,
            version,
            low_end,
            self._place.outermost_unit_of(high_end),
            factor,
        )
        made = replace(made, low_end=self._place.outermost_unit_of(low_end))
        self._take(made)
        return made

    def learn(self, statement: Statement) -> bool:
        """Take a statement that another broker forwarded.

        A statement about a unit around this broker has returned from outside: inside, statements
        are more precise. A statement in this broker's own name is of an earlier incarnation, or
        made by others in this broker's place.

        Returns:
            False for a statement that is not new, or not for this place.
        """
        if statement.by == self._broker:
            return False
        for end in (statement.low_end, statement.high_end):
            if end != self._place.address and self._place.is_in(end):
                return False
        known = self.latest(statement)
        # A known version that leaps from this one was forged while nothing was known here.
        if known is not None and not (
            statement.version > known.version or is_leap(statement.version, known.version)
        ):
            return False
        self._take(statement)
        return True

    def precise(self, statement: Statement) -> Statement:
        """Return an outside statement in a broker's place, with the ends inside the unit.

        Inside, the statement is forwarded to that broker, which may live.
        """
        known = self.latest(statement)
        outside = any(self._place.is_in(end) for end in (statement.low_end, statement.high_end))
        if known is None or not outside or is_its_own(statement.version):
            return statement
        return replace(statement, low_end=known.low_end, high_end=known.high_end)

    def latest(self, statement: Statement) -> Statement | None:
        """Return the latest statement about the same connection from the same end."""
        return self._latest.get((statement.low, statement.high), {}).get(statement.by)

    def statement_by(self, speaker: BrokerNumber, other: BrokerNumber) -> Statement | None:
        """Return the latest statement of one end of a connection."""
        return self._latest.get((min(speaker, other), max(speaker, other)), {}).get(speaker)

    def find_substitute(self, statement: Statement) -> Statement | None:
        """Return the later statement of others in the place of this one's author, or None."""
        known = self.latest(statement)
        if known is None or is_its_own(known.version) or known.version <= statement.version:
            return None
        return known

    def is_refuted(self, statement: Statement) -> bool:
        """Return True for a statement in the place of this broker, which lives."""
        if statement.by != self._broker:
            return False
        own = self.latest(statement)
        incarnation = statement.version[0]
        return own is not None and own.version[0] == incarnation and own.version < statement.version

    def is_forged(self, statement: Statement) -> bool:
        """Return True for a statement in this broker's name that was forged.

        A statement that others make in this broker's place has the broker's incarnation, and a
        number that the broker skips.
        """
        if statement.by != self._broker:
            return False
        known = self.latest(statement)
        # After a new address, own statements about links of brokers that have left are forgotten.
        own = known.version if known is not None else (self._incarnation, self._counter)
        is_in_place = not is_its_own(statement.version) and statement.version[0] == own[0]
        return statement.version > own and not is_in_place

    def raise_version(self, forged: Version) -> None:
        """Make later statements of this broker later than a forged version."""
        latest = max(forged, (self._incarnation, self._counter))
        self._incarnation, self._counter = latest

    def deny(self, forged: Statement) -> Statement:
        """Return this broker's statement that there is no such connection."""
        self._counter = after(self._counter)
        version = self._incarnation, self._counter
        made = replace(forged, version=version, factor=DOWN)
        self._take(made)
        return made

    def list_connected(self) -> Iterable[Unit]:
        """Return brokers and units that state connections."""
        return [_speaker(each) for each in self.statements() if each.factor]

    def state_for(self, unit: Unit) -> Sequence[Statement]:
        """Return statements that a broker or unit has no connection, and add them to the graph."""
        return self._state_in_place(lambda each: is_inside(_speaker(each), unit))

    def state_for_broker(self, broker: BrokerNumber) -> Sequence[Statement]:
        """Return the same for one broker that others may see as a unit."""
        return self._state_in_place(lambda each: each.by == broker)

    def state_for_unknown(self, statement: Statement) -> Statement:
        """Return the same for a broker of an own unit that an outside statement names.

        The place of the broker in the unit is unknown: this broker's place stands for it.
        """
        low_end, high_end = statement.low_end, statement.high_end
        if statement.by == statement.low:
            low_end = self._place.address
        else:
            high_end = self._place.address
        version = substitute_version(statement.version)
        about = statement.low, statement.high, statement.by, version, low_end, high_end
        made = Statement(*about, DOWN)
        self._take(made)
        return made

    def is_only_outside(self, statement: Statement) -> bool:
        """Return True for a statement of a broker of an own unit that is later than inside."""
        speaker, known = _speaker(statement), self.latest(statement)
        is_inside_own = speaker != self._place.address and self._place.is_in(speaker)
        is_others = statement.by != self._broker and is_its_own(statement.version)
        is_later = known is None or known.version < statement.version
        return is_inside_own and is_others and is_later

    def _state_in_place(self, of: Callable[[Statement], bool]) -> Sequence[Statement]:
        lost = [each for each in self.statements() if each.factor and of(each)]
        made = [
            replace(each, version=substitute_version(each.version), factor=DOWN) for each in lost
        ]
        for statement in made:
            self._take(statement)
        return made

    def statement_for_peer(
        self, statement: Statement, peer: BrokerNumber, address: Address
    ) -> Statement | None:
        """Return the statement as a neighbour sees it; None if irrelevant there.

        The other end of a connection receives its own address: inside a unit, brokers ignore
        statements about that unit.

        Paper: [GES] §3 (a connection of a level is disseminated in the unit of the next one).
        """
        level = self._place.link_level(self._place.address, address)
        if level == 0:
            return statement
        left = self._place.own_unit(level)
        low, high = (
            left if is_inside(end, left) else end for end in (statement.low_end, statement.high_end)
        )
        if self._broker in (statement.low, statement.high):
            low = address if peer == statement.low else low
            high = address if peer == statement.high else high
        return replace(statement, low_end=low, high_end=high) if low != high else None

    def statements(self) -> Iterable[Statement]:
        """Return all statements that a new neighbour may need."""
        return [each for statements in self._latest.values() for each in statements.values()]

    def near(self, unit: Unit) -> Mapping[Unit, int]:
        """Return the neighbours of a broker or unit, with the factors of the best connections."""
        return {
            (b if a == unit else a): min(behind.values())
            for (a, b), behind in self.edges.items()
            if unit in (a, b)
        }

    def units(self) -> Sequence[Unit]:
        """Return this broker, and all units in its graph, in ascending order."""
        ends = {end: None for edge in self.edges for end in edge}
        return sorted({**ends, self._place.address: None})

    def gatekeepers(self, level: int) -> Sequence[Unit]:
        """Return brokers, or units with brokers, that have a link of a level out of the own unit.

        Paper: [GES] §3 (link sets).
        """
        own = self._place.own_unit(level)
        found: dict[Unit, None] = {}
        for edge in self.edges:
            inside = [end for end in edge if is_inside(end, own)]
            if len(inside) == 1 and self._place.link_level(*edge) == level:
                found[inside[0]] = None
        return sorted(found)

    def siblings(self, level: int) -> Sequence[Unit]:
        """Return the other units of a level in the own unit of the next."""
        return [
            unit
            for unit in self.units()
            if self._place.level(unit) == level and unit != self._place.address
        ]

    def _take(self, statement: Statement) -> None:
        link = statement.low, statement.high
        statements = self._latest.setdefault(link, {})
        statements[statement.by] = statement
        low, high = statement.low_end, statement.high_end
        edge = (low, high) if low < high else (high, low)
        both = len(statements) == 2 and all(each.factor for each in statements.values())
        factor = max(each.factor for each in statements.values()) if both else None
        before = self._edge_of.get(link)
        if before is None and factor is None:
            return
        if before == edge and factor == self.edges[edge][link]:
            return
        self.changes += 1
        if before is not None:
            del self._edge_of[link], self.edges[before][link]
            if not self.edges[before]:
                del self.edges[before]
        if factor is not None:
            self._edge_of[link] = edge
            self.edges.setdefault(edge, {})[link] = factor


def _speaker(statement: Statement) -> Unit:
    """Return the end that made the statement."""
    return statement.low_end if statement.by == statement.low else statement.high_end


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

    def paths_out_of(self, unit: Unit, to: Unit) -> tuple[int, Path] | None:
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
