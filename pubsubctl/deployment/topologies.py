"""Topology files at the command line: generated, read, and drawn as text."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.overlay.generate import (
    bipartite,
    cells,
    chain,
    generate_balanced_tree,
    hierarchy,
    random_hierarchy,
    random_tree,
    star,
)
from brokerd.overlay.topology import ALL_PROTOCOLS, TREE, Topology
from brokerd.protocols.registry import check_runs_on, parameters_on, read_topology
from brokerd.text import NAME, counted, nearest, toml_text
from pubsubctl.console.console import Console
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import load_toml, shown
from pubsubctl.project import Project

CELLS = "cells"

SHAPES = (
    "chain",
    "tree",
    "star",
    "random",
    "demo",
    "cells",
    "hierarchy",
    "random-hierarchy",
    "bipartite",
)


_USERS: Final[Mapping[str, Sequence[str]]] = {
    "fanout": ("tree", "cells", "hierarchy"),
    "delta": ("chain", "tree", "star", "random", "demo"),
    "seed": ("random", "random-hierarchy"),
    "cell_size": ("cells",),
    "proxies": ("bipartite",),
    "levels": ("random-hierarchy",),
}
"""The shapes that use a measure; all use `brokers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The dimensions of a generated topology; each shape uses some of them.

    Attributes:
        brokers: the number of brokers; None for the shape's default.
        fanout: neighbours in a tree, brokers below a cell, members of a unit.
        delta: of a tree.
        seed: the seed of `random` and `random-hierarchy`.
        cell_size: brokers of an inner cell.
        proxies: of a bipartite overlay.
        levels: of a random hierarchy.
    """

    brokers: int | None = None
    fanout: int = 3
    delta: int = 1
    seed: int = 1
    cell_size: int = 2
    proxies: int = 2
    levels: int = 3

    def check_used_by(self, shape: str) -> None:
        """Check that a shape uses each measure that is not the default.

        Raises:
            UserError: names each other measure, with the shapes that use it.
        """
        unused = [
            f"topology gen {shape}: --{measure.name.replace('_', '-')}: only {', '.join(users)} "
            f"{'uses' if len(users) == 1 else 'use'} it"
            for measure in fields(self)
            if (users := _USERS.get(measure.name))
            and shape not in users
            and getattr(self, measure.name) != measure.default
        ]
        if unused:
            raise UserError(*unused)


def load_topology(path: Path, protocol: str | None = None) -> Topology:
    """Return the topology in a file.

    Args:
        protocol: the protocol that must run on the topology.

    Raises:
        UserError: names file, key, value and the nearest valid value; or the protocol does not run
            on this overlay kind, with the protocols that do.
    """
    file = load_toml(path)
    try:
        topology = read_topology(file.values, str(path))
        topology.check_delta(str(path))
        if protocol is not None:
            check_runs_on(topology, protocol, str(path))
        return topology
    except ConfigError as error:
        raise UserError(str(error)) from None


def generate(
    shape: str, project: Project, measures: Measures, kinds: str | None = None
) -> Topology:
    """Return a generated topology; equal arguments result in equal topologies.

    Args:
        kinds: the kinds that a tree is to carry, with commas; None for the kinds of the shape.

    Raises:
        UserError: no such shape, or a number out of range.
    """
    count = 7 if measures.brokers is None else measures.brokers
    fanout, delta = measures.fanout, measures.delta
    draw = random.Random(measures.seed).randrange
    makers: dict[str, Callable[[], Topology]] = {
        "chain": lambda: chain(count, delta),
        "star": lambda: star(count, delta),
        "tree": lambda: generate_balanced_tree(count, fanout, delta),
        "random": lambda: random_tree(count, delta, draw),
        "demo": lambda: _demo(project, measures.brokers, delta),
        "cells": lambda: cells(count, measures.cell_size, fanout),
        "hierarchy": lambda: hierarchy(count, fanout),
        "random-hierarchy": lambda: random_hierarchy(count, measures.levels, draw),
        "bipartite": lambda: bipartite(count, measures.proxies),
    }
    if shape not in makers:
        raise UserError(f"topology gen: no kind called {shown(shape)}{nearest(shape, SHAPES)}")
    measures.check_used_by(shape)
    try:
        topology = makers[shape]()
        topology.check_delta(counted(len(topology.brokers), "broker"))
        return topology if kinds is None else of_kinds(topology, kinds.split(","))
    except ConfigError as error:
        raise UserError(f"topology gen {shape}: {error}") from None


def named_after(topology: Topology, path: Path) -> Topology:
    """Return the topology with the name of its file, if that can be a topology's name."""
    return replace(topology, name=path.stem) if NAME.fullmatch(path.stem) else topology


def of_kinds(topology: Topology, kinds: Sequence[str]) -> Topology:
    """Return a tree that also, or only, carries cells: one cell per broker, linked as in the tree.

    Raises:
        UserError: an unknown or repeated kind, or the topology is no tree.
    """
    where = f"topology gen: --kinds = {','.join(kinds)!r}"
    for kind in kinds:
        if kind not in (TREE, CELLS):
            raise UserError(f"{where}: no {shown(kind)} over a tree{nearest(kind, (TREE, CELLS))}")
        if kinds.count(kind) > 1:
            raise UserError(f"{where}: {kind} stands there twice")
    kinds = sorted(kinds, key=(TREE, CELLS).index)  # a tree comes first in a file
    if topology.kinds == (*kinds,):
        return topology
    if TREE not in topology.kinds:
        raise UserError(
            f"{where}: a topology of kind {topology.kind} has no tree; take chain, tree, star, "
            "random or demo"
        )
    values = {**topology.restrict_to_kind(TREE).to_mapping(), "kind": [*kinds]}
    if CELLS in topology.kinds:
        values[CELLS] = topology.to_mapping()[CELLS]
    elif CELLS in kinds:
        values[CELLS] = {"bundles": values["links"]}
    if TREE not in kinds:
        del values[TREE], values["links"]
    return read_topology(values, where)


def describe_briefly(topology: Topology) -> str:
    """Return `20 brokers, delta 2`, with the kinds of overlays other than a tree."""
    words = [counted(len(topology.brokers), "broker"), topology.section.description]
    if topology.kinds != (TREE,):
        words.append(f"kind {' and '.join(topology.kinds)}")
    return ", ".join(words)


def topology_file(topology: Topology) -> str:
    """Return the content of the topology's TOML file."""
    return toml_text(topology.to_mapping())


def format_changed_file(path: Path, topology: Topology) -> str:
    """Return the new content of the file, below its initial comment."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.startswith("#"):
            break
        comment.append(line)
    return "".join(comment) + topology_file(topology)


def drawn(topology: Topology, *, plain: bool) -> str:
    """Return every overlay of a topology as text: a tree as a drawing, the others as lists.

    Args:
        plain: use only ASCII characters.
    """
    parts = []
    for kind in topology.kinds:
        if kind == TREE:
            parts.append(_draw_tree(topology, plain=plain))
        else:
            parts.append(f"{kind}:\n{_list_brokers(topology, kind)}")
    return "\n\n".join(parts)


def _list_brokers(topology: Topology, kind: str) -> str:
    """Return a line per broker: role and neighbours."""
    overlay = topology.overlay(kind)
    near: list[list[str]] = [[] for _ in topology.brokers]
    for a, b in overlay.links:
        near[a].append(topology.brokers[b])
        near[b].append(topology.brokers[a])
    return "\n".join(
        f"  {name} ({overlay.role(number)}): {', '.join(near[number])}".removesuffix(": ")
        for number, name in enumerate(topology.brokers)
    )


def _draw_tree(topology: Topology, *, plain: bool) -> str:
    """Return a drawing of the tree from its first broker, one line per broker."""
    neighbours = topology.neighbours()
    corner, tee, bar = ("`-- ", "|-- ", "|   ") if plain else ("└── ", "├── ", "│   ")
    lines: list[str] = []
    # (broker, parent, prefix of the line, prefix of the children's lines)
    stack = [(topology.number_of(topology.present()[0]), -1, "", "")]
    while stack:
        broker, parent, before, below = stack.pop()
        lines.append(before + topology.brokers[broker])
        children = [near for near in neighbours[broker] if near != parent]
        for place, child in reversed(list(enumerate(children))):
            last = place == len(children) - 1
            stack.append(
                (
                    child,
                    broker,
                    below + (corner if last else tee),
                    below + ("    " if last else bar),
                )
            )
    return "\n".join(lines)


def parameters_in_words(topology: Topology, protocol: str | None = None) -> str:
    """Return a topology's settings for a protocol, or for all: `, profile paper`."""
    chosen = [name for name, _ in topology.settings if protocol in (None, name)]
    rows = [row for name in (ALL_PROTOCOLS, *chosen) for row in topology.settings_of(name).items()]
    return "".join(f", {key} {value}" for key, value in dict(rows).items())


def sessions_of(topology: Topology) -> str:
    """Return a topology's session settings: `, heartbeat 2s, suspicion 8s`."""
    return "".join(f", {key} {value}" for key, value in topology.session_in_words().items())


def warn_of_parameters(console: Console, topology: Topology, protocol: str) -> None:
    """Warn about promises that a protocol does not keep with a topology's parameters."""
    for warning in parameters_on(topology, protocol).warnings():
        console.warn_once(warning)


def summary(topology: Topology) -> dict[str, Any]:
    """Return facts about a topology for use before a deployment; its first kind, then others."""
    facts: dict[str, Any] = {
        "name": topology.name,
        "kinds": list(topology.kinds),
        "brokers": len(topology.present()),
        "links": len(topology.overlay().links),
        "parameters": topology.to_mapping().get("parameters", {}),
        "session": topology.session_in_words(),
    }
    present = [topology.number_of(name) for name in topology.present()]
    overlay = topology.overlay()
    known = [len(overlay.surroundings(number)) for number in present]
    return {
        **facts,
        **overlay.facts(),
        "neighbourhood_smallest": min(known),
        "neighbourhood_largest": max(known),
        "further": {part.kind: topology.overlay(part.kind).facts() for part in topology.further},
    }


def summary_in_words(topology: Topology, facts: dict[str, Any]) -> str:
    parts = [f"{counted(facts['brokers'], 'broker')}, {counted(facts['links'], 'link')}"]
    parts.append(f", {topology.section.description}")
    parts += [parameters_in_words(topology), sessions_of(topology)]
    if "longest_path_links" in facts:
        parts.append(f", longest path {counted(facts['longest_path_links'], 'link')}")
    smallest, largest = facts["neighbourhood_smallest"], facts["neighbourhood_largest"]
    least = f"{smallest:,} to " if smallest < largest else ""
    parts.append(f"\na broker keeps state of {least}{counted(largest, 'other')}")
    if "known_within_links" in facts:
        parts.append(f" (within {counted(facts['known_within_links'], 'link')})")
    for found in (facts, *facts["further"].values()):
        if "gatekeepers" in found:
            parts.append(f"\n{_hierarchy_in_words(found)}")
    return "".join(parts)


def _hierarchy_in_words(facts: dict[str, Any]) -> str:
    by_level = [str(facts[f"links_of_level_{level}"]) for level in range(facts["levels"])]
    return (
        f"{counted(facts['levels'], 'level')} with {', '.join(by_level)} links, "
        f"{counted(facts['gatekeepers'], 'gatekeeper')}; links whose loss alone splits a unit: "
        f"{facts['critical_links']}\n"
        f"mean degree {facts['mean_degree']}, clustering {facts['clustering']}, "
        f"mean path {facts['mean_path_links']} links, longest {facts['longest_path_links']}"
    )


def _demo(project: Project, brokers: int | None, delta: int) -> Topology:
    if brokers is not None:
        raise ConfigError(f"brokers = {brokers}; the demo's brokers are given")
    values = load_topology(project.find("topology", "demo")).to_mapping()
    return Topology.from_mapping({**values, "tree": {"delta": delta}}, "demo")
