"""Publications as lines: JSON objects for programs, and one line each for people.

A line that `subscribe` writes may be read by `publish`.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.client.application import Publication
from brokerd.client.events import GapAnnounced
from brokerd.model.predicate import Scalar
from brokerd.model.predicate_text import parse_attributes
from brokerd.text import nearest, shown
from brokerd.wire.attributes import encode_attributes
from pubsubctl.errors import UserError

DELIVERY_SCHEMA: Final = "pubsubctl/delivery/1"
GAP_SCHEMA: Final = "pubsubctl/gap/1"
LONGEST_LINE: Final = 16 << 20
"""Bytes of a line on standard input."""

_PUBLISHED: Final = ("attributes", "payload", "payload_base64")
_OF_A_DELIVERY: Final = ("schema", "source", "sequence", "redelivered")


def attributes_of(text: str) -> dict[str, Scalar] | None:
    """Return the attributes on a command line; None if the text is a topic.

    Raises:
        UserError: the text cannot be read, or the attributes break a limit.
    """
    try:
        if text.lstrip().startswith("{"):
            found = _object_of(text)
        elif "=" in text:
            found = parse_attributes(text)
        elif text.strip():
            return None
        else:
            raise ValueError("attributes are missing: a topic, or name=value")
        encode_attributes(found)
    except ValueError as error:
        raise UserError(str(error)) from None
    return found


def read_publication(line: bytes, number: int) -> tuple[dict[str, Scalar], bytes]:
    """Return the attributes and the payload in a line of JSON.

    Args:
        number: of the line, from 1.

    Raises:
        UserError: the line cannot be read; names the line, the key and the nearest valid key.
    """
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"more than {LONGEST_LINE} bytes")
        content = _object_of(line.decode("utf-8"))
        if content.get("schema") == GAP_SCHEMA:
            raise ValueError("a gap cannot be published")
        for key in content:
            if key not in (*_PUBLISHED, *_OF_A_DELIVERY):
                raise ValueError(f"unknown key {shown(key)}{nearest(key, _PUBLISHED)}")
        attributes = content.get("attributes")
        if not isinstance(attributes, dict):
            raise ValueError(f"attributes = {shown(attributes)}; an object of names and values")
        encode_attributes(attributes)
        return attributes, _payload_of(content)
    except UnicodeDecodeError as error:
        raise UserError(f"standard input, line {number}: not UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise UserError(f"standard input, line {number}: {error}") from None


class PublicationReader:
    """A reader of publications, a line of JSON each, from parts of any size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._number = 0

    def read(self, part: bytes) -> Iterator[tuple[dict[str, Scalar], bytes]]:
        """Yield the publications in the lines that end in a part; b"" ends the last line.

        Raises:
            UserError: see `read_publication`.
        """
        *ends, rest = part.split(b"\n")
        for end in ends:
            yield from self._end_line(end)
        self._pieces.append(rest)
        self._size_bytes += len(rest)
        if not part or self._size_bytes > LONGEST_LINE:
            yield from self._end_line(b"")

    def _end_line(self, end: bytes) -> Iterator[tuple[dict[str, Scalar], bytes]]:
        line = b"".join((*self._pieces, end))
        self._pieces, self._size_bytes = [], 0
        self._number += 1
        if len(line) > LONGEST_LINE or line.strip():
            yield read_publication(line, self._number)


def _payload_of(content: Mapping[str, Any]) -> bytes:
    text, encoded = content.get("payload", ""), content.get("payload_base64", "")
    for key, value in (("payload", text), ("payload_base64", encoded)):
        if not isinstance(value, str):
            raise ValueError(f"{key} = {shown(value)}; text")
    if text and encoded:
        raise ValueError("give either payload or payload_base64")
    try:
        return base64.b64decode(encoded, validate=True) if encoded else text.encode("utf-8")
    except binascii.Error:
        raise ValueError(f"payload_base64 = {shown(encoded)}; Base64") from None


def _object_of(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text, parse_float=_finite, parse_constant=_infinity)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON (column {error.colno}: {error.msg})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{shown(content)}; a JSON object")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} needs more than 64 bits")
    return number


def _infinity(text: str) -> float:
    """Return an infinity, which Python writes as a word."""
    if text == "NaN":
        raise ValueError("NaN is no value of an attribute")
    return float(text)


def delivery_to_mapping(publication: Publication) -> dict[str, Any]:
    """Return a delivered publication as a JSON object; its payload as text if it is UTF-8."""
    try:
        payload = {"payload": publication.payload.decode("utf-8")}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(publication.payload).decode("ascii")}
    again = {"redelivered": True} if publication.redelivered else {}
    return {
        "schema": DELIVERY_SCHEMA,
        "source": [*publication.source],
        "sequence": publication.sequence,
        "attributes": dict(publication.attributes),
        **payload,
        **again,
    }


def describe_delivery(publication: Publication, brokers: Sequence[str]) -> str:
    """Return a delivered publication in one line.

    Args:
        brokers: the names of the brokers, by number.
    """
    attributes = ", ".join(f"{name}={value!r}" for name, value in publication.attributes.items())
    try:
        payload = publication.payload.decode("utf-8")
    except UnicodeDecodeError:
        payload = f"<{len(publication.payload)} bytes>"
    again = " (redelivered)" if publication.redelivered else ""
    place = f"{describe_source(publication.source, brokers)}:{publication.sequence}"
    return f"{place} {{{attributes}}} {payload}{again}".rstrip()


def describe_source(source: tuple[int, int, int], brokers: Sequence[str]) -> str:
    """Return a source as BROKER/PUBLISHER:INCARNATION, as in verdicts and for `why`."""
    broker, publisher, incarnation = source
    name = brokers[broker] if 0 <= broker < len(brokers) else str(broker)
    return f"{name}/{publisher}:{incarnation}"


def gap_to_mapping(gap: GapAnnounced) -> dict[str, Any]:
    """Return an announced gap as a JSON object."""
    return {
        "schema": GAP_SCHEMA,
        "source": [*gap.source],
        "first": gap.first,
        "last": gap.last,
        "reason": gap.reason,
    }
