"""Three brokers in a row on which every protocol runs: c1, c2, c3; clients are at c1 and c3."""

import json
from collections.abc import Iterator, Mapping
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
    """Return the overlay that a protocol needs, with the parameters of the protocol."""
    return read_topology(_values(protocol, parameters), "three")


def topology_text(protocol: str, **parameters: Any) -> str:
    """Return the overlay as a topology file."""
    return "\n".join(_lines("", _values(protocol, parameters))) + "\n"


def _lines(table: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield plain values first, then tables, as TOML requires."""
    if table:
        yield f"[{table}]"
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{key} = {json.dumps(value)}"
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _lines(f"{table}.{key}" if table else key, value)


def _values(protocol: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
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
        values["parameters"] = {protocol: dict(parameters)}
    return values
