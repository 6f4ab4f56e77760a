"""Generated topologies: chains, stars, balanced and random trees, and other kinds.

Brokers have the names b1, b2, … in breadth-first order, so that the same arguments give the same
file on every machine.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

from brokerd.errors import ConfigError
from brokerd.overlay.hierarchy import BLOCK_LIMIT, MAXIMUM_PARTS
from brokerd.overlay.topology import SCHEMA, Topology

MAXIMUM_BROKERS = 10_000

Draw = Callable[[int], int]
"""draw(n) returns a whole number from 0 to n - 1; the caller owns the seed."""


def chain(brokers: int, delta: int) -> Topology:
    """Return a line b1-b2-…, which has the longest paths possible."""
    return _tree("chain", brokers, delta, lambda broker: broker - 1)


def star(brokers: int, delta: int) -> Topology:
    """Return a star with b1 in the middle, linked to all others."""
    return _tree("star", brokers, delta, lambda broker: 0)


def generate_balanced_tree(brokers: int, fanout: int, delta: int) -> Topology:
    """Return a balanced tree in which no broker has more than `fanout` neighbours.

    The root has `fanout` children, every other inner broker `fanout - 1`: the only shape that
    agrees with the neighbourhood sizes that the paper reports.

    Raises:
        ConfigError: fanout < 2.

    Paper: [DFT11] §IX-C.
    """
    if fanout < 2:
        raise ConfigError(f"fanout = {fanout}; a tree of more than two brokers needs 2 or more")

    def parent(broker: int) -> int:
        return 0 if broker <= fanout else (broker - fanout - 1) // (fanout - 1) + 1

    return _tree("tree", brokers, delta, parent)


def random_tree(brokers: int, delta: int, draw: Draw) -> Topology:
    """Return a tree in which each broker's parent is drawn from the brokers before it."""
    return _tree("random", brokers, delta, draw)


def cells(brokers: int, size: int, fanout: int) -> Topology:
    """Return a balanced tree of cells of `size` brokers, with single brokers as root and leaves.

    b1 is for publishers. A cell of several brokers has `fanout` single brokers below it, the last
    cell has the remaining brokers. 10 brokers, size 2 and fan-out 3 are the paper's figure.

    Raises:
        ConfigError: size or fanout < 1.

    Paper: [GD02] §4.2, Fig. 3.
    """
    for noun, number in (("cell size", size), ("fanout", fanout)):
        if number < 1:
            raise ConfigError(f"{noun} = {number}; at least 1")
    names = _names(brokers)
    bundles: list[list[str]] = []
    members: dict[str, list[str]] = {}
    rest = names[1:]
    while len(rest) > size:
        inner, outer = rest[:size], rest[size : size + fanout]
        rest = rest[size + fanout :]
        above = len(members) // fanout - 1
        cell = f"c{len(members) + 1}"
        bundles.append([f"c{above + 1}" if above >= 0 else names[0], cell])
        bundles += [[cell, name] for name in outer]
        members[cell] = inner
    last = [*members][-1] if members else names[0]
    bundles += [[last, name] for name in rest]
    return _make("cells", "cells", names, {"cells": {"bundles": bundles, "members": members}})


def hierarchy(brokers: int, fanout: int) -> Topology:
    """Return units of up to `fanout` units each, in as few levels as possible, two at least.

    In a cluster all brokers are linked with each other; other units are a ring, with two links
    between neighbours that have two brokers. The first broker of each unit below the system is its
    storage.

    Raises:
        ConfigError: fanout is not from 2 to 64, or more brokers than fit.
    """
    if not 2 <= fanout <= BLOCK_LIMIT:
        raise ConfigError(f"fanout = {fanout}; a unit has from 2 to {BLOCK_LIMIT} members")
    names = _names(brokers)
    parts = 2
    while fanout**parts < brokers:
        parts += 1
    if parts > MAXIMUM_PARTS:
        raise ConfigError(
            f"brokers = {brokers}; with fanout = {fanout} at most {fanout**MAXIMUM_PARTS}"
        )
    addresses = {
        name: ".".join(str(number // fanout**level % fanout) for level in reversed(range(parts)))
        for number, name in enumerate(names)
    }
    links: dict[tuple[str, str], None] = {}
    for level in range(parts):
        size = fanout**level
        for start in range(0, brokers, size * fanout):
            unit = names[start : start + size * fanout]
            units = [unit[at : at + size] for at in range(0, len(unit), size)]
            links.update(dict.fromkeys(_gateways(units) if level else combinations(unit, 2)))
    storages = {names[number]: parts - 1 for number in range(0, brokers, fanout ** (parts - 1))}
    section = {"links": list(map(list, links)), "addresses": addresses, "storages": storages}
    return _make("hierarchy", "hierarchy", names, {"hierarchy": section})


def random_hierarchy(brokers: int, levels: int, draw: Draw) -> Topology:
    """Return units of random sizes, each connected inside by a random tree and further links.

    There are no storages.

    Args:
        levels: number of parts of an address.

    Raises:
        ConfigError: levels is not from 1 to 5, or more brokers than fit.
    """
    if not 1 <= levels <= MAXIMUM_PARTS:
        raise ConfigError(f"levels = {levels}; an address has from 1 to {MAXIMUM_PARTS} parts")
    names = _names(brokers)
    if brokers > BLOCK_LIMIT**levels:
        raise ConfigError(f"brokers = {brokers}; in {levels} levels at most {BLOCK_LIMIT**levels}")
    addresses: dict[str, str] = {}
    links: dict[tuple[str, str], None] = {}

    def fill(unit: tuple[int, ...], members: list[str]) -> None:
        depth = levels - len(unit)
        if depth == 0:
            addresses[members[0]] = ".".join(map(str, unit))
            return
        parts = _divide(members, BLOCK_LIMIT ** (depth - 1), draw)
        trunk = [(draw(place), place) for place in range(1, len(parts))]
        pairs = [*combinations(range(len(parts)), 2)]
        more = [pairs[draw(len(pairs))] for _ in range(draw(len(parts) + 1) if pairs else 0)]
        for a, b in (*trunk, *more):
            links[parts[a][draw(len(parts[a]))], parts[b][draw(len(parts[b]))]] = None
        for place, inner in enumerate(parts):
            fill((*unit, place), inner)

    fill((), names)
    section = {"links": list(map(list, links)), "addresses": addresses}
    return _make("random-hierarchy", "hierarchy", names, {"hierarchy": section})


def _divide(members: list[str], room: int, draw: Draw) -> list[list[str]]:
    """Return the members of a unit divided into sub-units with room for `room` brokers each."""
    least = -(-len(members) // room)
    most = len(members) if room == 1 else min(len(members), max(least, 2 * least, 4), BLOCK_LIMIT)
    sizes = [1] * (least + draw(most - least + 1))
    for _ in range(len(members) - len(sizes)):
        place = draw(len(sizes))
        while sizes[place] == room:
            place = (place + 1) % len(sizes)
        sizes[place] += 1
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [members[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def bipartite(brokers: int, proxies: int) -> Topology:
    """Return a bipartite overlay: the first brokers are proxies, all others servers.

    Raises:
        ConfigError: no proxies, or no broker is left for a server.
    """
    names = _names(brokers)
    if brokers < 2:
        raise ConfigError(f"brokers = {brokers}; proxies and servers are two at least")
    if not 1 <= proxies < brokers:
        raise ConfigError(f"proxies = {proxies}; from 1 to {brokers - 1}, the rest are servers")
    section = {"proxies": names[:proxies], "servers": names[proxies:]}
    return _make("bipartite", "bipartite", names, {"bipartite": section})


def _gateways(units: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return links between neighbours in a ring of units.

    Between first brokers and between last ones.
    """
    neighbours = list(pairwise(units))
    if len(units) > 2:
        neighbours.append((units[0], units[-1]))
    return [(here[end], there[end]) for here, there in neighbours for end in (0, -1)]


def _names(brokers: int) -> list[str]:
    if not 1 <= brokers <= MAXIMUM_BROKERS:
        raise ConfigError(f"brokers = {brokers}; from 1 to {MAXIMUM_BROKERS}")
    return [f"b{number + 1}" for number in range(brokers)]


def _tree(name: str, brokers: int, delta: int, parent: Callable[[int], int]) -> Topology:
    names = _names(brokers)
    links = [[names[parent(broker)], names[broker]] for broker in range(1, brokers)]
    return _make(name, "tree", names, {"tree": {"delta": delta}, "links": links})


def _make(name: str, kind: str, brokers: list[str], values: dict[str, Any]) -> Topology:
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": f"{name}-{len(brokers)}",
            "kind": kind,
            "brokers": brokers,
            **values,
        },
        f"topology {name}",
    )
