"""The input of a verdict without files: logs of clients, and faults."""

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
"""Incarnation and sequence number of a publication within its source."""


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """A row of a publisher's log."""

    incarnation: int
    sequence: int
    attribute_set: int
    sent_ns: int
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.incarnation, self.sequence))


@dataclass(frozen=True, slots=True)
class PublisherLog:
    """The log of a publisher.

    Attributes:
        source: "<broker>/<publisher number>".
        name: name of the client.
        published: publications in the order sent.
        answers: (incarnation, first, last, ACKNOWLEDGED or REJECTED).
        closed: the log was closed in order.
        sent_again: publications without an acknowledgement when the publisher's broker began with
            an accepted loss of state. They have another place in a total order than before it.
    """

    source: str
    name: str
    published: Sequence[PublicationRow]
    answers: Sequence[tuple[int, int, int, int]] = ()
    closed: bool = True
    sent_again: frozenset[Key] = frozenset()

    @property
    def broker(self) -> str:
        return self.source.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A row of a subscriber's log, as the application received it.

    Attributes:
        kind: DATA; FENCE; GAP: declared lost; or REDELIVERED: data or a fence, marked as a
            redelivery to a subscriber that has restarted.
        late_ns: maximum delay of the arrival after `received_ns`.
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
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.incarnation, self.sequence))


@dataclass(frozen=True, slots=True)
class SubscriptionLog:
    """The deliveries to a subscription, in order.

    Attributes:
        closed: the log was closed in order; otherwise its end is unknown.
        notices: notices of withheld publications; the place of a notice is the number of earlier
            rows in `delivered`.
        started: the broker accepted the subscription; otherwise nothing is owed.
        issued_ns, accepted_ns: times of the request and of the acceptance; None for unknown.
        gaps: announced gaps, with places like notices.
        commits: commits of the application, with places like notices.
    """

    subscription: str
    broker: str
    predicate: str
    delivered: Sequence[DeliveryRow]
    closed: bool = True
    notices: Sequence[Notice] = ()
    started: bool = True
    issued_ns: int | None = None
    accepted_ns: int | None = None
    gaps: Sequence[Gap] = ()
    commits: Sequence[Commit] = ()

    @property
    def subscriber(self) -> str:
        return self.subscription.partition("/")[0]


@dataclass(frozen=True, slots=True)
class History:
    """The input of a verdict.

    Attributes:
        links: links of the tree, by name, or of another overlay, which has routes.
        routes: brokers and links ("a->b") of all routes, by origin and access broker; None: the
            links form a tree.
        delta: number of consecutive failed brokers that the tree is wired to bypass.
        newcomers: brokers that have joined the tree since its deployment.
        clock_errors: maximum difference between the clocks of both stamps, by subscription and
            source; None if unknown; absent for a common clock.
        timeline_errors: maximum error of stamps against the stamps of the phases, by source.
        measured_until_ns: the end of the measure phase; None if unknown.
        to_be_reached: brokers with subscribers for which deliveries must have been at risk.
        doubts: reasons against the completeness of the records, found during the reading.
        promises: the promises of the protocol about deliveries.
        online: violations that the online checkers found, by kind.
        topic: the attribute with the topic of a publication; "": unknown.
        placed: each delivery must have a place in a stream.
        busy: signs of a machine that was short of time.
        was_silent: the drain ended by silence or a bound, and not by evidence.
        seen: publications that other subscriptions received, by source.
        brokers: the mark of a run without processes of brokers; "" for processes.
    """

    content: Contents
    publishers: Sequence[PublisherLog]
    subscriptions: Sequence[SubscriptionLog]
    links: Sequence[tuple[str, str]]
    faults: Sequence[Fault] = ()
    guarantee: Guarantee = EXACTLY_ONCE
    calm: bool = False
    deliveries_per_pair_min: int = 0
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
    was_silent: bool = False
    seen: Mapping[str, frozenset[Key]] = field(default_factory=dict)
    brokers: str = ""

    @property
    def order(self) -> str:
        """The order of the judgement: the requested order, or the promised order."""
        required = self.guarantee.order
        return self.promises.order if required == "promised" else required

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
    """A proven violation, with the expected and the observed state."""

    kind: str
    subscription: str
    source: str
    incarnation: int
    sequence: int
    place: int = -1  # of the row in the subscriber's log, -1 without a row


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons."""

    verdict: VerdictName
    because: tuple[str, ...]
    counts: Counts
    recoveries: tuple[Recovery, ...]
    doubts: tuple[str, ...]
    violations: tuple[Violation, ...]
