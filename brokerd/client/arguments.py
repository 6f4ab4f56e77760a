"""Checks of the arguments of an application: refused at the call, by kind, with the value.

An accepted argument can be encoded, and is not refused by a broker for its form. So the background
tasks of a client never fail because of an argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.losses import MARKER
from brokerd.model.predicate import Predicate, PredicateError
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import Buffer
from brokerd.sessions.session import MAXIMUM_CLIENT_NAME
from brokerd.wire.attributes import (
    MAXIMUM_BLOB_BYTES,
    EncodedAttributes,
    decode_attribute_table,
    encode_attributes,
)
from brokerd.wire.shapes import TEXT_LIMIT_BYTES

_LARGEST: Final = (1 << 63) - 1
_REMEMBERED_BLOBS: Final = 4_096
_SHOWN: Final = 80
"""Characters of a value that an error shows."""


def check_name(name: object) -> None:
    """Refuse a name that no broker accepts.

    Raises:
        ConfigError: not text, empty, too long, or with a character that cannot be printed.
    """
    if type(name) is not str or not 0 < len(name) <= MAXIMUM_CLIENT_NAME or not name.isprintable():
        raise ConfigError(
            f"client name = {_shown(name)}; from 1 to {MAXIMUM_CLIENT_NAME} printable characters"
        )


def check_text(key: str, value: object) -> None:
    """Refuse a value that is no text, or too long for a message.

    Raises:
        ConfigError: the value is refused.
    """
    try:
        fits = type(value) is str and len(value.encode()) <= TEXT_LIMIT_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ConfigError(f"{key} = {_shown(value)}; text of at most {TEXT_LIMIT_BYTES} bytes")


def check_integer(key: str, value: object, lowest: int, highest: int = _LARGEST) -> None:
    """Refuse a value that is no integer in a range.

    Raises:
        ConfigError: the value is refused.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ConfigError(f"{key} = {_shown(value)}; an integer from {lowest} to {highest}")


def check_duration(key: str, value: object) -> None:
    """Refuse a value that is no time in seconds.

    Raises:
        ConfigError: not a number, NaN, or below 0.
    """
    if type(value) not in (int, float) or not value >= 0:  # type: ignore[operator]
        raise ConfigError(f"{key} = {_shown(value)}; a number of seconds, 0 or more")


def list_addresses(key: str, value: object) -> list[Any]:
    """Return the addresses in an argument: one as text, or several.

    Raises:
        ConfigError: the argument is neither.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise ConfigError(f'{key} = {_shown(value)}; "host:port", or several')
    return [*value]


def check_address(key: str, address: object, *, is_dialled: bool) -> None:
    """Refuse an address that cannot be dialled.

    Args:
        is_dialled: True if the address is dialled by TCP, and so must be "host:port"; else any text
            is valid.

    Raises:
        ConfigError: the address is refused.
    """
    check_text(key, address)
    host, _, port = str(address).rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16
    if not address or (is_dialled and not (host and host.isprintable() and is_port)):
        raise ConfigError(f'{key} = {_shown(address)}; "host:port"')


def predicate_of(predicate: object) -> Predicate:
    """Return the predicate that an application passes, as text or as a Predicate.

    Raises:
        PredicateError: the text cannot be parsed, or the value is neither.
    """
    if isinstance(predicate, Predicate):
        return predicate
    if isinstance(predicate, str):
        return parse_predicate(predicate)
    kind = type(predicate).__name__
    raise PredicateError(f"a predicate is text or a Predicate, and not of type {kind}")


def payload_of(payload: object) -> Buffer:
    """Return a payload as bytes.

    Raises:
        ValueError: the payload is not made of bytes.
    """
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray):
        return memoryview(payload)
    if isinstance(payload, memoryview) and payload.c_contiguous:
        return payload if payload.format == "B" and payload.ndim == 1 else payload.cast("B")
    raise ValueError(f"a payload is bytes, and not {_shown(payload)}")


class AttributeBlobs:
    """Encoded attribute maps of one client; a map is checked once while cached."""

    def __init__(self) -> None:
        self._known: dict[bytes, None] = {}

    def encode(self, attributes: object) -> bytes:
        """Return the blob of a mapping, or a blob as is.

        Raises:
            ValueError: the attributes are invalid; the text names the fault.
        """
        if type(attributes) is bytes:
            if attributes not in self._known:
                self.check((attributes,))
            return attributes
        blob = encode_attributes(attributes)  # type: ignore[arg-type]
        _check_reserved((blob,))
        return blob

    def check(self, table: Sequence[bytes]) -> None:
        """Refuse a table with anything but encoded attribute maps.

        Raises:
            ValueError: an entry is no attribute map.
        """
        if type(table) is EncodedAttributes:
            return
        if not isinstance(table, Sequence):
            raise ValueError(f"an attribute table is a sequence, and not {_shown(table)}")
        known = self._known
        try:
            new = [blob for blob in table if blob not in known]
        except TypeError:  # a list, or something else that has no hash
            new = [*table]
        if not new and table:
            return
        if {*map(type, new)} != {bytes}:
            raise ValueError(
                f"an attribute table has bytes only, and at least one: {_shown(table)}"
            )
        # A long blob is checked by itself, so that the bytes decoded at once stay few.
        long = next((blob for blob in new if len(blob) > MAXIMUM_BLOB_BYTES), None)
        decode_attribute_table([long] if long is not None else new)
        _check_reserved(new)
        if len(known) + len(new) > _REMEMBERED_BLOBS:
            known.clear()
        known.update(dict.fromkeys(new[:_REMEMBERED_BLOBS]))


def _check_reserved(table: Sequence[bytes]) -> None:
    """Refuse the attributes of a loss marker, for which brokers end the session of a client."""
    if MARKER in table:
        raise ValueError("attributes $lost = true alone are reserved: brokers announce losses so")


class PublicationArguments:
    """The checks of the publications of one client.

    Args:
        limit_bytes: size of attributes and payload of the largest publication that fits a frame.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blobs = AttributeBlobs()

    def encode(self, attributes: object, payload: object) -> tuple[bytes, bytes]:
        """Return the attributes of one publication, encoded, and its payload.

        Raises:
            ValueError: the attributes or the payload are invalid; the text names the fault.
        """
        blob = self._blobs.encode(attributes)
        content = payload if type(payload) is bytes else bytes(payload_of(payload))
        self._check_size(len(blob) + len(content))
        return blob, content

    def check_run(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: object,
    ) -> Buffer:
        """Refuse consecutive publications that cannot be sent; return their payloads.

        Raises:
            ValueError: the parts do not fit, or a publication is too large.
        """
        content = payload_of(payload)
        self._blobs.check(attribute_table)
        check_publications(attribute_index, payload_lengths, content)
        longest = payload_lengths if isinstance(payload_lengths, int) else max(payload_lengths)
        self._check_size(longest + max(map(len, attribute_table)))
        return content

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise ValueError(f"a publication of {size_bytes} bytes; at most {self._limit_bytes}")


def check_publications(
    index: Sequence[int],
    payload_lengths: int | tuple[int, ...],
    payload: Buffer,
) -> None:
    """Refuse publications with parts that do not fit together.

    Raises:
        ValueError: the parts do not fit; the text names the fault.
    """
    count = len(index)
    if not count:
        raise ValueError("publish at least one publication: the arguments have none")
    if type(payload_lengths) is int:
        shortest, size = payload_lengths, payload_lengths * count
    elif type(payload_lengths) is tuple and {*map(type, payload_lengths)} == {int}:
        if len(payload_lengths) != count:
            raise ValueError(f"{len(payload_lengths)} payload lengths of {count} publications")
        shortest, size = min(payload_lengths), sum(payload_lengths)
    else:
        raise ValueError(
            f"payload_lengths = {_shown(payload_lengths)}; an integer, or a tuple of integers"
        )
    if shortest < 0 or size != len(payload):
        raise ValueError(f"{count} payloads of {size} bytes together, and {len(payload)} are given")


def _shown(value: object) -> str:
    """Return a value for an error: a part of it, with printable characters only."""
    shown = ascii(value if not isinstance(value, str | bytes) else value[:_SHOWN])
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[:_SHOWN]}…"
