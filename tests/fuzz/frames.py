"""Frames of a hostile client: whole, changed, cut short, or random bytes."""

import struct
from random import Random
from typing import Any, Final

from brokerd.sessions.messages import Heartbeat
from brokerd.wire.codec import encode

HEARTBEAT: Final = b"".join(encode(Heartbeat()))
_COUNTS: Final = (0, 1, 0x17, 0x18, 0x1A, 0x1B, 0x9B, 0xBB, 0xFB, 0xFF)


def frame_of(message: Any) -> bytes:
    """Return the frame of a message."""
    return b"".join(encode(message))


def changed(frame: bytes, random: Random) -> bytes:
    """Return a frame with changed bits, bytes or lengths."""
    data = bytearray(frame)
    way = random.randrange(7)
    if way == 0:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif way == 1:
        data[random.randrange(8, len(data))] = random.choice(_COUNTS)
    elif way == 2:
        del data[random.randrange(len(data)) :]
    elif way == 3:
        at = random.randrange(len(data))
        data[at:at] = random.randbytes(random.randrange(1, 9))
    elif way == 4:  # within the lengths that it has, more or fewer items
        at = random.randrange(8, len(data))
        end = min(len(data), at + random.randrange(1, 12))
        data[at:end] = random.randbytes(end - at)
    elif way == 5:
        lengths = random.choice((0, 4, len(data), 1 << 20, 1 << 24, (1 << 32) - 1))
        data[:4] = struct.pack(">I", lengths)
    else:
        lengths = random.choice((0, len(data), 1 << 20, (1 << 32) - 1))
        data[4:8] = struct.pack(">I", lengths)
    return bytes(data)


def garbage(random: Random) -> bytes:
    """Return bytes that are no frame, or a frame with an invalid header."""
    if random.random() < 0.5:
        return random.randbytes(random.randrange(1, 200))
    header = random.choice(
        (
            b"\x9b" + b"\xff" * 8,  # an array of 2⁶⁴-1 items
            b"\x9a\xff\xff\xff\xff",
            b"\x81" * 200,
            b"\xd8\x1c" * 100,  # tags that share values
            b"\x9f" + b"\x01" * 100,  # without an end
            b"\x83\x14\x01\x1b" + b"\xff" * 8,  # Subscribe with 2⁶⁴-1 conjunctions
            random.randbytes(random.randrange(1, 100)),
        )
    )
    return struct.pack(">II", len(header) + 4, len(header)) + header
