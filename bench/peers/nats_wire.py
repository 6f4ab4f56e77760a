"""The text protocol of NATS, as far as a load client needs it.

Lines end with CR LF; a payload and another CR LF follow the line of a MSG.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.peers.client import ServerRefused

LONGEST_LINE_BYTES = 1 << 16
_END = b"\r\n"


class Line(NamedTuple):
    """A line without a payload: INFO, PING, PONG, +OK, -ERR."""

    word: bytes
    rest: bytes


class Messages(NamedTuple):
    """MSG frames with equal lines, one behind the other, `step` bytes each."""

    sid: bytes
    reply: bytes
    start: int
    size: int
    step: int
    number: int


def connect() -> bytes:
    """Return the first line of a client."""
    return b"CONNECT " + _json({"verbose": False, "pedantic": False, "echo": False}) + _END


def ping() -> bytes:
    """Return a request for a PONG, which follows all earlier requests."""
    return b"PING\r\n"


def pong() -> bytes:
    """Return the answer to a PING."""
    return b"PONG\r\n"


def subscribe(subject: bytes, sid: bytes) -> bytes:
    """Return a subscription to a subject."""
    return b"SUB %b %b\r\n" % (subject, sid)


def publish(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Return a publication."""
    words = (b"PUB", subject, reply, b"%d" % len(payload))
    return b" ".join(filter(None, words)) + _END + payload + _END


def request(subject: bytes, reply: bytes, body: Mapping[str, Any]) -> bytes:
    """Return a request with an answer on the subject `reply`."""
    return publish(subject, _json(body), reply)


class Decoder:
    """A decoder from received bytes to lines and messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[bytes, list[Line | Messages]]:
        """Return the buffer and its complete lines and messages.

        Raises:
            ServerRefused: no line ends within 64 KiB, or a message has another length than
                announced; the server's fault.
        """
        buffer = self._rest + data if self._rest else data
        found: list[Line | Messages] = []
        place = 0
        while (end := buffer.find(_END, place)) >= 0:
            if not buffer.startswith(b"MSG ", place):
                word, _, rest = buffer[place:end].partition(b" ")
                found.append(Line(word, rest))
                place = end + 2
                continue
            messages = _messages(buffer, place, end)
            if messages is None:
                break
            found.append(messages)
            place += messages.step * messages.number
        self._rest = buffer[place:]
        if end < 0 and len(self._rest) > LONGEST_LINE_BYTES:
            raise ServerRefused(f"{len(self._rest)} bytes without the end of a line")
        return buffer, found


def _messages(buffer: bytes, place: int, line_end: int) -> Messages | None:
    """Return the message at a line, with equal messages behind; None if it is incomplete."""
    words = buffer[place + 4 : line_end].split()
    if len(words) not in (3, 4) or not words[-1].isdigit():
        raise ServerRefused(f"not a line of a message: {buffer[place:line_end][:80]!r}")
    start, size = line_end + 2, int(words[-1])
    step = start + size + 2 - place
    if place + step > len(buffer):
        return None
    if buffer[start + size : start + size + 2] != _END:
        raise ServerRefused(f"a message is not as long as its line says: {words!r}")
    reply = words[2] if len(words) == 4 else b""
    return Messages(words[1], reply, start, size, step, _alike(buffer, place, start - place, step))


def _alike(buffer: bytes, place: int, line_bytes: int, step: int) -> int:
    """Return the number of complete messages with the same line and length, or 1.

    The comparison is by column: a few slices for any number of messages.
    """
    count = (len(buffer) - place) // step
    if count < 2 or not buffer.startswith(buffer[place : place + line_bytes], place + step):
        return 1
    end = place + count * step
    for column in (*range(place, place + line_bytes), place + step - 2, place + step - 1):
        if buffer[column:end:step] != buffer[column : column + 1] * count:
            return 1
    return count


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
