"""Cells: virtual brokers of one or several brokers, in a tree, with a bundle between neighbours.

    [cells]
    bundles = [["p1", "ib1"], ["ib1", "s1"]]   # between cells
    links = [["p1", "b1"], ["b2", "s1"]]       # of the bundles; all possible ones, if absent

    [cells.members]
    ib1 = ["b1", "b2"]                         # any other broker is a cell of its own name

The members of a cell are all linked to each other. The leaves of the tree of cells have clients, so
a leaf has a single broker.

Paper: [GD02] §3 (cells, link bundles, sideways routing).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Bundle, Link, Route, Step
from brokerd.overlay.section_checks import (
    broker_numbers,
    check_no_cycle,
    linked,
    nearest,
    pairs,
    table,
)
from brokerd.text import counted

_KEYS = ("bundles", "links", "members")


@dataclass(frozen=True, slots=True)
class CellGraph:
    """Brokers in cells, and the tree of the cells.

    Attributes:
        brokers: names.
        cells: names; first the cells that are not named after a broker.
        members: per cell, in file order.
        bundles: pairs of cells that are neighbours, as places in `cells`.
        links: inside cells, then between cells.
        is_full: True if each bundle links all members of both cells, and the file does not list
            links.
    """

    brokers: tuple[str, ...]
    cells: tuple[str, ...]
    members: tuple[tuple[BrokerNumber, ...], ...]
    bundles: tuple[Link, ...]
    links: tuple[Link, ...]
    is_full: bool

    @property
    def kind(self) -> str:
        return "cells"

    @property
    def description(self) -> str:
        """A description for people, as `5 cells`."""
        return counted(len(self.cells), "cell")

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of the file's `[cells]`."""
        found: dict[str, Any] = {
            "bundles": [[self.cells[a], self.cells[b]] for a, b in self.bundles]
        }
        if not self.is_full:
            between = [(a, b) for a, b in self.links if self.cell_of(a) != self.cell_of(b)]
            found["links"] = [[self.brokers[a], self.brokers[b]] for a, b in between]
        found["members"] = {
            cell: [self.brokers[number] for number in members]
            for cell, members in zip(self.cells, self.members, strict=True)
            if cell not in self.brokers
        }
        return found

    def cell_of(self, broker: BrokerNumber) -> int:
        """Return the place in `cells` of a broker's cell."""
        return next(place for place, members in enumerate(self.members) if broker in members)

    def role(self, broker: BrokerNumber) -> str:
        """Return the cell of a broker, for people."""
        return f"cell {self.cells[self.cell_of(broker)]}"

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the other brokers of a broker's cell, and linked brokers of other cells."""
        return tuple(sorted(linked(self.links, broker)))

    def facts(self) -> dict[str, int]:
        """Return figures of the overlay for review before a deployment."""
        return {"cells": len(self.cells), "bundles": len(self.bundles)}

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the route over any link of each bundle, with at most one link inside a cell."""
        if origin == home:
            return Route((origin,))
        path = self.cells_between(self.cell_of(origin), self.cell_of(home))
        steps: list[Step] = [origin, *self._sideways(path[0])]
        for cell, onward in pairwise(path):
            steps += [Bundle(self._links_between(cell, onward)), *self._sideways(onward)]
        return Route((*steps, home))

    def _sideways(self, cell: int) -> list[Step]:
        inside = tuple(
            sorted((min(link), max(link)) for link in combinations(self.members[cell], 2))
        )
        return [Bundle(inside, may_stay=True)] if inside else []

    def _links_between(self, cell: int, other: int) -> tuple[Link, ...]:
        here, there = self.members[cell], self.members[other]
        return tuple(
            link
            for link in self.links
            if (link[0] in here and link[1] in there) or (link[1] in here and link[0] in there)
        )

    def cells_between(self, start: int, end: int) -> list[int]:
        """Return the cells on the path between two cells, both included."""
        towards = {end: end}
        frontier = [end]
        for cell in frontier:
            for near in linked(self.bundles, cell):
                if near not in towards:
                    towards[near] = cell
                    frontier.append(near)
        path = [start]
        while path[-1] != end:
            path.append(towards[path[-1]])
        return path


def read_cells(
    section: Any, brokers: Sequence[str], links: Sequence[Link], where: str
) -> CellGraph:
    """Return the cells in a topology file's `[cells]`.

    Args:
        links: links of the tree, which do not concern cells.

    Raises:
        ConfigError: an unknown key, broker or cell, a broker in two cells, an empty cell, a name
            that is another broker's, bundles that are no tree of the cells, a bundle without a link
            or a link without a bundle, or a leaf of several brokers; names `where`.
    """
    where = f"{where}: cells"
    values = table(section, where, _KEYS)
    cells, members = _cells(values.get("members", {}), brokers, f"{where}.members")
    bundles = pairs(values.get("bundles", ()), cells, f"{where}: bundles", "cell")
    check_no_cycle(bundles, cells, f"{where}: bundles", "the tree of cells")
    for place, cell in enumerate(cells):
        if len(members[place]) > 1 and len(linked(bundles, place)) < 2:
            names = ", ".join(brokers[number] for number in members[place])
            raise ConfigError(
                f"{where}.members: {cell} is a leaf, where clients are, and has several brokers: "
                f"{names}; one at most"
            )
    inside = [link for row in members for link in combinations(row, 2)]
    every = [link for a, b in bundles for link in product(members[a], members[b])]
    is_full = "links" not in values
    between = every
    if not is_full:
        between = list(pairs(values["links"], brokers, f"{where}: links"))
        _check_links(between, bundles, cells, members, brokers, f"{where}: links")
    ordered = tuple((min(link), max(link)) for link in (*inside, *between))
    return CellGraph(tuple(brokers), cells, members, bundles, ordered, is_full)


def _cells(
    values: Any, brokers: Sequence[str], where: str
) -> tuple[tuple[str, ...], tuple[tuple[BrokerNumber, ...], ...]]:
    found: dict[str, tuple[BrokerNumber, ...]] = {}
    cell_of: dict[BrokerNumber, str] = {}
    for cell, names in table(values, where).items():
        members = broker_numbers(names, brokers, f"{where}.{cell}")
        if not members:
            raise ConfigError(f"{where}.{cell} = []: a cell has at least one broker")
        if cell in brokers and members != (brokers.index(cell),):
            raise ConfigError(f"{where}: {cell!r} is a broker; a cell of others needs another name")
        for number in members:
            if number in cell_of:
                raise ConfigError(
                    f"{where}.{cell}: {brokers[number]!r} is in {cell_of[number]} already; "
                    "a broker is in one cell"
                )
            cell_of[number] = cell
        if cell not in brokers:
            found[cell] = members
    for number, name in enumerate(brokers):
        if cell_of.get(number, name) == name:
            found[name] = (number,)
    return tuple(found), tuple(found.values())


def _check_links(
    links: Sequence[Link],
    bundles: Sequence[Link],
    cells: Sequence[str],
    members: Sequence[Sequence[BrokerNumber]],
    brokers: Sequence[str],
    where: str,
) -> None:
    cell_of = {number: place for place, row in enumerate(members) for number in row}
    used: dict[Link, None] = {}
    for place, (a, b) in enumerate(links):
        ends = sorted((cell_of[a], cell_of[b]))
        if ends[0] == ends[1]:
            raise ConfigError(
                f"{where}[{place}]: {brokers[a]}-{brokers[b]} is inside {cells[ends[0]]}, where "
                "all are linked anyway; leave it out"
            )
        bundle = (ends[0], ends[1])
        if bundle not in bundles:
            known = [f"{cells[c]}-{cells[d]}" for c, d in bundles]
            here = f"{cells[ends[0]]}-{cells[ends[1]]}"
            raise ConfigError(
                f"{where}[{place}]: {brokers[a]}-{brokers[b]} is in no bundle: there is no {here}"
                f"{nearest(here, known)}"
            )
        used[bundle] = None
    for a, b in bundles:
        if (a, b) not in used:
            raise ConfigError(f"{where}: no link of the bundle {cells[a]}-{cells[b]}; at least one")
