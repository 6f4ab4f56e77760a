"""The text protocol of NATS, as far as a load client needs it.

Lines end with CR LF; behind the line of a MSG come its payload and another CR LF.
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
    """So many MSG frames with equal lines, one behind the other, `step` bytes each."""

    sid: bytes
    reply: bytes
    start: int
    size: int
    step: int
    number: int


def connect() -> bytes:
    """The first words of a client."""
    return b"CONNECT " + _json({"verbose": False, "pedantic": False, "echo": False}) + _END


def ping() -> bytes:
    """Asks for a PONG, which comes when everything before is done."""
    return b"PING\r\n"


def pong() -> bytes:
    """Answers a PING."""
    return b"PONG\r\n"


def subscribe(subject: bytes, sid: bytes) -> bytes:
    """Asks for what is published on a subject."""
    return b"SUB %b %b\r\n" % (subject, sid)


def publish(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """A publication."""
    words = (b"PUB", subject, reply, b"%d" % len(payload))
    return b" ".join(filter(None, words)) + _END + payload + _END


def request(subject: bytes, reply: bytes, body: Mapping[str, Any]) -> bytes:
    """A request of which the answer comes on the subject `reply`."""
    return publish(subject, _json(body), reply)


class Decoder:
    """Takes bytes as they come and gives lines and messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[bytes, list[Line | Messages]]:
        """What is complete, with the buffer that the places of messages are in.

        Raises:
            ServerRefused: no line ends within 64 KiB, or a message is not as long as it says.
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
    """The message whose line is there, with those like it behind it; None if it is incomplete."""
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
    """How many messages follow with the same line and length: all that are whole, or just one.

    Compares column by column: a few slices, however many messages there are.
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
