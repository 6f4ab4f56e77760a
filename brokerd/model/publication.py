"""Publication runs: the unit that travels between clients and brokers.

A run is a strictly increasing series of publications of one source. A broker matches, queues,
confirms and sends whole runs; payload bytes stay slices of the receive buffer.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import accumulate, chain, pairwise
from operator import itemgetter, sub
from typing import NamedTuple, TypeVar

from brokerd.model.identity import SourceId, StreamId
from brokerd.model.record import record

Buffer = bytes | memoryview

Item = TypeVar("Item")


class OriginRun(NamedTuple):
    """Adjacent publications of one publisher in a run, with the publisher's sequence numbers."""

    source: SourceId
    sequences: range | tuple[int, ...]


class Place(NamedTuple):
    """The positions of publications in a stream that is not their source's."""

    stream: StreamId
    positions: range | tuple[int, ...]


@record
class PublicationRun:
    """Consecutive publications of one source, with increasing sequence numbers.

    A run may instead be of one stream, with increasing positions: `origins` then names the sources,
    and all operations on the run use positions.

    Attributes:
        source: source of the publications; with `origins`, the stream.
        sequences: one number per publication, strictly increasing; a `range` of step 1 if nothing
            was filtered out, otherwise a tuple.
        attribute_table: the distinct attribute blobs, in order of first use.
        attribute_index: per publication, its place in `attribute_table`.
        payload_lengths: bytes per publication; a single int if all are equal.
        payload: pieces that concatenate to all payloads in order. A piece never ends inside a
            publication.
        origins: sources of the publications, neighbours of one source together; empty if `source`
            and `sequences` already identify the publications.
        place: positions in the stream, in a run that was made by `split_by_origin`.
        header: encoded bytes of everything but the payload, in a run that arrived over the wire;
            empty in any other run, and in all runs derived from a run, copies too.
    """

    source: SourceId
    sequences: range | tuple[int, ...]
    attribute_table: tuple[bytes, ...]
    attribute_index: Sequence[int]
    payload_lengths: int | tuple[int, ...]
    payload: tuple[Buffer, ...] = field(repr=False)
    origins: tuple[OriginRun, ...] = ()
    place: Place | None = None
    header: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def first(self) -> int:
        """The lowest sequence number."""
        return self.sequences[0]

    @property
    def last(self) -> int:
        """The highest sequence number."""
        return self.sequences[-1]

    def __len__(self) -> int:
        return len(self.sequences)

    def payload_bytes(self) -> int:
        """Return the size of all payloads together."""
        if isinstance(self.payload_lengths, int):
            return self.payload_lengths * len(self.sequences)
        return sum(self.payload_lengths)

    def publications(self) -> Iterator[tuple[int, bytes, Buffer]]:
        """Yield each publication as (sequence, attribute blob, payload); payloads are slices."""
        position = 0
        piece_number, piece, offset = 0, memoryview(b""), 0
        lengths = self.payload_lengths
        for position, sequence in enumerate(self.sequences):
            length = lengths if isinstance(lengths, int) else lengths[position]
            while offset >= len(piece) and length:
                piece, offset = memoryview(self.payload[piece_number]), 0
                piece_number += 1
            yield (
                sequence,
                self.attribute_table[self.attribute_index[position]],
                piece[offset : offset + length],
            )
            offset += length

    def blob(self, position: int) -> bytes:
        """Return the attribute blob of the publication at `position`."""
        return self.attribute_table[self.attribute_index[position]]

    def select(self, positions: Sequence[int]) -> "PublicationRun":
        """Return the publications at `positions` (strictly increasing, not empty), as a run.

        Payload bytes stay slices, neighbours in one slice, unless the selection is less than two
        thirds of the run: a stored part must not keep the whole receive buffer alive.
        """
        count = len(positions)
        assert count, "a run is never empty"
        if count == len(self.sequences):
            return self
        payload = self._slices(positions)
        lengths = self.payload_lengths
        if isinstance(lengths, int):
            size = lengths * count
        else:
            size = sum([lengths[position] for position in positions])
        if 3 * size < 2 * self.payload_bytes():
            payload = (b"".join(payload),)
        return self._select(positions, payload)

    def _select(self, positions: Sequence[int], payload: tuple[Buffer, ...]) -> "PublicationRun":
        """See `select`.

        Args:
            payload: payload of the publications at `positions`.
        """
        count, first, last = len(positions), positions[0], positions[-1]
        whole = last - first + 1 == count
        sequences: range | tuple[int, ...]
        if whole:
            sequences = self.sequences[first : last + 1]
        else:
            sequences = _items(self.sequences, positions)
            if sequences[-1] - sequences[0] + 1 == count:
                sequences = range(sequences[0], sequences[-1] + 1)
        table, index = self._select_attributes(positions)
        lengths = self.payload_lengths
        if not isinstance(lengths, int):
            lengths = tuple(lengths[position] for position in positions)
        if not self.origins and not self.place:
            return PublicationRun(self.source, sequences, table, index, lengths, payload)
        place = self.place and Place(self.place.stream, _items(self.place.positions, positions))
        origins = self._origins_at(positions)
        return PublicationRun(
            self.source, sequences, table, index, lengths, payload, origins, place
        )

    def _origins_at(self, positions: Sequence[int]) -> tuple[OriginRun, ...]:
        """Return the origins of publications at some positions, neighbours joined."""
        if len(self.origins) == 1:
            ((source, sequences),) = self.origins
            return (OriginRun(source, _plain(_items(sequences, positions))),)
        found: list[tuple[SourceId, list[int]]] = []
        start = lower = 0
        for source, sequences in self.origins:
            end = start + len(sequences)
            upper = bisect_left(positions, end, lower)
            if upper > lower:
                numbers = [sequences[position - start] for position in positions[lower:upper]]
                if found and found[-1][0] == source and found[-1][1][-1] < numbers[0]:
                    found[-1][1].extend(numbers)
                else:
                    found.append((source, numbers))
            start, lower = end, upper
        return tuple([OriginRun(source, _plain(numbers)) for source, numbers in found])

    def split_by_origin(self) -> Iterator["PublicationRun"]:
        """Yield the same publications as runs of one source each, in order."""
        if not self.origins:
            yield self
            return
        start = 0
        for source, sequences in self.origins:
            part = self.select(range(start, start + len(sequences)))
            place = Place(self.source, part.sequences)
            yield replace(part, source=source, sequences=sequences, origins=(), place=place)
            start += len(sequences)

    def after(self, sequence: int) -> "PublicationRun | None":
        """Return the publications numbered above `sequence`; None if there are none."""
        if self.first > sequence:
            return self
        if self.last <= sequence:
            return None
        start = bisect_right(self.sequences, sequence)
        return self.select(range(start, len(self.sequences)))

    def select_through(self, sequence: int) -> "PublicationRun | None":
        """Return the publications numbered `sequence` or less; None if there are none."""
        if self.last <= sequence:
            return self
        if self.first > sequence:
            return None
        return self.select(range(bisect_right(self.sequences, sequence)))

    def _select_attributes(
        self, positions: Sequence[int]
    ) -> tuple[tuple[bytes, ...], Sequence[int]]:
        if len(self.attribute_table) == 1:
            return self.attribute_table, bytes(len(positions))
        chosen = _items(self.attribute_index, positions)
        places = tuple(dict.fromkeys(chosen))
        table = tuple([self.attribute_table[place] for place in places])
        if len(table) == 1:
            return table, bytes(len(positions))
        if len(self.attribute_table) <= 256:
            renumbering = bytearray(256)
            for new, place in enumerate(places):
                renumbering[place] = new
            return table, bytes(chosen).translate(renumbering)
        new_places = {place: new for new, place in enumerate(places)}
        index = [new_places[place] for place in chosen]
        return table, bytes(index) if len(table) <= 256 else tuple(index)

    def _slices(self, positions: Sequence[int]) -> tuple[Buffer, ...]:
        lengths = self.payload_lengths
        if isinstance(lengths, int):
            return tuple(self._equal_slices(positions, lengths)) if lengths else ()
        spans = [span for span in _spans(lengths, positions) if span[1] > span[0]]
        pieces: list[Buffer] = []
        piece_start = 0
        wanted = iter(spans)
        span = next(wanted, None)
        for piece in self.payload:
            view = memoryview(piece)
            piece_end = piece_start + len(view)
            while span is not None and span[0] < piece_end:
                start, end = span
                pieces.append(view[start - piece_start : min(end, piece_end) - piece_start])
                span = (piece_end, end) if end > piece_end else next(wanted, None)
            piece_start = piece_end
        return tuple(pieces)

    def _equal_slices(self, positions: Sequence[int], length: int) -> Iterator[Buffer]:
        """Yield the payloads at `positions`, of `length` bytes each, neighbours joined."""
        done = passed = 0
        for piece in self.payload:
            view = memoryview(piece)
            held = len(view) // length
            end = bisect_left(positions, passed + held, done)
            if end > done:
                inside = positions[done:end]
                # Few positions of many are seldom adjacent.
                if 1 not in map(sub, inside[1:], inside):
                    offsets = [(position - passed) * length for position in inside]
                    yield from [view[offset : offset + length] for offset in offsets]
                else:
                    for first, last in _stretches(inside):
                        yield view[(first - passed) * length : (last - passed) * length]
                if end == len(positions):
                    return
            done, passed = end, passed + held


class RunParts:
    """A cutter of many small parts of one run.

    Every part equals the result of `select`. The payloads are cut once, for any number of parts.
    """

    __slots__ = ("_payloads", "_run")

    def __init__(self, run: PublicationRun) -> None:
        self._run = run
        self._payloads: tuple[bytes, ...] = ()

    def select(self, positions: Sequence[int]) -> PublicationRun:
        run, length = self._run, self._run.payload_lengths
        if not isinstance(length, int) or not length or 3 * len(positions) >= 2 * len(run):
            return run.select(positions)
        if not self._payloads:
            each = struct.iter_unpack(f"{length}s", b"".join(run.payload))
            self._payloads = tuple(chain.from_iterable(each))
        payload = b"".join(_items(self._payloads, positions))
        return run._select(positions, (payload,))


def _spans(lengths: Sequence[int], positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield byte spans of the payloads at `positions`, neighbours joined."""
    offsets = [0, *accumulate(lengths)]
    start, end = offsets[positions[0]], offsets[positions[0] + 1]
    for position in positions[1:]:
        if offsets[position] == end:
            end = offsets[position + 1]
        else:
            yield start, end
            start, end = offsets[position], offsets[position + 1]
    yield start, end


def _plain(numbers: Sequence[int]) -> range | tuple[int, ...]:
    """Return increasing numbers, as a range if no number is left out."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return range(numbers[0], numbers[-1] + 1)
    return tuple(numbers)


def _items(values: Sequence[Item], positions: Sequence[int]) -> tuple[Item, ...]:
    """Return the values at increasing positions."""
    first, last = positions[0], positions[-1]
    if last - first + 1 == len(positions):
        return tuple(values[first : last + 1])
    chosen: tuple[Item, ...] = itemgetter(*positions)(values)
    return chosen


def _stretches(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return increasing positions as [start, end) of neighbours."""
    if positions[-1] - positions[0] + 1 == len(positions):
        return iter([(positions[0], positions[-1] + 1)])
    breaks = [i for i, (a, b) in enumerate(pairwise(positions), 1) if b != a + 1]
    starts = [positions[0], *[positions[i] for i in breaks]]
    ends = [*[positions[i - 1] + 1 for i in breaks], positions[-1] + 1]
    return zip(starts, ends, strict=True)


def last_numbers(runs: Iterable[PublicationRun]) -> dict[SourceId, int]:
    """Return, by source, the highest number of the publications in runs of a log."""
    found: dict[SourceId, int] = {}
    for run in runs:
        for source, numbers in run.origins:
            found[source] = max(numbers[-1], found.get(source, 0))
    return found


def merge_runs(runs: Sequence[PublicationRun]) -> PublicationRun:
    """Return one run of the publications of several runs of one source, in sequence order.

    The runs may interleave but share no publication. Payload bytes are not copied.
    """
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs, key=lambda run: run.first)
    if all(a.last < b.first for a, b in pairwise(ordered)):
        return _concatenate(ordered)
    singles = sorted(
        (sequence, number, position)
        for number, run in enumerate(ordered)
        for position, sequence in enumerate(run.sequences)
    )
    stretches: list[PublicationRun] = []
    start = 0
    for end in range(1, len(singles) + 1):
        _, number, position = singles[start]
        if end < len(singles) and singles[end][1:] == (number, position + end - start):
            continue
        stretches.append(ordered[number].select(range(position, position + end - start)))
        start = end
    return _concatenate(stretches)


def _concatenate(runs: Sequence[PublicationRun]) -> PublicationRun:
    count = sum(len(run) for run in runs)
    first, last = runs[0].first, runs[-1].last
    sequences: range | tuple[int, ...]
    if last - first + 1 == count:
        sequences = range(first, last + 1)
    else:
        sequences = tuple(chain.from_iterable([run.sequences for run in runs]))
    table, index = _join_attributes(runs)
    lengths: int | tuple[int, ...]
    one = runs[0].payload_lengths
    if isinstance(one, int) and all(run.payload_lengths == one for run in runs):
        lengths = one
    else:
        lengths = tuple(length for run in runs for length in _list_lengths(run))
    payload = tuple(piece for run in runs for piece in run.payload)
    merged = PublicationRun(runs[0].source, sequences, table, index, lengths, payload)
    if runs[0].origins:
        merged = replace(merged, origins=_join_origins([o for run in runs for o in run.origins]))
    return merged


def _join_attributes(
    runs: Sequence[PublicationRun],
) -> tuple[tuple[bytes, ...], Sequence[int]]:
    """Return a table of the blobs of all runs, and the index of all publications into it."""
    places: dict[bytes, int] = {}
    translations = [
        [places.setdefault(blob, len(places)) for blob in run.attribute_table] for run in runs
    ]
    table = tuple(places)
    indexes = [run.attribute_index for run in runs]
    if len(table) <= 256:
        parts = map(_translate, indexes, translations)
        return table, b"".join(parts)
    moved = [map(to.__getitem__, index) for to, index in zip(translations, indexes, strict=True)]
    return table, tuple(chain.from_iterable(moved))


def _translate(index: Sequence[int], translation: Sequence[int]) -> bytes:
    """Return an attribute index with its places moved, all below 256."""
    if isinstance(index, bytes):
        return index.translate(bytes(translation).ljust(256, b"\0"))
    return bytes(map(translation.__getitem__, index))


def _join_origins(origins: Sequence[OriginRun]) -> tuple[OriginRun, ...]:
    """Return adjacent origins with neighbours of one source joined."""
    found: list[tuple[SourceId, list[Sequence[int]]]] = []
    for source, numbers in origins:
        if found and found[-1][0] == source and found[-1][1][-1][-1] < numbers[0]:
            found[-1][1].append(numbers)
        else:
            found.append((source, [numbers]))
    return tuple([OriginRun(source, _plain_of(parts)) for source, parts in found])


def _plain_of(parts: Sequence[Sequence[int]]) -> range | tuple[int, ...]:
    """Return increasing numbers that are given in parts, as a range if no number is left out."""
    first, last = parts[0][0], parts[-1][-1]
    if last - first + 1 == sum(map(len, parts)):
        return range(first, last + 1)
    return tuple(chain.from_iterable(parts))


def _list_lengths(run: PublicationRun) -> Sequence[int]:
    if isinstance(run.payload_lengths, int):
        return [run.payload_lengths] * len(run)
    return run.payload_lengths


def without(run: PublicationRun, first: int, last: int) -> PublicationRun | None:
    """Return the publications of `run` that are not numbered in [first, last]; None if all are."""
    before = run.select_through(first - 1)
    after = run.after(last)
    if before is None or after is None:
        return before or after
    return merge_runs([before, after])


def stretches(sequences: range | tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the stretches (first, last) of consecutive numbers in increasing numbers."""
    if isinstance(sequences, range):
        yield sequences[0], sequences[-1]
        return
    start = last = sequences[0]
    for sequence in sequences[1:]:
        if sequence != last + 1:
            yield start, last
            start = sequence
        last = sequence
    yield start, last
