"""The text messages of the multi-proxy report, for comparison with the binary messages.

A message is a line of fields with a space between, two ends of line, and an optional body. Some
points are open in the report and fixed here: ids and topics have no characters that frame, a count
has no leading zero, and in the data of a topic `/` is written `//` and `*` is written `/s`.

Paper: [MP22] §3.1.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

STATUSES: Final = (
    *("OK", "ALREADY_SUBSCRIBED", "NOT_SUBSCRIBED", "NO_MESSAGES", "SERVER_UNAVAILABLE"),
    *("INTERNAL_ERROR", "PROXY_DOES_NOT_KNOW_ANY_SERVER", "TRANSFER_TOPIC_ERROR"),
)

_ID: Final = re.compile("[A-Za-z0-9._:@-]{1,128}")
_COUNTER: Final = re.compile("[1-9][0-9]{0,18}")
_END: Final = b"\r\n\r\n"
_NONE_YET: Final = "-1"


class WrongMessage(ValueError):
    """Bytes that are no message of the report; the text names the mistake."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Client → server."""

    sender: str
    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Client → server."""

    sender: str
    topic: str


@dataclass(frozen=True, slots=True)
class Get:
    """Client → server: request the next message; `last` is the previous message, "" for none."""

    sender: str
    topic: str
    last: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """Client → server: publish the message that is this client's `counter`-th in the topic."""

    sender: str
    topic: str
    counter: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Periodic:
    """Server → proxies: announce owned topics."""

    sender: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Proxy → server: transfer this topic to the server with that address."""

    sender: str
    topic: str
    other: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Server → server: a topic, the remaining receivers of each message, and the messages."""

    sender: str
    topic: str
    queues: tuple[tuple[str, tuple[str, ...]], ...]
    messages: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The reply to any request; the reply to a get carries the message, if there is one."""

    sender: str
    status: str
    message_id: str = ""
    content: bytes = b""


Message = Subscribe | Unsubscribe | Get | Put | Periodic | Merge | Transfer | Status


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        WrongMessage: the message contains characters that cannot be sent.
    """
    fields, body = _parts(message)
    data = " ".join((type(message).__name__.upper(), *fields)).encode() + _END + body
    if decode(data) != message:
        raise WrongMessage(f"{message!r} would be read as {decode(data)!r}")
    return data


def decode(data: bytes) -> Message:
    """Return the message of these bytes.

    Raises:
        WrongMessage: the bytes are no message.
    """
    header, end, body = data.partition(_END)
    if not end:
        raise WrongMessage(f"{data[:40]!r}: the header has no end")
    try:
        name, *fields = header.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise WrongMessage(f"{header[:40]!r}: not ASCII") from None
    if name not in _READ:
        raise WrongMessage(f"{name[:40]!r} is none of {', '.join(_READ)}")
    least, most, has_body, read = _READ[name]
    if not least <= len(fields) <= most:
        raise WrongMessage(f"{name}: {len(fields)} fields, not {least} to {most}")
    if body and not has_body:
        raise WrongMessage(f"{name} has no body, this has {len(body)} bytes")
    for field in fields:
        _check_field(field)
    return read(fields, body)


def _parts(message: Message) -> tuple[tuple[str, ...], bytes]:
    match message:
        case Subscribe(sender, topic) | Unsubscribe(sender, topic):
            return (sender, topic), b""
        case Get(sender, topic, last):
            return (sender, topic, last or _NONE_YET), b""
        case Put(sender, topic, counter, content):
            return (sender, topic, str(counter)), content
        case Periodic(sender, topics):
            return (sender,), " ".join(topics).encode()
        case Merge(sender, topic, other):
            return (sender, topic, other), b""
        case Transfer(sender, topic, queues, messages):
            lines = [" ".join((name, *ids)).encode() + b"\r\n" for name, ids in queues]
            lines += [b"*" + key.encode() + b"\r\n" + _escape(what) for key, what in messages]
            return (sender, topic), b"".join(lines)
        case Status(sender, status, message_id, content):
            return (sender, status, *([message_id] if message_id else [])), content


def _read_get(fields: list[str], body: bytes) -> Message:
    sender, topic, last = fields
    return Get(sender, topic, "" if last == _NONE_YET else last)


def _read_put(fields: list[str], body: bytes) -> Message:
    sender, topic, counter = fields
    if not _COUNTER.fullmatch(counter):
        raise WrongMessage(f"counter {counter!r}: no whole number from 1")
    return Put(sender, topic, int(counter), body)


def _read_periodic(fields: list[str], body: bytes) -> Message:
    return Periodic(fields[0], _checked_all(_text(body).split(" ")) if body else ())


def _read_transfer(fields: list[str], body: bytes) -> Message:
    lines, *rest = body.split(b"*")
    queues, messages = [], []
    if lines and not lines.endswith(b"\r\n"):
        raise WrongMessage(f"{lines[-40:]!r}: the line of a subscriber has no end")
    for line in lines.split(b"\r\n")[:-1]:
        name, *ids = _checked_all(_text(line).split(" "))
        queues.append((name, tuple(ids)))
    for each in rest:
        key, end, content = each.partition(b"\r\n")
        if not end:
            raise WrongMessage(f"{each[:40]!r}: the id of a message has no end")
        messages.append((_check_field(_text(key)), _unescape(content)))
    return Transfer(fields[0], fields[1], tuple(queues), tuple(messages))


def _read_status(fields: list[str], body: bytes) -> Message:
    sender, status, *message_id = fields
    if status not in STATUSES:
        raise WrongMessage(f"status {status!r} is none of {', '.join(STATUSES)}")
    if _NONE_YET in message_id:
        raise WrongMessage(f"{_NONE_YET} is the id of no message")
    if body and not message_id:
        raise WrongMessage("a status without message id has no message")
    return Status(sender, status, *message_id, content=body)


_READ: Final[Mapping[str, tuple[int, int, bool, Callable[[list[str], bytes], Message]]]] = {
    "SUBSCRIBE": (2, 2, False, lambda fields, body: Subscribe(*fields)),
    "UNSUBSCRIBE": (2, 2, False, lambda fields, body: Unsubscribe(*fields)),
    "GET": (3, 3, False, _read_get),
    "PUT": (3, 3, True, _read_put),
    "PERIODIC": (1, 1, True, _read_periodic),
    "MERGE": (3, 3, False, lambda fields, body: Merge(*fields)),
    "TRANSFER": (2, 2, True, _read_transfer),
    "STATUS": (2, 3, True, _read_status),
}
"""By name: the fewest and most fields, whether a body may follow, and the decoder."""


def _check_field(field: str) -> str:
    if not _ID.fullmatch(field):
        raise WrongMessage(f"{field[:40]!r}: 1 to 128 of letters, digits and . _ : @ -")
    return field


def _checked_all(fields: Iterable[str]) -> tuple[str, ...]:
    return tuple([_check_field(field) for field in fields])


def _text(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise WrongMessage(f"{data[:40]!r}: not ASCII") from None


def _escape(content: bytes) -> bytes:
    return content.replace(b"/", b"//").replace(b"*", b"/s")


def _unescape(content: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        if found[0] not in (b"//", b"/s"):
            raise WrongMessage(f"{found[0]!r} stands for nothing")
        return b"/" if found[0] == b"//" else b"*"

    return re.sub(rb"/.?", one, content, flags=re.DOTALL)
