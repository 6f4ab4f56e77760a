"""Tests of frames in chunks: arbitrary cuts, and false claims of strangers."""

import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import RemoteProtocolError, reason_of
from brokerd.wire.framing import FrameDecoder


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", len(header) + len(payload) + 4, len(header)) + header + payload


def feed(decoder: FrameDecoder, chunk: bytes) -> list[tuple[bytes, bytes]]:
    decoder.feed(chunk)
    frames = []
    while (one := decoder.next_frame()) is not None:
        frames.append((bytes(one[0]), bytes(one[1])))
    return frames


contents = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=8)


@given(contents, st.lists(st.integers(1, 12), max_size=60))
def test_frames_are_decoded_from_any_division_into_chunks(
    sent: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frame(*one) for one in sent)
    decoder = FrameDecoder(64)
    received = []
    for size in cuts:
        received += feed(decoder, stream[:size])
        stream = stream[size:]
    received += feed(decoder, stream)
    assert received == sent
    assert not decoder.incomplete


def test_a_frame_within_one_chunk_is_a_slice_of_the_chunk() -> None:
    chunk = frame(b"h", b"payload") + frame(b"h", b"more")
    decoder = FrameDecoder()
    decoder.feed(chunk)
    for _ in range(2):
        one = decoder.next_frame()
        assert one is not None
        assert one[1].obj is chunk


@pytest.mark.parametrize(
    "prefix",
    [
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 61),  # with the length itself one more than the limit
        struct.pack(">I", 3),
        struct.pack(">II", 8, 5),
        struct.pack(">II", 4, 0xFFFFFFFF),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
def test_a_senseless_length_is_refused_as_soon_as_it_is_there(
    prefix: bytes, bytewise: bool
) -> None:
    decoder = FrameDecoder(64)
    *before, last = [bytes([byte]) for byte in prefix] if bytewise else [prefix]
    for byte in before[:3]:
        feed(decoder, byte)
    with pytest.raises(RemoteProtocolError):
        feed(decoder, b"".join(before[3:]) + last)


@pytest.mark.parametrize(
    "beginning, reason",
    [
        ("HTTP/1.1 400", "'HTTP' in place of a frame: another program is there"),
        ("SSH-2.0-x", "'SSH-' in place of a frame: another program is there"),
        ("\x7f\xff\xff\xff", "a frame of 2147483651 bytes; at most 64"),
        ("HTT\x80", "a frame of 1213486212 bytes; at most 64"),
    ],
)
def test_an_answer_of_another_program_is_named(beginning: str, reason: str) -> None:
    decoder = FrameDecoder(64)
    decoder.feed(beginning.encode("latin-1"))
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.next_frame()
    assert caught.value.reason == reason
    assert reason_of(caught.value) == reason


def test_the_largest_frame_is_accepted_and_a_larger_one_is_refused() -> None:
    assert feed(FrameDecoder(64), frame(b"h", bytes(55))) == [(b"h", bytes(55))]
    with pytest.raises(RemoteProtocolError, match="65 bytes"):
        feed(FrameDecoder(64), frame(b"h", bytes(56)))


def test_the_limit_may_rise_between_two_frames_of_one_chunk() -> None:
    decoder = FrameDecoder(16)
    decoder.feed(frame(b"small") + frame(b"h", bytes(100)))
    assert decoder.next_frame() is not None
    decoder.limit_bytes = 1000
    large = decoder.next_frame()
    assert large is not None
    assert len(large[1]) == 100


def test_connections_that_claim_much_and_send_little_cost_little() -> None:
    claim = struct.pack(">II", (1 << 20) - 4, 100) + b"x"
    tracemalloc.start()
    decoders = [FrameDecoder(1 << 20) for _ in range(200)]
    for decoder in decoders:
        feed(decoder, claim)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 200 * 4096


def test_single_bytes_cost_no_more_than_the_frame() -> None:
    decoder = FrameDecoder(1 << 20)
    stream = frame(b"h", Random(1).randbytes(60_000))
    tracemalloc.start()
    for at in range(len(stream) - 1):
        assert feed(decoder, stream[at : at + 1]) == []
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 3 * len(stream)
    assert feed(decoder, stream[-1:]) == [(b"h", stream[9:])]
