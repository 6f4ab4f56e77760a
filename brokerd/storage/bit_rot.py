"""The check that separates a group with one changed bit from a group cut off by a crash.

In the last group of a log both have a wrong checksum, but only the second may be dropped: the first
may have been acknowledged. A CRC determines which single bit would explain the difference, if any,
so that no bit of a body has to be tried. A crash that kept all of a group but one bit is treated as
damage too; a torn group passes for damage with a chance of one in 2^32 for each of its bits, if the
file has its full length.
"""

import zlib
from typing import Final

from brokerd.storage.log_groups import (
    HEAD_BYTES,
    SEAL_BYTES,
    body_bytes,
    group_at,
    head_at,
    stored_checksum,
)


def is_one_bit_off(data: bytes, position: int, salt: bytes) -> bool:
    """Return True if a group would begin at `position` with one bit changed.

    None begins there as is.
    """
    head = data[position : position + HEAD_BYTES]
    if len(head) < HEAD_BYTES:
        return False
    if not head_at(data, position, salt):
        if not head[-SEAL_BYTES:].strip(b"\0"):
            return False  # torn: no single bit explains that
        rest = data[position + HEAD_BYTES :]
        return any(group_at(other + rest, 0, salt) for other in _with_one_bit_changed(head))
    body = data[position + HEAD_BYTES : position + HEAD_BYTES + body_bytes(head)]
    if len(body) < body_bytes(head):
        return False
    assert group_at(data, position, salt) is None, position
    return _is_of_one_bit(zlib.crc32(body) ^ stored_checksum(head), len(body))


def _with_one_bit_changed(head: bytes) -> list[bytes]:
    number = int.from_bytes(head, "big")
    return [(number ^ 1 << bit).to_bytes(HEAD_BYTES, "big") for bit in range(8 * HEAD_BYTES)]


def _is_of_one_bit(difference: int, size: int) -> bool:
    """Return True if a change of one bit in `size` bytes changes their CRC by this difference."""
    for _ in range(size):
        if difference in _OF_THE_LAST_BYTE:
            return True
        row = _ROW_OF[difference >> 24]
        difference = (difference ^ _TABLE[row]) << 8 & 0xFFFF_FFFF | row
    return False


_TABLE: Final = tuple(zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256))
"""The difference of the CRC, for each change of the last byte."""
_ROW_OF: Final = {value >> 24: row for row, value in enumerate(_TABLE)}
_OF_THE_LAST_BYTE: Final = frozenset(_TABLE[1 << bit] for bit in range(8))
