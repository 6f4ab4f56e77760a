"""The messages of a control socket: requests, answers, events, one per frame.

A frame is u32 length of the rest, u32 header length, header (big-endian), as between brokers,
without a payload. The header is one strict CBOR array that starts with the kind's number.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import cbor2

from brokerd.errors import RemoteProtocolError
from brokerd.wire.strict_cbor import StrictCborError, check_plain, decode_strict

FRAME_LIMIT_BYTES: Final = 1 << 20
ERROR_TEXT_LIMIT: Final = 4_000
ERROR_KINDS: Final = ("user", "busy", "internal")
PREFIX: Final = struct.Struct(">II")

_NAME_LIMIT: Final = 100
_MAXIMUM_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """A request to run `command`; an Answer or Refusal with the same id follows."""

    id: int
    command: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the request with this id."""

    id: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for which the request with this id has no result.

    Attributes:
        kind: user (the request is wrong), busy (repeat later), internal (the server's fault).
    """

    id: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class EventNotice:
    """An event at the server, sent unasked to all listeners."""

    name: str
    details: dict[str, Any]


ControlMessage = Request | Answer | Refusal | EventNotice


def encode_control(message: ControlMessage) -> bytes:
    """Return the frame that carries `message`.

    Raises:
        ValueError: the message contains values that text-keyed maps cannot, or is larger than
            FRAME_LIMIT_BYTES.
    """
    match message:
        case Request(id_, command, arguments):
            fields: list[Any] = [1, id_, command, arguments]
        case Answer(id_, result):
            fields = [2, id_, result]
        case Refusal(id_, kind, text):
            fields = [3, id_, kind, text[:ERROR_TEXT_LIMIT]]
        case EventNotice(name, details):
            fields = [4, name, details]
    check_plain(fields, type(message).__name__)
    header = cbor2.dumps(fields)
    if len(header) + PREFIX.size > FRAME_LIMIT_BYTES:
        raise ValueError(
            f"{type(message).__name__}: {len(header)} bytes are more than a control frame takes"
        )
    return PREFIX.pack(len(header) + 4, len(header)) + header


def header_length(prefix: bytes) -> int:
    """Return the number of header bytes that follow the first PREFIX.size bytes of a frame.

    Raises:
        RemoteProtocolError: the frame is too large, or has a payload.
    """
    length, header = PREFIX.unpack(prefix)
    if length > FRAME_LIMIT_BYTES - 4:
        raise RemoteProtocolError(
            "control", f"a frame of {length} bytes; limit {FRAME_LIMIT_BYTES}"
        )
    if header + 4 != length:
        raise RemoteProtocolError("control", f"header of {header} bytes in a frame of {length}")
    return int(header)


def decode_control(header: bytes) -> ControlMessage:
    """Return the message in a frame with this header.

    Raises:
        RemoteProtocolError: the header is no control message; the text names the fault.
    """
    try:
        fields = decode_strict(header)
        check_plain(fields, "control message")
    except StrictCborError as error:
        raise RemoteProtocolError("control", str(error)) from None
    match fields:
        case [1, int(id_), str(command), dict(arguments)]:
            message: ControlMessage = Request(id_, command, arguments)
        case [2, int(id_), dict(result)]:
            message = Answer(id_, result)
        case [3, int(id_), str(kind), str(text)] if kind in ERROR_KINDS:
            message = Refusal(id_, kind, text[:ERROR_TEXT_LIMIT])
        case [4, str(name), dict(details)]:
            message = EventNotice(name, details)
        case _:
            raise RemoteProtocolError("control", "not a control message")
    if isinstance(message, EventNotice):
        word = message.name
    else:
        word = message.command if isinstance(message, Request) else ""
        if isinstance(message.id, bool) or not 0 <= message.id <= _MAXIMUM_ID:
            raise RemoteProtocolError("control", "the request id is out of range")
    if type(fields[0]) is not int or len(word) > _NAME_LIMIT:
        raise RemoteProtocolError("control", "not a control message")
    return message
