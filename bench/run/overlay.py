"""The overlay document of a run without a tree, for a judgement without the project's code."""

from collections.abc import Iterable
from typing import Any, Final

from brokerd.overlay.routes import passed_by
from brokerd.overlay.topology import TREE, Topology
from brokerd.protocols.registry import protocol_on

OVERLAY_FILE: Final = "overlay.json"
"""File in the run's `spec` folder. Without it, the links of the topology file form a tree."""


def overlay_document(
    topology: Topology, protocol: str, origins: Iterable[str]
) -> dict[str, Any] | None:
    """Return the content of the overlay file; None for a tree, whose links determine all paths.

    Args:
        origins: the brokers of publishers.
    """
    known = protocol_on(topology, protocol)
    if known.topology.kind == TREE:
        return None
    overlay, names = known.topology.overlay(), topology.brokers
    number_of = topology.number_of
    homes = range(len(names))
    return {
        "schema": "pubsubctl/overlay/1",
        "kind": known.topology.kind,
        "links": [[names[a], names[b]] for a, b in overlay.links],
        "known": {name: list(known.around(name)) for name in names},
        "routes": [
            {"from": origin, "to": names[home], "over": _over(passed_by(route), names)}
            for origin in dict.fromkeys(origins)
            for home in homes
            for route in (overlay.route(number_of(origin), home),)
        ],
    }


def _over(
    passed: tuple[tuple[int, ...], tuple[tuple[int, int], ...]], names: tuple[str, ...]
) -> list[str]:
    brokers, links = passed
    return [*(names[number] for number in brokers), *(f"{names[a]}->{names[b]}" for a, b in links)]
