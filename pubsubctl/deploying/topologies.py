"""Topology files at the command line: made, read, and drawn as a tree of text."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.spec.toml_text import toml_text
from brokerd.errors import ConfigError
from brokerd.overlay.generate import balanced_tree, chain, random_tree, star
from brokerd.overlay.topology import ALL_PROTOCOLS, Topology, nearest
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.registry import parameters_on, read_topology
from pubsubctl.console.console import Console
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import load_toml, shown
from pubsubctl.project import Project

KINDS = ("chain", "tree", "star", "random", "demo")


def load_topology(path: Path) -> Topology:
    """The topology in a file.

    Raises:
        UserError: names file, key, value and the nearest valid one.
    """
    file = load_toml(path)
    try:
        topology = read_topology(file.values, str(path))
        topology.check_delta(str(path))
        return topology
    except ConfigError as error:
        raise UserError(str(error)) from None


def generated(
    kind: str, *, project: Project, brokers: int | None, fanout: int, delta: int, seed: int
) -> Topology:
    """A topology made to measure; the same arguments give the same one.

    Raises:
        UserError: no such kind, or a number out of range.
    """
    count = 7 if brokers is None else brokers
    makers: dict[str, Callable[[], Topology]] = {
        "chain": lambda: chain(count, delta),
        "star": lambda: star(count, delta),
        "tree": lambda: balanced_tree(count, fanout, delta),
        "random": lambda: random_tree(count, delta, random.Random(seed).randrange),
        "demo": lambda: _demo(project, brokers, delta),
    }
    if kind not in makers:
        raise UserError(f"topology gen: no kind called {shown(kind)}{nearest(kind, KINDS)}")
    try:
        topology = makers[kind]()
        topology.check_delta(f"{len(topology.brokers)} brokers")
        return topology
    except ConfigError as error:
        raise UserError(f"topology gen {kind}: {error}") from None


def topology_file(topology: Topology) -> str:
    """The content of the topology's TOML file."""
    return toml_text(topology.to_mapping())


def changed_file(path: Path, topology: Topology) -> str:
    """What the file is to say now, below the comment it begins with."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.startswith("#"):
            break
        comment.append(line)
    return "".join(comment) + topology_file(topology)


def drawn(topology: Topology, *, plain: bool) -> str:
    """The tree as text, from its first broker, one line per broker.

    Args:
        plain: with characters of ASCII only.
    """
    neighbours = topology.neighbours()
    corner, tee, bar = ("`-- ", "|-- ", "|   ") if plain else ("└── ", "├── ", "│   ")
    lines: list[str] = []
    # (broker, where it was come from, what stands before it, what stands before its children)
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
    """`, profile paper`: what a topology sets of a protocol, or of all."""
    chosen = [name for name, _ in topology.settings if protocol in (None, name)]
    rows = [row for name in (ALL_PROTOCOLS, *chosen) for row in topology.settings_of(name).items()]
    return "".join(f", {key} {value}" for key, value in dict(rows).items())


def sessions_of(topology: Topology) -> str:
    """`, heartbeat 2s, suspicion 8s`: what a topology sets of sessions."""
    return "".join(f", {key} {value}" for key, value in topology.session_in_words().items())


def warn_of_parameters(console: Console, topology: Topology, protocol: str) -> None:
    """Say what a protocol does not promise with a topology's parameters."""
    for warning in parameters_on(topology, protocol).warnings():
        console.warn(warning)


def summary(topology: Topology) -> dict[str, Any]:
    """What one wants to know of a topology before deploying it."""
    tree = PrimaryTree(topology)
    present = [topology.number_of(name) for name in topology.present()]
    balls = [len(tree.surroundings(number).paths) for number in present]
    far, _ = _farthest(tree, present[0])
    _, diameter = _farthest(tree, far)
    return {
        "name": topology.name,
        "brokers": len(present),
        "links": len(present) - 1,
        "delta": topology.delta,
        "parameters": topology.to_mapping().get("parameters", {}),
        "session": topology.session_in_words(),
        "longest_path_links": diameter,
        "neighbourhood_smallest": min(balls),
        "neighbourhood_largest": max(balls),
    }


def _farthest(tree: PrimaryTree, start: int) -> tuple[int, int]:
    ball = tree.ball(start, len(tree.topology.brokers))
    if not ball:
        return start, 0
    last, path = list(ball.items())[-1]
    return last, len(path) - 1


def _demo(project: Project, brokers: int | None, delta: int) -> Topology:
    if brokers is not None:
        raise ConfigError(f"brokers = {brokers}; the demo's brokers are given")
    values = load_topology(project.find("topology", "demo")).to_mapping()
    return Topology.from_mapping({**values, "tree": {"delta": delta}}, "demo")
