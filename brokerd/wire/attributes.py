"""Attributes of a publication as bytes: one canonical CBOR map of names and scalars.

Brokers pass the bytes on untouched and cache matching results by the bytes. The same attributes
should therefore always be the same bytes, which `encode_attributes` ensures.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import cbor2

from brokerd.model.predicate import MAXIMUM_STRING_BYTES, PredicateError, Scalar, check_scalar
from brokerd.wire.strict_cbor import ARRAYS, StrictCborError, decode_strict

MAXIMUM_ATTRIBUTES: Final = 64
MAXIMUM_BLOB_BYTES: Final = MAXIMUM_ATTRIBUTES * 2 * (MAXIMUM_STRING_BYTES + 3) + 2

_SHORT: Final = MAXIMUM_STRING_BYTES // 4  # characters that are few enough in any script
_SMALL: Final = 1 << 62
_FENCE: Final = b"\x49" + 9 * b"\xff"
"""The item between two blobs that are decoded together: bytes, which are no valid attribute.

A blob that is cut short would have to consume a part of the fence, or all: a number takes 8 bytes
at most and leaves 0xff, which begins no item; no text contains that byte; and bytes, lists and maps
are refused in a blob. So every blob is exactly one map, without bytes of its neighbours.
"""
_AT_ONCE_BYTES: Final = 1 << 16


class EncodedAttributes(tuple[bytes, ...]):
    """A table of blobs made by `encode_attributes`, which a client does not check again."""

    __slots__ = ()


def encode_attributes(attributes: Mapping[str, Scalar]) -> bytes:
    """Return the blob for these attributes; equal attributes give equal bytes.

    Raises:
        ValueError: no mapping, more than 64 attributes, a name that is empty, not text or longer
            than 256 bytes, or a value that is no valid attribute; the text names the fault.
    """
    given: object = attributes
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ValueError(f"attributes are a mapping of names to values, and not of type {kind}")
    _check(attributes)
    try:
        return cbor2.dumps(dict(attributes), canonical=True)
    except UnicodeEncodeError:
        for name, value in attributes.items():
            _check_closely(name, value)
        raise


def decode_attributes(blob: bytes | memoryview) -> dict[str, Scalar]:
    """Return the attributes in a blob.

    Raises:
        ValueError: the blob is no valid map: the sender's fault.
    """
    if len(blob) > MAXIMUM_BLOB_BYTES:
        raise ValueError(f"attributes of {len(blob)} bytes; at most {MAXIMUM_BLOB_BYTES}")
    try:
        attributes = decode_strict(blob)
    except StrictCborError as error:
        raise ValueError(f"attributes are {error}") from None
    if type(attributes) is not dict:
        raise ValueError(f"attributes are of type {type(attributes).__name__}, not a map")
    _check(attributes)
    return attributes


def decode_attribute_table(blobs: Sequence[bytes]) -> list[dict[str, Scalar]]:
    """Return the attributes in each of many blobs, as `decode_attributes` does for a single blob.

    Raises:
        ValueError: a blob is no valid map: the sender's fault.
    """
    if len(blobs) < 2 or sum(map(len, blobs)) > _AT_ONCE_BYTES:
        if len(blobs) < _FEW:
            return [decode_attributes(blob) for blob in blobs]
        half = len(blobs) // 2
        return decode_attribute_table(blobs[:half]) + decode_attribute_table(blobs[half:])
    try:
        items = decode_strict(ARRAYS[2 * len(blobs)] + _FENCE.join(blobs) + _FENCE)
    except StrictCborError:
        items = ()
    tables = items[::2]
    fences: Any = items[1::2]
    if not (
        fences.count(_FENCE[1:]) == len(blobs)
        and {*map(type, tables)} == {dict}
        and _is_plain(tables, max(map(len, blobs)))
    ):
        return [decode_attributes(blob) for blob in blobs]  # raises with the cause, if any
    return list(tables)


_FEW: Final = 4


def _is_plain(tables: Sequence[dict[Any, Any]], longest: int) -> bool:
    """Return True if no table needs a closer check; no item is longer than `longest` bytes."""
    names = {*tables[0]}.union(*tables)
    if longest > MAXIMUM_STRING_BYTES or len(names) > MAXIMUM_ATTRIBUTES or "" in names:
        return False
    kinds = {*map(type, names)}
    for values in _columns(tables):
        types = {*map(type, values)}
        if types == {str}:
            continue
        if not types <= _NUMBERS:
            return False
        total = sum(values)
        if total != total or not -_SMALL < min(values) <= max(values) < _SMALL:
            return False
    return not names or kinds == {str}


_NUMBERS: Final = {int, float, bool}


def _columns(tables: Sequence[dict[Any, Any]]) -> list[Sequence[Any]]:
    """Return the values of all tables, by place if all tables have the same length."""
    if len({*map(len, tables)}) == 1:
        return list(zip(*map(dict.values, tables), strict=True))
    values = [value for table in tables for value in table.values()]
    texts = [value for value in values if type(value) is str]
    others = [value for value in values if type(value) is not str]
    return [column for column in (texts, others) if column]


def _check(attributes: Mapping[str, Scalar]) -> None:
    if len(attributes) > MAXIMUM_ATTRIBUTES:
        raise ValueError(f"{len(attributes)} attributes; at most {MAXIMUM_ATTRIBUTES}")
    for name, value in attributes.items():
        kind = type(value)
        # The usual attributes need no closer check: this runs for each new blob.
        if kind is float:
            plain = value == value
        elif kind is int:
            plain = -_SMALL < value < _SMALL  # type: ignore[operator]
        else:
            plain = kind is str and len(value) <= _SHORT  # type: ignore[arg-type]
        if not plain or type(name) is not str or not 0 < len(name) <= _SHORT:
            _check_closely(name, value)


def _check_closely(name: object, value: object) -> None:
    if type(name) is not str or not name:
        raise ValueError("an attribute name is empty or not text")
    try:
        check_scalar(name)
        check_scalar(value)
    except PredicateError as error:
        raise ValueError(f"attribute {name[:40]!a}: {error}") from None
