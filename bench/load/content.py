"""Contents of publications: tables from the seed, and the choice of an entry per publication.

Nothing is drawn during a run. Attribute sets and payloads are tables that follow from the seed
alone, and publication `sequence` of a source uses the entries named by a hash of (seed, publisher,
incarnation, sequence). So publisher, subscriber and checker compute the content of any publication
independently, and no log has to be trusted for contents.

A counting attribute makes all publications of a source differ. The attribute sets determine all
other attributes, and all matches. So the table of sets stays small for any number of publications.
"""

import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem, itemgetter
from typing import Any, Self, TypeVar

from bench.load.splitmix import GOLDEN, MIX_A, WORD, choices, splitmix64
from brokerd.wire.strict_cbor import INTEGERS

NUMBERED = "sequence"
"""Key of a counting attribute in a workload: { sequence = START }."""


def find_counting_attribute(definitions: Mapping[str, Mapping[str, Any]]) -> tuple[str, int] | None:
    """Return the counting attribute, and its value in publication 1; None without one."""
    for name, definition in definitions.items():
        if NUMBERED in definition:
            return name, definition[NUMBERED]
    return None


class NumberedBlobs:
    """Encoded attribute sets, with places for the counting attribute.

    Args:
        start: value of the attribute in publication 1 of a source.
    """

    def __init__(
        self,
        attribute_sets: Iterable[Mapping[str, Any]],
        name: str,
        start: int,
        encode: Callable[[Mapping[str, Any]], bytes],
    ) -> None:
        self._before_first = start - 1
        self._around = [_around(attributes, name, encode) for attributes in attribute_sets]

    @classmethod
    def from_workload(
        cls,
        attribute_sets: Iterable[Mapping[str, Any]],
        definitions: Mapping[str, Mapping[str, Any]],
        encode: Callable[[Mapping[str, Any]], bytes],
    ) -> Self | None:
        """Return the blobs of a workload; None without a counting attribute."""
        found = find_counting_attribute(definitions)
        return None if found is None else cls(attribute_sets, *found, encode)

    def blob(self, attribute_set: int, sequence: int) -> bytes:
        before, after = self._around[attribute_set]
        return before + INTEGERS[self._before_first + sequence] + after

    def blobs(self, sets: Sequence[int], first: int) -> list[bytes]:
        """Return the blobs of consecutive publications from number `first` on."""
        around = self._around
        numbers = _integers(self._before_first + first, len(sets))
        return [
            around[chosen][0] + number + around[chosen][1]
            for chosen, number in zip(sets, numbers, strict=True)
        ]


def _around(
    attributes: Mapping[str, Any], name: str, encode: Callable[[Mapping[str, Any]], bytes]
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the attribute's value: the place where 0 and 1 differ."""
    zero, one = encode({**attributes, name: 0}), encode({**attributes, name: 1})
    place = next(at for at, pair in enumerate(zip(zero, one, strict=True)) if pair[0] != pair[1])
    return zero[:place], zero[place + 1 :]


def _integers(first: int, count: int) -> list[bytes]:
    """Return consecutive integers in CBOR; nearly always all of one length."""
    head, last = INTEGERS[first], INTEGERS[first + count - 1]
    size_bytes = len(head) - 1
    if not size_bytes or len(last) != len(head):
        return [INTEGERS[number] for number in range(first, first + count)]
    lead = head[:1]
    return [lead + number.to_bytes(size_bytes, "big") for number in range(first, first + count)]


Scalar = str | int | float | bool
AttributeSet = Mapping[str, Scalar]
AttributeEncoder = Callable[[AttributeSet], bytes]

PAYLOADS = 64
FENCE = "fence"

_STRIDE = 1_000_003  # between the streams of two table entries

_LARGEST_BLOCK = 1024
_LARGEST_BLOCK_BYTES = 512 * 1024
_LARGEST_DIGEST_TABLE = 1 << 16
_BLOCKS_KEPT = 256
_PAYLOADS_KEPT = 4


def choice_base(seed: int, publisher_index: int, incarnation: int) -> int:
    """Return the offset that is added to a sequence number before the hash."""
    return (seed + GOLDEN * (publisher_index + 1) + MIX_A * (incarnation + 1)) & WORD


def draw_attribute_sets(
    seed: int, definitions: Mapping[str, Mapping[str, Any]], sets: int
) -> list[dict[str, Scalar]]:
    """Return the attribute sets of a workload, with attributes in the order of `definitions`.

    A definition is {"choose": N}, {"choose": [values]}, {"uniform": [low, high]}, {"cycle": N} or
    {"sequence": START}. Bounds are included, and floats (one bound is a float) are rounded to two
    decimals. A cycle is not drawn: set k has value k modulo N. A sequence is not drawn either: the
    sets have START, and publication n of a source has START + n - 1.
    """
    start = splitmix64(seed ^ 0xA5A5)
    return [
        {
            name: _draw(name, definition, number, splitmix64(start + number * _STRIDE + place))
            for place, (name, definition) in enumerate(definitions.items())
        }
        for number in range(sets)
    ]


def _draw(name: str, definition: Mapping[str, Any], number: int, random: int) -> Scalar:
    if "cycle" in definition:
        return f"{name.upper()}{number % definition['cycle']:03d}"
    if NUMBERED in definition:
        first: Scalar = definition[NUMBERED]
        return first
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


def draw_payloads(seed: int, size_bytes: int) -> list[bytes]:
    """Return the payload table for publications of `size_bytes`."""
    start = splitmix64(seed ^ 0x5A5A)
    words = -(-size_bytes // 8)
    return [
        b"".join(
            splitmix64(start + number * _STRIDE + word).to_bytes(8, "little")
            for word in range(words)
        )[:size_bytes]
        for number in range(PAYLOADS)
    ]


def content_digest(attribute_blob: bytes, payload: bytes | memoryview) -> int:
    """Return the digest of a delivery: CRC-32 of the attribute blob, continued over the payload."""
    return zlib.crc32(payload, zlib.crc32(attribute_blob))


@dataclass(frozen=True, slots=True)
class ContentTables:
    """The tables of one payload size.

    Attributes:
        attribute_sets: the content of the blobs.
        blobs: encoded attribute sets, one per set.
        payloads: payload blobs, all of one size.
        numbered: maker of the blobs for workloads with a counting attribute.
    """

    attribute_sets: Sequence[AttributeSet]
    blobs: Sequence[bytes]
    payloads: Sequence[bytes]
    numbered: NumberedBlobs | None = None

    def first_places(self) -> list[int]:
        """Return per attribute set the first set with the same blob; draws may coincide."""
        first: dict[bytes, int] = {}
        return [first.setdefault(blob, place) for place, blob in enumerate(self.blobs)]

    @classmethod
    def build(
        cls, seed: int, attribute_sets: Sequence[AttributeSet], size_bytes: int,
        encode: AttributeEncoder, definitions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> "ContentTables":  # fmt: skip
        """Return the tables for a seed, from the drawn attribute sets and their definitions."""
        blobs = [encode(attributes) for attributes in attribute_sets]
        numbered = NumberedBlobs.from_workload(attribute_sets, definitions or {}, encode)
        return cls(attribute_sets, blobs, draw_payloads(seed, size_bytes), numbered)

    @property
    def size_bytes(self) -> int:
        return len(self.payloads[0])


class ContentBlock:
    """The contents of consecutive publications of one source.

    Attributes:
        first: the lowest sequence number.
        sets: attribute set per publication (bytes for at most 256 sets).
        blob_places: per publication, the first attribute set with the same blob; tables on the wire
            contain no blob twice.
        payload_numbers: place in the payload table per publication.
        digests: digest of a delivery per publication; empty if not requested.
        blobs: attribute blob per publication if all blobs differ; empty otherwise.
    """

    __slots__ = ("_by_set", "blob_places", "blobs", "digests", "first", "payload_numbers", "sets")

    def __init__(
        self,
        first: int,
        sets: bytes | list[int],
        blob_places: bytes | list[int],
        payload_numbers: bytes,
        digests: "array[int]",
        blobs: Sequence[bytes] = (),
    ) -> None:
        self.first = first
        self.blobs = blobs
        self.sets = sets
        self.blob_places = blob_places
        self.payload_numbers = payload_numbers
        self.digests = digests
        self._by_set: dict[int, list[int]] | None = None

    def __len__(self) -> int:
        """Return the number of publications."""
        return len(self.payload_numbers)

    @property
    def by_set(self) -> Mapping[int, list[int]]:
        """The ascending sequence numbers with each attribute set."""
        if self._by_set is None:
            found: dict[int, list[int]] = {}
            for sequence, chosen in enumerate(self.sets, self.first):
                if chosen in found:
                    found[chosen].append(sequence)
                else:
                    found[chosen] = [sequence]
            self._by_set = found
        return self._by_set


class SourceContent:
    """The contents of one source (publisher and incarnation), in blocks.

    Blocks are computed on first use and the last blocks are kept: publishers and subscribers read
    sequence numbers upwards, but the subscribers of a process are not in step. Sequence numbers
    start at 1; block k contains the numbers from k * block_size + 1 on.

    Args:
        with_digests: True for blocks with digests; publishers need none.
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
        self._computed = 0
        self._payloads: dict[int, bytes] = {}
        self._watchers: list[Callable[[int, ContentBlock], None]] = []
        self._first_places = tables.first_places()
        self._all_differ = self._first_places == list(range(len(tables.blobs)))
        self._attribute_crcs = [zlib.crc32(blob) for blob in tables.blobs]
        self._digest_table: list[list[int]] | None = None
        few = len(tables.blobs) * len(tables.payloads) <= _LARGEST_DIGEST_TABLE
        if with_digests and few and tables.numbered is None:
            self._digest_table = [
                [zlib.crc32(payload, crc) for payload in tables.payloads]
                for crc in self._attribute_crcs
            ]

    def choice(self, sequence: int) -> tuple[int, int]:
        """Return (attribute set, payload number) of a publication."""
        hashed = splitmix64(self._base + sequence)
        return hashed % len(self.tables.blobs), (hashed >> 32) % len(self.tables.payloads)

    def blob(self, sequence: int) -> bytes:
        """Return the attribute blob of a publication."""
        attribute_set, _ = self.choice(sequence)
        numbered = self.tables.numbered
        if numbered is not None:
            return numbered.blob(attribute_set, sequence)
        return self.tables.blobs[attribute_set]

    def block_of(self, sequence: int) -> ContentBlock:
        """Return the block with publication `sequence` (1 or higher)."""
        number = (sequence - 1) // self.block_size
        block = self._blocks.get(number)
        if block is not None:
            return block
        if self._computed < number <= self._computed + _BLOCKS_KEPT // 2:
            # Compute all blocks in order, because watchers add up.
            for passed in range(self._computed, number):
                self.compute(passed)
        return self.compute(number)

    def first_of_block(self, sequence: int) -> int:
        """Return the lowest number of the block with publication `sequence`."""
        return (sequence - 1) // self.block_size * self.block_size + 1

    def compute(self, number: int) -> ContentBlock:
        """Compute block `number`, counted from 0, and notify the watchers."""
        block = self._compute(number)
        self._computed = max(self._computed, number + 1)
        _keep(self._blocks, number, block, _BLOCKS_KEPT)
        for watcher in self._watchers:
            watcher(number, block)
        return block

    def watch(self, watcher: Callable[[int, ContentBlock], None]) -> None:
        """Add a watcher, which receives number and block of every kept or computed block."""
        for number, block in sorted(self._blocks.items(), key=itemgetter(0)):
            watcher(number, block)
        self._watchers.append(watcher)

    def payload_of(self, block: ContentBlock) -> bytes:
        """Return all payloads of a block, joined."""
        payload = self._payloads.get(block.first)
        if payload is None:
            payload = b"".join(map(self.tables.payloads.__getitem__, block.payload_numbers))
            _keep(self._payloads, block.first, payload, _PAYLOADS_KEPT)
        return payload

    def _compute(self, number: int) -> ContentBlock:
        first = number * self.block_size + 1
        sets, payload_numbers = choices(
            self._base + first, self.block_size, len(self.tables.blobs), len(self.tables.payloads)
        )
        digests: Iterable[int]
        blobs: Sequence[bytes] = ()
        if self.tables.numbered is not None:
            blobs = self.tables.numbered.blobs(sets, first)
        if not self._with_digests:
            digests = ()
        elif self._digest_table is not None:
            digests = map(getitem, map(self._digest_table.__getitem__, sets), payload_numbers)
        else:
            payloads, table = self.tables.payloads, self._attribute_crcs
            crcs = map(zlib.crc32, blobs) if blobs else map(table.__getitem__, sets)
            digests = map(zlib.crc32, map(payloads.__getitem__, payload_numbers), crcs)
        places: bytes | list[int] = sets
        if not self._all_differ:
            places = [self._first_places[chosen] for chosen in sets]
            places = bytes(places) if isinstance(sets, bytes) else places
        return ContentBlock(first, sets, places, payload_numbers, array("I", digests), blobs)


_Kept = TypeVar("_Kept")


def _keep(kept: dict[int, _Kept], number: int, value: _Kept, limit: int) -> None:
    """Add a value; evict the oldest value if the limit is reached."""
    if len(kept) >= limit:
        del kept[next(iter(kept))]
    kept[number] = value
