"""Mosquitto: one broker, or brokers joined by bridges; MQTT 3.1.1 at each quality of service."""

import getpass
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.peers import mqtt_wire
from bench.peers.client import Came, Client, Deliveries, ServerRefused
from bench.peers.mqtt_wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet
from bench.peers.system import ServerStart, System

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
        self._decoder = mqtt_wire.Decoder()
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._payload = b""
        self._next_id = 1
        self._unreleased: set[int] = set()
        self.awaits_acknowledgements = not subscribes and qos > 0
        self.is_attached = False

    def attach(self) -> bytes:
        return mqtt_wire.connect(b"load-sub" if self._subscribes else b"load-pub")

    def publish(self, payload: bytes, count: int) -> bytes:
        """Return the bytes of publications; identifiers repeat after 65,535 publications."""
        if payload != self._payload:
            self._encoded.clear()
            self._payload = payload
        if self._next_id + count > mqtt_wire.LARGEST_ID:
            self._next_id = 1
        first = self._next_id if self._qos else 0
        encoded = self._encoded.get((first, count))
        if encoded is None:
            encoded = self._encoded[first, count] = b"".join(
                mqtt_wire.publish(_TOPIC, payload, self._qos, number)
                for number in range(first, first + count)
            )
        self._next_id += count
        return encoded

    def feed(self, data: bytes) -> Came:
        buffer, packets = self._decoder.feed(data)
        came = Came(buffer)
        answers: list[bytes] = []
        for packet in packets:
            if packet.kind == PUBLISH:
                self._on_publication(came, packet, answers)
            elif packet.kind in (mqtt_wire.CONNACK, mqtt_wire.SUBACK):
                self._on_attached(buffer, packet, answers)
            else:
                self._on_acknowledgement(came, packet, answers)
        came.answer = b"".join(answers)
        return came

    def _on_publication(self, came: Came, packet: Packet, answers: list[bytes]) -> None:
        buffer, qos = came.buffer, packet.flags >> 1 & 3
        start = packet.start + 2 + mqtt_wire.number_at(buffer, packet.start)
        if qos:
            number = mqtt_wire.number_at(buffer, start)
            start += 2
            answers.append(mqtt_wire.acknowledgement(PUBACK if qos == 1 else PUBREC, number))
            if qos == 2:
                if number in self._unreleased:
                    return
                self._unreleased.add(number)
        size = packet.end - start
        came.deliveries.append(Deliveries(start, size, size, 1))

    def _on_acknowledgement(self, came: Came, packet: Packet, answers: list[bytes]) -> None:
        number = mqtt_wire.number_at(came.buffer, packet.start)
        if packet.kind == PUBREC:
            answers.append(mqtt_wire.acknowledgement(PUBREL, number))
        elif packet.kind == PUBREL & 0xF0:
            self._unreleased.discard(number)
            answers.append(mqtt_wire.acknowledgement(PUBCOMP, number))
        elif packet.kind in (PUBACK, PUBCOMP):
            came.acknowledged += 1
        else:
            raise ServerRefused(f"a packet of type {packet.kind >> 4}")

    def _on_attached(self, buffer: bytes, packet: Packet, answers: list[bytes]) -> None:
        if reason := mqtt_wire.refusal(buffer, packet):
            raise ServerRefused(reason)
        if self._subscribes and packet.kind == mqtt_wire.CONNACK:
            answers.append(mqtt_wire.subscribe(_TOPIC, self._qos, 1))
        else:
            self.is_attached = True


def _chain(
    qos: int, program: str, folders: Sequence[Path], ports: Sequence[int]
) -> list[ServerStart]:
    """Return brokers with a bridge from every broker to the next."""
    starts = []
    for place, (folder, port) in enumerate(zip(folders, ports, strict=False)):
        lines = [
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            f"user {getpass.getuser()}",
            "persistence false",
            # By default a broker queues a thousand messages per client, and drops further ones.
            "max_queued_messages 0",
            "max_inflight_messages 0",
            "set_tcp_nodelay true",
        ]
        if place + 1 < len(folders):
            lines += [
                "connection next",
                f"address 127.0.0.1:{ports[place + 1]}",
                f"topic {_TOPIC.decode()} out {qos}",
                "bridge_protocol_version mqttv311",
                "notifications false",
                "restart_timeout 1",
            ]
        configuration = folder / "mosquitto.conf"
        configuration.write_text("\n".join(lines) + "\n")
        starts.append(ServerStart((program, "-c", str(configuration)), port))
    return starts


def _client(qos: int, subscribes: bool) -> Client:
    return MqttClient(subscribes, qos)


def _system(qos: int, promise: str, window: int, batch: int) -> System:
    return System(
        name=f"mosquitto-qos{qos}",
        promise=promise,
        kept="not kept; chain: bridges",
        package="mosquitto",
        program="mosquitto",
        version_option="-h",
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
