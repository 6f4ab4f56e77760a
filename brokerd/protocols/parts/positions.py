"""How far a subscription has come in each stream it follows, as bytes for a resume token."""

import struct
from collections.abc import Sequence
from typing import Final

from brokerd.errors import ResumeTokenRefused
from brokerd.model.identity import SourceId

Positions = Sequence[tuple[SourceId, int]]
"""Stream and the last position in it that counts as had."""

_POSITION: Final = struct.Struct(">QQQQ")


def pack_positions(positions: Positions) -> bytes:
    """The bytes for these; the same positions in another order give the same."""
    return b"".join(_POSITION.pack(*source, last) for source, last in sorted(positions))


def unpack_positions(content: bytes) -> tuple[tuple[SourceId, int], ...]:
    """What `pack_positions` was given, in order.

    Raises:
        ResumeTokenRefused: no positions could give these bytes.
    """
    if len(content) % _POSITION.size:
        raise ResumeTokenRefused(f"{len(content)} bytes are no positions")
    read = [(SourceId(*values[:3]), values[3]) for values in _POSITION.iter_unpack(content)]
    sources = [source for source, _ in read]
    if sources != sorted(dict.fromkeys(sources)):
        raise ResumeTokenRefused("positions that are out of order, or of one stream twice")
    return tuple(read)
