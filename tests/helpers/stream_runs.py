"""Runs of a stream for tests: events of two publishers, with payloads that say which they are."""

from collections.abc import Sequence

from brokerd.model.identity import SourceId, StreamId
from brokerd.model.publication import PublicationRun, origin_runs

STREAM = StreamId(0, 0, 0)


def run_at(ticks: Sequence[int]) -> PublicationRun:
    """Events at these ticks; odd ones are another publisher's."""
    origins = [(SourceId(0, tick % 2, 1), tick + 1) for tick in ticks]
    payload = b"".join(tick.to_bytes(4) for tick in ticks)
    return PublicationRun(
        STREAM, tuple(ticks), (b"a",), bytes(len(ticks)), 4, (payload,), origin_runs(origins)
    )
