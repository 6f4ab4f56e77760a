"""What publications contain: tables prepared from the seed, and which entry each one uses.

Nothing is drawn while a run is going on. Attribute sets and payloads are tables that follow
from the seed alone, and publication `sequence` of a source uses the entries that a hash of
(seed, publisher, incarnation, sequence) names. So publisher, subscriber and checker each know
what any publication holds without telling each other, and a log need not be trusted for it.
"""

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Scalar = str | int | float | bool
AttributeSet = Mapping[str, Scalar]
AttributeEncoder = Callable[[AttributeSet], bytes]

PAYLOADS = 64
FENCE = "fence"

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_STRIDE = 1_000_003  # between the streams of two table entries

_LARGEST_BLOCK = 1024
_LARGEST_BLOCK_BYTES = 512 * 1024
_LARGEST_DIGEST_TABLE = 1 << 16
_BLOCKS_KEPT = 4


def splitmix64(value: int) -> int:
    """One step of splitmix64 on an unsigned 64-bit number."""
    value = (value + _GOLDEN) & _WORD
    value = ((value ^ (value >> 30)) * _MIX_A) & _WORD
    value = ((value ^ (value >> 27)) * _MIX_B) & _WORD
    return value ^ (value >> 31)


def splitmix64_series(start: int, count: int) -> list[int]:
    """splitmix64 of `start`, `start` + 1, …, `count` of them; about 0.1 µs each.

    One large integer carries all numbers, 128 bits apart, so that a product by a 64-bit
    constant stays in its own lane: the arithmetic of a whole block is a dozen operations.
    """
    ones, steps, low_words = _lanes(count)
    lanes = (ones * ((start + _GOLDEN) & _WORD) + steps) & low_words
    lanes = ((lanes ^ ((lanes >> 30) & low_words)) * _MIX_A) & low_words
    lanes = ((lanes ^ ((lanes >> 27) & low_words)) * _MIX_B) & low_words
    lanes ^= (lanes >> 31) & low_words
    return memoryview(lanes.to_bytes(16 * count, "little")).cast("Q").tolist()[::2]


@lru_cache(maxsize=8)
def _lanes(count: int) -> tuple[int, int, int]:
    """Per lane: the number 1, the lane's own number, and a mask of its low 64 bits."""
    ones = int.from_bytes(b"".join([(1).to_bytes(16, "little")] * count), "little")
    steps = int.from_bytes(b"".join(i.to_bytes(16, "little") for i in range(count)), "little")
    return ones, steps, ones * _WORD


def choice_base(seed: int, publisher_index: int, incarnation: int) -> int:
    """What a publication's sequence number is added to before it is hashed."""
    return (seed + _GOLDEN * (publisher_index + 1) + _MIX_A * (incarnation + 1)) & _WORD


def draw_attribute_sets(
    seed: int, definitions: Mapping[str, Mapping[str, Any]], sets: int
) -> list[dict[str, Scalar]]:
    """The attribute sets of a workload, attribute by attribute in the order of `definitions`.

    A definition is {"choose": N}, {"choose": [values]} or {"uniform": [low, high]}; bounds
    are included, and floats (one bound is a float) are rounded to two decimals.
    """
    start = splitmix64(seed ^ 0xA5A5)
    return [
        {
            name: _draw(name, definition, splitmix64(start + number * _STRIDE + place))
            for place, (name, definition) in enumerate(definitions.items())
        }
        for number in range(sets)
    ]


def _draw(name: str, definition: Mapping[str, Any], random: int) -> Scalar:
    if "uniform" in definition:
        low, high = definition["uniform"]
        if isinstance(low, float) or isinstance(high, float):
            return round(float(low + (high - low) * (random >> 11) / (1 << 53)), 2)
        return int(low + random % (high - low + 1))
    among = definition["choose"]
    if isinstance(among, int):
        return f"{name.upper()}{random % among:03d}"
    chosen: Scalar = among[random % len(among)]
    return chosen


def draw_payloads(seed: int, size_bytes: int, payloads: int = PAYLOADS) -> list[bytes]:
    """The payload table for publications of `size_bytes`."""
    start = splitmix64(seed ^ 0x5A5A)
    words = -(-size_bytes // 8)
    return [
        b"".join(
            splitmix64(start + number * _STRIDE + word).to_bytes(8, "little")
            for word in range(words)
        )[:size_bytes]
        for number in range(payloads)
    ]


def content_digest(attribute_blob: bytes, payload: bytes | memoryview) -> int:
    """The digest of a delivery: CRC-32 of the attribute blob, continued over the payload."""
    return zlib.crc32(payload, zlib.crc32(attribute_blob))


@dataclass(frozen=True, slots=True)
class ContentTables:
    """The tables of one payload size.

    Attributes:
        attribute_sets: what the blobs say.
        blobs: encoded attribute sets, one per set.
        payloads: payload blobs, all of one size.
    """

    attribute_sets: Sequence[AttributeSet]
    blobs: Sequence[bytes]
    payloads: Sequence[bytes]

    def first_places(self) -> list[int]:
        """Per attribute set, the first set with the same blob: sets may be drawn alike."""
        first: dict[bytes, int] = {}
        return [first.setdefault(blob, place) for place, blob in enumerate(self.blobs)]

    @classmethod
    def build(
        cls, seed: int, attribute_sets: Sequence[AttributeSet], size_bytes: int,
        encode: AttributeEncoder,
    ) -> "ContentTables":  # fmt: skip
        """The tables for one seed, given the attribute sets drawn from it."""
        blobs = [encode(attributes) for attributes in attribute_sets]
        return cls(attribute_sets, blobs, draw_payloads(seed, size_bytes))

    @property
    def size_bytes(self) -> int:
        """The size of each payload."""
        return len(self.payloads[0])


@dataclass(frozen=True, slots=True)
class ContentBlock:
    """The contents of consecutive publications of one source.

    Attributes:
        first: the lowest sequence number.
        sets: per publication, its attribute set (bytes where there are at most 256 sets).
        blob_places: per publication, the first attribute set with the same blob; on the wire
            no blob may stand twice in a table.
        payload_numbers: per publication, its place in the payload table.
        payload: all payloads, one after the other.
        digests: per publication, the digest of a delivery of it; empty where nobody asked.
    """

    first: int
    sets: bytes | list[int]
    blob_places: bytes | list[int]
    payload_numbers: bytes
    payload: bytes
    digests: "array[int]"

    def __len__(self) -> int:
        """How many publications."""
        return len(self.payload_numbers)


class SourceContent:
    """The contents of one source (publisher and incarnation), a block at a time.

    Blocks are computed when first asked for and the last few are kept, because publishers and
    subscribers alike walk through sequence numbers upwards. Sequence numbers start at 1;
    block k holds those from k * block_size + 1 on.

    Args:
        with_digests: whether blocks are to have digests; publishers need none.
    """

    def __init__(
        self,
        tables: ContentTables,
        seed: int,
        publisher_index: int,
        incarnation: int,
        *,
        with_digests: bool = True,
        block_size: int = 0,
    ) -> None:
        self.tables = tables
        self._with_digests = with_digests
        fitting = _LARGEST_BLOCK_BYTES // max(1, tables.size_bytes)
        self.block_size = block_size or max(16, min(_LARGEST_BLOCK, fitting))
        self._base = choice_base(seed, publisher_index, incarnation)
        self._blocks: dict[int, ContentBlock] = {}
        self._first_places = tables.first_places()
        self._all_differ = self._first_places == list(range(len(tables.blobs)))
        self._attribute_crcs = [zlib.crc32(blob) for blob in tables.blobs]
        self._digest_table: list[list[int]] | None = None
        if with_digests and len(tables.blobs) * len(tables.payloads) <= _LARGEST_DIGEST_TABLE:
            self._digest_table = [
                [zlib.crc32(payload, crc) for payload in tables.payloads]
                for crc in self._attribute_crcs
            ]

    def choice(self, sequence: int) -> tuple[int, int]:
        """(attribute set, payload number) of one publication."""
        hashed = splitmix64(self._base + sequence)
        return hashed % len(self.tables.blobs), (hashed >> 32) % len(self.tables.payloads)

    def block_of(self, sequence: int) -> ContentBlock:
        """The block that holds publication `sequence` (1 or higher)."""
        number = (sequence - 1) // self.block_size
        block = self._blocks.get(number)
        if block is None:
            block = self._compute(number)
            if len(self._blocks) >= _BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return block

    def _compute(self, number: int) -> ContentBlock:
        first = number * self.block_size + 1
        hashes = splitmix64_series(self._base + first, self.block_size)
        set_count, payload_count = len(self.tables.blobs), len(self.tables.payloads)
        sets: bytes | list[int] = [hashed % set_count for hashed in hashes]
        payload_numbers = bytes([(hashed >> 32) % payload_count for hashed in hashes])
        payload = b"".join(map(self.tables.payloads.__getitem__, payload_numbers))
        digests: list[int]
        if not self._with_digests:
            digests = []
        elif self._digest_table is not None:
            table = self._digest_table
            digests = [table[a][p] for a, p in zip(sets, payload_numbers, strict=True)]
        else:
            payloads, crcs = self.tables.payloads, self._attribute_crcs
            digests = [
                zlib.crc32(payloads[p], crcs[a]) for a, p in zip(sets, payload_numbers, strict=True)
            ]
        places = sets if self._all_differ else [self._first_places[chosen] for chosen in sets]
        if set_count <= 256:
            sets, places = bytes(sets), bytes(places)
        return ContentBlock(first, sets, places, payload_numbers, payload, array("I", digests))
