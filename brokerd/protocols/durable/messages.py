"""What brokers of durable say to each other, beside what gryphon's core says.

Paper: [DS03] §3 (release protocol), §4.1 (nacks of catch-up streams).
"""

from collections.abc import Sequence
from typing import Final

from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.message_kind import MessageKind
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.parts.decommissioning import Signed

Origins = tuple[tuple[SourceId, int], ...]
"""Of each of these sources, what is up to this number."""

LOST: Final = "early release"
"""Why a subscriber does not get what it has missed."""


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


@record
class Deferred:
    """Down: what is in these ranges was not looked for; before it came as much as may at once."""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Hold:
    """Towards a broker: a subscription is at another one now, which needs what you keep for it.

    Attributes:
        to, at: the two.
        generation: of the client's stay there.
        behind: streams of `to`; nothing behind these ticks may go. Empty: whatever there is may.
        asked_in: the incarnation of `at` that asks; an answer to an earlier one says nothing of
            what is held now.
        stay: for which of the stays that have come to `at` since it began; a client that has lost
            its memory comes twice in one generation.
    """

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int
    behind: tuple[tuple[StreamId, int], ...]
    asked_in: int
    stay: int = 0


@record
class Held:
    """The answer, once that is on disk.

    Attributes:
        last: per stream that is held, the last event that there is.
        asked_in, stay: of the question.
    """

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int
    last: tuple[tuple[StreamId, int], ...]
    asked_in: int
    stay: int = 0


@record
class Moved:
    """Towards a broker: let go of a subscription; all that it needs is held for where it is."""

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int


@record
class LetGo:
    """The answer: it is not here any more, and a restart does not bring it back."""

    to: BrokerNumber
    at: BrokerNumber
    client: ClientId
    number: int
    generation: int


@record
class Decommissioned:
    """Brokers that the operator has decommissioned, each with the authority's signature.

    Each broker passes it on to its neighbours; a broker that is among them ends.
    """

    decommissions: tuple[Signed, ...]


Letter = Hold | Held | Moved | LetGo
"""What is passed on from neighbour to neighbour until it is where it is to."""


def clipped(ranges: Sequence[Range], start: int, end: int) -> tuple[Range, ...]:
    """What of these ranges lies in [start, end)."""
    cut = [(max(start, low), min(end, high)) for low, high in ranges]
    return tuple((low, high) for low, high in cut if low < high)


def _halves(message: Fetched) -> Sequence[Fetched | NothingFetched]:
    """Two answers, of which each is whole for its own ranges."""
    run, ranges = message.run, message.ranges
    half = len(run) // 2
    if not half:
        return _one_apart(message)
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    cut = first.last + 1
    return (
        Fetched(message.lost, clipped(ranges, 0, cut), first, message.origins),
        Fetched(message.lost, clipped(ranges, cut, ranges[-1][1]), second, message.origins),
    )


def _one_apart(message: Fetched) -> Sequence[Fetched | NothingFetched]:
    """A lone event, and the silence around it, of which there may be more than of the event."""
    tick, ranges = message.run.first, message.ranges
    around = (*clipped(ranges, 0, tick), *clipped(ranges, tick + 1, ranges[-1][1]))
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
"""With the numbers they have on the wire; 80 to 95 are durable's."""
