"""What a verdict rests on, with nothing left of files: logs of clients, and faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from results.reference.contents import Contents
from results.rules.terms import (
    EXACTLY_ONCE,
    PUBLISHER_ORDER,
    Commit,
    Counts,
    Fault,
    Gap,
    Guarantee,
    Notice,
    Promises,
    Recovery,
    VerdictName,
)

ACKNOWLEDGED, REJECTED = 1, 2
DATA, FENCE, GAP, REDELIVERED = 0, 1, 2, 4

Key = tuple[int, int]
"""Incarnation and sequence: a publication among those of its source."""


@dataclass(frozen=True, slots=True)
class Published:
    """One row of a publisher's log."""

    incarnation: int
    sequence: int
    attribute_set: int
    sent_ns: int

    @property
    def key(self) -> Key:
        return self.incarnation, self.sequence


@dataclass(frozen=True, slots=True)
class PublisherLog:
    """What one publisher wrote down.

    Attributes:
        source: "<broker>/<publisher number>".
        name: of the client.
        published: in the order sent.
        answers: (incarnation, first, last, ACKNOWLEDGED or REJECTED).
        closed: whether the log was ended in order.
    """

    source: str
    name: str
    published: Sequence[Published]
    answers: Sequence[tuple[int, int, int, int]] = ()
    closed: bool = True

    @property
    def broker(self) -> str:
        return self.source.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Delivered:
    """One row of a subscriber's log, as the application saw it.

    Attributes:
        kind: DATA; FENCE; GAP: declared lost; or REDELIVERED: one of the first two, marked as
            given again to a subscriber that has started again.
        late_ns: by how much later than `received_ns` it may have come.
        stream, position: the place in a stream of topics; "" and 0 without a place.
    """

    source: str
    incarnation: int
    sequence: int
    received_ns: int
    digest: int
    kind: int = DATA
    late_ns: int = 0
    stream: str = ""
    position: int = 0

    @property
    def key(self) -> Key:
        return self.incarnation, self.sequence


@dataclass(frozen=True, slots=True)
class SubscriptionLog:
    """What one subscription received, in order.

    Attributes:
        closed: whether the log was ended in order; if not, nothing is said about its end.
        notices: what it was told that it does not get; each has as its place how many rows of
            `delivered` came before it.
        started: whether its broker ever accepted it; if not, nothing is owed to it.
        issued_ns, accepted_ns: when it was asked for, and when that was; None for unknown.
        gaps: what it was told that it does not get, now or ever; with places like notices.
        commits: what its application was done with; with places like notices.
    """

    subscription: str
    broker: str
    predicate: str
    delivered: Sequence[Delivered]
    closed: bool = True
    notices: Sequence[Notice] = ()
    started: bool = True
    issued_ns: int | None = None
    accepted_ns: int | None = None
    gaps: Sequence[Gap] = ()
    commits: Sequence[Commit] = ()

    @property
    def subscriber(self) -> str:
        """Whose it is."""
        return self.subscription.partition("/")[0]


@dataclass(frozen=True, slots=True)
class History:
    """All that a verdict rests on.

    Attributes:
        links: of the tree, by name, or of another overlay, which has routes.
        routes: by origin and home, the brokers and the links ("a->b") of any way between them;
            None: the links are a tree's.
        delta: how many brokers in a row the tree is wired to get around.
        newcomers: brokers that have joined the tree since it was deployed.
        clock_errors: by subscription and source, how far the clocks of their stamps may be apart;
            None where nobody knows. Those that are not named have one clock.
        timeline_errors: by source, how far its stamps may be off those of the phases.
        measured_until_ns: when the measure phase was over; None where nobody says.
        to_be_reached: brokers for whose subscribers something must have been at risk.
        doubts: why the records are less than complete, found while they were read.
        promises: what the protocol says of deliveries.
        online: what the online checkers found wrong, by kind.
        topic: the attribute with the topic of a publication; "": unknown.
        placed: whether each delivery must have a place in a stream.
        busy: signs of a machine that was short of time.
        seen: by source, publications that other subscriptions received.
    """

    content: Contents
    publishers: Sequence[PublisherLog]
    subscriptions: Sequence[SubscriptionLog]
    links: Sequence[tuple[str, str]]
    faults: Sequence[Fault] = ()
    guarantee: Guarantee = EXACTLY_ONCE
    calm: bool = False
    deliveries_per_pair_min: int = 100
    doubts: tuple[str, ...] = ()
    delta: int = 1
    newcomers: tuple[str, ...] = ()
    clock_errors: Mapping[tuple[str, str], int | None] = field(default_factory=dict)
    timeline_errors: Mapping[str, int | None] = field(default_factory=dict)
    measured_until_ns: int | None = None
    to_be_reached: tuple[str, ...] = ()
    promises: Promises = PUBLISHER_ORDER
    routes: Mapping[tuple[str, str], Sequence[str]] | None = None
    online: Mapping[str, int] = field(default_factory=dict)
    topic: str = ""
    placed: bool = False
    busy: tuple[str, ...] = ()
    seen: Mapping[str, frozenset[Key]] = field(default_factory=dict)

    @property
    def order(self) -> str:
        """The order by which the run is judged: asked for, or promised where none is named."""
        asked = self.guarantee.order
        return self.promises.order if asked == "promised" else asked

    @property
    def lanes(self) -> str:
        """The publications that keep an order: "source", "topic" (of a source), or ""."""
        if self.order in ("publisher", "total"):
            return "source"
        if self.order == "stream" and self.promises.order in ("publisher", "total"):
            return "source"
        return "topic" if self.order == "topic" else ""


@dataclass(frozen=True, slots=True)
class Violation:
    """One proven violation, with what was expected and what was seen instead."""

    kind: str
    subscription: str
    source: str
    incarnation: int
    sequence: int
    place: int = -1  # of the row in the subscriber's log, -1 where there is none


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons."""

    verdict: VerdictName
    because: tuple[str, ...]
    counts: Counts
    recoveries: tuple[Recovery, ...]
    doubts: tuple[str, ...]
    violations: tuple[Violation, ...]
