"""What brokers of gryphon say to each other.

A stream is a pubend's: `broker` is where it is, `publisher` its number there.

Paper: [GD02] §2.4, §3.1, §3.2 (data, silence, nack, ack, AckExpected, link status).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.message_kind import (
    JOINED_PUBLICATIONS,
    Joining,
    MessageKind,
)
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.model.record import record
from brokerd.protocols.gryphon.intervals import Range

EVERYWHERE: Final = (1 << 16) - 1
"""No cell has this number: for all that lie below the receiver."""


@record
class Events:
    """Down: these are all events in [start, end) that are wanted below; the rest is silence.

    Attributes:
        final: everybody below the receiver is done with what is up to here.
        again: the receiver has asked; else it is the first time.
        may_join: what follows it in its range may be told in the same message.
        onto: the cell that the receiver is to pass it on to, only to that one and not sideways
            (sideways: between members of a cell); EVERYWHERE: to all below.
        run: its sequences are ticks; who published them stands in its origins.
    """

    final: int
    start: int
    end: int
    again: bool
    may_join: bool
    onto: int
    run: PublicationRun


@record
class Silent:
    """Down: nobody below wants anything in these ranges, or everybody is done with it.

    Attributes:
        again: the receiver has asked; else it is the first time, as with events.
    """

    stream: StreamId
    final: int
    ranges: tuple[Range, ...]
    again: bool = True


@record
class Nack:
    """Up: what is in these ranges of the stream?"""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Done:
    """Up: everybody in a cell and below it is done with these streams up to here (an ack).

    Members of a cell tell each other what those below have told one of them.

    Attributes:
        cell: that of the sender, or one below it.
    """

    cell: int
    through: tuple[tuple[StreamId, int], ...]


@record
class AckExpected:
    """Down: the receiver should have been done with the stream up to here by now.

    Attributes:
        onto: as in Events.
    """

    stream: StreamId
    through: int
    onto: int


@record
class WindowProbe:
    """To a neighbour: have you taken all events that this very session has carried?

    Attributes:
        origin: the cell next to the receiver's that they come from: the sender's, or, where both
            are of one cell, one of several.
        again: of those that were asked for; else of those that were told for the first time.
        sent_bytes: what all of them count.
    """

    origin: int
    again: bool
    sent_bytes: int


@record
class WindowUpdate:
    """The answer, once the sender has room to pass on as much; its number is the question's."""

    origin: int
    again: bool
    taken_bytes: int


@record
class LinkStatus:
    """To neighbours: the cells that the sender gets to, but for those behind the receiver.

    Attributes:
        direct: over links of its own.
        around: over other members of its cell only; not told to these.
    """

    direct: tuple[int, ...]
    around: tuple[int, ...]


class FilterVersion(NamedTuple):
    """A state of what one broker's clients want; 0, 0 is the one of which nothing is known.

    Attributes:
        broker: whose clients.
        incarnation: of that broker.
        number: goes up by one with each change.
    """

    broker: BrokerNumber
    incarnation: int
    number: int


class Named(NamedTuple):
    """A predicate of a filter; no other one of the same incarnation gets its number."""

    number: int
    predicate: Predicate


@record
class FilterVersions:
    """To neighbours: there are filters as new as these, whatever they are.

    Who knows older ones lets everything pass until it is told; who knows what the sender lacks
    tells it.

    Attributes:
        lacking: the brokers of which the sender does not know what is in that version.
    """

    versions: tuple[FilterVersion, ...]
    lacking: tuple[BrokerNumber, ...]


@record
class FilterSet:
    """To neighbours: all that one broker's clients want; several messages where it is much.

    Attributes:
        is_last: nothing of it follows.
    """

    version: FilterVersion
    predicates: tuple[Named, ...]
    is_last: bool


@record
class FilterChange:
    """To neighbours: what has changed since the version before."""

    version: FilterVersion
    added: tuple[Named, ...]
    removed: tuple[int, ...]


class Beginning(NamedTuple):
    """What a broker publishes behind these ticks is held against this filter, or a newer one.

    Attributes:
        broker: whose pubends these are.
        ticks: the last one of each of them that was known by then.
    """

    broker: BrokerNumber
    version: FilterVersion
    ticks: tuple[int, ...]


@record
class Beginnings:
    """Towards the brokers whose filters these are: where what they have added begins."""

    beginnings: tuple[Beginning, ...]


@record
class Join:
    """To all brokers: in total order, wait for this stream from now on.

    Attributes:
        incarnation: of the broker of its pubend.
        number: of the question; a later one has a higher number.
    """

    stream: StreamId
    incarnation: int
    number: int


@record
class Joined:
    """Towards a pubend's broker: a broker with clients waits for the stream, also after a restart.

    Attributes:
        incarnation, number: of the question to which this is the answer.
        broker: who waits.
        tick: the last one that is known of any pubend of this broker.
    """

    stream: StreamId
    incarnation: int
    number: int
    broker: BrokerNumber
    tick: int


def _halves(message: Events) -> Sequence[Events]:
    """The first half says nothing of ticks behind its last event."""
    run = message.run
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    cut = first.last + 1
    return replace(message, run=first, end=cut), replace(message, run=second, start=cut)


def in_messages_of(message: Events, most: int) -> list[Events]:
    """The same as messages of at most so many events; the last one has the silence behind them."""
    parts: list[Events] = []
    for place in range(0, len(message.run), most):
        part = message.run.select(range(place, min(place + most, len(message.run))))
        start = parts[-1].end if parts else message.start
        parts.append(replace(message, start=start, end=part.last + 1, run=part))
    return [*parts[:-1], replace(parts[-1], end=message.end)]


def _continues(before: Events, message: Events) -> bool:
    return (
        before.may_join
        and message.may_join
        and before.end == message.start
        and before.run.source == message.run.source
        and (before.again, before.onto) == (message.again, message.onto)
    )


def _joined(messages: Sequence[Events]) -> Events:
    runs = merge_runs([message.run for message in messages])
    last = messages[-1]
    return replace(messages[0], run=runs, end=last.end, final=last.final)


def _size_bytes(message: Events) -> int:
    return message.run.payload_bytes() + sum(map(len, message.run.attribute_table))


KINDS = (
    MessageKind(
        64,
        Events,
        Joining(
            JOINED_PUBLICATIONS, lambda message: len(message.run), _size_bytes, _continues, _joined
        ),
        _halves,
    ),
    MessageKind(65, Silent),
    MessageKind(66, Nack),
    MessageKind(67, Done),
    MessageKind(68, AckExpected),
    MessageKind(69, LinkStatus),
    MessageKind(70, FilterVersions),
    MessageKind(71, FilterSet),
    MessageKind(72, FilterChange),
    MessageKind(73, Beginnings),
    MessageKind(74, Join),
    MessageKind(75, Joined),
    # What was sent after it may be taken before it is answered.
    MessageKind(76, WindowProbe, may_follow=True),
    MessageKind(77, WindowUpdate),
)
"""With the numbers they have on the wire; 64 to 79 are gryphon's."""
