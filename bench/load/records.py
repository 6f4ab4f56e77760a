"""Records of a load generator: rows of record files, stretches, and recent latencies.

Rows are written for whole runs at once. A row has 32 bytes, so four 64-bit words; one strided
assignment writes a column of a run. Row by row, `struct` would cost as much as all other work per
message here.

Stretches record deliveries exactly in a fraction of the rows. A stretch is a run of deliveries of
one source to one subscription that are exactly the next matching publications, with the content
from the seed. One row contains the number of deliveries and the last sequence number; readers
derive the rest from the seed. Any other delivery is written at once in a row of its own, so that no
possible error is ever part of a stretch.

The time of each delivery of a stretch is lost, except that it lies within the duration in the row.
A sample, the same publications for all subscriptions, and the first delivery after a pause are
written row by row with their times. Latencies use the sample alone, because deliveries after a
pause are not typical.

Samples of recent publications give latencies during a run. Publishers and subscribers are different
processes, and a publication does not contain its intended time. Both sides record the stamps of
publications with a sequence number that is a multiple of a power of two; the power grows with the
rate. The multiples of the larger power are in both samples, so the sides need no agreement.
Verdicts use the logs, never these samples.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

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
    STRETCH,
)
from brokerd.units import SECOND_NS

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


Level = Literal["full", "sampled", "hist"]

RESOLUTION_NS: Final = 100_000_000
SAMPLED_BLOCK: Final = 16
ONE_BLOCK_IN: Final[dict[Level, int]] = {"sampled": 16, "hist": 256}
"""Number of blocks of consecutive publications of a source per block that is written row by row."""

_LONGEST_MS: Final = (1 << 16) - 1
_MOST: Final = 1 << 20


@dataclass(slots=True)
class _Stretch:
    subscription: int
    publisher: int
    incarnation: int
    count: int = 0
    last: int = 0
    first_ns: int = 0


class Stretches:
    """The unwritten stretches of one process, oldest first.

    Args:
        level: "sampled" or "hist".
        record: writes rows.

    Attributes:
        written: number of deliveries in all rows written so far.
    """

    def __init__(self, level: Level, record: Callable[[bytes], None]) -> None:
        self._one_in = ONE_BLOCK_IN[level]
        self._record = record
        self._open: dict[tuple[int, int, int], _Stretch] = {}
        self._last_ns: dict[tuple[int, int, int], int] = {}
        self.written = 0

    def parts(self, sequences: Sequence[int]) -> Iterator[tuple[slice, bool]]:
        """Yield parts of ascending numbers inside or outside the sample, and True for inside."""
        period, at = SAMPLED_BLOCK * self._one_in, 0
        while at < len(sequences):
            beyond = sequences[at] % period
            is_sampled = beyond < SAMPLED_BLOCK
            edge = sequences[at] - beyond + (SAMPLED_BLOCK if is_sampled else period)
            end = bisect_left(sequences, edge, at)
            yield slice(at, end), is_sampled
            at = end

    @property
    def sample(self) -> dict[str, int]:
        """The publications with times, for the sidecar."""
        return {"block": SAMPLED_BLOCK, "one_in": self._one_in}

    def take(
        self,
        subscription: int,
        publisher: int,
        incarnation: int,
        sequences: Sequence[int],
        received_ns: int,
    ) -> bool:
        """Add expected publications outside the sample to a stretch, if possible.

        Returns:
            True on success. Otherwise the caller calls `end` and writes rows.
        """
        self.settle(received_ns - RESOLUTION_NS, received_ns)
        key = subscription, publisher, incarnation
        before_ns, self._last_ns[key] = self._last_ns.get(key, 0), received_ns
        if received_ns - before_ns > RESOLUTION_NS:
            return False
        stretch = self._open.get(key)
        if stretch is None:
            stretch = self._open[key] = _Stretch(*key, first_ns=received_ns)
        stretch.count += len(sequences)
        stretch.last = sequences[-1]
        if stretch.count > _MOST:
            self.end(*key, received_ns)
        return True

    def end(self, subscription: int, publisher: int, incarnation: int, now_ns: int) -> None:
        """Write old stretches, then the open stretch of a source and subscription.

        So no stretch lasts longer than the resolution while any delivery arrives.
        """
        self.settle(now_ns - RESOLUTION_NS, now_ns)
        stretch = self._open.pop((subscription, publisher, incarnation), None)
        if stretch is not None:
            self._write(stretch, now_ns)

    def settle(self, until_ns: int, now_ns: int) -> None:
        """Write every stretch that began before an instant."""
        while self._open:
            key = next(iter(self._open))
            if self._open[key].first_ns > until_ns:
                return
            self._write(self._open.pop(key), now_ns)

    def _write(self, stretch: _Stretch, now_ns: int) -> None:
        """Write the row of a stretch, stamped now, so that stamps of a file ascend."""
        lasted_ms = min(-(-(now_ns - stretch.first_ns) // 1_000_000), _LONGEST_MS)
        self._record(
            DELIVERIES.row.pack(
                stretch.last, now_ns, stretch.count, stretch.subscription, stretch.publisher,
                stretch.incarnation, STRETCH, APPLICATION, lasted_ms,
            )
        )  # fmt: skip
        self.written += stretch.count


PER_SECOND = 256
KEPT_NS = 5_000_000_000
MOST_ROWS = 4096


class LatencySamples:
    """Stamps of a sample of publications of the last few seconds.

    Attributes:
        stride: multiples of this sequence number are recorded.
    """

    def __init__(self) -> None:
        self.stride = 1
        self._rows: deque[tuple[int, int, int, int]] = deque(maxlen=MOST_ROWS)
        self._sources: dict[str, int] = {}
        self._second = 0
        self._in_second = 0

    def note(
        self, source: str, sequences: Sequence[int], stamps_ns: Sequence[int] | int, now_ns: int
    ) -> None:
        """Record a run of `source` that passed now.

        Args:
            stamps_ns: a stamp per publication, or the same stamp for all publications.
        """
        first, last = sequences[0], sequences[-1]
        self._adapt(last // self.stride - (first - 1) // self.stride, now_ns)
        start = -(-first // self.stride) * self.stride
        if start > last:
            return
        number = self._sources.setdefault(source, len(self._sources))
        for sequence in range(start, last + 1, self.stride):
            if sequence not in sequences:
                continue
            stamp_ns = (
                stamps_ns if isinstance(stamps_ns, int) else stamps_ns[sequences.index(sequence)]
            )
            self._rows.append((now_ns, number, sequence, stamp_ns))

    def read_since(self, after_ns: int) -> dict[str, Any]:
        """Return the records after an instant, for a control answer.

        Returns:
            sources: names; rows: [place in `sources`, sequence, stamp_ns].
        """
        oldest_ns = self._rows[-1][0] - KEPT_NS if self._rows else 0
        while self._rows and self._rows[0][0] < oldest_ns:
            self._rows.popleft()
        return {
            "sources": list(self._sources),
            "rows": [
                [number, sequence, stamp_ns]
                for noted_ns, number, sequence, stamp_ns in self._rows
                if noted_ns > after_ns
            ],
        }

    def _adapt(self, would_note: int, now_ns: int) -> None:
        """Adapt the stride so that the number of records per second depends little on the rate."""
        second = now_ns // SECOND_NS
        if second != self._second:
            if self._in_second < PER_SECOND // 4 and self.stride > 1:
                self.stride //= 2
            self._second, self._in_second = second, 0
        self._in_second += would_note
        while self._in_second > PER_SECOND:
            self.stride *= 2
            self._in_second //= 2
