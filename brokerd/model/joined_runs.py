"""Joined runs for long storage, with little memory beyond the bytes of the publications.

A publication that arrived by itself costs a dozen objects, and the read buffer that contains it. A
publication joined with its neighbours costs its bytes, and a place in an index.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from brokerd.model.publication import Buffer, PublicationRun, merge_runs

MOST_BLOBS = 4_096
"""Number of attribute blobs that successively joined runs share…"""
SHARED_BYTES = 256
"""…if the blobs are no longer than this, because shared blobs are cached."""
JOINED_PUBLICATIONS = 256
"""Number of publications that a joined run for storage has at most."""
JOINED_BYTES = 1 << 16
"""Payload bytes of a joined run at most: less than the C library allocates by a memory map."""


class RunJoiner:
    """A joiner of runs; joined runs share the bytes of their attributes."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, bytes] = {}

    def join(self, runs: Sequence[PublicationRun]) -> PublicationRun:
        """Return runs joined as by `merge_runs`, but with a payload of their own, in one piece."""
        merged = merge_runs(runs)
        if len(self._blobs) > MOST_BLOBS:
            self._blobs = {}
        shared = self._blobs.setdefault
        table = tuple(
            [
                shared(blob, blob) if len(blob) <= SHARED_BYTES else blob
                for blob in merged.attribute_table
            ]
        )
        payload = (b"".join(merged.payload),) if merged.payload else ()
        return replace(merged, attribute_table=table, payload=payload)

    def fewer(self, runs: Sequence[PublicationRun]) -> list[PublicationRun]:
        """Return consecutive runs of one source with short neighbours joined."""
        found: list[PublicationRun] = []
        group: list[PublicationRun] = []
        publications = payload_bytes = 0
        for run in runs:
            size_bytes = run.payload_bytes()
            if group and (
                publications + len(run) > JOINED_PUBLICATIONS
                or payload_bytes + size_bytes > JOINED_BYTES
            ):
                found.append(self.join(group) if len(group) > 1 else group[0])
                group, publications, payload_bytes = [], 0, 0
            group.append(run)
            publications += len(run)
            payload_bytes += size_bytes
        if group:
            found.append(self.join(group) if len(group) > 1 else group[0])
        return found


def take(runs: Sequence[PublicationRun], numbers: Collection[int]) -> PublicationRun:
    """Return the publications of joined runs of a source that have the given numbers, at least one.

    The payload stays slices of the runs, neighbours in a single slice. The runs may interleave, but
    share no publication.
    """
    wanted = dict.fromkeys(numbers)
    found = sorted(
        (sequence, number, position)
        for number, run in enumerate(runs)
        for position, sequence in enumerate(run.sequences)
        if sequence in wanted
    )
    assert len(found) == len(wanted), f"{len(found)} of {len(wanted)} publications"
    if len(runs) == 1 and len(found) == len(runs[0]):
        return runs[0]
    offsets = [_offsets(run) for run in runs]
    places: dict[bytes, int] = {}
    index: list[int] = []
    lengths: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for _, number, position in found:
        index.append(places.setdefault(runs[number].blob(position), len(places)))
        start, end = offsets[number][position], offsets[number][position + 1]
        lengths.append(end - start)
        if spans and spans[-1][0] == number and spans[-1][2] == start:
            spans[-1] = (number, spans[-1][1], end)
        else:
            spans.append((number, start, end))
    first, last = found[0][0], found[-1][0]
    is_whole = last - first + 1 == len(found)
    return PublicationRun(
        runs[0].source,
        range(first, last + 1) if is_whole else tuple([sequence for sequence, _, _ in found]),
        tuple(places),
        bytes(index) if len(places) <= 256 else tuple(index),
        lengths[0] if lengths.count(lengths[0]) == len(lengths) else tuple(lengths),
        _slices(runs, spans),
    )


def _offsets(run: PublicationRun) -> list[int]:
    assert len(run.payload) <= 1, f"{len(run.payload)} pieces of payload"
    lengths = run.payload_lengths
    if isinstance(lengths, int):
        return list(range(0, lengths * len(run) + 1, lengths)) if lengths else [0] * (len(run) + 1)
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets


def _slices(
    runs: Sequence[PublicationRun], spans: Sequence[tuple[int, int, int]]
) -> tuple[Buffer, ...]:
    return tuple(
        [
            memoryview(runs[number].payload[0])[start:end]
            for number, start, end in spans
            if end > start
        ]
    )
