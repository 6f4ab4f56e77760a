"""Bytes of events and effects that do not depend on names of classes, fields or modules."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from brokerd.protocols import interface
from brokerd.wire.codec import all_kinds, encode

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
        yield from map(bytes, encode(item))
    elif is_dataclass(item):
        yield b"(%d:" % _KINDS.get(type(item), -1)
        for field in fields(item):
            yield from _pieces(getattr(item, field.name))
        yield b")"
    else:
        yield b"["
        for part in _ordered(item):
            yield from _pieces(part)
        yield b"]"


def _ordered(item: Any) -> Iterator[Any]:
    if isinstance(item, set | frozenset):
        return iter(sorted(item))
    return iter(item)
