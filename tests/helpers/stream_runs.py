"""Runs of a stream for tests: events of two publishers, with payloads that identify the events."""

from collections.abc import Sequence

from brokerd.model.identity import SourceId, StreamId
from brokerd.model.publication import OriginRun, PublicationRun

STREAM = StreamId(0, 0, 0)


def run_at(ticks: Sequence[int]) -> PublicationRun:
    """Return events at these ticks; odd ticks belong to another publisher."""
    origins = [(SourceId(0, tick % 2, 1), tick + 1) for tick in ticks]
    payload = b"".join(tick.to_bytes(4) for tick in ticks)
    return PublicationRun(
        STREAM, tuple(ticks), (b"a",), bytes(len(ticks)), 4, (payload,), origin_runs(origins)
    )


def origin_runs(each: Sequence[tuple[SourceId, int]]) -> tuple[OriginRun, ...]:
    """Return sources and sequences of publications in a row, neighbours of a source together."""
    found: list[tuple[SourceId, list[int]]] = []
    for source, sequence in each:
        if found and found[-1][0] == source and found[-1][1][-1] < sequence:
            found[-1][1].append(sequence)
        else:
            found.append((source, [sequence]))
    return tuple([OriginRun(source, _plain(numbers)) for source, numbers in found])


def _plain(numbers: Sequence[int]) -> range | tuple[int, ...]:
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return range(numbers[0], numbers[-1] + 1)
    return tuple(numbers)
