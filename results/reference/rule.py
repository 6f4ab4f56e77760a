"""The rank rule, row by row.

For each source, number the committed publications that match a predicate (their ranks). A
publication is committed if it was acknowledged, or if it was not answered and any subscriber
received it. A subscription that walked through its deliveries of the source must have seen each
rank from the opening fence to the closing fence once, in order, and before the opening fence no
rank may be left out after the first. A matching publication that was not committed, in contrast to
later publications of its incarnation, leaves the verdict open: a client completes its publications
in their order, so only the last publications can stay incomplete, at its end. Publications in
notices are not owed to the subscription, if faults confirm the notices. A log that was not closed
proves nothing about its end, and nothing is owed to a subscription that was never accepted.

A protocol may promise more or less. In a total order any two subscriptions received common
publications in the same order; without any order, no order is required. A gap that was announced
for a promised reason excuses its publications; so does a gap that is promised after an absence, for
publications until the subscriber was back. If redelivery is promised, a delivery that is marked
as redelivered is no duplicate unless committed before, and may have been in a gap.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, pairwise

from results.reference import predicates, streams, verdict
from results.reference.history import (
    ACKNOWLEDGED,
    DATA,
    FENCE,
    GAP,
    REDELIVERED,
    REJECTED,
    DeliveryRow,
    History,
    Judgement,
    Key,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
    Violation,
)
from results.reference.paths import Routes, Tree
from results.reference.risk import DeliveryPaths, is_certainly_sent_in, times_of_risk
from results.reference.streams import PlacedPublication, Publication
from results.reference.withholding import Reasons
from results.rules.terms import (
    STATE_LOST,
    STREAMS,
    Commit,
    Counts,
    Gap,
    Notice,
    Promises,
    Recovery,
    RiskWindow,
    doubt,
)
from results.witnesses.summary import doubts_about_findings

JITTER_NS = 1_000_000
"""Tolerance for stamps of a process, which never decrease otherwise."""


def check(history: History) -> Judgement:
    """Judge a history.

    Raises:
        ValueError: a predicate cannot be read.
    """
    sources = [_Source(log, history) for log in history.publishers]
    tree = Tree(history.links if history.routes is None else ())
    reasons = Reasons(tree, history.delta, history.faults, history.newcomers)
    pairs = [
        _Pair(subscription, source, reasons, history)
        for subscription in history.subscriptions
        for source in sources
    ]
    violations = [found for source in sources for found in source.find_reused()]
    for subscription in history.subscriptions:
        violations += _strangers(subscription, sources)
        violations += _losses_of_streams(subscription, sources, history.promises)
    violations += [found for pair in pairs for found in pair.violations]
    if history.order == "total":
        violations += streams.order_differences(_places(pairs))
    if history.order in STREAMS:
        violations += streams.wrong_places(_list_placed(pairs))
    at_risk, recoveries, reached = _risks(history, pairs)
    started = [pair for pair in pairs if pair.subscription.started]
    counts = Counts(
        pairs=len(started),
        owed=sum(len(pair.owed) for pair in started),
        delivered=sum(pair.delivered for pair in started),
        at_risk=len(at_risk),
        recovered=sum(at_risk),
        violations={**Counter(violation.kind for violation in violations)},
        withheld={**sum((pair.withheld for pair in started), Counter())},
        undecided=sum(pair.undecided for pair in started),
        least_owed=min(
            ((*pair.names, len(pair.owed)) for pair in started),
            key=lambda least: (least[2], *least[:2]),
            default=None,
        ),
        announced={**sum((pair.announced_counts for pair in started), Counter())},
        redelivered=sum(pair.redelivered for pair in started),
        outstanding=sum(pair.outstanding for pair in started),
    )
    doubts = [*history.doubts, *_doubts(history, sources, pairs, recoveries)]
    doubts += doubts_about_findings(history.online, counts.violations, history.order)
    if spared := [broker for broker in history.to_be_reached if broker not in reached]:
        doubts.append(doubt("spared", brokers=", ".join(spared)))
    name, because, doubts_left = verdict.decide(
        counts, doubts, history.guarantee, history.calm, history.deliveries_per_pair_min,
        history.busy, history.was_silent,
    )  # fmt: skip
    return Judgement(name, because, counts, recoveries, doubts_left, tuple(violations))


class _Source:
    """A publisher's log with its consequences."""

    def __init__(self, log: PublisherLog, history: History) -> None:
        self.log = log
        self.content = history.content
        self.topic_attribute = history.topic
        self.publisher = history.content.publishers[log.name]
        self._matched: dict[tuple[str, int], bool] = {}
        self._digests: dict[tuple[Key, bool], int] = {}
        self.by_key: dict[Key, PublicationRow] = {}
        for publication in log.published:
            self.by_key.setdefault(publication.key, publication)
        self.highest: dict[int, int] = {}
        for incarnation, sequence in self.by_key:
            self.highest[incarnation] = max(sequence, self.highest.get(incarnation, 0))
        self.answered: dict[Key, int] = {}
        for incarnation, first, last, outcome in log.answers:
            for sequence in range(first, min(last, self.highest.get(incarnation, 0)) + 1):
                key = incarnation, sequence
                # An acknowledgement is the stronger promise.
                self.answered[key] = min(outcome, self.answered.get(key, outcome))
        seen = {
            row.key
            for subscription in history.subscriptions
            for row in subscription.delivered
            if row.source == log.source and row.kind != GAP
        }
        seen |= history.seen.get(log.source, frozenset())
        self.committed = [
            publication
            for key, publication in sorted(self.by_key.items())
            if self.answered.get(key) == ACKNOWLEDGED or (key not in self.answered and key in seen)
        ]
        fences = [one.key for one in self.committed if self.is_fence(one)]
        has_both = len(fences) > 1
        self.opening: Key | None = fences[0] if has_both else None
        self.closing: Key | None = fences[-1] if has_both else None
        self._data = {one.key for one in self.committed if self._is_data(one)}

    def is_fence(self, publication: PublicationRow) -> bool:
        return publication.attribute_set == self.content.fence_set

    def is_between_fences(self, publication: PublicationRow) -> bool:
        """Return True if a publication is data that is owed to every matching subscription."""
        return publication.key in self._data or self._is_data(publication)

    def _is_data(self, publication: PublicationRow) -> bool:
        is_after = self.opening is None or self.opening < publication.key
        is_before = self.closing is None or publication.key < self.closing
        return is_after and is_before and not self.is_fence(publication)

    def is_closed_before(self, until_ns: int | None, error_ns: int | None) -> bool:
        """Return True if the closing fence was certainly sent before a moment."""
        if self.closing is None or until_ns is None or error_ns is None:
            return False
        return self.by_key[self.closing].sent_ns + error_ns < until_ns

    def is_wanted(self, publication: PublicationRow, predicate: str) -> bool:
        """Return True if a publication matches by the seed; the log decides only fences."""
        if self.is_fence(publication):
            return True
        chosen, _ = self.content.choice(self.publisher.index, *publication.key)
        return self._matches(predicate, chosen)

    def _matches(self, predicate: str, attribute_set: int) -> bool:
        known = predicate, attribute_set
        if known not in self._matched:
            attributes = self.content.attributes(attribute_set)
            self._matched[known] = predicates.wants(predicate)(attributes)
        return self._matched[known]

    def digest(self, publication: PublicationRow) -> int:
        """Return the digest of a publication by the seed; computed once for all subscriptions."""
        fence = self.is_fence(publication)
        known = publication.key, fence
        found = self._digests.get(known)
        if found is None:
            found = self.content.digest(self.publisher, *publication.key, fence=fence)
            self._digests[known] = found
        return found

    @property
    def has_topics(self) -> bool:
        """True if the topic of a publication follows from the attribute set."""
        how = self.content.workload.get("attributes", {}).get(self.topic_attribute, {})
        return self.topic_attribute != "" and "sequence" not in how

    def topic(self, key: Key) -> object:
        """Return the topic of a publication; values of different types are different topics."""
        if self.is_fence(self.by_key[key]):
            return ("fence",)
        chosen, _ = self.content.choice(self.publisher.index, *key)
        value = self.content.attributes(chosen).get(self.topic_attribute)
        return type(value).__name__, value

    def find_reused(self) -> Iterator[Violation]:
        """Yield sequence numbers with two publications."""
        times = Counter(publication.key for publication in self.log.published)
        for key in sorted(key for key, n in times.items() if n > 1):
            yield Violation("sequence_reuse", "", self.log.source, *key)

    def undone(self, predicates: Iterable[str]) -> Iterator[str]:
        """Yield doubts about uncommitted publications before committed publications."""
        predicates = [*predicates]
        done = {publication.key for publication in self.committed}
        last = dict(sorted(done))  # by incarnation
        found: dict[int, list[int]] = {}
        for (incarnation, sequence), publication in sorted(self.by_key.items()):
            if publication.key in done or sequence > last.get(incarnation, 0):
                continue
            if self.is_between_fences(publication) and any(
                self.is_wanted(publication, predicate) for predicate in predicates
            ):
                found.setdefault(incarnation, []).append(sequence)
        for incarnation, sequences in found.items():
            yield doubt(
                "unanswered", source=self.log.source, incarnation=incarnation,
                n=len(sequences), first=sequences[0],
            )  # fmt: skip

    def doubts(self) -> Iterator[str]:
        source = self.log.source
        if self.opening is None:
            yield doubt("no_fences", source=source)
        if any(
            not self.is_fence(one)
            and self.content.choice(self.publisher.index, *one.key)[0] != one.attribute_set
            for one in self.log.published
        ):
            yield doubt("other_content", source=source)
        if self.log.closed:
            yield from self._doubts_about_numbers()
        stamps = [publication.sent_ns for publication in self.log.published]
        yield from _steps_back(f"publisher {self.log.name}", stamps)

    def _doubts_about_numbers(self) -> Iterator[str]:
        """Yield missing numbers up to the highest answered number."""
        highest = {**self.highest}
        for incarnation, _, last, _ in self.log.answers:
            highest[incarnation] = max(last, highest.get(incarnation, 0))
        for incarnation, last in sorted(highest.items()):
            logged = {n for of, n in self.by_key if of == incarnation and n > 0}
            if last > len(logged):
                first = next(n for n in count(1) if n not in logged)
                yield doubt(
                    "numbers", source=self.log.source, incarnation=incarnation,
                    n=last - len(logged), highest=last, first=first,
                )  # fmt: skip


class _Pair:
    """The deliveries of a source to a subscription, and the owed publications."""

    def __init__(
        self, subscription: SubscriptionLog, source: _Source, reasons: Reasons, history: History
    ) -> None:
        self.subscription = subscription
        self.source = source
        self.promises: Promises = history.promises
        self.lanes = history.lanes if history.lanes != "topic" or source.has_topics else ""
        self.error_ns = history.clock_errors.get(self.names, 0)
        self.redelivered = 0
        self.matching = [
            publication
            for publication in source.committed
            if source.is_wanted(publication, subscription.predicate)
        ]
        self.rank = {publication.key: rank for rank, publication in enumerate(self.matching)}
        self.rows = [
            (place, row)
            for place, row in enumerate(subscription.delivered)
            if row.source == source.log.source
        ]
        self.notices = [n for n in subscription.notices if n.source == source.log.source]
        self.gaps = [gap for gap in subscription.gaps if gap.source == source.log.source]
        publishers = {log.source for log in history.publishers}
        self.losses = [gap for gap in subscription.gaps if gap.source not in publishers]
        self.arrived: dict[Key, int] = {}
        for _, row in self.rows:
            if row.kind != GAP:
                self.arrived.setdefault(row.key, row.received_ns)
        self.violations = [*self._wrong_notices(reasons), *self._wrong_gaps(), *self._walk()]
        absent = [*self._find_absent()]
        self.violations += absent
        self.outstanding = sum(self._is_outstanding(violation) for violation in absent)
        missing = sum(violation.kind == "missing" for violation in absent)
        self.undecided = len(self.owed) - self.delivered - missing

    @property
    def names(self) -> tuple[str, str]:
        return self.subscription.subscription, self.source.log.source

    @cached_property
    def first_notices(self) -> dict[Key, Notice]:
        """The first notice that named each publication."""
        found: dict[Key, Notice] = {}
        for notice in self.notices:
            for key in self.rank:
                if key[0] == notice.incarnation and notice.first <= key[1] <= notice.last:
                    found.setdefault(key, notice)
        return found

    @cached_property
    def first_gaps(self) -> dict[Key, Gap]:
        """The first promised gap with each publication, without publications in notices."""
        found: dict[Key, Gap] = {}
        for gap in self.gaps:
            for key in self.rank:
                if self._is_permitted(gap) and _is_in(key, gap) and key not in self.first_notices:
                    found.setdefault(key, gap)
        for gap in self.losses:
            last = self._find_last_lost(gap)
            for key in self.rank:
                if last is not None and key <= last and key not in self.first_notices:
                    found.setdefault(key, gap)
        return found

    def _find_last_lost(self, gap: Gap) -> Key | None:
        """Return the last publication that an accepted loss of a stream may have taken."""
        accepted_ns = self.promises.losses_from_ns
        if gap.reason != STATE_LOST or accepted_ns is None or gap.received_ns < accepted_ns:
            return None
        sent = [
            publication.key
            for publication in self.source.committed
            if self.error_ns is None or publication.sent_ns <= gap.received_ns + self.error_ns
        ]
        return max(sent, default=None)

    @cached_property
    def announced_counts(self) -> Counter[str]:
        """The number of data publications in gaps that never arrived, by reason."""
        return Counter(
            self.first_gaps[publication.key].reason
            for publication in self.matching
            if self.source.is_between_fences(publication)
            and publication.key in self.first_gaps
            and publication.key not in self.arrived
        )

    @cached_property
    def withheld(self) -> Counter[str]:
        """The number of withheld data publications that never arrived, by partition."""
        return Counter(
            str(self.first_notices[publication.key].partition)
            for publication in self.matching
            if self.source.is_between_fences(publication)
            and publication.key in self.first_notices
            and publication.key not in self.arrived
        )

    @cached_property
    def owed(self) -> list[PublicationRow]:
        """The data publications between the fences, without withheld and announced publications."""
        return [
            publication
            for publication in self.matching
            if self.source.is_between_fences(publication)
            and not self._is_kept_back(publication.key)
        ]

    @property
    def delivered(self) -> int:
        return sum(publication.key in self.arrived for publication in self.owed)

    def _is_kept_back(self, key: Key) -> bool:
        return (key in self.first_notices or key in self.first_gaps) and key not in self.arrived

    # --- Violations -------------------------------------------------------------------------

    def _walk(self) -> Iterator[Violation]:
        """Yield the violations of each row, and of the order of rows."""
        seen: set[Key] = set()
        before: dict[object, Key] = {}
        for place, row in self.rows:
            if objection := self._objection(row):
                yield self._row_at(objection, row, place)
            if row.kind == GAP or row.key not in self.rank:
                continue
            if row.key in seen:
                if self._can_repeat(row, place):
                    self.redelivered += 1
                else:
                    yield self._row_at("duplicate", row, place)
                continue
            lane = self.source.topic(row.key) if self.lanes == "topic" else None
            if self.lanes and row.key < before.get(lane, row.key):
                yield self._row_at("reordered", row, place)
            if self.notices and any(
                n.place <= place and row.key <= (n.incarnation, n.last) for n in self.notices
            ):
                yield self._row_at("withheld_delivered", row, place)
            if self.gaps and any(self._contradicts(gap, row, place) for gap in self.gaps):
                yield self._row_at("gap_delivered", row, place)
            seen.add(row.key)
            before[lane] = row.key

    def _can_repeat(self, row: DeliveryRow, place: int) -> bool:
        is_marked = row.kind == REDELIVERED
        return is_marked and self.promises.redelivers and not self._is_committed(row.key, place)

    def _is_committed(self, key: Key, place: int) -> bool:
        """Return True if the application had committed a publication before a place of the log."""
        return any(
            commit.place <= place and _is_in(key, commit)
            for commit in self.subscription.commits
            if commit.source == self.source.log.source
        )

    def _contradicts(self, gap: Gap, row: DeliveryRow, place: int) -> bool:
        """Return True if a gap contradicts a delivery, without a restart as the reason."""
        if not _is_in(row.key, gap):
            return False
        if gap.place <= place:
            return not self._can_repeat(row, place)
        return not self.promises.redelivers or self._is_committed(row.key, gap.place)

    def _is_permitted(self, gap: Gap) -> bool:
        """Return True if the reason is promised, or a loss of state was accepted by then."""
        if gap.reason == STATE_LOST and gap.reason not in self.promises.gaps:
            accepted_ns = self.promises.losses_from_ns
            if accepted_ns is None:
                return False
            return self.error_ns is None or accepted_ns <= gap.received_ns + self.error_ns
        return gap.reason in self.promises.gaps or self._follows_absence(gap)

    def _follows_absence(self, gap: Gap) -> bool:
        """Return True if a long absence of the subscriber is the promised reason."""
        return gap.absent_until_ns is not None and gap.reason in self.promises.absence_gaps

    def _is_early(self, gap: Gap, sent_ns: int) -> bool:
        """Return True if a publication is too young for a gap, and no absence explains it."""
        if self.error_ns is None:
            return False
        if self._follows_absence(gap) and sent_ns <= (gap.absent_until_ns or 0) + self.error_ns:
            return False
        if gap.reason not in self.promises.gaps:
            return gap.reason in self.promises.absence_gaps  # else of a loss, of any age
        age_ns = self.promises.gap_age_ns
        return age_ns > 0 and gap.received_ns - sent_ns + self.error_ns < age_ns

    def _wrong_gaps(self) -> Iterator[Violation]:
        for gap in self.gaps:
            if not self._is_permitted(gap):
                yield Violation("gap_unpromised", *self.names, gap.incarnation, gap.first)
        for key, gap in sorted(self.first_gaps.items()):
            if self._is_early(gap, self.source.by_key[key].sent_ns):
                yield Violation("gap_early", *self.names, *key)

    def _objection(self, row: DeliveryRow) -> str:
        """Return the violation of a row, independent of earlier rows; "" for none."""
        publication = self.source.by_key.get(row.key)
        if row.kind == GAP:
            return "gap_not_permitted"
        if publication is None:
            return "phantom" if self.source.log.closed else ""
        if self.source.answered.get(row.key) == REJECTED:
            return "rejected"
        if row.key not in self.rank:
            return "wrong_match"
        return "" if row.digest == self.source.digest(publication) else "corrupted"

    def _wrong_notices(self, reasons: Reasons) -> Iterator[Violation]:
        """Yield publications that were withheld without reason, or too late."""
        log, subscription = self.source.log, self.subscription
        received = [place for place, row in self.rows if row.kind != GAP and row.key in self.rank]
        excuses = {}
        for notice in self.notices:
            if notice.partition not in excuses:
                excuses[notice.partition] = reasons.excuse_end(
                    notice.partition, subscription.broker, log.broker, subscription.issued_ns,
                    subscription.accepted_ns, notice.received_ns,
                )  # fmt: skip
        for key, notice in sorted(self.first_notices.items()):
            until_ns = excuses[notice.partition]
            if until_ns is None or self.source.by_key[key].sent_ns > until_ns:
                yield Violation("withheld_unjustified", *self.names, *key)
            if received and received[0] < notice.place:
                yield Violation("withheld_late", *self.names, *key)

    def _find_absent(self) -> Iterator[Violation]:
        """Yield absent publications between the deliveries, without announced publications."""
        if not self.subscription.started:
            return
        first = [key for key in self.arrived if key in self.rank]
        last = [*first]
        if self.source.opening and (first or self.subscription.closed):
            first.append(self.source.opening)
        if self.source.closing and self.subscription.closed:
            last.append(self.source.closing)
        if not first or not last:
            return
        lowest, highest = min(first), max(last)
        for publication in self.matching:
            key = publication.key
            if not lowest <= key <= highest:
                continue
            if key in self.arrived or key in self.first_notices or key in self.first_gaps:
                continue
            if self.source.is_between_fences(publication):
                yield Violation("missing", *self.names, *key)
            elif self.source.is_fence(publication):
                yield Violation("fence_missing", *self.names, *key)
            else:
                yield Violation("left_out", *self.names, *key)

    def _is_outstanding(self, absent: Violation) -> bool:
        """Return True if no later publication of the lane arrived."""
        key = absent.incarnation, absent.sequence
        alike = [
            other
            for other in self.arrived
            if other in self.rank
            and (self.lanes != "topic" or self.source.topic(other) == self.source.topic(key))
        ]
        return absent.kind != "left_out" and all(other < key for other in alike)

    def _row_at(self, kind: str, row: DeliveryRow, place: int) -> Violation:
        return Violation(kind, *self.names, row.incarnation, row.sequence, place)

    def first_arrivals(self) -> Iterator[tuple[int, DeliveryRow]]:
        """Yield the first arrivals that match, with places in the log; without redeliveries."""
        seen: set[Key] = set()
        for place, row in self.rows:
            if row.kind in (GAP, REDELIVERED) or row.key in seen or not self._is_wanted(row.key):
                continue
            seen.add(row.key)
            yield place, row

    def _is_wanted(self, key: Key) -> bool:
        """Return True if the publication was committed and matches."""
        return key in self.rank

    # --- Doubts -----------------------------------------------------------------------------

    def without_place(self) -> int:
        """Return the number of deliveries without a place in a stream."""
        return sum(
            not row.stream and row.kind not in (GAP, REDELIVERED) and self._is_wanted(row.key)
            for _, row in self.rows
        )

    def has_untimed_notice(self) -> bool:
        """Return True if the subscription has notices, and the time of its start is unknown."""
        subscription = self.subscription
        return bool(self.notices) and None in (subscription.issued_ns, subscription.accepted_ns)

    def is_late(self, error_ns: int | None) -> bool:
        """Return True if the subscription was accepted after the opening fence."""
        accepted_ns, opening = self.subscription.accepted_ns, self.source.opening
        if accepted_ns is None or opening is None or error_ns is None:
            return False
        return accepted_ns > self.source.by_key[opening].sent_ns + error_ns

    def count_wrong_kind(self) -> int:
        """Return the number of rows that are logged as fences but are data, or the reverse."""
        return sum(
            row.kind != REDELIVERED
            and row.kind != (FENCE if self.source.is_fence(self.source.by_key[row.key]) else DATA)
            for _, row in self.rows
            if row.kind != GAP and row.key in self.source.by_key
        )

    def count_too_early(self, error_ns: int | None) -> int:
        """Return the number of rows received before sent, beyond clock errors."""
        if error_ns is None:
            return 0
        return sum(
            row.received_ns + row.late_ns < self.source.by_key[row.key].sent_ns - error_ns
            for _, row in self.rows
            if row.kind != GAP and row.key in self.source.by_key
        )


def _is_in(key: Key, stretch: Gap | Commit) -> bool:
    return key[0] == stretch.incarnation and stretch.first <= key[1] <= stretch.last


def _places(pairs: Sequence[_Pair]) -> Mapping[str, Mapping[Publication, int]]:
    """Return the place of the first arrival of each matching publication, by subscription."""
    found: dict[str, dict[Publication, int]] = {}
    for pair in pairs:
        subscriber, source = pair.names
        of_subscription = found.setdefault(subscriber, {})
        for place, row in pair.rows:
            if row.kind != GAP and row.key in pair.rank:
                of_subscription.setdefault((source, row.key), place)
    return found


def _list_placed(pairs: Sequence[_Pair]) -> Mapping[str, Sequence[PlacedPublication]]:
    """Return the first arrivals with a place, in the order received, by subscription."""
    found: dict[str, list[tuple[int, PlacedPublication]]] = {}
    for pair in pairs:
        subscriber, source = pair.names
        for place, row in pair.first_arrivals():
            if row.stream:
                placed = PlacedPublication(row.stream, row.position, source, row.key)
                found.setdefault(subscriber, []).append((place, placed))
    return {
        subscriber: [placed for _, placed in sorted(rows)] for subscriber, rows in found.items()
    }


def _strangers(subscription: SubscriptionLog, sources: Sequence[_Source]) -> Iterator[Violation]:
    """Yield deliveries of sources that are in no publisher's log."""
    known = {source.log.source for source in sources}
    if all(source.log.closed for source in sources):
        for place, row in enumerate(subscription.delivered):
            if row.source not in known:
                yield Violation("phantom", subscription.subscription, row.source, *row.key, place)


def _losses_of_streams(
    subscription: SubscriptionLog, sources: Sequence[_Source], promises: Promises
) -> Iterator[Violation]:
    """Yield losses in streams without a publisher that no operator had accepted by then."""
    accepted_ns, name = promises.losses_from_ns, subscription.subscription
    known = {source.log.source for source in sources}
    for gap in subscription.gaps:
        is_of_stream = gap.reason == STATE_LOST and gap.source not in known
        if is_of_stream and (accepted_ns is None or accepted_ns > gap.received_ns):
            yield Violation("gap_unpromised", name, gap.source, gap.incarnation, gap.first)


def _list_passing(history: History) -> Tree | Routes:
    return Tree(history.links) if history.routes is None else Routes(history.routes)


def _risks(
    history: History, pairs: Iterable[_Pair]
) -> tuple[list[bool], tuple[Recovery, ...], set[str]]:
    """Return arrivals of deliveries at risk, recoveries, and the reached brokers."""
    windows = times_of_risk(history.faults)
    ways = DeliveryPaths(_list_passing(history), history.faults)
    arrivals: dict[RiskWindow, list[int | None]] = {window: [] for window in windows}
    at_risk = []
    reached = set()
    for pair in pairs:
        log, subscription = pair.source.log, pair.subscription
        if not subscription.started:
            continue
        near = [
            window
            for window in windows
            if ways.lead_through(
                window, log.name, log.broker, subscription.subscriber, subscription.broker
            )
        ]
        for publication in pair.owed:
            held = [window for window in near if is_certainly_sent_in(window, publication.sent_ns)]
            for window in held:
                arrivals[window].append(pair.arrived.get(publication.key))
            if held:
                at_risk.append(publication.key in pair.arrived)
                reached.add(subscription.broker)
    recoveries = tuple(_recovery(window, came) for window, came in arrivals.items())
    return at_risk, recoveries, reached


def _recovery(window: RiskWindow, arrivals: Sequence[int | None]) -> Recovery:
    came = [arrived_ns for arrived_ns in arrivals if arrived_ns is not None]
    after_ns = max(came) - window.to_ns if came and window.ended_by else None
    return Recovery(window, len(arrivals), len(came), after_ns)


def _doubts(
    history: History,
    sources: Sequence[_Source],
    pairs: Sequence[_Pair],
    recoveries: Sequence[Recovery],
) -> Iterator[str]:
    errors = {pair.names: history.clock_errors.get(pair.names, 0) for pair in pairs}
    for subscription in history.subscriptions:
        if not subscription.started:
            yield doubt("never_started", who=subscription.subscription)
    for log in history.publishers:
        if not log.closed:
            yield doubt("open_log", who=f"publisher {log.name}")
    for subscription in history.subscriptions:
        name = f"subscription {subscription.subscription}"
        if not subscription.closed:
            yield doubt("open_log", who=name)
        stamps = [row.received_ns + row.late_ns for row in subscription.delivered]
        yield from _steps_back(name, stamps)
    for pair in pairs:
        name, source_name = pair.names
        if pair.has_untimed_notice():
            yield doubt("told_when", who=name, source=source_name)
        if pair.is_late(errors[pair.names]):
            yield doubt("late_start", who=name, source=source_name)
    for source in sources:
        yield from source.doubts()
        yield from source.undone(s.predicate for s in history.subscriptions if s.started)
        error_ns = history.timeline_errors.get(source.log.source, 0)
        if source.is_closed_before(history.measured_until_ns, error_ns):
            yield doubt("closed_early", source=source.log.source)
    if history.lanes == "topic" and not all(source.has_topics for source in sources):
        yield doubt("no_topic")
    if history.placed and history.order in STREAMS:
        without: Counter[str] = Counter()
        for pair in pairs:
            without[pair.names[0]] += pair.without_place()
        yield from (doubt("unplaced", who=name, n=n) for name, n in sorted(without.items()) if n)
    yield from verdict.doubts_about_faults(history.faults)
    if n := sum(pair.count_wrong_kind() for pair in pairs):
        yield doubt("kind", n=n)
    if n := sum(pair.count_too_early(errors[pair.names]) for pair in pairs):
        yield doubt("too_soon", n=n)
    yield from verdict.doubts_about_risks(history.faults, recoveries)


def _steps_back(name: str, stamps: Sequence[int]) -> Iterator[str]:
    """Yield a doubt if a clock stepped back between two rows of a log."""
    furthest = max((before - after for before, after in pairwise(stamps)), default=0)
    if furthest > JITTER_NS:
        yield doubt("clock_back", who=name, s=furthest / 1e9)
