"""Layouts of the record files that load generators write, with a row per message.

A record file is a series of 32-byte little-endian rows without a header; beside it lies a sidecar
`<file>.json` with layout, run, string tables and, once the file was closed in order, the number of
rows and a hash. Names in rows are places in the sidecar's tables. A time of 0 means never; times
are CLOCK_MONOTONIC nanoseconds of the host.
"""

import struct
from dataclasses import dataclass
from typing import Final

SIDECAR_SCHEMA: Final = "pubsubctl/rec/1"
ROW_BYTES: Final = 32

ACKNOWLEDGED, REJECTED = 1, 2
DATA, FENCE, GAP, NOTICE = 0, 1, 2, 3
REDELIVERED = 4
"""Data or a fence, marked as delivered again to a restarted subscriber."""
STRETCH = 5
"""`digest` data publications: the last matching publications up to `sequence`."""
WIRE, APPLICATION = 0, 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of record file.

    Attributes:
        name: name of the layout, and of the file without its suffix.
        row: struct format of a row.
        columns: names of the values, in order.
        tables: string tables that the sidecar must have.
    """

    name: str
    row: struct.Struct
    columns: tuple[str, ...]
    tables: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.row.size == ROW_BYTES, self


# Runs of equal rows are also written as columns of 64-bit words (bench.load.records), so the
# places of the columns count, not only their order.
PUBLICATIONS: Final = Layout(
    "publications",
    struct.Struct("<qqqHHI"),
    ("sequence", "intended_ns", "sent_ns", "publisher", "incarnation", "attribute_set"),
    ("publishers", "attribute_sets"),
)
ACKS: Final = Layout(
    "acks",
    struct.Struct("<qqqHHBxxx"),
    ("first", "last", "acked_ns", "publisher", "incarnation", "outcome"),
    ("publishers",),
)
INTENTS: Final = Layout(
    "intents",
    struct.Struct("<qqHHxxxxxxxxxxxx"),
    ("last", "at_ns", "publisher", "incarnation"),
    ("publishers",),
)
DELIVERIES: Final = Layout(
    "deliveries",
    # A notice stands for `digest` publications from `sequence` on, withheld by `partition`. A
    # stretch stands for `digest` deliveries, none more than `partition` ms before `received_ns`.
    struct.Struct("<qqIIHHBBH"),
    (
        "sequence", "received_ns", "digest", "subscription", "publisher", "incarnation",
        "kind", "layer", "partition",
    ),
    ("publishers", "subscriptions", "partitions"),
)  # fmt: skip
POSITIONS: Final = Layout(
    "positions",
    # The position of a delivery in its stream, for protocols with streams other than sources:
    # written beside deliveries.rec, with the number of the row there.
    struct.Struct("<qqqIxxxx"),
    ("row", "position", "received_ns", "stream"),
    ("streams",),
)
