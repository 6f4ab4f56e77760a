"""Attribute blobs: the same attributes are the same bytes, and nothing else is read."""

from typing import Any

import cbor2
import pytest
from hypothesis import given

from brokerd.wire.attributes import decode_attributes, encode_attributes
from tests.helpers.strategies import attributes


@given(attributes)
def test_attributes_come_back_with_value_and_kind(mapping: dict[str, Any]) -> None:
    decoded = decode_attributes(encode_attributes(mapping))
    assert decoded == mapping
    assert {n: type(v) for n, v in decoded.items()} == {n: type(v) for n, v in mapping.items()}


@given(attributes)
def test_the_order_in_which_attributes_are_given_does_not_matter(mapping: dict[str, Any]) -> None:
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
def test_what_no_attribute_map_may_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_attributes(cbor2.dumps(value))
    assert len(str(caught.value)) < 300
    if isinstance(value, dict) and value != {1: 1}:
        with pytest.raises(ValueError, match=r"."):
            encode_attributes(value)


@pytest.mark.parametrize(
    "blob", ["", "a0a0", "a16161", "a1616101ff", "bf616101ff", "a2616101616102", "c1a0", "d81da0"]
)
def test_what_is_not_one_strict_map_is_refused(blob: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_attributes(bytes.fromhex(blob))
