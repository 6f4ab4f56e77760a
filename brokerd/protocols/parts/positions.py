"""How far a subscription has come in each stream it follows, as bytes for a resume token."""

import struct
from collections.abc import Sequence
from typing import Final

from brokerd.errors import ResumeTokenRefused
from brokerd.model.identity import StreamId

Positions = Sequence[tuple[StreamId, int]]
"""Stream and the last position in it that counts as had."""

_POSITION: Final = struct.Struct(">QQQQ")


def pack_positions(positions: Positions) -> bytes:
    """The bytes for these; the same positions in another order give the same."""
    return b"".join(_POSITION.pack(*stream, last) for stream, last in sorted(positions))


def unpack_positions(content: bytes) -> tuple[tuple[StreamId, int], ...]:
    """What `pack_positions` was given, in order.

    Raises:
        ResumeTokenRefused: no positions could give these bytes.
    """
    if len(content) % _POSITION.size:
        raise ResumeTokenRefused(f"{len(content)} bytes are no positions")
    read = [(StreamId(*values[:3]), values[3]) for values in _POSITION.iter_unpack(content)]
    streams = [stream for stream, _ in read]
    if streams != sorted(dict.fromkeys(streams)):
        raise ResumeTokenRefused("positions that are out of order, or of one stream twice")
    return tuple(read)
