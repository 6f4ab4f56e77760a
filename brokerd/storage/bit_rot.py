"""Tells a group in which one bit has changed from one whose end a crash kept from the disk.

Of the last group of a log both have a wrong checksum, but only the second may be dropped: the
first may have been acknowledged. A CRC says which single bit would explain it, if one does, so
that no bit of a body has to be tried. A crash that kept all of a group but one bit is taken for
damage too; that a torn one only looks so has a chance of one in 2^32 for each of its bits, where
the file is as long as it should be.
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
    """Whether a group would begin there if one bit were another; none does as it is."""
    head = data[position : position + HEAD_BYTES]
    if len(head) < HEAD_BYTES:
        return False
    if not head_at(data, position, salt):
        if not head[-SEAL_BYTES:].strip(b"\0"):
            return False  # it is torn: no bit alone explains that
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
    """Whether one bit of so many bytes changes their CRC by this."""
    for _ in range(size):
        if difference in _OF_THE_LAST_BYTE:
            return True
        row = _ROW_OF[difference >> 24]
        difference = (difference ^ _TABLE[row]) << 8 & 0xFFFF_FFFF | row
    return False


_TABLE: Final = tuple(zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256))
"""What the CRC changes by, for each change of the last byte."""
_ROW_OF: Final = {value >> 24: row for row, value in enumerate(_TABLE)}
_OF_THE_LAST_BYTE: Final = frozenset(_TABLE[1 << bit] for bit in range(8))
