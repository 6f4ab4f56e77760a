"""Tests of the fast path of reading against its twin: equal messages for any bytes."""

import struct
from dataclasses import replace
from io import BytesIO
from random import Random
from typing import Any
from unittest.mock import patch

import cbor2
import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Deliveries, Publish
from brokerd.model.identity import SourceId
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    SequenceVector,
    Stamp,
)
from brokerd.protocols.gryphon.messages import Events
from brokerd.sessions.messages import Heartbeat
from brokerd.wire import fast_path
from brokerd.wire.codec import encode
from brokerd.wire.fast_path import StraightReader
from brokerd.wire.framing import FrameDecoder

SOURCES = (SourceId(0, 1, 1), SourceId(300, 70_000, 2))
FRAMES = 4_000
NUMBERS = (1, 23, 24, 255, 256, 65_536, 1 << 32, 1 << 50, (1 << 63) - 1)


def some_message(random: Random, sequence: int) -> Any:
    """Return a message of a session: mostly single publications of one source."""
    if random.random() < 0.05:
        return Heartbeat()
    source = SOURCES[random.random() < 0.1]
    if random.random() < 0.05:
        return PublicationConfirmation(((source, sequence, sequence),))
    count = random.choice((1,) * 19 + (3,))
    size = random.choice((0, 1, 5, 250, 250, 250, 70_000))
    blob = bytes(random.choice((1, 20, 23, 24, 60, 255, 256, 300)))
    run = PublicationRun(
        source, range(sequence, sequence + count), (blob,), bytes(count), size,
        (random.randbytes(size * count),) if size else (),
    )  # fmt: skip
    match random.choice("cccccpdveeeee"):
        case "e":
            origin = OriginRun(SOURCES[random.random() < 0.1], range(sequence, sequence + count))
            final, start, end = (random.choice(NUMBERS[-4:]) for _ in range(3))
            placed = replace(run, origins=(origin,))
            may_join, onto = random.random() < 0.9, random.choice((3, 70_000))
            return Events(final, start, end, False, may_join, onto, placed)
        case "p":
            return Publish(run)
        case "d":
            return Deliveries(run, (random.randrange(3),))
        case "v":
            return PublicationCopy(run, (0, 1, 2), SequenceVector(sequence, (Stamp(1, 7), None)))
        case _:
            return PublicationCopy(run, (0, 1, 2))


def some_chunks(seed: int) -> list[bytes]:
    """Return chunks of mostly one frame; some have several, half a frame, or a changed byte."""
    random = Random(seed)
    chunks: list[bytes] = []
    for _ in range(FRAMES):
        sequence = random.choice(NUMBERS)
        data = b"".join(encode(some_message(random, min(sequence, (1 << 63) - 9))))
        if random.random() < 0.2:
            damaged = bytearray(data)
            place = random.randrange(min(90, len(data)))
            damaged[place] = random.choice((damaged[place] ^ 1, random.randrange(256)))
            data = bytes(damaged)
        chunks.append(data)
    return chunks


def read(decoder: FrameDecoder, chunk: bytes) -> list[Any]:
    """Return the result of a chunk: messages, state of runs, and the fault at the end."""
    messages: list[Any] = []
    found: list[Any] = []
    try:
        found.append(decoder.read(chunk, "peer", messages))
    except RemoteProtocolError as error:
        found = [error.reason]
    for message in messages:
        run = getattr(message, "run", None)
        found.append(message)
        if run is not None:
            found.append((run.header, b"".join(map(bytes, run.payload)), type(run.sequences)))
    return [*found, decoder.incomplete]


@pytest.mark.parametrize("seed", [1, 2])
def test_with_and_without_the_lane_the_same_is_read(seed: int) -> None:
    straight_reader, general = StraightReader(1 << 20), FrameDecoder(1 << 20)
    went_straight = events = 0
    like = fast_path._Like

    class Counting(like):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def read(self, chunk: bytes) -> Any:
            nonlocal went_straight, events
            message = super().read(chunk)
            went_straight += message is not None
            events += type(message) is Events
            return message

    with patch.object(fast_path, "_Like", Counting):
        for chunk in some_chunks(seed):
            ours, twins = read(straight_reader, chunk), read(general, chunk)
            assert ours == twins, f"seed {seed}: {chunk[:100].hex()}"
            if straight_reader.incomplete or isinstance(ours[0], str):
                # The session would be over, or the next chunk be taken for the rest.
                like_before = straight_reader._like
                straight_reader, general = StraightReader(1 << 20), FrameDecoder(1 << 20)
                straight_reader._like = like_before
    assert went_straight > FRAMES // 15
    assert events > 10


def reframed(frame: bytes, header: bytes) -> bytes:
    """Return the frame with another header, and correct lengths."""
    (length,) = struct.unpack_from(">I", frame, 4)
    payload = frame[8 + length :]
    return struct.pack(">II", 4 + len(header) + len(payload), len(header)) + header + payload


@pytest.mark.parametrize("path", [(0, 1, 2), (0, 300, 70_000)])
def test_a_field_too_few_or_too_many_is_refused_by_the_lane_too(path: tuple[int, ...]) -> None:
    """Every item of both flat arrays is removed or doubled, with and without its count."""
    run = PublicationRun(SOURCES[1], range(7, 8), (b"\xa0",), b"\0", 3, (b"xyz",))
    frame = b"".join(encode(PublicationCopy(run, path)))
    (length,) = struct.unpack_from(">I", frame, 4)
    header = BytesIO(frame[8 : 8 + length])
    fields, of_run = cbor2.load(header), cbor2.load(header)
    reader = StraightReader(1 << 20)
    for _ in range(3):
        assert len(read(reader, frame)) == 4
    assert reader._like is not None
    wrong: list[bytes] = []
    for place in range(len(fields) + len(of_run)):
        for times in (0, 2):
            both = [cbor2.dumps(item) for item in (*fields, *of_run)]
            both[place] *= times
            for claims in ((0, 0), (times - 1, 0), (0, times - 1)):
                heads = [
                    bytes([0x80 + len(items) + more])
                    for items, more in zip((fields, of_run), claims, strict=True)
                ]
                parts = b"".join(both[: len(fields)]), b"".join(both[len(fields) :])
                wrong.append(heads[0] + parts[0] + heads[1] + parts[1])
    refused = 0
    for damaged in wrong:
        chunk = reframed(frame, damaged)
        like, reader = reader._like, StraightReader(1 << 20)
        reader._like = like
        found = read(reader, chunk)
        assert found == read(FrameDecoder(1 << 20), chunk), damaged.hex()
        assert PublicationCopy(run, path) not in found
        refused += isinstance(found[0], str)
    assert refused >= len(wrong) - 3, "but for a path without brokers, and what may follow on it"


def test_a_frame_over_the_limit_is_refused_as_ever() -> None:
    run = PublicationRun(SOURCES[0], range(5, 6), (b"a",), b"\0", 100, (bytes(100),))
    chunk = b"".join(encode(Publish(run)))
    reader = StraightReader(1 << 20)
    for _ in range(3):
        assert read(reader, chunk)[1] == Publish(run)
    reader.limit_bytes = len(chunk) - 1
    assert read(reader, chunk) == [f"a frame of {len(chunk)} bytes; at most {len(chunk) - 1}", True]
