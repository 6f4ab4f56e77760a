"""Messages as bytes and back, and the table of all messages: common, and of single protocols."""

import struct
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, get_type_hints

from brokerd.errors import BrokerError, RemoteProtocolError
from brokerd.model import client_messages
from brokerd.model.message_kind import MessageKind, numbers_kind, run_kind
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.protocols.registry import DEFINITIONS
from brokerd.sessions import messages as session
from brokerd.wire.runs import MAXIMUM_RUN_PUBLICATIONS, decode_run, encode_run
from brokerd.wire.shapes import Reader, Writer, shape_of
from brokerd.wire.strict_cbor import ARRAYS, INTEGERS, Misfit, StrictCborError, decode_strict_pair

# A used number is never reassigned to another message; a change of fields raises WIRE_VERSION.
COMMON: Final = (
    MessageKind(1, session.Hello),
    MessageKind(2, session.Heartbeat),
    MessageKind(3, session.Farewell),
    MessageKind(4, session.StateAdvanced),
    # clients and their broker
    MessageKind(16, client_messages.Connect),
    MessageKind(17, client_messages.Connected),
    run_kind(18, client_messages.Publish),
    numbers_kind(19, client_messages.PublishAcknowledged),
    MessageKind(20, client_messages.Subscribe),
    MessageKind(21, client_messages.Subscribed),
    run_kind(22, client_messages.Deliveries, beside=lambda message: message.subscriptions),
    numbers_kind(23, client_messages.Acknowledge, beside=lambda message: message.stream),
    MessageKind(24, client_messages.Refused),
    MessageKind(25, client_messages.Notice),
    MessageKind(26, client_messages.Unsubscribe),
    MessageKind(27, client_messages.Unsubscribed),
    MessageKind(28, client_messages.Detach),
    MessageKind(29, client_messages.Silence),
    MessageKind(30, client_messages.Gap),
    MessageKind(12, client_messages.Consume),
    MessageKind(13, client_messages.Consuming),
    MessageKind(14, client_messages.CommitConsumed),
    MessageKind(15, client_messages.ConsumedCommitted),
    MessageKind(11, client_messages.Redirect),
)

PREFIX: Final = struct.Struct(">II")
_HEADS: Final = 1_000
"""Number of messages with a run, per type, for which the encoded fields are cached."""


def encode(message: Any) -> list[Buffer]:
    """Return the pieces of the frame that carries `message`; payload pieces are the run's own."""
    return _CODECS_BY_TYPE[type(message)].encode(message)


def decode(header: Buffer, payload: memoryview, peer: object = "unknown") -> Any:
    """Return the message in a frame; a run's payload is a slice of `payload`, or a copy if small.

    Raises:
        RemoteProtocolError: the frame is invalid; the text names the fault and quotes at most 300
            characters.
    """
    try:
        values, end, run_values = decode_strict_pair(header)
        if type(values) is not list or not values or type(values[0]) is not int:
            raise Misfit("the header is not an array that starts with a type number")
        codec = _CODECS_BY_NUMBER[values[0]]
        if not codec.run_field:
            if end != len(header) or payload:
                raise Misfit(f"{codec.name} with a run or a payload")
            return codec.decode(values, None)
        if end == len(header):
            raise Misfit(f"{codec.name} without a run")
        return codec.decode(values, decode_run(run_values, bytes(header[end:]), payload))
    except (StrictCborError, Misfit, BrokerError) as error:
        raise RemoteProtocolError(peer, str(error)) from None


def head_of(message: Any) -> bytes:
    """Return the first part of the header of a message with a run, up to the items of the run."""
    return _CODECS_BY_TYPE[type(message)].head(message)


def integer_fields(message: Any) -> list[tuple[str, int, int]]:
    """Return the places of integer fields in that part.

    Name, first byte, and the byte behind the last.
    """
    return _CODECS_BY_TYPE[type(message)].integer_fields(message)


def frames(message: Any, limit_bytes: int) -> list[tuple[list[Buffer], int]]:
    """Return the frame that carries the message, in pieces, and its size.

    Returns several frames with parts of the run, in order, if a single frame would be over the
    limit or longer than any receiver accepts. A message without a run is not divided: only a
    trusted peer accepts a message over the limit.

    Raises:
        ValueError: one publication alone is too large.
    """
    codec = _CODECS_BY_TYPE[type(message)]
    pieces = codec.encode(message)
    size = sum(map(len, pieces))
    run = getattr(message, codec.run_field) if codec.run_field else None
    if run is None or (size <= limit_bytes and len(run.sequences) <= MAXIMUM_RUN_PUBLICATIONS):
        return [(pieces, size)]
    parts = codec.split(message) if codec.split is not None else ()
    if not parts:
        raise ValueError(f"publication {run.first} of {run.source}: {size} bytes of {limit_bytes}")
    return [frame for part in parts for frame in frames(part, limit_bytes)]


class _MessageCodec:
    """The encoder and decoder of one type of message.

    Attributes:
        run_field: the field that is a publication run; empty if there is none.
    """

    def __init__(self, described: MessageKind) -> None:
        kind = described.type
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        run_fields = [name for name in names if hints[name] is PublicationRun]
        assert len(run_fields) <= 1, f"{kind.__name__} has several runs"
        assert described.split or not run_fields, f"{kind.__name__} does not define how to split it"
        self.name = kind.__name__
        self.run_field = run_fields[0] if run_fields else ""
        self.split = described.split
        self._kind = kind
        self._number = INTEGERS[described.number]
        shapes = {name: shape_of(hints[name]) for name in names if name != self.run_field}
        self._writers: list[tuple[str, Writer]] = [
            (name, shape.write) for name, shape in shapes.items()
        ]
        self._names = names
        # The fields beside the run are the same for many runs, and small.
        self._beside: Callable[[Any], Any] = attrgetter(*shapes) if shapes else lambda message: None
        self._heads: dict[Any, bytes] = {}
        self._readers: list[Reader | None] = [
            shapes[name].read if name in shapes else None for name in names
        ]

    def encode(self, message: Any) -> list[Buffer]:
        if not self.run_field:
            header = self._write(message)
            return [PREFIX.pack(len(header) + 4, len(header)) + header]
        run: PublicationRun = getattr(message, self.run_field)
        header = self.head(message) + (run.header or encode_run(run))
        length = len(header) + 4 + sum(map(len, run.payload))
        return [PREFIX.pack(length, len(header)) + header, *run.payload]

    def head(self, message: Any) -> bytes:
        """Return the array of the fields beside the run."""
        beside = self._beside(message)
        head = self._heads.get(beside)
        if head is None:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            head = self._heads[beside] = self._write(message)
        return head

    def _write(self, message: Any) -> bytes:
        items = [self._number]
        for name, write in self._writers:
            write(getattr(message, name), items)
        return ARRAYS[len(items)] + b"".join(items)

    def integer_fields(self, message: Any) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        items = [self._number]
        for name, write in self._writers:
            value, before = getattr(message, name), len(items)
            write(value, items)
            if type(value) is int and len(items) == before + 1:
                end = sum(map(len, items))
                found.append((name, end - len(items[-1]), end))
        shift = len(ARRAYS[len(items)])
        return [(name, start + shift, end + shift) for name, start, end in found]

    def decode(self, values: list[Any], run: PublicationRun | None) -> Any:
        items = iter(values)
        next(items)
        decoded: list[Any] = []
        try:
            for read in self._readers:
                decoded.append(run if read is None else read(items))
        except Misfit as error:
            raise Misfit(f"{self.name}.{self._names[len(decoded)]}: {error}") from None
        except StopIteration:
            raise Misfit(f"{self.name} of only {len(values)} items") from None
        for _ in items:
            raise Misfit(f"{self.name} of {len(values)} items, too many")
        return self._kind(*decoded)


class _ByType(dict[type, MessageKind]):
    """Kinds of messages by type; those of a protocol from the first use of a type."""

    def __missing__(self, kind: type) -> MessageKind:
        name = kind.__module__.removeprefix(_PROTOCOLS).partition(".")[0]
        if name not in DEFINITIONS or kind not in _add_messages(name):
            raise KeyError(kind)
        return self[kind]


class _CodecsByType(dict[type, _MessageCodec]):
    """Codecs by type of message, made at the first use."""

    def __missing__(self, kind: type) -> _MessageCodec:
        codec = self[kind] = _MessageCodec(KINDS[kind])
        return codec


class _CodecsByNumber(dict[int, _MessageCodec]):
    """Codecs by number of message, made at the first use."""

    def __missing__(self, number: int) -> _MessageCodec:
        name = DEFINITIONS.protocol_of(number)
        kinds = (kind.type for kind in COMMON) if name is None else _add_messages(name)
        for kind in kinds:
            if KINDS[kind].number == number:
                codec = self[number] = _CODECS_BY_TYPE[kind]
                return codec
        # A peer's integer may have millions of digits, but `decode_strict` bounds it to 65 bits.
        raise Misfit(f"no message has the type number {number}")


def _add_messages(protocol: str) -> list[type]:
    """Add a protocol's messages to the table, and return their types."""
    kinds = {kind.type: kind for kind in DEFINITIONS[protocol].messages}
    KINDS.update(kinds)
    return [*kinds]


_PROTOCOLS: Final = "brokerd.protocols."
KINDS: Final = _ByType({kind.type: kind for kind in COMMON})
"""Kinds of messages by type: those of a protocol from the first use of one of them."""
_CODECS_BY_TYPE: Final = _CodecsByType()
_CODECS_BY_NUMBER: Final = _CodecsByNumber()
