"""Tests of the protocol of NATS against recorded replies of a server of version 2.9.10."""

import random

import pytest

from bench.peers.nats import (
    LONGEST_LINE_BYTES,
    Decoder,
    JetStreamClient,
    Line,
    Messages,
    NatsClient,
)
from bench.peers.system import ServerRefused

INFO = b'INFO {"server_id":"NDWK2MHI","version":"2.9.10","proto":1,"max_payload":1048576} \r\n'
TWO = b"MSG load 1 3\r\nabc\r\nMSG load 1 3\r\nabc\r\n"
ACKNOWLEDGED = (
    b'MSG load.acknowledged 9  26\r\n{"stream":"LOAD", "seq":1}\r\n'
    b'MSG load.acknowledged 9  26\r\n{"stream":"LOAD", "seq":2}\r\n'
)
MADE = b'MSG load.made 9 19\r\n{"did_create": true}\r\n'.replace(b": ", b":")
DELIVERED = (
    b"MSG load 1 $JS.ACK.LOAD.C.1.1.1.1795397229838217980.1 3\r\nabc\r\n"
    b"MSG load 1 $JS.ACK.LOAD.C.1.2.2.1795397229838310177.0 3\r\nabd\r\n"
)


def one_by_one(data: bytes) -> list[bytes]:
    """Return the payloads of all messages, read as the description of the protocol requires."""
    found = []
    while data:
        line, _, data = data.partition(b"\r\n")
        if line.startswith(b"MSG "):
            size = int(line.split()[-1])
            found.append(data[:size])
            data = data[size + 2 :]
    return found


def test_a_client_attaches_subscribes_and_counts_deliveries() -> None:
    client = NatsClient(subscribes=True)
    assert client.attach().endswith(b"}\r\nSUB load 1\r\nPING\r\n")
    assert not client.feed(INFO).answer
    assert not client.is_attached
    client.feed(b"PONG\r\n")
    assert client.is_attached

    came = client.feed(TWO)
    assert came.delivered == 2
    assert list(came.payloads()) == [b"abc", b"abc"]
    assert client.feed(b"PING\r\n").answer == b"PONG\r\n"
    assert NatsClient(subscribes=False).publish(b"abc", 2) == b"PUB load 3\r\nabc\r\n" * 2


def test_a_message_may_be_longer_than_a_line_and_a_line_may_not() -> None:
    payload = b"x" * (2 * LONGEST_LINE_BYTES)
    stream = b"MSG load 1 %d\r\n%s\r\nPING\r\n" % (len(payload), payload)
    decoder, found = Decoder(), []
    for place in range(0, len(stream), 10_000):
        found += decoder.feed(stream[place : place + 10_000])[1]
    assert [type(each) for each in found] == [Messages, Line]
    assert found[0].size == len(payload)
    longest = b"+" * LONGEST_LINE_BYTES
    assert decoder.feed(longest)[1] == []
    with pytest.raises(ServerRefused, match="without the end of a line"):
        decoder.feed(b"+")


def test_any_division_into_pieces_yields_the_same_messages() -> None:
    chance = random.Random(5)
    texts = [b"MSG load 1 3\r\nabc\r\n", b"MSG load 1 4\r\n\r\nMS\r\n", b"MSG load 2 0\r\n\r\n"]
    stream = b"".join(
        chance.choice([*texts, b"PING\r\n"]) * chance.randint(1, 5) for _ in range(300)
    )
    decoder, payloads, alike, place = Decoder(), [], 0, 0
    while place < len(stream):
        piece = stream[place : place + chance.randint(1, 80)]
        place += len(piece)
        buffer, frames = decoder.feed(piece)
        for frame in frames:
            if isinstance(frame, Line):
                continue
            starts = (frame.start + number * frame.step for number in range(frame.number))
            payloads += [buffer[start : start + frame.size] for start in starts]
            alike += frame.number > 1
    assert payloads == one_by_one(stream)
    assert alike > 20


def test_a_message_of_another_length_ends_a_run_of_equal_messages() -> None:
    _, frames = Decoder().feed(TWO + b"MSG load 1 2\r\nab\r\n")
    assert [frame.number for frame in frames if isinstance(frame, Messages)] == [2, 1]
    # A payload that looks like a line, where the next message would begin if it were alike.
    _, frames = Decoder().feed(b"MSG a 1 2\r\nab\r\nMSG a 1 20\r\nMSG a 1 2\r\nxxxxxxxxx\r\n")
    assert [frame.number for frame in frames if isinstance(frame, Messages)] == [1, 1]


def test_a_stream_is_made_and_everything_is_acknowledged() -> None:
    subscriber = JetStreamClient(subscribes=True)
    assert b"SUB load.delivered 1\r\n" in subscriber.attach()
    assert b"$JS.API.STREAM.CREATE.LOAD load.made" in subscriber.feed(INFO + b"PONG\r\n").answer
    assert b"$JS.API.CONSUMER.DURABLE.CREATE.LOAD.C load.made" in subscriber.feed(MADE).answer
    assert not subscriber.is_attached
    subscriber.feed(MADE)
    assert subscriber.is_attached
    came = subscriber.feed(DELIVERED)
    assert list(came.payloads()) == [b"abc", b"abd"]
    last = b"PUB $JS.ACK.LOAD.C.1.2.2.1795397229838310177.0 4\r\n+ACK\r\n"
    assert came.answer == last

    publisher = JetStreamClient(subscribes=False)
    assert b"SUB load.acknowledged 9\r\n" in publisher.attach()
    assert publisher.publish(b"abc", 1) == b"PUB load load.acknowledged 3\r\nabc\r\n"
    assert publisher.feed(ACKNOWLEDGED).acknowledged == 2


@pytest.mark.parametrize(
    "said",
    [
        b"-ERR 'Authorization Violation'\r\n",
        b"MSG load 1 three\r\nabc\r\n",
        b"MSG load 1 2\r\nabc\r\n",
        b"x" * 70_000,
        b'MSG load.acknowledged 9 22\r\n{"error":{"code":503}}\r\n',
    ],
)
def test_an_invalid_reply_of_a_server_is_refused(said: bytes) -> None:
    with pytest.raises(ServerRefused):
        JetStreamClient(subscribes=False).feed(said)
