"""The positions of a subscription in its streams, as bytes for a resume token."""

import struct
from collections.abc import Sequence
from typing import Final

from brokerd.errors import ResumeTokenRefused
from brokerd.model.identity import StreamId

Positions = Sequence[tuple[StreamId, int]]
"""A stream and the last position in the stream that counts as received."""

_POSITION: Final = struct.Struct(">QQQQ")


def pack_positions(positions: Positions) -> bytes:
    """Return the positions as bytes; the order of the positions does not matter."""
    return b"".join(_POSITION.pack(*stream, last) for stream, last in sorted(positions))


def unpack_positions(content: bytes) -> tuple[tuple[StreamId, int], ...]:
    """Return the positions in the bytes of `pack_positions`, in order.

    Raises:
        ResumeTokenRefused: no positions give these bytes.
    """
    if len(content) % _POSITION.size:
        raise ResumeTokenRefused(f"{len(content)} bytes are no positions")
    read = [(StreamId(*values[:3]), values[3]) for values in _POSITION.iter_unpack(content)]
    streams = [stream for stream, _ in read]
    if streams != sorted(dict.fromkeys(streams)):
        raise ResumeTokenRefused("positions that are out of order, or of one stream twice")
    return tuple(read)
