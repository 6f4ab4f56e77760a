"""Tests of hostile items: every item must be refused at little cost.

An item is sent as an attribute blob and as a frame's header, alone and inside a message that would
otherwise be valid.
"""

import struct
import tracemalloc

import cbor2
import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.wire import codec
from brokerd.wire.attributes import decode_attributes
from brokerd.wire.framing import FrameDecoder
from brokerd.wire.strict_cbor import StrictCborError, decode_strict

MEBIBYTE = 1 << 20


def head(major: int, argument: int) -> bytes:
    """Return a CBOR head with an eight-byte argument."""
    return bytes([major << 5 | 27]) + struct.pack(">Q", argument)


def tag(number: int, content: bytes = b"\x00") -> bytes:
    return head(6, number) + content


def text(content: str) -> bytes:
    return cbor2.dumps(content)


def billion_laughs() -> bytes:
    inner = b"\xd8\x1c" + b"\x8a" + b"\x00" * 10
    for level in range(9):
        inner = b"\xd8\x1c\x8a" + inner + b"\xd8\x1d" + bytes([8 - level]) * 1 + b"\x00" * 8
    return inner


def colliding_keys() -> bytes:
    modulus = (1 << 61) - 1
    pairs = b"".join(head(0, modulus * (n % 8) + n // 8) + b"\x00" for n in range(20_000))
    return b"\xba" + struct.pack(">I", 20_000) + pairs


REFUSED_VALUES: dict[str, bytes] = {
    # nesting
    "arrays 100,000 deep": b"\x81" * 100_000 + b"\x00",
    "arrays 5,000 deep": b"\x81" * 5_000 + b"\x00",
    "arrays 17 deep": b"\x81" * 17 + b"\x00",
    "maps 100,000 deep": b"\xa1\x60" * 50_000 + b"\x00",
    "unknown tags 100,000 deep": b"\xd9\xff\xfe" * 33_000 + b"\x00",
    "shareable tags 100,000 deep": b"\xd8\x1c" * 50_000 + b"\x00",
    "indefinite arrays 100,000 deep": b"\x9f" * 100_000,
    "tag in tag in tag": tag(24, tag(24, tag(24))),
    # sizes that are only claimed
    **{
        f"{name} of 2^{power} without data": head(major, (1 << power) - 1)
        for major, name in ((2, "bytes"), (3, "text"), (4, "array"), (5, "map"))
        for power in (31, 32, 63, 64)
    },
    "array of 2^62 in an array": b"\x82\x00" + head(4, 1 << 62),
    # shared references
    "a cycle in six bytes": bytes.fromhex("d81c81d81d00"),
    "a cycle through a map": bytes.fromhex("d81ca16161d81d00"),
    "billion laughs": billion_laughs(),
    "reference to nothing": bytes.fromhex("d81d00"),
    "string reference": bytes.fromhex("d9010082636161d81900"),
    # tags that build objects
    "date text": tag(0, text("2013-03-21T20:04:00Z")),
    "date number": tag(1, b"\x1a\x51\x4b\x67\xb0"),
    "date beyond all years": tag(1, b"\xfb\x7f\xe0\x00\x00\x00\x00\x00\x00"),
    "bignum of a mebibyte": tag(2, b"\x5a" + struct.pack(">I", MEBIBYTE) + b"\xff" * MEBIBYTE),
    "negative bignum": tag(3, b"\x49" + b"\xff" * 9),
    "decimal fraction": tag(4, b"\x82\x21\x19\x6a\xb3"),
    "decimal with a great exponent": tag(4, b"\x82\x1a\x00\x0f\x42\x40\x01"),
    "bigfloat": tag(5, b"\x82\x1a\x00\x0f\x42\x40\x01"),
    "bigfloat of 10^9": tag(5, b"\x82\x1a\x3b\x9a\xca\x00\x01"),
    "rational": tag(30, b"\x82\x01\x03"),
    "regular expression that backtracks": tag(35, text("(a+)+$")),
    "MIME message": tag(36, text("Content-Type: text/plain\n\nx")),
    "UUID": tag(37, b"\x50" + bytes(16)),
    "IPv4 address": tag(52, b"\x44" + bytes(4)),
    "IPv6 address": tag(54, b"\x50" + bytes(16)),
    "date in days": tag(100, b"\x00"),
    "string namespace": tag(256, b"\x80"),
    "set": tag(258, b"\x82\x01\x02"),
    "set of a list": tag(258, b"\x81\x80"),
    "IP address": tag(260, b"\x44\xc0\x00\x02\x01"),
    "IP network": tag(261, b"\xa1\x44\xc0\x00\x02\x00\x18\x18"),
    "full date": tag(1004, text("2013-03-21")),
    "complex number": tag(43000, b"\x82\x01\x02"),
    "self-described": tag(55799, b"\xa0"),
    "unknown tag": tag(65_000),
    "tag of 2^64-1": tag((1 << 64) - 1),
    # keys
    "20,000 colliding keys": colliding_keys(),
    "integer key": bytes.fromhex("a10101"),
    "duplicate key": bytes.fromhex("a2616101616102"),
    "list as key": bytes.fromhex("a18001"),
    "map as key": bytes.fromhex("a1a001"),
    "null as key": bytes.fromhex("a1f601"),
    "float as key": bytes.fromhex("a1f93c0001"),
    # indefinite lengths
    "indefinite array": bytes.fromhex("9f01ff"),
    "indefinite map": bytes.fromhex("bf616101ff"),
    "indefinite text": bytes.fromhex("7f6161ff"),
    "indefinite bytes": bytes.fromhex("5f4161ff"),
    # invalid CBOR
    "nothing": b"",
    "break alone": b"\xff",
    "reserved length": b"\x1c",
    "text that is not UTF-8": bytes.fromhex("62c328"),
    "half a surrogate": bytes.fromhex("63eda080"),
    "two values": b"\x01\x02\x03",
    "a value and a byte": b"\x80\x00",
    "a value cut short": b"\x82\x01",
}

# Well-formed, but nothing that any message or attribute map holds.
REFUSED_BY_TYPE: dict[str, bytes] = {
    "undefined": b"\xf7",
    "simple value": b"\xf8\xff",
    "NaN": b"\xf9\x7e\x00",
    "null": b"\xf6",
    "array of a million zeros": b"\x9a" + struct.pack(">I", MEBIBYTE) + bytes(MEBIBYTE),
}


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(REFUSED_VALUES) + len(REFUSED_BY_TYPE) >= 60


@pytest.mark.parametrize("name", REFUSED_VALUES)
def test_a_bomb_is_no_value_alone_or_inside_another(name: str) -> None:
    for data in (REFUSED_VALUES[name], b"\x81" + REFUSED_VALUES[name]):
        tracemalloc.start()
        try:
            with pytest.raises(StrictCborError) as caught:
                decode_strict(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(str(caught.value)) < 300
        assert peak < 4 * MEBIBYTE
        # The next item is decoded without leftovers.
        assert decode_strict(b"\x82\x01\x02") == [1, 2]


@pytest.mark.parametrize("name", [*REFUSED_VALUES, *REFUSED_BY_TYPE])
def test_a_bomb_is_no_message_and_no_attribute_map(name: str) -> None:
    """`[24, "subscribe", bomb, "", false]` would be a refusal, `{"a": bomb}` an attribute map."""
    bomb = (REFUSED_VALUES | REFUSED_BY_TYPE)[name]
    for header in (bomb, b"\x85\x18\x18\x69subscribe" + bomb + b"\x60\xf4"):
        with pytest.raises(RemoteProtocolError) as caught:
            codec.decode(header, memoryview(b""))
        assert len(str(caught.value)) < 400
    for blob in (bomb, b"\xa1\x61a" + bomb):
        with pytest.raises(ValueError, match=r".") as refused:
            decode_attributes(blob)
        assert len(str(refused.value)) < 400


def test_no_tag_passes_whatever_it_carries() -> None:
    contents = (b"\x00", b"\x60", b"\x40", b"\x80", b"\xa0", b"\x82\x01\x02", b"\xf6")
    for number in range((1 << 16) + 1):
        number_head = cbor2.dumps(cbor2.CBORTag(number, 0))[:-1] if number != 1 else b"\xc1"
        for content in contents:
            try:
                decode_strict(number_head + content)
            except StrictCborError:
                continue
            pytest.fail(f"tag {number} with {content.hex()} passed")


@pytest.mark.parametrize(
    "prefix",
    [
        struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFB),
        struct.pack(">II", 0x7FFFFFFF, 1),
        struct.pack(">II", 0, 0),
        struct.pack(">II", 4, 1),
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody tries TLS
    ],
)
def test_a_stranger_is_refused_by_the_first_bytes(prefix: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(prefix)
    with pytest.raises(RemoteProtocolError):
        decoder.next_frame()
