"""Tests of records: rows built for a whole run equal those that `struct` packs singly; writers."""

import ast
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.records import delivery_rows, notice_rows, position_rows, publication_rows
from results.witnesses import shapes

LOAD = Path(__file__).parents[2] / "bench" / "load"

INSTANTS = st.integers(0, 2**62)
SHORTS = st.integers(0, 2**16 - 1)
WORDS = st.integers(0, 2**32 - 1)


@given(
    st.integers(1, 2**40),
    st.lists(st.tuples(INSTANTS, WORDS | st.integers(0, 255)), min_size=1)
    | st.lists(st.tuples(INSTANTS, st.integers(0, 255)), min_size=1),
    INSTANTS,
    SHORTS,
    SHORTS,
)
def test_publication_rows(
    first: int, rows: list[tuple[int, int]], sent_ns: int, publisher: int, incarnation: int
) -> None:
    sequences = range(first, first + len(rows))
    intended = array("q", [row[0] for row in rows])
    sets: bytes | list[int] = [row[1] for row in rows]
    if max(sets) < 256:
        sets = bytes(sets)
    built = publication_rows(sequences, intended, sent_ns, publisher, incarnation, sets)
    assert bytes(built) == b"".join(
        struct.pack("<qqqHHI", sequence, at, sent_ns, publisher, incarnation, chosen)
        for sequence, at, chosen in zip(sequences, intended, sets, strict=True)
    )


@given(
    st.lists(st.tuples(st.integers(1, 2**62), WORDS, st.booleans()), min_size=1),
    INSTANTS, WORDS, SHORTS, SHORTS, st.integers(0, 1), st.booleans(),
)  # fmt: skip
def test_delivery_rows(
    rows: list[tuple[int, int, bool]], received_ns: int, subscription: int, publisher: int,
    incarnation: int, layer: int, again: bool,
) -> None:  # fmt: skip
    fences = [position for position, row in enumerate(rows) if row[2]]
    built = delivery_rows(
        [row[0] for row in rows], received_ns, array("I", [row[1] for row in rows]),
        subscription, publisher, incarnation, fences, layer, again=again,
    )  # fmt: skip
    assert bytes(built) == b"".join(
        struct.pack(
            "<qqIIHHBBxx", sequence, received_ns, digest, subscription, publisher, incarnation,
            4 if again else int(fence), layer,
        )
        for sequence, digest, fence in rows
    )  # fmt: skip


@given(st.lists(st.integers(1, 2**62), min_size=1, max_size=50), INSTANTS, INSTANTS, WORDS)
def test_position_rows(positions: list[int], received_ns: int, first: int, stream: int) -> None:
    built = position_rows(positions, received_ns, first, stream)
    assert bytes(built) == b"".join(
        struct.pack("<qqqIxxxx", row, position, received_ns, stream)
        for row, position in enumerate(positions, first)
    )


@pytest.mark.parametrize("sequences", [range(5, 25), list(range(5, 65, 3))])
def test_sequence_numbers_may_be_a_range_or_have_gaps(sequences: Sequence[int]) -> None:
    digests = array("I", [7] * len(sequences))
    rows = bytes(delivery_rows(sequences, 1, digests, 0, 0, 1))
    assert [row[0] for row in struct.iter_unpack("<q24x", rows)] == list(sequences)


def test_notice_rows_are_one_per_stretch_however_long_it_is() -> None:
    rows = notice_rows([(1, 3), (5, 5), (10, 10 + (1 << 33))], 7, 2, 3, 4, 6)
    assert [*struct.iter_unpack("<qqIIHHBBH", rows)] == [
        (1, 7, 3, 2, 3, 4, 3, 1, 6),
        (5, 7, 1, 2, 3, 4, 3, 1, 6),
        (10, 7, (1 << 32) - 1, 2, 3, 4, 3, 1, 6),
        (9 + (1 << 32), 7, (1 << 32) - 1, 2, 3, 4, 3, 1, 6),
        (8 + (1 << 33), 7, 3, 2, 3, 4, 3, 1, 6),
    ]


def test_each_file_that_judges_read_has_a_writer_that_the_product_calls() -> None:
    """A rule about a file that only tests write never applies to a run."""
    nodes = [
        node for path in sorted(LOAD.glob("*.py")) for node in ast.walk(ast.parse(path.read_text()))
    ]
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {"__init__"}
    written = {
        argument.value
        for function in nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name in called
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        if ast.unparse(call.func).rpartition(".")[2].endswith(("write_line", "_write", "append"))
        or ast.unparse(call.func) == "partial"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    assert written >= {*shapes._LINES, *shapes._RECORDS} - {"stats", "sessions", "subscriptions"}
    assert {"write_session", "write_subscription"} <= called
