"""Attributes of a publication as bytes: one canonical CBOR map of names and scalars.

Brokers pass the bytes on untouched and remember matching results by them, so the same
attributes should always be the same bytes: `encode_attributes` sees to that.
"""

from collections.abc import Mapping
from typing import Final

import cbor2

from brokerd.model.predicate import MAXIMUM_STRING_BYTES, PredicateError, Scalar, check_scalar
from brokerd.wire.strict_cbor import StrictCborError, decode_strict

MAXIMUM_ATTRIBUTES: Final = 64
MAXIMUM_BLOB_BYTES: Final = MAXIMUM_ATTRIBUTES * 2 * (MAXIMUM_STRING_BYTES + 3) + 2

_SHORT: Final = MAXIMUM_STRING_BYTES // 4  # characters that are few enough in any script
_SMALL: Final = 1 << 62


def encode_attributes(attributes: Mapping[str, Scalar]) -> bytes:
    """The blob for these attributes; equal attributes give equal bytes.

    Raises:
        ValueError: more than 64 attributes, a name that is empty, not text or longer than 256
            bytes, or a value no attribute may have; says which.
    """
    _check(attributes)
    return cbor2.dumps(dict(attributes), canonical=True)


def decode_attributes(blob: bytes | memoryview) -> dict[str, Scalar]:
    """The attributes in a blob.

    Raises:
        ValueError: the blob is not such a map: the fault of whoever sent it.
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


def _check(attributes: Mapping[str, Scalar]) -> None:
    if len(attributes) > MAXIMUM_ATTRIBUTES:
        raise ValueError(f"{len(attributes)} attributes; at most {MAXIMUM_ATTRIBUTES}")
    for name, value in attributes.items():
        kind = type(value)
        # What nearly all attributes are needs no closer look: this runs for each new blob.
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
        raise ValueError(f"attribute {name[:40]!r}: {error}") from None
