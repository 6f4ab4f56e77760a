"""Loss markers: publications that stand for acknowledged publications that a broker has lost.

A broker with an operator that accepts the loss of durable state publishes a marker in each stream
that lost publications. A marker travels, is stored, and is retransmitted as any other publication.
A marker matches every predicate, and so reaches every subscriber that may have been owed a lost
publication. The subscriber's broker sends a gap to the client in place of the marker.

Paper: none; the papers take stable storage as given.
"""

import struct
from collections.abc import Iterator
from typing import Final

from brokerd.model.client_messages import DeliveredItem, Deliveries, Gap
from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.publication import Buffer, PublicationRun

STATE_LOST: Final = "lost state"
"""Reason of a gap: a broker lost durable state, and its operator accepted that."""

OLDER_COPY: Final = "older copy of the client's state"
"""Reason of a gap: a client has acknowledged more than it states when it returns."""

MARKER: Final = b"\xa1\x65$lost\xf5"
"""Attributes of a marker, encoded: `$lost = true`. A client must not publish them."""

LINEAGE_BITS: Final = 20
"""Publishers that a broker may record between two losses, as a power of two."""

LIFE_BITS: Final = 31
"""Positions of a log between two losses, as a power of two."""

LAST_LINEAGE: Final = (1 << 32) - 1
"""The highest lineage, a time in seconds of the year 2106: later positions exceed 63 bits."""

_MARKERS: Final = 1 << 12
"""Highest numbers of a lineage, which are for markers of streams."""

_RANGE: Final = struct.Struct(">QQQQQ")
_LIMIT: Final = 1 << 63
"""Bound of every number in a marker, as of every number in a message."""


def marker(source: SourceId, first: int, last: int) -> PublicationRun:
    """Return a marker, numbered `last`, for publications `first` to `last` of a source."""
    return loss_marker(source, last, source, first, last)


def loss_marker(
    source: SourceId, number: int, lost: SourceId, first: int, last: int
) -> PublicationRun:
    """Return a marker with a source and a number of its own.

    Args:
        lost: the source, or the stream, that lost `first` to `last`.
    """
    payload = _RANGE.pack(*lost, first, last)
    sequences = range(number, number + 1)
    return PublicationRun(source, sequences, (MARKER,), b"\0", len(payload), (payload,))


def stream_marker(
    broker: BrokerNumber, lineage: int, stream: int, streams: int, number: int = 1
) -> PublicationRun:
    """Return a marker for an unknown number of publications in a stream of a broker.

    The marker has a source that no publisher has: the streams of the broker divide publishers by
    their numbers.

    Args:
        number: number of the marker in its stream, from 1.
    """
    publisher = ((lineage + 1) << LINEAGE_BITS) - 2 * streams
    publisher += (stream - publisher) % streams
    source = SourceId(broker, publisher, lineage)
    return PublicationRun(source, range(number, number + 1), (MARKER,), b"\0", 0, ())


def log_marker(stream: SourceId, lineage: int, first: int, last: int) -> PublicationRun:
    """Return a marker for positions of a broker's log.

    The marker has a source that no publisher has: a publisher that restarts after the loss has an
    incarnation from the lineage on, and the log drops numbers of its source that it has.
    """
    publisher = ((lineage + 1) << LINEAGE_BITS) - _MARKERS - 1
    return loss_marker(SourceId(stream.broker, publisher, lineage), 1, stream, first, last)


def last_lost_position(lineage: int) -> int:
    """Return the position behind all those that a log can have given before a loss.

    A log that lost its end continues behind this position, and so gives no position twice.
    """
    return lineage << LIFE_BITS


def is_behind_loss(earlier: int, later: int) -> bool:
    """Return True if a loss lies between two positions of a log."""
    return later >> LIFE_BITS > earlier >> LIFE_BITS


def is_stream_marker(source: SourceId) -> bool:
    """Return True for the source of a stream's marker."""
    lineage, number = divmod(source.publisher, 1 << LINEAGE_BITS)
    return lineage == source.incarnation > 0 and number >= (1 << LINEAGE_BITS) - _MARKERS


def has_marker(run: PublicationRun) -> bool:
    return MARKER in run.attribute_table


def count_published(run: PublicationRun) -> int:
    """Return the number of publications of clients in a run; markers are no such publications."""
    if not has_marker(run):
        return len(run)
    place = run.attribute_table.index(MARKER)
    return sum(each != place for each in run.attribute_index)


def is_malformed(run: PublicationRun) -> bool:
    """Return True if the payload of a marker in a run is no range of numbers."""
    return any(
        blob == MARKER and payload and not _is_range(payload)
        for _, blob, payload in run.publications()
    )


def _is_range(payload: Buffer) -> bool:
    if len(payload) != _RANGE.size:
        return False
    numbers: tuple[int, ...] = _RANGE.unpack(payload)
    *_, first, last = numbers
    return first <= last and max(numbers) < _LIMIT


def lost_range(run: PublicationRun) -> tuple[SourceId, int, int]:
    """Return the source, or the stream, that a marker is for, and the first and last number.

    The marker of a stream, which names no range, is for itself.
    """
    payload = b"".join(run.payload)
    if not payload:
        return run.source, run.first, run.last
    *source, first, last = _RANGE.unpack(payload)
    return SourceId(*source), first, last


def is_of_publisher(run: PublicationRun) -> bool:
    """Return True if a marker is for publications of its own source, and is numbered as `marker`.

    Other markers are for positions of a stream.
    """
    source, _, last = lost_range(run)
    return source == run.source and last == run.last


def split_by_markers(run: PublicationRun) -> Iterator[PublicationRun]:
    """Yield a run in parts; each marker is a part of its own."""
    if not has_marker(run):
        yield run
        return
    place, start = run.attribute_table.index(MARKER), 0
    for position in range(len(run)):
        if run.attribute_index[position] == place:
            if start < position:
                yield run.select(range(start, position))
            yield run.select(range(position, position + 1))
            start = position + 1
    if start < len(run):
        yield run.select(range(start, len(run)))


def without_markers(run: PublicationRun, subscriptions: tuple[int, ...]) -> Iterator[DeliveredItem]:
    """Yield the items of a run for a client, in order: a gap in place of each marker."""
    place = run.attribute_table.index(MARKER)
    start = 0
    for position in range(len(run)):
        if run.attribute_index[position] != place:
            continue
        if start < position:
            yield Deliveries(run.select(range(start, position)), subscriptions)
        yield _gap(run, position, subscriptions)
        start = position + 1
    if start < len(run):
        yield Deliveries(run.select(range(start, len(run))), subscriptions)


def _gap(run: PublicationRun, position: int, subscriptions: tuple[int, ...]) -> Gap:
    """Return the gap that a marker stands for."""
    stream, sequence = run.source, run.sequences[position]
    payload = b"".join(run.select(range(position, position + 1)).payload)
    if not payload:
        at = [(each.source, number) for each in run.origins for number in each.sequences]
        markers = tuple((each, number, number) for each, number in at[position : position + 1])
        return Gap(subscriptions, stream, sequence, sequence, STATE_LOST, markers)
    *source, first, last = _RANGE.unpack(payload)
    lost = SourceId(*source)
    if lost == stream:
        return Gap(subscriptions, stream, first, last, STATE_LOST)
    return Gap(subscriptions, stream, sequence, sequence, STATE_LOST, ((lost, first, last),))
