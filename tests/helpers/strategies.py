"""Hypothesis strategies for the vocabulary: attributes, predicates, publication runs, trees."""

from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.predicate import Constraint, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.topology import Topology

# Few names and values on purpose: the interesting cases are the ones that meet.
names = st.sampled_from(["price", "symbol", "volume", "flag"])
numbers = st.one_of(st.integers(-3, 3), st.sampled_from([-1.5, 0.0, 0.5, 2.0, 3.0]))
texts = st.sampled_from(["", "a", "ab", "abc", "b", "ä"])
scalars = st.one_of(numbers, texts, st.booleans())
attributes = st.dictionaries(names, scalars, max_size=4)


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    """One test that fits its operator, over the few names and values above."""
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
    """A run with holes, shared and single attributes, payloads of one or many sizes and pieces."""
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
def trees(draw: st.DrawFn, largest: int = 12) -> Topology:
    """A random tree of named brokers, any shape, δ 0 to 3."""
    count = draw(st.integers(1, largest))
    links = [(draw(st.integers(0, broker - 1)), broker) for broker in range(1, count)]
    return Topology(
        "tree", "tree", draw(st.integers(0, 3)), tuple(f"b{i}" for i in range(count)), tuple(links)
    )
