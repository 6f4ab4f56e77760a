"""Messages between brokers of gryphon.

A stream belongs to a pubend: `broker` is the pubend's broker, `publisher` its number there.

Paper: [GD02] §2.4, §3.1, §3.2 (data, silence, nack, ack, AckExpected, link status).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.message_kind import JOINED_PUBLICATIONS, Joining, MessageKind
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.model.record import record
from brokerd.protocols.gryphon.knowledge import Range

EVERYWHERE: Final = (1 << 16) - 1
"""The value for all cells below the receiver; no cell has this number."""


@record
class Events:
    """Down: all events in [start, end) that cells below want; the other ticks are silence.

    Attributes:
        final: all cells below the receiver have acknowledged through this tick.
        again: the answer to a nack; otherwise the first transmission.
        may_join: the next events in the range may be joined into the same message.
        onto: the only cell that the receiver forwards to, without a sideways transmission
            (sideways: between members of a cell); EVERYWHERE: to all cells below.
        run: sequence numbers are ticks; `origins` names the publishers.
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
    """Down: ranges without an event that a cell below wants, or acknowledged by all of these cells.

    Attributes:
        again: the answer to a nack; otherwise the first transmission, as in Events.
    """

    stream: StreamId
    final: int
    ranges: tuple[Range, ...]
    again: bool = True


@record
class Nack:
    """Up: a request for unknown ticks of a stream."""

    stream: StreamId
    ranges: tuple[Range, ...]


@record
class Done:
    """Up: an ack of a cell and all cells below, through a tick of each stream.

    Members of a cell forward acks that arrive from below to each other.

    Attributes:
        cell: the cell of the sender, or a cell below.
    """

    cell: int
    through: tuple[tuple[StreamId, int], ...]


@record
class AckExpected:
    """Down: a request to acknowledge a stream through a tick, for which the ack is overdue.

    Attributes:
        onto: as in Events.
    """

    stream: StreamId
    through: int
    onto: int


@record
class Doubt:
    """Up: a request for an AckExpected if the stream is longer than known to the sender.

    Attributes:
        after: the last tick of the stream at the sender.
    """

    stream: StreamId
    after: int


@record
class WindowProbe:
    """To a neighbour: a request to confirm all events of this very session so far.

    Attributes:
        origin: the neighbouring cell of the receiver's cell from which the events arrive: the
            sender's cell, or, between members of one cell, one of several.
        again: for events that were requested; otherwise for first transmissions.
        sent_bytes: weight of all of these events.
    """

    origin: int
    again: bool
    sent_bytes: int


@record
class WindowUpdate:
    """The answer to a WindowProbe, once the sender has room to forward as much; same number."""

    origin: int
    again: bool
    taken_bytes: int


@record
class LinkStatus:
    """To neighbours: the cells that the sender reaches, except cells behind the receiver.

    Attributes:
        direct: over links of the sender.
        around: over other members of the sender's cell only; not sent to these members.
    """

    direct: tuple[int, ...]
    around: tuple[int, ...]


class FilterVersion(NamedTuple):
    """A version of the filter of one broker's clients; 0, 0 is the unknown filter.

    Attributes:
        broker: the clients' broker.
        incarnation: of that broker.
        number: increases by one with every change.
    """

    broker: BrokerNumber
    incarnation: int
    number: int


class Named(NamedTuple):
    """A predicate of a filter; its number is unique within the incarnation."""

    number: int
    predicate: Predicate


@record
class FilterVersions:
    """To neighbours: the newest versions of filters, without their contents.

    A receiver with an older version lets everything pass until the new filter arrives. A receiver
    with a filter that the sender lacks sends the filter.

    Attributes:
        lacking: the brokers of which the sender lacks the filter in this version.
    """

    versions: tuple[FilterVersion, ...]
    lacking: tuple[BrokerNumber, ...]


@record
class FilterSet:
    """To neighbours: the complete filter of one broker's clients.

    A large filter is sent in several messages.

    Attributes:
        is_last: the last message of the filter.
    """

    version: FilterVersion
    predicates: tuple[Named, ...]
    is_last: bool


@record
class FilterChange:
    """To neighbours: the changes since the previous version."""

    version: FilterVersion
    added: tuple[Named, ...]
    removed: tuple[int, ...]


class Beginning(NamedTuple):
    """Ticks behind which a broker's publications are matched with this filter, or a newer one.

    Attributes:
        broker: of the pubends.
        ticks: the last tick of each pubend at the filter's arrival.
    """

    broker: BrokerNumber
    version: FilterVersion
    ticks: tuple[int, ...]


@record
class Beginnings:
    """Towards the brokers of the filters: the ticks at which added predicates take effect."""

    beginnings: tuple[Beginning, ...]


@record
class Join:
    """To all brokers: a request to wait for this stream from now on, in total order.

    Attributes:
        incarnation: of the pubend's broker.
        number: of the request; later requests have higher numbers.
    """

    stream: StreamId
    incarnation: int
    number: int


@record
class Joined:
    """Towards a pubend's broker: a broker with clients waits for the stream, also after a restart.

    Attributes:
        incarnation, number: of the request that this message answers.
        broker: the broker that waits.
        tick: the last tick of the pubends of the waiting broker.
    """

    stream: StreamId
    incarnation: int
    number: int
    broker: BrokerNumber
    tick: int


class CopyEnds(NamedTuple):
    """The extent of a log in a copy: records from index `first` up to, and without, `next`."""

    log: str
    first: int
    next: int


@record
class CopyState:
    """To a broker with clients: the copy of the broker's state at the sender.

    Attributes:
        owner: the broker that the copy is of.
        term: the incarnation of the owner that the copy is of; 0 without a whole copy.
        position: the number of the last write in the copy.
    """

    owner: BrokerNumber
    term: int
    position: int
    logs: tuple[CopyEnds, ...]


class CopyWrite(NamedTuple):
    """A change of a disk; see `replication.WriteKind` for the meaning of the fields."""

    kind: int
    log: str
    first: int
    end: int
    items: tuple[bytes, ...]


@record
class CopyWrites:
    """Writes of a broker for the copy at a replica; or a copy on the way back to the owner.

    Attributes:
        term: the owner's incarnation.
        position: the number of the writes; 0 for a part of a copy that is not whole yet.
        is_awaited: the receiver answers with CopyStored once the writes are durable.
    """

    owner: BrokerNumber
    term: int
    position: int
    is_awaited: bool
    writes: tuple[CopyWrite, ...]


@record
class CopyStored:
    """The answer to CopyWrites: all writes so far are durable at the sender."""

    owner: BrokerNumber
    term: int
    position: int


@record
class CopyRequest:
    """To a replica: a broker with lost state requests the copy of a term."""

    term: int


def _halves(message: Events) -> Sequence[Events]:
    """Split a message; the first half covers no ticks behind its last event."""
    run = message.run
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    cut = first.last + 1
    return replace(message, run=first, end=cut), replace(message, run=second, start=cut)


def split_by_events(message: Events, most: int) -> list[Events]:
    """Return messages of at most `most` events; the last one covers the final silence."""
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


def _join(messages: Sequence[Events]) -> Events:
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
            JOINED_PUBLICATIONS, lambda message: len(message.run), _size_bytes, _continues, _join
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
    MessageKind(78, Doubt),
    MessageKind(79, CopyState),
    MessageKind(150, CopyWrites),
    MessageKind(151, CopyStored),
    MessageKind(152, CopyRequest),
)
"""The messages and their numbers on the wire; 64 to 79, and 150 to 153, belong to gryphon."""
