"""The messages between brokers of durable, in addition to those of gryphon's core.

Paper: [DS03] §3 (release protocol), §4.1 (nacks of catch-up streams).
"""

from collections.abc import Sequence
from typing import Final

from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.message_kind import MessageKind
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.gryphon import Range
from brokerd.protocols.parts.decommissioning import Signed

Origins = tuple[tuple[SourceId, int], ...]
"""Per source, all publications through a number."""

LOST: Final = "early release"
"""The reason of a gap in missed events."""


@record
class Released:
    """Up: the ticks through which all subscriptions of a cell and below have acknowledged.

    Members of a cell forward ticks that arrive from below to each other.

    Attributes:
        cell: the cell of the sender, or a cell below.
    """

    cell: int
    through: tuple[tuple[StreamId, int], ...]


@record
class Fetch:
    """Up: a request for events in ranges, acknowledged or not; ranges are in order, not empty."""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Fetched:
    """Down: all retained events in the ranges.

    Attributes:
        lost: events through this tick are not retained any more.
        run: the events; its sequences are ticks.
        origins: the publications through `lost`.
    """

    lost: int
    ranges: tuple[Range, ...]
    run: PublicationRun
    origins: Origins = ()


@record
class NothingFetched:
    """Down: no events are retained in these ranges; through `lost`, there may have been some."""

    stream: StreamId
    lost: int
    ranges: tuple[Range, ...]
    origins: Origins = ()


@record
class Beyond:
    """Down: the stream ends at `highest`, and no tick in these ranges was ever announced."""

    stream: StreamId
    highest: int
    ranges: tuple[Range, ...]


@record
class Deferred:
    """Down: these ranges were not searched, because the answer so far is as large as allowed."""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Hold:
    """Towards a broker: a moved subscription requires events of the receiver's pubends.

    Attributes:
        to, at: the receiver, and the present broker of the subscription.
        generation: of the client's attachment there.
        behind: streams of `to`; nothing after these ticks may be released. Empty: everything may.
        requested_in: the requesting incarnation of `at`; an answer to an earlier one proves no
            present hold.
        stay: the number of the arrival at `at` since its start; a client that has lost its memory
            arrives twice in one generation.
    """

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int
    behind: tuple[tuple[StreamId, int], ...]
    requested_in: int
    stay: int = 0


@record
class Held:
    """The answer to a Hold, once durable; with `requested_in` 0 a question if the hold is required.

    Attributes:
        last: per held stream, the last event.
        requested_in, stay: of the request.
    """

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int
    last: tuple[tuple[StreamId, int], ...]
    requested_in: int
    stay: int = 0


@record
class Moved:
    """Towards a broker: a request to release a subscription.

    All events that the subscription lacks are held for its present broker.
    """

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int


@record
class LetGo:
    """The answer: the subscription is released, and a restart does not restore it."""

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int


@record
class Decommissioned:
    """Brokers that the operator has decommissioned, with the authority's signatures.

    Brokers forward the message to their neighbours; a broker that is named ends.
    """

    decommissions: tuple[Signed, ...]


Letter = Hold | Held | Moved | LetGo
"""A message that neighbours forward to its destination."""


def clip_ranges(ranges: Sequence[Range], start: int, end: int) -> tuple[Range, ...]:
    """Return the parts of ranges in [start, end)."""
    cut = [(max(start, low), min(end, high)) for low, high in ranges]
    return tuple((low, high) for low, high in cut if low < high)


def _halves(message: Fetched) -> Sequence[Fetched | NothingFetched]:
    """Return two answers, complete for their own ranges."""
    run, ranges = message.run, message.ranges
    half = len(run) // 2
    if not half:
        return _one_apart(message)
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    cut = first.last + 1
    return (
        Fetched(message.lost, clip_ranges(ranges, 0, cut), first, message.origins),
        Fetched(message.lost, clip_ranges(ranges, cut, ranges[-1][1]), second, message.origins),
    )


def _one_apart(message: Fetched) -> Sequence[Fetched | NothingFetched]:
    """Return a lone event, and the silence around it, which may be larger than the event."""
    tick, ranges = message.run.first, message.ranges
    around = (*clip_ranges(ranges, 0, tick), *clip_ranges(ranges, tick + 1, ranges[-1][1]))
    if not around:
        return ()
    return (
        Fetched(message.lost, ((tick, tick + 1),), message.run, message.origins),
        NothingFetched(message.run.source, message.lost, around, message.origins),
    )


KINDS: Final = (
    MessageKind(80, Released),
    MessageKind(81, Fetch),
    MessageKind(82, Fetched, None, _halves),
    MessageKind(83, NothingFetched),
    MessageKind(84, Beyond),
    MessageKind(85, Decommissioned),
    MessageKind(86, Deferred),
    MessageKind(88, Hold),
    MessageKind(89, Held),
    MessageKind(90, Moved),
    MessageKind(91, LetGo),
)
"""With their numbers on the wire; 80 to 95 are durable's."""
