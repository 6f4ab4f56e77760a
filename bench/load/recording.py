"""Rows of the record files, built for whole runs at once.

A row is 32 bytes, so four 64-bit words; a column of a run is written with one strided
assignment. Row by row, `struct` would cost as much as everything else a message costs here.
"""

from array import array
from collections.abc import Iterable, Sequence

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
_SINGLE = 4  # rows up to which packing them one by one is faster


def publication_rows(
    sequences: range,
    intended_ns: "array[int]",
    sent_ns: int,
    publisher: int,
    incarnation: int,
    sets: Sequence[int],
) -> bytes | bytearray:
    """Rows of publications.rec for publications that were sent at one instant."""
    count = len(sequences)
    if count <= _SINGLE:
        return b"".join(
            PUBLICATIONS.row.pack(sequence, intended, sent_ns, publisher, incarnation, chosen)
            for sequence, intended, chosen in zip(sequences, intended_ns, sets, strict=True)
        )
    rows = bytearray(ROW_BYTES * count)
    words = memoryview(rows).cast("q")
    words[0::4] = memoryview(array("q", sequences))
    words[1::4] = memoryview(intended_ns)
    words[2::4] = memoryview(array("q", [sent_ns]) * count)
    halves = memoryview(rows).cast("I")
    halves[6::8] = memoryview(array("I", [publisher | incarnation << 16]) * count)
    if isinstance(sets, bytes):
        rows[28::ROW_BYTES] = sets  # an array would take them for its memory, not its items
    else:
        halves[7::8] = memoryview(array("I", sets))
    return rows


def notice_rows(
    ranges: Iterable[tuple[int, int]],
    received_ns: int,
    subscription: int,
    publisher: int,
    incarnation: int,
    partition: int,
) -> bytes:
    """Rows of deliveries.rec for publications that were announced as withheld, one per stretch."""
    return b"".join(
        DELIVERIES.row.pack(
            start, received_ns, min(last - start + 1, _LONGEST), subscription, publisher,
            incarnation, NOTICE, APPLICATION, partition,
        )
        for first, last in ranges
        for start in range(first, last + 1, _LONGEST)
    )  # fmt: skip


def position_rows(positions: Sequence[int], received_ns: int, first_row: int, stream: int) -> bytes:
    """Rows of positions.rec for a run whose rows of deliveries.rec begin with `first_row`."""
    return b"".join(
        POSITIONS.row.pack(row, position, received_ns, stream)
        for row, position in enumerate(positions, first_row)
    )


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
    """Rows of deliveries.rec for a run that was received at one instant.

    Args:
        fences: the positions of the fences in it.
        again: it is marked as given again, fences too.
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
    rows = bytearray(ROW_BYTES * count)
    words = memoryview(rows).cast("q")
    words[0::4] = memoryview(array("q", sequences))
    words[1::4] = memoryview(array("q", [received_ns]) * count)
    halves = memoryview(rows).cast("I")
    halves[4::8] = memoryview(digests)
    halves[5::8] = memoryview(array("I", [subscription]) * count)
    last = publisher | incarnation << 16 | kind << 32 | layer << 40
    words[3::4] = memoryview(array("q", [last]) * count)
    for position in fences:
        rows[ROW_BYTES * position + 28] = FENCE
    return rows
