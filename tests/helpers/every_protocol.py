"""Three brokers in a row on which every protocol runs: c1, c2, c3; clients may be at c1 and c3."""

from typing import Any, Final

from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.registry import DEFINITIONS, definition_of, read_topology

PROTOCOLS: Final = tuple(DEFINITIONS)
BROKERS: Final = ("c1", "c2", "c3")
HOMES: Final = ("c1", "c3")
_LINKS: Final = [["c1", "c2"], ["c2", "c3"]]
_SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "tree": {"delta": 1},
    "cells": {"bundles": _LINKS},
    "hierarchy": {
        "addresses": {"c1": "0.1", "c2": "0.2", "c3": "0.3"},
        "links": _LINKS,
        "storages": {"c2": 1},
    },
    "bipartite": {"proxies": ["c2"], "servers": ["c3"], "edges": ["c1"]},
}


def three_brokers(protocol: str, **parameters: Any) -> Topology:
    """Return the overlay of a protocol's kind, with the parameters of that protocol."""
    kind = definition_of(protocol).kind
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "three",
        "kind": kind,
        "brokers": [*BROKERS],
        kind: _SECTIONS[kind],
    }
    if kind == "tree":
        values["links"] = _LINKS
    if parameters:
        values["parameters"] = {protocol: parameters}
    return read_topology(values, "three")
