"""Tests of records: rows built for a whole run equal those that `struct` packs singly; writers."""

import ast
import json
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.load_files import LoadFiles
from bench.load.records import delivery_rows, notice_rows, position_rows, publication_rows
from brokerd.history.records import ACKS, DELIVERIES, INTENTS, POSITIONS, PUBLICATIONS
from results.witnesses import shapes

_LAYOUTS = (ACKS, DELIVERIES, INTENTS, POSITIONS, PUBLICATIONS)

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


def _setting(folder: Path, *, publishers: bool, subscribers: bool) -> Any:
    return SimpleNamespace(
        log_folder=folder / "logs", process="load", run_id="r1", specification_digest="d", seed=3,
        protocol="gryphon", topology_digest="t", deployment_id="d1", records="full",
        judged={"order": "publisher"}, publishers=("p",) * publishers,
        subscribers=("s",) * subscribers,
    )  # fmt: skip


@pytest.mark.parametrize("ends", ["close", "abandon"])
@pytest.mark.parametrize("publishers", [True, False])
def test_files_of_a_load_have_all_rows_before_their_end_and_none_later(
    tmp_path: Path, ends: str, publishers: bool
) -> None:
    """No descriptor stays open, and a second end changes nothing."""
    before = len(os.listdir("/proc/self/fd"))
    files = LoadFiles(_setting(tmp_path, publishers=publishers, subscribers=not publishers))
    folder = tmp_path / "logs"
    setting = json.loads((folder / "setting.json").read_text())
    assert (setting["process"], setting["seed"], setting["order"]) == ("load", 3, "publisher")
    layouts = ["acks", "intents", "publications"] if publishers else ["deliveries", "positions"]
    row = bytes(range(32))
    for name in layouts:
        files.append(name, row)
    assert sorted(path.stem for path in folder.glob("*.rec")) == layouts
    files.flush(layouts[0])
    sizes = [(folder / f"{name}.rec").stat().st_size for name in layouts]
    assert sizes == [32, *[0] * (len(layouts) - 1)]
    files.flush()
    files.sync(layouts[-1])
    assert {(folder / f"{name}.rec").stat().st_size for name in layouts} == {32}
    opened = len(os.listdir("/proc/self/fd"))
    for place in range(3):
        files.write_line("stats", {"n": place})
        files.write_line("crashes", {"n": place})
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    tables: dict[str, Any] = {name: [] for layout in _LAYOUTS for name in layout.tables}
    for name in layouts:
        files.append(name, row)
    for place in range(2):
        online = {"place": place} if publishers else None
        files.close(tables, tables, online) if ends == "close" else files.abandon()
        assert files.is_closed
        assert len(os.listdir("/proc/self/fd")) == before
        files.append(layouts[0], row)
        files.write_line("stats", {"n": "late"})
        files.write_line("later", {})
        files.flush()
    for name in layouts:
        assert (folder / f"{name}.rec").read_bytes() == 2 * row
        assert json.loads((folder / f"{name}.rec.json").read_text())["closed"] == (ends == "close")
    for name in ("stats", "crashes"):
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["n"] for line in lines] == [0, 1, 2]
    assert not (folder / "later.jsonl").exists()
    found = files.digests()
    assert set(found) == {p.name for p in folder.iterdir() if p.suffix in (".json", ".jsonl")}
    has_online = publishers and ends == "close"
    assert ("online.json" in found) == has_online
    assert not has_online or json.loads((folder / "online.json").read_text()) == {"place": 0}


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
