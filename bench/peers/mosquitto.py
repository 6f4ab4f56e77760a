"""Mosquitto under comparison, and the framing of MQTT 3.1.1.

A comparison uses one broker, or brokers that are joined by bridges, at each quality of service. The
framing covers what a load client needs. A packet is a byte of type and flags, the length of the
rest (seven bits a byte, at most four bytes), and the rest.
"""

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from bench.peers.system import Client, Deliveries, ReceivedContent, ServerRefused, System
from bench.systems.boundary import Server, Start
from bench.systems.mosquitto import driver

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


_TOPIC = b"load"


class MqttClient:
    """A client with the same quality of service in both directions.

    At quality 2 a publication counts as delivered at the first arrival, and the identifier is kept
    until the release, as in method B of the standard: an application may receive the publication
    then at the earliest.
    """

    def __init__(self, subscribes: bool, qos: int) -> None:
        self._subscribes = subscribes
        self._qos = qos
        self._decoder = Decoder()
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._payload = b""
        self._next_id = 1
        self._unreleased: set[int] = set()
        self.awaits_acknowledgements = not subscribes and qos > 0
        self.is_attached = False

    def attach(self) -> bytes:
        return connect(b"load-sub" if self._subscribes else b"load-pub")

    def publish(self, payload: bytes, count: int) -> bytes:
        """Return the bytes of publications; identifiers repeat after 65,535 publications."""
        if payload != self._payload:
            self._encoded.clear()
            self._payload = payload
        if self._next_id + count > LARGEST_ID:
            self._next_id = 1
        first = self._next_id if self._qos else 0
        encoded = self._encoded.get((first, count))
        if encoded is None:
            encoded = self._encoded[first, count] = b"".join(
                publish(_TOPIC, payload, self._qos, number)
                for number in range(first, first + count)
            )
        self._next_id += count
        return encoded

    def feed(self, data: bytes) -> ReceivedContent:
        buffer, packets = self._decoder.feed(data)
        content = ReceivedContent(buffer)
        answers: list[bytes] = []
        for packet in packets:
            if packet.kind == PUBLISH:
                self._on_publication(content, packet, answers)
            elif packet.kind in (CONNACK, SUBACK):
                self._on_attached(buffer, packet, answers)
            else:
                self._on_acknowledgement(content, packet, answers)
        content.answer = b"".join(answers)
        return content

    def _on_publication(
        self, content: ReceivedContent, packet: Packet, answers: list[bytes]
    ) -> None:
        buffer, qos = content.buffer, packet.flags >> 1 & 3
        start = packet.start + 2 + number_at(buffer, packet.start)
        if qos:
            number = number_at(buffer, start)
            start += 2
            answers.append(acknowledgement(PUBACK if qos == 1 else PUBREC, number))
            if qos == 2:
                if number in self._unreleased:
                    return
                self._unreleased.add(number)
        size = packet.end - start
        content.deliveries.append(Deliveries(start, size, size, 1))

    def _on_acknowledgement(
        self, content: ReceivedContent, packet: Packet, answers: list[bytes]
    ) -> None:
        number = number_at(content.buffer, packet.start)
        if packet.kind == PUBREC:
            answers.append(acknowledgement(PUBREL, number))
        elif packet.kind == PUBREL & 0xF0:
            self._unreleased.discard(number)
            answers.append(acknowledgement(PUBCOMP, number))
        elif packet.kind in (PUBACK, PUBCOMP):
            content.acknowledged += 1
        else:
            raise ServerRefused(f"a packet of type {packet.kind >> 4}")

    def _on_attached(self, buffer: bytes, packet: Packet, answers: list[bytes]) -> None:
        if reason := refusal(buffer, packet):
            raise ServerRefused(reason)
        if self._subscribes and packet.kind == CONNACK:
            answers.append(subscribe(_TOPIC, self._qos, 1))
        else:
            self.is_attached = True


def _chain(qos: int, program: str, servers: Sequence[Server]) -> list[Start]:
    """Return brokers with a bridge from every broker to the next."""
    starts = []
    for server, following in zip(servers, [*servers[1:], None], strict=True):
        lines = [
            "persistence false",
            # By default a broker queues a thousand messages per client, and drops further ones.
            "max_queued_messages 0",
            "max_inflight_messages 0",
        ]
        if following is not None:
            lines += [
                "connection next",
                f"address {following.address}",
                f"topic {_TOPIC.decode()} out {qos}",
                "bridge_protocol_version mqttv311",
                "notifications false",
                "restart_timeout 1",
            ]
        starts.append(driver.start_with(program, server, lines))
    return starts


def _client(qos: int, subscribes: bool) -> Client:
    return MqttClient(subscribes, qos)


def _system(qos: int, promise: str, window: int, batch: int) -> System:
    return System(
        name=f"mosquitto-qos{qos}",
        promise=promise,
        kept="not kept; chain: bridges",
        product=driver.SYSTEM,
        window=window,
        batch=batch,
        largest_chain=3,
        start=partial(_chain, qos),
        client=partial(_client, qos),
    )


SYSTEMS = (
    _system(0, "at most once", 8_192, 128),
    _system(1, "at least once", 1_024, 64),
    _system(2, "exactly once per hop", 1_024, 64),
)
