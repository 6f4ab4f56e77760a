"""The counts of big record files that the witnesses are compared with.

Each judge counts the rows of record files with its own reader and returns the counts in these
classes. A mistake of one reader therefore leads to two different verdicts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

FENCES: Final = 2
"""Fences of a source with one incarnation."""

LEAST_BLOCK = 1024
"""A load generator reserves so many numbers at a time, or more."""

MOST_PLACES = 2_000_000
"""Number of positions beyond which their publications are not compared."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The publications of one incarnation of one source.

    Attributes:
        highest: the highest sequence number.
        fences: the sequence numbers of fences, ascending.
        first_ns, last_ns: the times of the first and last publication.
    """

    highest: int
    fences: tuple[int, ...]
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class LaneRows:
    """The deliveries of one incarnation of one source to one subscription.

    Attributes:
        data, fences: first deliveries and repeated ones, by the kind that is logged.
        again: deliveries that are marked as given again.
        repeated: deliveries, not so marked, of a number that was delivered before.
        low, high: the lowest and the highest number; 0 without any.
        exact: whether every delivery has a row; else repeated and low are unknown.
    """

    data: int = 0
    fences: int = 0
    again: int = 0
    repeated: int = 0
    low: int = 0
    high: int = 0
    exact: bool = True


class LoggedDelivery(NamedTuple):
    """A delivery in the log of an application.

    Attributes:
        row: its place in the record file.
        marked: the delivery is marked as given again.
        received_ns: the stamp of its row.
    """

    row: int
    source: str
    incarnation: int
    sequence: int
    marked: bool
    received_ns: int


@dataclass(frozen=True, slots=True)
class Blockage:
    """A stretch of time in which some publications cannot have arrived.

    No publication that was sent and received within the stretch passed between a separated source
    and subscription. Both ends are moved inwards by the error bounds of the clocks.

    Attributes:
        why: the faults and the files that show them, for people.
        silent: sources that get no acknowledgement of what was sent within it.
        separates: returns whether it separates a source from a subscription.
    """

    from_ns: int
    to_ns: int
    why: str
    silent: frozenset[str]
    separates: Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Headline:
    """The figures of a manifest's headline, counted from records.

    Attributes:
        earlier: deliveries of the phase whose publications were due before the phase.
        due, answered: publications that were due, and numbers that were acknowledged, before the
            end of the phase.
        response_us, service_us: percentiles; None where the records are too many to be exact.
    """

    published: int
    delivered: int
    earlier: int = 0
    response_us: Mapping[str, float] | None = None
    service_us: Mapping[str, float] | None = None
    acknowledged_us: Mapping[str, float] | None = None
    due: int = 0
    answered: int = 0


@dataclass(frozen=True)
class Rows:
    """All counts of one run.

    Attributes:
        sources: by source and incarnation.
        lanes: by subscription, source and incarnation.
        client_of: the publisher's name, by source.
        published, acknowledged, rejected, delivered: by process folder, publications sent, numbers
            answered, and places in the log of what the application received.
        kept_back: by process folder, repeated deliveries that the client library kept to itself.
        whole: process folders whose record files were all closed.
        early_answers: by process folder, acknowledgements with a stamp before their publication's.
        repeated_answers: by process folder, acknowledgements that begin with a number that has one.
        late_intents: by process folder, reservations of numbers of which the first was sent before.
        short_intents: by process folder, reservations of fewer numbers than any block has.
        misplaced: by process folder, positions that do not follow the one before, or have another
            stamp than their delivery.
        displaced: publications at two places of a stream, places with two publications, places of a
            source out of its order, and places below the one before of the same subscription,
            together; 0 where the places are too many.
        scattered: further streams of publications with places in several; 0 where the places are
            too many.
        shifted_fences: by process folder, fences with another intended time than their sending.
        partitioned: by process folder, deliveries that name a partition, as only notices do.
        until: returns, for a process folder and a layout, how many rows have a stamp up to one,
            and for acks how many acknowledged numbers; None where a row may stand for several.
        breaches: counts, for each blockage, deliveries and acknowledgements that passed it.
        sent_ns: returns when a publication was sent; None for one that was not.
        late_ns: by process folder, how late publications were sent, in sum and at most.
        lateness_ns: by process folder and column (`sent_ns` or `intended_ns`), ascending stamps of
            publications without fences, and the lateness of sending in the same order.
        ends_ns: by process folder, the first and last stamp of its record files.
        streams: by process folder and stream, the number and the sum of the logged positions; the
            sum is modulo 2^63.
        headline: None where the run has no measure phase.
        applications: by process folder and subscription, what an application with a database
            received.
    """

    sources: Mapping[tuple[str, int], SourceRows]
    lanes: Mapping[tuple[str, str, int], LaneRows]
    client_of: Mapping[str, str]
    published: Mapping[str, int]
    acknowledged: Mapping[str, int]
    rejected: Mapping[str, int]
    delivered: Mapping[str, int]
    kept_back: Mapping[str, int]
    whole: frozenset[str]
    breaches: Callable[[Sequence[Blockage]], Sequence[tuple[int, int]]]
    sent_ns: Callable[[str, int, int], int | None]
    until: Callable[[str, str, int], int | None]
    lateness_ns: Mapping[tuple[str, str], tuple[Sequence[int], Sequence[int]]] = field(
        default_factory=dict
    )
    applications: Mapping[tuple[str, str], Sequence[LoggedDelivery]] = field(default_factory=dict)
    early_answers: Mapping[str, int] = field(default_factory=dict)
    repeated_answers: Mapping[str, int] = field(default_factory=dict)
    late_intents: Mapping[str, int] = field(default_factory=dict)
    short_intents: Mapping[str, int] = field(default_factory=dict)
    misplaced: Mapping[str, int] = field(default_factory=dict)
    displaced: int = 0
    scattered: int = 0
    shifted_fences: Mapping[str, int] = field(default_factory=dict)
    partitioned: Mapping[str, int] = field(default_factory=dict)
    late_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ends_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    streams: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    headline: Headline | None = None
