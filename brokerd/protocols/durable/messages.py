"""What brokers of durable say to each other, beside what gryphon's core says.

Paper: [DS03] §3 (release protocol), §4.1 (nacks of catch-up streams).
"""

from collections.abc import Sequence
from typing import Final

from brokerd.model.identity import SourceId, StreamId
from brokerd.model.message_kind import MessageKind
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.gryphon.intervals import Range

Origins = tuple[tuple[SourceId, int], ...]
"""Of each of these sources, what is up to this number."""


@record
class Released:
    """Up: all subscriptions at the sender and below have acknowledged these streams up to here."""

    through: tuple[tuple[StreamId, int], ...]


@record
class Fetch:
    """Up: what was in these ranges, whoever is done with them? None is empty, all are in order."""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Fetched:
    """Down: these are all events in the ranges that are kept.

    Attributes:
        lost: what was there up to this tick is not kept any more.
        run: of them; its sequences are ticks.
        origins: what was published up to `lost`.
    """

    lost: int
    ranges: tuple[Range, ...]
    run: PublicationRun
    origins: Origins = ()


@record
class NothingFetched:
    """Down: in these ranges no events are kept, and up to `lost` nobody knows whether any were."""

    stream: StreamId
    lost: int
    ranges: tuple[Range, ...]
    origins: Origins = ()


@record
class Beyond:
    """Down: nobody was told of any tick in these ranges, for the stream ends at `highest`."""

    stream: StreamId
    highest: int
    ranges: tuple[Range, ...]


def clipped(ranges: Sequence[Range], start: int, end: int) -> tuple[Range, ...]:
    """What of these ranges lies in [start, end)."""
    cut = [(max(start, low), min(end, high)) for low, high in ranges]
    return tuple((low, high) for low, high in cut if low < high)


def _halves(message: Fetched) -> Sequence[Fetched]:
    """Two answers, of which each is whole for its own ranges."""
    run, ranges = message.run, message.ranges
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    cut = first.last + 1
    return (
        Fetched(message.lost, clipped(ranges, 0, cut), first, message.origins),
        Fetched(message.lost, clipped(ranges, cut, ranges[-1][1]), second, message.origins),
    )


KINDS: Final = (
    MessageKind(80, Released),
    MessageKind(81, Fetch),
    MessageKind(82, Fetched, None, _halves),
    MessageKind(83, NothingFetched),
    MessageKind(84, Beyond),
)
"""With the numbers they have on the wire; 80 to 95 are durable's."""
