"""Bytes of events and effects that do not depend on names of classes, fields or modules."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from brokerd.model.client_messages import Connect
from brokerd.protocols import interface
from brokerd.wire.codec import PREFIX, encode
from brokerd.wire.strict_cbor import ARRAYS
from tests.helpers.message_kinds import all_kinds

_MESSAGES = all_kinds()
_KINDS = {
    getattr(interface, name): number
    for number, name in enumerate(
        (
            *("Started", "SessionEstablished", "SessionLost", "OpenFailed", "MessageReceived"),
            *("Persisted", "RecordsRead", "TopologyGrown", "TopologyShrunk"),
            *("BrokerDecommissioned", "OverlayChanged", "DeadlineReached"),
            *("Send", "Deliver", "RedirectClient", "OpenSession", "CloseSession", "Commit"),
            *("Append", "Read", "Chop", "Truncate", "Record", "Shutdown"),
        )
    )
}
"""Numbers of events and effects. A renamed class keeps its number."""


def canonical(item: Any) -> bytes:
    """Return the bytes that stand for an event, an effect, or a value inside."""
    return b"".join(_pieces(item))


def _pieces(item: Any) -> Iterator[bytes]:
    if item is None or isinstance(item, bool | int | float | str):
        yield repr(item).encode() + b";"
    elif isinstance(item, bytes | bytearray | memoryview):
        yield b"%d:" % len(item) + bytes(item)
    elif isinstance(item, Enum):
        yield from _pieces(item.value)
    elif isinstance(item, Mapping):
        yield b"{"
        for key, value in item.items():
            yield from _pieces(key)
            yield from _pieces(value)
        yield b"}"
    elif type(item) in _MESSAGES:
        yield b"M"
        yield from map(bytes, _encode_as_before(item))
    elif is_dataclass(item):
        yield b"(%d:" % _KINDS.get(type(item), -1)
        for field in fields(item):
            value = getattr(item, field.name)
            is_younger = field.init and not field.repr  # than the digests
            is_drawn = type(item) is interface.Started and field.name == "start"
            if not is_drawn and not (is_younger and value == field.default):
                yield from _pieces(value)
        yield b")"
    else:
        yield b"["
        for part in _ordered(item):
            yield from _pieces(part)
        yield b"]"


def _encode_as_before(message: Any) -> list[Any]:
    """Return the frame of a message, without a field that is newer than histories and not set."""
    pieces = encode(message)
    if type(message) is not Connect or message.pubend is not None:
        return pieces
    header = b"".join(map(bytes, pieces))[PREFIX.size :]
    skipped = {0x98: 1, 0x99: 2}.get(header[0], 0)
    count = int.from_bytes(header[1 : 1 + skipped]) if skipped else header[0] & 0x1F
    header = ARRAYS[count - 1] + header[1 + skipped : -1]
    return [PREFIX.pack(len(header) + 4, len(header)) + header]


def _ordered(item: Any) -> Iterator[Any]:
    if isinstance(item, set | frozenset):
        return iter(sorted(item))
    return iter(item)
