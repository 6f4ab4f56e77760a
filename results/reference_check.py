"""The verdict on one small history in plain Python: what the large checkers must agree with.

The rule: of each source, number the committed publications that match a predicate (their
*ranks*). A subscriber that walked through its deliveries of that source must have seen each
rank from its opening fence to its closing fence once, in order. Which publications were at
risk follows from the publisher's log, the tree and the fault log, never from a counter of a
broker that died.

What a subscriber was told it does not get is not owed to it, if the tree and the fault log
bear out that a partition was in the way (`results.withheld`), and nothing had come before.

The clock enters in three places only. Two do not decide between valid and invalid: which
publications were sent while a fault held, and how long the last of them took to arrive. The
third is whether a fault is old enough, with much to spare, to explain a partition.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from results.expectation import AttributeSet, ExpectedContent, parse_predicate
from results.risks import Exposure, Fault, RiskWindow, Tree, risk_windows
from results.verdicts import (
    EXACTLY_ONCE,
    Counts,
    Guarantee,
    Recovery,
    VerdictName,
    decide,
    doubts_about_faults,
)
from results.withheld import Barriers, Notice, Partition

ACKNOWLEDGED, REJECTED = 1, 2
DATA, FENCE, GAP = 0, 1, 2


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
    """One row of a subscriber's log, as the application saw it."""

    source: str
    incarnation: int
    sequence: int
    received_ns: int
    digest: int
    kind: int = DATA


@dataclass(frozen=True, slots=True)
class SubscriptionLog:
    """What one subscription received, in order.

    Attributes:
        closed: whether the log was ended in order; if not, nothing is said about its end.
        notices: what it was told that it does not get; each has as its place how many rows of
            `delivered` came before it.
        issued_ns: when it was asked for.
    """

    subscription: str
    broker: str
    predicate: str
    delivered: Sequence[Delivered]
    closed: bool = True
    notices: Sequence[Notice] = ()
    issued_ns: int | None = None

    @property
    def subscriber(self) -> str:
        """Whose it is."""
        return self.subscription.partition("/")[0]


@dataclass(frozen=True, slots=True)
class History:
    """All that a verdict rests on.

    Attributes:
        links: of the tree, by name.
        delta: how many brokers in a row the tree is wired to get around.
        newcomers: brokers that have joined the tree since it was deployed.
        doubts: why the records are less than complete, found while they were read.
    """

    content: ExpectedContent
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


def check(history: History) -> Judgement:
    """Judge a history.

    Raises:
        ExpectationError: a predicate cannot be read, or a fault's target is not in the tree.
    """
    violations: list[Violation] = []
    doubts = [*history.doubts, *doubts_about_logs(history), *doubts_about_faults(history.faults)]
    sources = [_Source(log, history) for log in history.publishers]
    for source in sources:
        violations += source.reused()
        doubts += source.doubts()

    owed = delivered = 0
    at_risk: dict[RiskWindow, list[int | None]] = {
        window: [] for window in risk_windows(history.faults)
    }
    at_risk_in_any = recovered_in_any = 0
    tree = Tree(history.links)
    barriers = Barriers(tree, history.delta, history.faults, history.newcomers)
    exposure = Exposure(history.links, history.faults)
    withheld: Counter[str] = Counter()
    for subscription in history.subscriptions:
        violations += _strangers(subscription, sources)
        for source in sources:
            pair = _Pair(subscription, source, barriers)
            violations += pair.violations()
            withheld.update(pair.withheld())
            arrived = pair.first_arrivals
            on_the_way = [
                window
                for window in at_risk
                if exposure.holds(
                    window, source.log.broker, subscription.subscriber, subscription.broker
                )
            ]
            for publication in pair.owed():
                arrived_ns = arrived.get(publication.key)
                owed += 1
                delivered += arrived_ns is not None
                windows = [window for window in on_the_way if window.holds(publication.sent_ns)]
                for window in windows:
                    at_risk[window].append(arrived_ns)
                at_risk_in_any += bool(windows)
                recovered_in_any += bool(windows) and arrived_ns is not None

    counts = Counts(
        pairs=len(sources) * len(history.subscriptions),
        owed=owed,
        delivered=delivered,
        at_risk=at_risk_in_any,
        recovered=recovered_in_any,
        violations=dict(Counter(violation.kind for violation in violations)),
        withheld=dict(withheld),
    )
    recoveries = tuple(_recovery(window, arrivals) for window, arrivals in at_risk.items())
    verdict, because, doubts = decide(
        counts, doubts, history.guarantee, history.calm, history.deliveries_per_pair_min
    )
    return Judgement(verdict, tuple(because), counts, recoveries, tuple(doubts), tuple(violations))


def doubts_about_logs(history: History) -> list[str]:
    """What incomplete logs leave unknown."""
    unclosed = [f"publisher {log.name}" for log in history.publishers if not log.closed]
    unclosed += [f"subscription {s.subscription}" for s in history.subscriptions if not s.closed]
    return [f"the log of {who} was not closed" for who in unclosed]


class _Source:
    """One publisher's log with what follows from it."""

    def __init__(self, log: PublisherLog, history: History) -> None:
        self.log = log
        self.content = history.content
        self.some_log_is_open = not all(log.closed for log in history.publishers)
        self.publisher = history.content.publishers[log.name]
        self.by_key: dict[Key, Published] = {}
        for publication in log.published:
            self.by_key.setdefault(publication.key, publication)
        seen = {
            (row.incarnation, row.sequence)
            for subscription in history.subscriptions
            for row in subscription.delivered
            if row.source == log.source and row.kind in (DATA, FENCE)
        }
        self.committed = [
            publication
            for key, publication in sorted(self.by_key.items())
            if self.status(key) == "acknowledged" or (self.status(key) == "unknown" and key in seen)
        ]
        fences = [p.key for p in self.committed if p.attribute_set == self.content.fence_set]
        has_both = len(fences) > 1
        self.opening: Key | None = fences[0] if has_both else None
        self.closing: Key | None = fences[-1] if has_both else None

    def status(self, key: Key) -> str:
        incarnation, sequence = key
        outcomes = {
            outcome
            for of_incarnation, first, last, outcome in self.log.answers
            if of_incarnation == incarnation and first <= sequence <= last
        }
        if ACKNOWLEDGED in outcomes:
            return "acknowledged"
        return "rejected" if REJECTED in outcomes else "unknown"

    def attributes(self, publication: Published) -> AttributeSet:
        """The attributes as the seed decides them; the log is trusted only on what is a fence."""
        if publication.attribute_set == self.content.fence_set:
            return self.content.attributes(self.content.fence_set)
        chosen, _ = self.content.choice(self.publisher.index, *publication.key)
        return self.content.attributes(chosen)

    def digest(self, publication: Published) -> int:
        fence = publication.attribute_set == self.content.fence_set
        return self.content.digest(self.publisher, *publication.key, fence=fence)

    def reused(self) -> list[Violation]:
        times = Counter(publication.key for publication in self.log.published)
        return [
            Violation("sequence_reuse", "", self.log.source, *key)
            for key, n in sorted(times.items())
            if n > 1
        ]

    def doubts(self) -> list[str]:
        found = []
        if self.opening is None:
            found.append(f"source {self.log.source} has no opening and closing fence")
        if any(
            publication.attribute_set != self.content.fence_set
            and self.content.choice(self.publisher.index, *publication.key)[0]
            != publication.attribute_set
            for publication in self.log.published
        ):
            found.append(f"source {self.log.source} published other content than the seed says")
        return found


class _Pair:
    """What one subscription received of one source."""

    def __init__(self, subscription: SubscriptionLog, source: _Source, barriers: Barriers) -> None:
        self.subscription = subscription
        self.source = source
        self.barriers = barriers
        predicate = parse_predicate(subscription.predicate)
        self.matching = [
            publication
            for publication in source.committed
            if publication.attribute_set == source.content.fence_set
            or predicate.holds(source.attributes(publication))
        ]
        self.rank = {publication.key: rank for rank, publication in enumerate(self.matching)}
        self.rows = [
            (place, row)
            for place, row in enumerate(subscription.delivered)
            if row.source == source.log.source
        ]

    @cached_property
    def first_arrivals(self) -> dict[Key, int]:
        """When each publication arrived for the first time."""
        found: dict[Key, int] = {}
        for _, row in self.rows:
            if row.kind in (DATA, FENCE):
                found.setdefault((row.incarnation, row.sequence), row.received_ns)
        return found

    @cached_property
    def announced(self) -> dict[int, Notice]:
        """By rank, the notice that named a publication first."""
        found: dict[int, Notice] = {}
        for notice in self.subscription.notices:
            if notice.source == self.source.log.source:
                for publication in self.matching:
                    incarnation, sequence = publication.key
                    if incarnation == notice.incarnation and (
                        notice.first <= sequence <= notice.last
                    ):
                        found.setdefault(self.rank[publication.key], notice)
        return found

    def withheld(self) -> list[str]:
        """Per data publication between the fences that never came, the partition announced."""
        return [
            str(self.announced[self.rank[publication.key]].partition)
            for publication in self._between_fences()
            if self._was_withheld(publication)
        ]

    def owed(self) -> list[Published]:
        """Data publications between the fences, but for those withheld."""
        return [
            publication
            for publication in self._between_fences()
            if not self._was_withheld(publication)
        ]

    def _was_withheld(self, publication: Published) -> bool:
        announced = self.rank[publication.key] in self.announced
        return announced and publication.key not in self.first_arrivals

    def _between_fences(self) -> list[Published]:
        opening = self.source.opening or (0, -1)
        closing = self.source.closing or (1 << 62, 0)
        return [
            publication
            for publication in self.matching
            if opening < publication.key < closing
            and publication.attribute_set != self.source.content.fence_set
        ]

    def violations(self) -> list[Violation]:
        found = [*self._wrong_notices()]
        walked: set[int] = set()
        before = -1
        for place, row in self.rows:
            kind = self._objection(row)
            rank = self.rank.get((row.incarnation, row.sequence))
            if kind is not None:
                found.append(self._violation(kind, row, place))
            if rank is None or row.kind == GAP:
                continue
            if rank in walked:
                found.append(self._violation("duplicate", row, place))
                continue
            if rank < before:
                found.append(self._violation("reordered", row, place))
            if self._is_announced_before(place, (row.incarnation, row.sequence)):
                found.append(self._violation("withheld_delivered", row, place))
            walked.add(rank)
            before = rank
        first, last = self._must_have_walked(walked)
        for rank in range(first, last + 1):
            if rank not in walked and rank not in self.announced:
                key = self.matching[rank].key
                name = self.subscription.subscription
                found.append(Violation("missing", name, self.source.log.source, *key))
        return found

    def _is_announced_before(self, place: int, key: Key) -> bool:
        """Whether a publication or a later one had been announced when this row was written."""
        return any(
            notice.place <= place and key <= (notice.incarnation, notice.last)
            for notice in self.subscription.notices
            if notice.source == self.source.log.source
        )

    def _wrong_notices(self) -> Iterable[Violation]:
        """Publications announced for no reason, or after the stream had begun."""
        source = self.source.log
        heard = [
            place
            for place, row in self.rows
            if row.kind != GAP and (row.incarnation, row.sequence) in self.rank
        ]
        # A partition that once had a reason has it for as long as the subscription is told of it.
        reasons: dict[Partition, bool] = {}
        for notice in self.subscription.notices:
            if notice.source == source.source and notice.partition not in reasons:
                reasons[notice.partition] = bool(
                    self.barriers.justify(
                        notice.partition,
                        self.subscription.broker,
                        source.broker,
                        self.subscription.issued_ns,
                        notice.received_ns,
                    )
                )
        for rank, notice in sorted(self.announced.items()):
            name, key = self.subscription.subscription, self.matching[rank].key
            if not reasons[notice.partition]:
                yield Violation("withheld_unjustified", name, source.source, *key)
            if heard and heard[0] < notice.place:
                yield Violation("withheld_late", name, source.source, *key)

    def _must_have_walked(self, walked: set[int]) -> tuple[int, int]:
        """First and last rank that must be there; an open log says nothing about its end."""
        first, last = set(walked), set(walked)
        if self.source.opening is not None and (walked or self.subscription.closed):
            first.add(self.rank[self.source.opening])
        if self.source.closing is not None and self.subscription.closed:
            last.add(self.rank[self.source.closing])
        return (min(first), max(last)) if first and last else (0, -1)

    def _objection(self, row: Delivered) -> str | None:
        """What is wrong with this delivery, whatever came before it."""
        key = (row.incarnation, row.sequence)
        publication = self.source.by_key.get(key)
        if row.kind == GAP:
            return "gap_not_permitted"
        if publication is None:
            return "phantom" if self.source.log.closed else None
        if key not in self.rank:
            return "rejected" if self.source.status(key) == "rejected" else "wrong_match"
        return "corrupted" if row.digest != self.source.digest(publication) else None

    def _violation(self, kind: str, row: Delivered, place: int) -> Violation:
        return Violation(
            kind, self.subscription.subscription, row.source, row.incarnation, row.sequence, place
        )


def _strangers(subscription: SubscriptionLog, sources: Sequence[_Source]) -> list[Violation]:
    """Deliveries of sources that no publisher's log knows."""
    known = {source.log.source for source in sources}
    if any(not source.log.closed for source in sources):
        return []
    return [
        Violation(
            "phantom", subscription.subscription, row.source, row.incarnation, row.sequence, place
        )
        for place, row in enumerate(subscription.delivered)
        if row.source not in known
    ]


def _recovery(window: RiskWindow, arrivals: Sequence[int | None]) -> Recovery:
    came = [arrived_ns for arrived_ns in arrivals if arrived_ns is not None]
    after_ns = max(came) - window.to_ns if came and window.ended_by else None
    return Recovery(window, len(arrivals), len(came), after_ns)
