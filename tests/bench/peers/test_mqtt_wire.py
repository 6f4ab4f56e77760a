"""Tests of MQTT 3.1.1 against recorded replies of mosquitto 2.0.11."""

import pytest

from bench.peers.mosquitto import Decoder, MqttClient, packet
from bench.peers.system import ServerRefused

CONNECTED = b"\x20\x02\x00\x00"
SUBSCRIBED = b"\x90\x03\x00\x01\x02"
TWO_QOS2 = b"4\x0b\x00\x04load\x00\x01abc4\x0b\x00\x04load\x00\x02abc"


def test_an_mqtt_subscriber_attaches_and_releases_publications_exactly_once() -> None:
    client = MqttClient(True, 2)
    assert client.attach() == b"\x10\x14\x00\x04MQTT\x04\x02\x00\x00\x00\x08load-sub"
    assert client.feed(CONNECTED).answer == b"\x82\t\x00\x01\x00\x04load\x02"
    assert not client.is_attached
    client.feed(SUBSCRIBED)
    assert client.is_attached

    came = client.feed(TWO_QOS2)
    assert list(came.payloads()) == [b"abc", b"abc"]
    assert came.answer == b"P\x02\x00\x01P\x02\x00\x02"
    again = client.feed(b"<" + TWO_QOS2[1:13])  # the first one, marked as sent before
    assert again.delivered == 0
    assert client.feed(b"b\x02\x00\x01b\x02\x00\x02").answer == b"p\x02\x00\x01p\x02\x00\x02"
    assert client.feed(TWO_QOS2).delivered == 2  # identifiers that were released are free


def test_publications_have_identifiers_of_their_own_until_they_are_acknowledged() -> None:
    client = MqttClient(False, 1)
    assert client.awaits_acknowledgements
    client.feed(CONNECTED)
    assert client.is_attached
    assert client.publish(b"abc", 2) == b"2\x0b\x00\x04load\x00\x01abc2\x0b\x00\x04load\x00\x02abc"
    assert client.publish(b"abc", 1) == b"2\x0b\x00\x04load\x00\x03abc"
    assert client.feed(b"@\x02\x00\x01@\x02\x00\x02").acknowledged == 2
    first = [client.publish(b"abc", 60)[8:10] for _ in range(1_100)]
    assert first[0] == b"\x00\x04"
    assert b"\x00\x01" in first  # they have come around
    assert b"\x00\x00" not in first  # which is none

    twice = MqttClient(False, 2)
    assert twice.feed(b"P\x02\x00\x01").answer == b"b\x02\x00\x01"
    assert twice.feed(b"p\x02\x00\x01").acknowledged == 1
    assert MqttClient(False, 0).publish(b"abc", 1) == b"0\t\x00\x04loadabc"


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 300_000])
def test_the_decoder_assembles_packets_of_any_length_from_any_pieces(size: int) -> None:
    sent = packet(0x30, bytes(size)) + CONNECTED
    for cut in (1, 2, 3, len(sent) - 5, len(sent) - 1):
        decoder = Decoder()
        _, before = decoder.feed(sent[:cut])
        _, after = decoder.feed(sent[cut:])
        assert [end - start for _, _, start, end in before + after] == [size, 2]


@pytest.mark.parametrize(
    "said",
    [b"\x20\x02\x00\x05", b"\x90\x03\x00\x01\x80", b"\x30\xff\xff\xff\xff", b"\xa0\x02\x00\x01"],
)
def test_an_invalid_packet_of_a_broker_is_refused(said: bytes) -> None:
    with pytest.raises(ServerRefused):
        MqttClient(True, 1).feed(said)
