"""MQTT 3.1.1 framing, as far as a load client needs it.

A packet is a byte of type and flags, the length of the rest (seven bits a byte, at most four
bytes), and the rest.
"""

import struct
from typing import Final, NamedTuple

from bench.peers.client import ServerRefused

CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90
LARGEST_ID: Final = 65_535

_REFUSED: Final = 0x80
_ID: Final = struct.Struct(">H")
_WITH_ID: Final = struct.Struct(">BBH")


class Packet(NamedTuple):
    """One packet; its rest is `buffer[start:end]`."""

    kind: int
    flags: int
    start: int
    end: int


def connect(client_id: bytes) -> bytes:
    """Return a request for a clean session without a keep-alive."""
    return packet(CONNECT, text(b"MQTT") + bytes((4, 2, 0, 0)) + text(client_id))


def subscribe(topic: bytes, qos: int, number: int) -> bytes:
    """Return a subscription to a topic with this quality of service."""
    return packet(SUBSCRIBE, _ID.pack(number) + text(topic) + bytes((qos,)))


def publish(topic: bytes, payload: bytes, qos: int, number: int) -> bytes:
    """Return a publication; `number` is its packet identifier if `qos` is not 0."""
    identifier = _ID.pack(number) if qos else b""
    return packet(PUBLISH | qos << 1, text(topic) + identifier + payload)


def acknowledgement(kind: int, number: int) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP of a packet identifier."""
    return _WITH_ID.pack(kind, 2, number)


def packet(first: int, rest: bytes) -> bytes:
    """Return a packet with `first` as the byte of type and flags."""
    length = len(rest)
    assert length < 1 << 28, f"{length} bytes"
    head = bytearray((first,))
    while True:
        length, digit = length >> 7, length & 0x7F
        head.append(digit | 0x80 if length else digit)
        if not length:
            return bytes(head) + rest


def text(value: bytes) -> bytes:
    """Return a string behind its length."""
    return _ID.pack(len(value)) + value


def number_at(buffer: bytes, place: int) -> int:
    """Return the 16-bit number at a place."""
    found: int = _ID.unpack_from(buffer, place)[0]
    return found


class Decoder:
    """A decoder from received bytes to packets."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[bytes, list[Packet]]:
        """Return the buffer and its complete packets.

        Raises:
            ServerRefused: a length takes more than four bytes; the server's fault.
        """
        buffer = self._rest + data if self._rest else data
        found: list[Packet] = []
        place, end = 0, len(buffer)
        while end - place >= 2:
            first, length, start = buffer[place], buffer[place + 1], place + 2
            if length & 0x80:
                start, length = _long_length(buffer, place + 1)
                if not start:
                    break
            if start + length > end:
                break
            found.append(Packet(first & 0xF0, first & 0x0F, start, start + length))
            place = start + length
        self._rest = buffer[place:]
        return buffer, found


def _long_length(buffer: bytes, place: int) -> tuple[int, int]:
    """Return start and length of the rest of a packet; (0, 0) if the length is incomplete."""
    length = 0
    for digit, value in enumerate(buffer[place : place + 4]):
        length |= (value & 0x7F) << 7 * digit
        if not value & 0x80:
            return place + digit + 1, length
    if len(buffer) - place >= 4:
        raise ServerRefused(f"a length of more than four bytes: {buffer[place : place + 4].hex()}")
    return 0, 0


def refusal(buffer: bytes, found: Packet) -> str | None:
    """Return the reason of a refusal in a CONNACK or SUBACK; None for an acceptance."""
    code = buffer[found.end - 1]
    if found.kind == CONNACK and code:
        return f"the connection is refused with code {code}"
    if found.kind == SUBACK and code & _REFUSED:
        return "the subscription is refused"
    return None
