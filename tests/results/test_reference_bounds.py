"""Tests of the plain judge's readers at and beside the bounds of single numbers."""

import hashlib
import json
import struct
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from results.reference import contents, predicates, specification
from results.reference.files import (
    JITTER_NS,
    LAYOUTS,
    NOTICE,
    STRETCH,
    FileRefusal,
    _check_clock,
    _read_json,
    _refuse_nonsense,
    read_lines,
    read_records,
)

PLAIN = {"publisher": 0, "sequence": 1, "incarnation": 1}
ROWS: dict[str, dict[str, int]] = {
    "publications": PLAIN,
    "acks": {**PLAIN, "first": 1, "last": 1, "outcome": 1},
    "deliveries": {**PLAIN, "subscription": 0, "kind": 0, "layer": 1, "digest": 1, "partition": 0},
    "positions": {"stream": 0, "row": 0, "position": 0},
}
TABLES = {"publishers": ["p"], "subscriptions": ["s"], "streams": ["t"], "partitions": ["x"]}
END = 1 << 47


@pytest.mark.parametrize(
    "layout, fixed, column, allowed, refused",
    [
        ("publications", {}, "publisher", (0,), (1, 2)),
        ("deliveries", {}, "subscription", (0,), (1, 2)),
        ("positions", {}, "stream", (0,), (1, 2)),
        ("publications", {}, "sequence", (0, END - 1), (-1, END)),
        ("acks", {"first": 5}, "last", (5, 5 + (1 << 24)), (4, 6 + (1 << 24))),
        ("acks", {}, "outcome", (0, 2), (3,)),
        ("deliveries", {"kind": NOTICE}, "partition", (0,), (1,)),
        ("deliveries", {"kind": NOTICE}, "digest", (1,), (0,)),
        ("deliveries", {"kind": NOTICE, "digest": 1}, "sequence", (1,), (0,)),
        ("deliveries", {"kind": STRETCH, "sequence": 9}, "digest", (1, 9), (0, 10)),
        ("deliveries", {"kind": STRETCH}, "sequence", (1, END - 1), (0, END)),
        ("deliveries", {"kind": STRETCH}, "layer", (1,), (0, 2)),
    ],
)
def test_a_number_of_a_record_is_within_its_bounds(
    layout: str,
    fixed: dict[str, int],
    column: str,
    allowed: tuple[int, ...],
    refused: tuple[int, ...],
) -> None:
    for value in allowed:
        _refuse_nonsense("h/p", layout, TABLES, [{**ROWS[layout], **fixed, column: value}])
    for value in refused:
        with pytest.raises(FileRefusal, match="makes no sense"):
            _refuse_nonsense("h/p", layout, TABLES, [{**ROWS[layout], **fixed, column: value}])


def test_stamps_step_back_by_the_jitter_and_are_after_the_start_of_the_clock() -> None:
    assert [*_check_clock("p", [1, 9, 5])] == []
    assert [*_check_clock("p", [JITTER_NS + 1, 1, 2, 3])] == []
    assert len([*_check_clock("p", [JITTER_NS + 2, 1, JITTER_NS + 2])]) == 1
    assert len([*_check_clock("p", [0, 1])]) == 1


def test_numbers_have_64_bits() -> None:
    numbers = [-(1 << 63), -(1 << 63) + 1, (1 << 63) - 1, 0, 1e308]
    assert _read_json(json.dumps(numbers)) == numbers
    for text in ("9223372036854775808", "-9223372036854775809", "1e309", "-1e309", "NaN"):
        with pytest.raises(ValueError, match="64 bits"):
            _read_json(text)


def test_each_line_of_a_log_is_an_object(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("{}\n7\n")
    with pytest.raises(FileRefusal, match="no object"):
        read_lines(path)


# --- Specifications ---------------------------------------------------------------------------

WORKLOAD: dict[str, Any] = {
    "name": "w", "protocol": "gryphon", "seed": 1, "bars": {"deliveries_per_pair_min": 1},
    "attributes": {"sets": 8, "price": {"uniform": [1, 100]}},
    "publishers": [{"at": ["a"], "count": 1, "rate": "10/s"}],
    "subscribers": [{"at": ["b"], "filter": "true"}],
}  # fmt: skip
TOPOLOGY: dict[str, Any] = {"brokers": ["a", "b"], "links": [["a", "b"]]}
STEP = {"for": "1s", "at": "1/s"}
MANY = 10**6


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "place, allowed, refused",
    [
        (("seed",), (0, (1 << 63) - 1), (-1, 1 << 63)),
        (("bars", "deliveries_per_pair_min"), (0, 1), (-1,)),
        (("attributes", "sets"), (1, MANY), (0, MANY + 1)),
        (("attributes", "price"), ({"choose": 1}, {"cycle": MANY}), ({"choose": 0},)),
        (("attributes", "price"), ({"choose": MANY},), ({"choose": MANY + 1}, {"cycle": 0})),
        (("attributes", "price"), ({"choose": ["x", 1]},), ({"choose": ["x", {}]},)),
        (("publishers", 0, "count"), (1, (1 << 16) - 1), (0, 1 << 16)),
        (("publishers", 0, "rate"), ([STEP], [{**STEP, "to": "2/s"}, STEP]), ([STEP, 7],)),
        (("publishers", 0, "rate"), ("max",), ([{"for": "1s"}], [{**STEP, "x": "1"}])),
        (("publishers", 0, "rate"), (), ([{**STEP, "to": 2}], [STEP, {**STEP, "at": 1}], [])),
        (("deep",), (deep(specification._LEVELS - 1),), (deep(specification._LEVELS),)),
    ],
)
def test_a_value_of_a_workload_is_within_its_bounds(
    place: tuple[str | int, ...], allowed: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    def check(value: Any) -> None:
        workload: Any = deepcopy(WORKLOAD)
        target = workload
        for part in place[:-1]:
            target = target[part]
        target[place[-1]] = value
        specification.verify(Path("run"), workload, TOPOLOGY)

    for value in allowed:
        check(value)
    for value in refused:
        with pytest.raises(FileRefusal):
            check(value)


def test_each_broker_of_a_topology_is_named_once() -> None:
    specification.verify(Path("run"), WORKLOAD, TOPOLOGY)
    with pytest.raises(FileRefusal, match="each once"):
        specification.verify(Path("run"), WORKLOAD, {"brokers": ["a", "a"]})


# --- Predicates -------------------------------------------------------------------------------


def test_a_predicate_is_as_long_and_as_deep_as_any_broker_permits() -> None:
    longest, deepest = predicates._LONGEST, predicates._DEEPEST
    assert predicates.wants("a = 1".ljust(longest))({"a": 1})
    with pytest.raises(ValueError, match="at most"):
        predicates.wants("a = 1".ljust(longest + 1))
    for opened, closed in (("(", ")"), ("not ", "")):
        predicates.wants(opened * deepest + "a = 1" + closed * deepest)
        with pytest.raises(ValueError, match="deeper"):
            predicates.wants(opened * (deepest + 1) + "a = 1" + closed * (deepest + 1))


@pytest.mark.parametrize(
    "text, value, matches",
    [
        ("a = 'x'", "x", True),
        ("a = 'it''s'", "it's", True),
        ("a = ''", "", True),
        ("a in (1, 2)", 2, True),
        ("a in (1, 2)", 3, False),
        ("a in (1, 'x')", 1, True),
        ("a<=-1.5", -1.5, True),
    ],
)
def test_words_of_a_predicate_end_where_they_end(text: str, value: Any, matches: bool) -> None:
    assert predicates.wants(text)({"a": value}) == matches


@pytest.mark.parametrize("text", ["a = 'x", "a = '", "a = 'it''"])
def test_a_quote_that_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not closed"):
        predicates.wants(text)


# --- Digests and encoded attributes -----------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 32, 64])
def test_a_digest_of_any_length_is_compared(size_bytes: int, tmp_path: Path) -> None:
    data = struct.pack(LAYOUTS["intents"][0], 1, 1, 0, 1)
    digest = hashlib.blake2b(data, digest_size=size_bytes).hexdigest()
    (tmp_path / "intents.rec").write_bytes(data)
    sidecar: dict[str, Any] = {"layout": "intents", "width": len(data), "closed": True, "rows": 1}
    sidecar |= {"run_id": "r", "tables": {"publishers": ["p"]}, "blake2b": digest}
    path = tmp_path / "intents.rec.json"
    path.write_text(json.dumps(sidecar))
    records = read_records(tmp_path, "intents", "r")
    assert records is not None
    assert records.whole
    for wrong in ("", digest[:-1] + "xy", digest * 200):
        path.write_text(json.dumps({**sidecar, "blake2b": wrong}))
        with pytest.raises(FileRefusal, match="not what was written"):
            read_records(tmp_path, "intents", "r")


@pytest.mark.parametrize(
    "number, encoded",
    [(0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (65_535, "19ffff"),
     (65_536, "1a00010000"), (-1, "20"), (-24, "37"), (-25, "3818")],
)  # fmt: skip
def test_a_number_of_an_attribute_has_its_shortest_form(number: int, encoded: str) -> None:
    assert contents._cbor(number).hex() == encoded


def test_a_uniform_value_reaches_both_ends() -> None:
    drawn = [contents._draw("a", {"uniform": [1, 3]}, 0, each) for each in range(4)]
    assert {*drawn} == {1, 2, 3}
