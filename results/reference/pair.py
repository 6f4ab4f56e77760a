"""A pair in the reference judgement: a subscription, and a source with publications for it."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from results.reference.history import (
    DATA,
    FENCE,
    GAP,
    REDELIVERED,
    REJECTED,
    DeliveryRow,
    History,
    Key,
    PublicationRow,
    SubscriptionLog,
    Violation,
)
from results.reference.source import Source
from results.reference.withholding import Reasons
from results.rules.terms import (
    STATE_LOST,
    Commit,
    Gap,
    Notice,
    Promises,
)


class Pair:
    """The deliveries of a source to a subscription, and the owed publications."""

    def __init__(
        self, subscription: SubscriptionLog, source: Source, reasons: Reasons, history: History
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
        is_released = any(age_ns is not None for _, age_ns in self._retentions(gap))
        return is_released or self._follows_absence(gap)

    def _retentions(self, gap: Gap) -> list[tuple[int | None, int | None]]:
        """Return the least ages of publications in a gap, each with the end of its time."""
        broker, number = self.source.log.source.rsplit("/", 1)
        in_force: list[tuple[int | None, int | None]] = []
        present: int | None = None
        if gap.reason in self.promises.gaps:
            present = self.promises.gap_age_ns
            if ages_ns := self.promises.gap_ages_ns:
                present = ages_ns[int(number) % len(ages_ns)]
        for change in self.promises.retentions:
            if (change.broker, change.stream) != (broker, int(number) % change.streams):
                continue
            if change.reason != gap.reason:
                continue
            error_ns = change.err_ns
            if error_ns is not None and change.since_ns > gap.received_ns + error_ns:
                continue
            in_force.append((None if error_ns is None else change.since_ns + error_ns, present))
            present = change.gap_age_ns
        return [*in_force, (None, present)]

    def _follows_absence(self, gap: Gap) -> bool:
        """Return True if a long absence of the subscriber is the promised reason."""
        return gap.absent_until_ns is not None and gap.reason in self.promises.absence_gaps

    def _is_early(self, gap: Gap, sent_ns: int) -> bool:
        """Return True if a publication is too young for a gap, and no absence explains it."""
        if self.error_ns is None:
            return False
        if self._follows_absence(gap) and sent_ns <= (gap.absent_until_ns or 0) + self.error_ns:
            return False
        ages = [each for each in self._retentions(gap) if each[1] is not None]
        if not ages:
            return gap.reason in self.promises.absence_gaps  # else of a loss, of any age
        return not any(
            self._is_released(gap, sent_ns, until_ns, age_ns or 0) for until_ns, age_ns in ages
        )

    def _is_released(self, gap: Gap, sent_ns: int, until_ns: int | None, age_ns: int) -> bool:
        """Return True if a publication was old enough for a gap before the end of a time."""
        is_present = until_ns is None or until_ns >= gap.received_ns
        if is_present and not age_ns:
            return True
        now_ns = gap.received_ns if is_present or until_ns is None else until_ns
        return now_ns - sent_ns + (self.error_ns or 0) >= age_ns

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
