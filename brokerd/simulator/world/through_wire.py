"""Messages as the wire makes them: encoded, split where they are too large, and decoded again."""

from typing import Any

from brokerd.wire.codec import decode, frames

_PREFIX_BYTES = 8


def through_wire(message: Any, limit_bytes: int) -> list[tuple[Any, int]]:
    """What the far end makes of a message: one or several messages, each with its frame's size.

    Several where one frame would be larger than `limit_bytes`, as the session layer does.
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
