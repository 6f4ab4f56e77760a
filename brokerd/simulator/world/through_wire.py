"""Messages after the wire: encoded, split into frames of limited size, and decoded again."""

from typing import Any

from brokerd.wire.codec import decode, frames

_PREFIX_BYTES = 8


def through_wire(message: Any, limit_bytes: int) -> list[tuple[Any, int]]:
    """Return the received form of a message: one or several messages, each with its frame's size.

    Several messages are returned if one frame would exceed `limit_bytes`, as in the session layer.
    """
    parts = []
    for pieces, size in frames(message, limit_bytes):
        frame = b"".join(pieces)
        header_end = _PREFIX_BYTES + int.from_bytes(frame[4:_PREFIX_BYTES])
        assert int.from_bytes(frame[:4]) == len(frame) - 4 == size - 4, (
            f"a frame of {len(frame)} bytes says another length: {message}"
        )
        payload = memoryview(frame)[header_end:]
        parts.append((decode(frame[_PREFIX_BYTES:header_end], payload), len(frame)))
    return parts
