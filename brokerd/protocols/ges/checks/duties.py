"""The profiles and the graph that each broker of a hierarchy should have.

Both are computed from the whole system: from all brokers and links at once, without messages.
`find_duties` is a twin of `keepers.py`, and `outline` of `connectivity_graph.py`.
"""

from collections.abc import Collection, Iterable, Mapping

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.connectivity_graph import Edge
from brokerd.protocols.ges.units import Unit, is_inside

Addresses = Mapping[BrokerNumber, Address]


def find_duties(addresses: Addresses, links: Collection[Link]) -> dict[BrokerNumber, int]:
    """Return, by broker, the level of the unit that the broker keeps profiles of.

    Paper: [GES] §3 (which gatekeepers maintain which profiles).
    """
    duties = dict.fromkeys(addresses, 0)
    depth = len(next(iter(addresses.values())))
    for level in range(1, max(2, depth)):
        for unit in sorted({address[: depth - level] for address in addresses.values()}):
            inside = [each for each in addresses if is_inside(addresses[each], unit)]
            leaving = {
                end
                for link in links
                for end, other in (link, link[::-1])
                if end in inside and other not in inside
            }
            for broker in _connect(addresses, links, unit, leaving):
                duties[broker] = level + 1
            if level == 1:
                for broker in _relays(addresses, links, inside, leaving):
                    duties[broker] = max(1, duties[broker])
    return duties


def _connect(
    addresses: Addresses, links: Iterable[Link], unit: Unit, ends: Iterable[BrokerNumber]
) -> set[BrokerNumber]:
    """Return the ends, and the brokers of the tree that connects them inside a unit."""
    found = set(ends)
    length = len(unit) + 1
    if not found or length > len(addresses[min(found)]):
        return found
    lowest: dict[frozenset[Unit], Link] = {}
    for link in sorted(links):
        sides = [addresses[end][:length] for end in link]
        if sides[0] != sides[1] and all(is_inside(side, unit) for side in sides):
            lowest.setdefault(frozenset(sides), link)
    terminals = sorted({addresses[end][:length] for end in found})
    parents = _trees(terminals, lowest)
    inner = set(found)
    for terminal in terminals:
        while parents[terminal] != terminal:
            inner |= {*lowest[frozenset((terminal, parents[terminal]))]}
            terminal = parents[terminal]
    for child in sorted({addresses[end][:length] for end in inner}):
        inside = [end for end in inner if is_inside(addresses[end], child)]
        found |= _connect(addresses, links, child, inside)
    return found


def _relays(
    addresses: Addresses,
    links: Iterable[Link],
    inside: Collection[BrokerNumber],
    leaving: Collection[BrokerNumber],
) -> set[BrokerNumber]:
    """Return the brokers of a cluster that link others to the nearest gatekeeper."""
    number = {addresses[each]: each for each in inside}
    pairs = [
        frozenset(addresses[end] for end in link)
        for link in links
        if link[0] in inside and link[1] in inside
    ]
    roots = [*sorted(addresses[each] for each in leaving), *sorted(number)]
    parents = _trees(roots, pairs)
    return {number[parent] for child, parent in parents.items() if child != parent}


def _trees(roots: Iterable[Unit], pairs: Iterable[frozenset[Unit]]) -> dict[Unit, Unit]:
    """Return the parent of each unit; a root is its own parent."""
    edges = [*pairs]
    parents: dict[Unit, Unit] = {}
    for root in roots:
        if root in parents:
            continue
        parents[root] = root
        row = [root]
        while row:
            following = []
            for here in row:
                for other in sorted(min(edge - {here}) for edge in edges if here in edge):
                    if other not in parents:
                        parents[other] = here
                        following.append(other)
            row = following
    return parents


def outline(
    addresses: Mapping[BrokerNumber, Address], up: dict[Link, int], broker: BrokerNumber
) -> dict[Edge, dict[Link, int]]:
    """Return the graph that a broker should have, computed from the system, not by flooding.

    Paper: [GES] §3 (abbreviated system views).
    """
    own = addresses[broker]
    found: dict[Edge, dict[Link, int]] = {}
    for (a, b), factor in up.items():
        apart = _first_difference(addresses[a], addresses[b])
        if own[:apart] == addresses[a][:apart]:
            ends = [
                address if address == own else address[: _first_difference(own, address) + 1]
                for address in (addresses[a], addresses[b])
            ]
            found.setdefault((min(ends), max(ends)), {})[a, b] = factor
    return found


def _first_difference(a: Unit, b: Unit) -> int:
    return next(place for place in range(len(a)) if a[place] != b[place])
