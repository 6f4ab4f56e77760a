"""Hypothesis strategies for the vocabulary: attributes, predicates, publication runs, overlays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.predicate import Constraint, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.overlay.tree_section import TreeSection
from tests.helpers.stream_runs import origin_runs

T = TypeVar("T")

# Few names and values on purpose: the interesting cases are the ones that meet.
names = st.sampled_from(["price", "symbol", "volume", "flag"])
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([-1.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0]),
    st.sampled_from([1 << 53, (1 << 53) + 1, 2.0**53]),
)
texts = st.sampled_from(["", "a", "ab", "abc", "b", "ä", "1", "0", "True"])
scalars = st.one_of(numbers, texts, st.booleans())
attributes = st.dictionaries(names, scalars, max_size=4)


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    """Draw a constraint with a fitting value, over a few names and values."""
    negation = draw(st.sampled_from(["", "not "]))
    family = draw(st.sampled_from(["compare", "in", "text", "exists"]))
    if family == "compare":
        operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
        return Constraint(draw(names), operator, draw(scalars))
    if family == "in":
        items = tuple(draw(st.lists(scalars, min_size=1, max_size=3)))
        return Constraint(draw(names), f"{negation}in", items)
    if family == "text":
        operator = draw(st.sampled_from(["prefix", "suffix", "contains"]))
        return Constraint(draw(names), negation + operator, draw(texts))
    return Constraint(draw(names), f"{negation}exists", None)


conjunctions = st.lists(constraints(), max_size=3).map(tuple)
predicates = st.lists(conjunctions, max_size=3).map(lambda any_of: Predicate(tuple(any_of)))


SOURCE = SourceId(1, 0, 1)


@st.composite
def runs(draw: st.DrawFn, source: SourceId = SOURCE) -> PublicationRun:
    """Draw a run with gaps, shared or single attributes, and payloads of any sizes and pieces."""
    steps = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    sequences, at = [], 0
    for step in steps:
        at += step
        sequences.append(at)
    count = len(sequences)
    table = tuple(
        draw(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=4, unique=True))
    )
    index = bytes(draw(st.lists(st.integers(0, len(table) - 1), min_size=count, max_size=count)))
    if draw(st.booleans()):
        length = draw(st.integers(0, 5))
        lengths: int | tuple[int, ...] = length
        each = [length] * count
    else:
        each = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        lengths = tuple(each)
    payloads = [
        bytes([sequence % 256]) * size for sequence, size in zip(sequences, each, strict=True)
    ]
    cut = draw(st.integers(0, count))
    pieces = tuple(piece for piece in (b"".join(payloads[:cut]), b"".join(payloads[cut:])) if piece)
    contiguous = sequences[-1] - sequences[0] + 1 == count
    return PublicationRun(
        source,
        range(sequences[0], sequences[-1] + 1) if contiguous else tuple(sequences),
        table,
        index,
        lengths,
        pieces,
    )


@st.composite
def placed_runs(draw: st.DrawFn) -> PublicationRun:
    """Draw a run of a stream that interleaves two publishers' publications, with gaps."""
    run = draw(runs(SourceId(9, 7, 1)))
    reached = {SourceId(1, 0, 1): 0, SourceId(1, 1, 1): 0}
    each = []
    for _ in range(len(run)):
        source = draw(st.sampled_from(list(reached)))
        reached[source] += draw(st.integers(1, 3))
        each.append((source, reached[source]))
    return replace(run, origins=origin_runs(each))


@st.composite
def trees(draw: st.DrawFn, largest: int = 12) -> Topology:
    """Draw a random tree of named brokers, any shape, δ 0 to 3."""
    count = draw(st.integers(1, largest))
    links = [(draw(st.integers(0, broker - 1)), broker) for broker in range(1, count)]
    return Topology(
        "tree",
        TreeSection(draw(st.integers(0, 3))),
        tuple(f"b{i}" for i in range(count)),
        tuple(links),
    )


@st.composite
def cell_topologies(draw: st.DrawFn, largest: int = 4) -> Topology:
    """Draw a tree of cells, inner cells of up to three brokers, with full or partial bundles."""
    count = draw(st.integers(1, largest))
    parents = [draw(st.integers(0, cell - 1)) for cell in range(1, count)]
    edges = [(parent, cell) for cell, parent in enumerate(parents, 1)]
    degrees = [sum(cell in edge for edge in edges) for cell in range(count)]
    sizes = [draw(st.integers(1, 3)) if degree > 1 else 1 for degree in degrees]
    names = [f"b{number}" for number in range(sum(sizes))]
    rest = iter(draw(st.permutations(names)))
    members = {f"c{cell}": [next(rest) for _ in range(size)] for cell, size in enumerate(sizes)}
    section: dict[str, object] = {
        "bundles": [[f"c{a}", f"c{b}"] for a, b in edges],
        "members": members,
    }
    if draw(st.booleans()):
        bundles = [list(product(members[f"c{a}"], members[f"c{b}"])) for a, b in edges]
        section["links"] = [
            list(link) for bundle in bundles for link in draw(_some_of(bundle, least=1))
        ]
    return _topology("cells", names, section)


@st.composite
def hierarchies(draw: st.DrawFn, largest: int = 8) -> Topology:
    """Draw addresses of two or three parts, and links that connect each unit inside."""
    parts = draw(st.integers(2, 3))
    address = st.tuples(*[st.integers(0, 1)] * (parts - 1), st.integers(0, 3))
    addresses = draw(st.lists(address, min_size=1, max_size=largest, unique=True))
    names = [f"b{number}" for number in range(len(addresses))]
    links: dict[tuple[str, str], None] = {}
    roots: dict[str, int] = {}
    for length in reversed(range(parts)):
        units: dict[tuple[int, ...], dict[tuple[int, ...], list[str]]] = {}
        for name, found in zip(names, addresses, strict=True):
            inner = units.setdefault(found[:length], {}).setdefault(found[: length + 1], [])
            inner.append(name)
        for unit in units.values():
            inside = list(unit.values())
            if length == 0:
                roots |= {members[0]: parts - 1 for members in inside}
            joined = [(draw(st.integers(0, n - 1)), n) for n in range(1, len(inside))]
            more = [(a, b) for b in range(len(inside)) for a in range(b)]
            for a, b in (*joined, *draw(_some_of(more))):
                link = (draw(st.sampled_from(inside[a])), draw(st.sampled_from(inside[b])))
                if link[::-1] not in links:
                    links[link] = None
    section: dict[str, object] = {
        "links": [list(link) for link in links],
        "addresses": {
            name: ".".join(map(str, found)) for name, found in zip(names, addresses, strict=True)
        },
    }
    if draw(st.booleans()):
        section["storages"] = roots
    return _topology("hierarchy", names, section)


@st.composite
def bipartites(draw: st.DrawFn, largest: int = 7) -> Topology:
    """Draw roles: at least a proxy and a server."""
    roles = draw(st.lists(st.sampled_from(["proxies", "servers", "edges"]), max_size=largest - 2))
    roles = draw(st.permutations([*roles, "proxies", "servers"]))
    names = [f"b{number}" for number in range(len(roles))]
    sides: dict[str, list[str]] = {}
    for name, role in zip(names, roles, strict=True):
        sides.setdefault(role, []).append(name)
    return _topology("bipartite", names, sides)


def _some_of(items: Sequence[T], least: int = 0) -> st.SearchStrategy[list[T]]:
    if not items:
        return st.just([])
    return st.lists(st.sampled_from(items), min_size=least, unique=True)


def _topology(kind: str, names: list[str], section: Mapping[str, object]) -> Topology:
    values = {"schema": SCHEMA, "name": kind, "kind": kind, "brokers": names, kind: section}
    return Topology.from_mapping(values, kind)
