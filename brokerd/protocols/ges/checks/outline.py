"""The graph that a broker of a hierarchy should have, computed from the whole system."""

from collections.abc import Mapping

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.connectivity_graph import Edge
from brokerd.protocols.ges.units import Unit


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
