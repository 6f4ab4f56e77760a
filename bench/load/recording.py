"""Rows of the record files, for whole runs at once.

A row has 32 bytes, so four 64-bit words; one strided assignment writes a column of a run. Row by
row, `struct` would cost as much as all other work per message here.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache

from brokerd.history.records import (
    APPLICATION,
    DATA,
    DELIVERIES,
    FENCE,
    NOTICE,
    POSITIONS,
    PUBLICATIONS,
    REDELIVERED,
    ROW_BYTES,
)

_LONGEST = (1 << 32) - 1
_SHORT_RANGE = 32  # an array is faster than a sum below this length
_SINGLE = 4  # packing row by row is faster up to this number


def publication_rows(
    sequences: range,
    intended_ns: "array[int]",
    sent_ns: int,
    publisher: int,
    incarnation: int,
    sets: Sequence[int],
) -> bytes | bytearray:
    """Return rows of publications.rec for publications that were sent at one instant."""
    count = len(sequences)
    if count <= _SINGLE:
        return b"".join(
            PUBLICATIONS.row.pack(sequence, intended, sent_ns, publisher, incarnation, chosen)
            for sequence, intended, chosen in zip(sequences, intended_ns, sets, strict=True)
        )
    rows = bytearray(PUBLICATIONS.row.pack(0, 0, sent_ns, publisher, incarnation, 0)) * count
    words = memoryview(rows).cast("q")
    words[0::4] = _as_words(sequences)
    words[1::4] = memoryview(intended_ns)
    if isinstance(sets, bytes):
        rows[28::ROW_BYTES] = sets  # an array would read the bytes as its memory
    else:
        memoryview(rows).cast("I")[7::8] = memoryview(array("I", sets))
    return rows


def notice_rows(
    ranges: Iterable[tuple[int, int]],
    received_ns: int,
    subscription: int,
    publisher: int,
    incarnation: int,
    partition: int,
) -> bytes:
    """Return rows of deliveries.rec for publications announced as withheld, one per stretch."""
    return b"".join(
        DELIVERIES.row.pack(
            start, received_ns, min(last - start + 1, _LONGEST), subscription, publisher,
            incarnation, NOTICE, APPLICATION, partition,
        )
        for first, last in ranges
        for start in range(first, last + 1, _LONGEST)
    )  # fmt: skip


def position_rows(
    positions: Sequence[int], received_ns: int, first_row: int, stream: int
) -> bytes | bytearray:
    """Return rows of positions.rec for a run with rows of deliveries.rec from `first_row` on."""
    count = len(positions)
    if count <= _SINGLE:
        return b"".join(
            POSITIONS.row.pack(row, position, received_ns, stream)
            for row, position in enumerate(positions, first_row)
        )
    rows = bytearray(POSITIONS.row.pack(0, 0, received_ns, stream)) * count
    words = memoryview(rows).cast("q")
    words[0::4] = _as_words(range(first_row, first_row + count))
    words[1::4] = _as_words(positions)
    return rows


def delivery_rows(
    sequences: Sequence[int],
    received_ns: int,
    digests: "array[int]",
    subscription: int,
    publisher: int,
    incarnation: int,
    fences: Sequence[int] = (),
    layer: int = APPLICATION,
    *,
    again: bool = False,
) -> bytes | bytearray:
    """Return rows of deliveries.rec for a run that was received at one instant.

    Args:
        fences: positions of the fences in the run.
        again: True to mark all rows as redelivered, fences too.
    """
    count = len(sequences)
    kind = REDELIVERED if again else DATA
    fences = () if again else fences
    if count <= _SINGLE:
        return b"".join(
            DELIVERIES.row.pack(
                sequence, received_ns, digest, subscription, publisher, incarnation,
                FENCE if position in fences else kind, layer, 0,
            )
            for position, (sequence, digest) in enumerate(zip(sequences, digests, strict=True))
        )  # fmt: skip
    row = DELIVERIES.row.pack(
        0, received_ns, 0, subscription, publisher, incarnation, kind, layer, 0
    )
    rows = bytearray(row) * count
    memoryview(rows).cast("q")[0::4] = _as_words(sequences)
    memoryview(rows).cast("I")[4::8] = memoryview(digests)
    for position in fences:
        rows[ROW_BYTES * position + 28] = FENCE
    return rows


def _as_words(sequences: Sequence[int]) -> memoryview:
    """Return the numbers as 64-bit words; a range needs only one sum over all words."""
    if not isinstance(sequences, range) or len(sequences) < _SHORT_RANGE:
        return memoryview(array("q", sequences))
    count = len(sequences)
    length = 1 << (count - 1).bit_length()
    ones, places = _series(length)
    words = (ones * sequences[0] + places).to_bytes(8 * length, "little")
    return memoryview(words).cast("q")[:count]


@lru_cache(maxsize=16)
def _series(length: int) -> tuple[int, int]:
    """Return the number 1 in each of `length` words, and the place of each word."""
    ones, places = array("q", [1]) * length, array("q", range(length))
    return int.from_bytes(ones, "little"), int.from_bytes(places, "little")
