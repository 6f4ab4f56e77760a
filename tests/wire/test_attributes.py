"""Tests of attribute blobs: equal attributes are equal bytes, and other bytes are refused."""

from itertools import pairwise
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.wire import attributes as wire_attributes
from brokerd.wire.attributes import (
    decode_attribute_table,
    decode_attributes,
    encode_attributes,
)
from tests.helpers.strategies import attributes


@given(attributes)
def test_attributes_round_trip_with_value_and_kind(mapping: dict[str, Any]) -> None:
    decoded = decode_attributes(encode_attributes(mapping))
    assert decoded == mapping
    assert {n: type(v) for n, v in decoded.items()} == {n: type(v) for n, v in mapping.items()}


@given(attributes)
def test_the_order_of_attributes_does_not_change_their_encoding(mapping: dict[str, Any]) -> None:
    turned = dict(reversed(mapping.items()))
    assert encode_attributes(turned) == encode_attributes(mapping)


WRONG: list[Any] = [
    [1, 2],
    "text",
    {"": 1},
    {"a": None},
    {"a": float("nan")},
    {"a": 2**63},
    {"a": [1]},
    {"a": b"bytes"},
    {"a": "x" * 257},
    {"x" * 257: 1},
    {b"a": 1},
    {1: 1},
    {f"a{n}": n for n in range(65)},
]


@pytest.mark.parametrize("value", WRONG)
def test_an_invalid_attribute_map_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_attributes(cbor2.dumps(value))
    assert len(str(caught.value)) < 300
    if isinstance(value, dict) and value != {1: 1}:
        with pytest.raises(ValueError, match=r"."):
            encode_attributes(value)


@pytest.mark.parametrize(
    "blob", ["", "a0a0", "a16161", "a1616101ff", "bf616101ff", "a2616101616102", "c1a0", "d81da0"]
)
def test_a_blob_that_is_not_one_strict_map_is_refused(blob: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_attributes(bytes.fromhex(blob))


def one_by_one(blobs: list[bytes]) -> list[dict[str, Any]] | None:
    """Return the attributes of the blobs; None if one is no attribute map."""
    try:
        return [decode_attributes(blob) for blob in blobs]
    except ValueError:
        return None


def together(blobs: list[bytes]) -> list[dict[str, Any]] | None:
    try:
        return decode_attribute_table(blobs)
    except ValueError:
        return None


def kinds(tables: list[dict[str, Any]] | None) -> list[Any]:
    """Return tables with the type of every value, so that 1, 1.0 and True differ."""
    return [[(name, type(value), value) for name, value in each.items()] for each in tables or ()]


@pytest.mark.parametrize("value", WRONG)
def test_one_wrong_blob_in_a_table_is_reported(value: Any) -> None:
    wrong = cbor2.dumps(value)
    with pytest.raises(ValueError, match=r".") as alone:
        decode_attributes(wrong)
    for good in (encode_attributes({"a": 1}), encode_attributes({"a": "x"})):
        with pytest.raises(ValueError, match=r".") as caught:
            decode_attribute_table([good, wrong, good])
        assert str(caught.value) == str(alone.value)


ODD: list[Any] = [*WRONG, {"a": 2**62}, {"a": float("inf")}, {"a": "ä" * 120}, {"a": True}, {}]


@given(
    blobs=st.lists(
        st.one_of(attributes.map(encode_attributes), st.sampled_from([*map(cbor2.dumps, ODD)])),
        max_size=6,
    )
)
@example([cbor2.dumps({"a": 1, f"b{n}": 2}) for n in range(70)])
@example([cbor2.dumps({"a": n % 3 == 0, "b": 0.5 + n}) for n in range(9)])
@example([cbor2.dumps({"a": n}) for n in (1, "2", True, 1.0)])
@example([cbor2.dumps({"a": -float("inf")}), cbor2.dumps({"a": float("inf")})])
@example([cbor2.dumps({"a": "x" * 255, "b": n}) for n in range(400)])
def test_a_table_equals_its_blobs(blobs: list[bytes]) -> None:
    assert kinds(together(blobs)) == kinds(one_by_one(blobs))
    assert (together(blobs) is None) == (one_by_one(blobs) is None)


@given(
    tables=st.lists(attributes, min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_blobs_that_are_maps_only_together_are_refused(
    tables: list[dict[str, Any]], cuts: list[int]
) -> None:
    """Valid blobs are cut anywhere, with or without the bytes between two blobs."""
    for between in (b"", wire_attributes._FENCE):
        whole = between.join(map(encode_attributes, tables))
        ends = [0, *sorted({cut % (len(whole) + 1) for cut in cuts}), len(whole)]
        blobs = [whole[one:other] for one, other in pairwise(ends)]
        assert together(blobs) == one_by_one(blobs)


@pytest.mark.parametrize("kind", ["18", "19", "1a", "1b", "3b", "f9", "fa", "fb", "61", "68", "49"])
def test_a_truncated_blob_does_not_consume_the_next_blob(kind: str) -> None:
    """The first blob ends in a truncated item; the next begins with the consumed bytes."""
    fence = wire_attributes._FENCE
    for given_bytes in range(9):
        short = bytes.fromhex("a16161" + kind) + bytes(given_bytes)
        for begin in range(len(fence) + 1):
            blobs = [short, fence[begin:] + b"\xa0", b"\xa0"]
            assert together(blobs) == one_by_one(blobs)
            assert together([b"\xa0", *blobs]) == one_by_one([b"\xa0", *blobs])
