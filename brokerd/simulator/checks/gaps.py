"""Announced gaps: publications that do not arrive, now or ever, with the reason for it."""

from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.losses import OLDER_COPY, STATE_LOST
from brokerd.protocols.definition import Promises
from brokerd.simulator.checks.losses import StateLosses, Stretch
from brokerd.simulator.checks.streams import Publisher, StreamRegister, Subscription
from brokerd.simulator.checks.violations import Violations

_Period = tuple[int | None, int | None]
"""The end of a period, None if it is open, and the least age of a publication in a gap."""


@dataclass(frozen=True, slots=True)
class _Retention:
    """The least age of a publication in a gap of a stream, from an instant on."""

    from_ns: int
    streams: int
    reason: str
    age_ns: int | None


class GapJudge:
    """The judge of announced gaps.

    Attributes:
        counts: number of (publication, subscription) pairs in gaps that the protocol promises to
            announce, by reason.
        now_ns: the time of the common clock; None without a common clock, when the age of a
            publication is undefined.
    """

    def __init__(
        self,
        register: StreamRegister,
        promises: Promises,
        losses: StateLosses,
        violations: Violations,
    ) -> None:
        self._register = register
        self._promises = promises
        self._losses = losses
        self._violations = violations
        self.counts: dict[str, int] = {}
        self.now_ns: int | None = None
        self._unjudged: dict[tuple[SourceId, int], dict[tuple[ClientId, int], None]] = {}
        self._retentions: dict[tuple[BrokerNumber, int], list[_Retention]] = {}

    def change_retention(
        self, broker: BrokerNumber, stream: int, streams: int, reason: str, age_ns: int | None
    ) -> None:
        """Record the least age of a publication in a gap of a broker's stream, from now on.

        Args:
            streams: the number of streams of the broker.
            reason: of such gaps.
            age_ns: None: there is no gap.
        """
        changes = self._retentions.setdefault((broker, stream), [])
        changes.append(_Retention(self.now_ns or 0, streams, reason, age_ns))

    def judge(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Judge an announced gap."""
        subject = f"{client}/{number} receives a gap, {tuple(source)} {first} to {last} ({reason})"
        publisher = self._register.by_source.get(source)
        subscription = self._register.subscriptions.get((client, number))
        if subscription is None:
            self._violations.add("ended", f"{subject}, after its end")
            return
        if reason == OLDER_COPY:
            if client not in self._register.restarted:
                self._violations.add(
                    "gap unpromised", f"{subject}, and its process was never restarted"
                )
            return
        is_lost_state = reason == STATE_LOST and self._losses.are_accepted
        if is_lost_state and publisher is None:
            self._judge_positions(subscription, source, first, last, reason)
            return
        if publisher is None or not 1 <= first <= last <= len(publisher.contents):
            self._violations.add("phantom", f"{subject}, which was never published")
            return
        stream = self._register.stream(subscription, publisher)
        is_absence = reason in self._promises.absence_gaps and last <= stream.absent
        periods = self._list_periods(source, reason)
        is_promised = is_absence or any(age_ns is not None for _, age_ns in periods)
        if reason in self._promises.gaps and client in self._register.restarted:
            # An earlier process acknowledged these, and they may be released under any policy.
            owed = max((each for each in stream.ranks if first <= each <= last), default=0)
            is_promised |= stream.fence is not None and owed <= stream.fence
        if not is_promised and not is_lost_state:
            self._violations.add("gap unpromised", subject)
        for sequence in range(first, last + 1):
            if sequence not in stream.ranks:
                continue  # whole stretches are named, also publications that do not match
            may_repeat = self._promises.redelivers and not stream.is_committed(sequence)
            if sequence in stream.got and not may_repeat:
                self._violations.add("gap delivered", f"{subject}, and had {sequence}")
            stream.gaps.add(sequence)
            stream.unexplained.discard(sequence)
            is_lost = is_lost_state and (
                sequence in publisher.lost
                or self._losses.is_lost_at_home(subscription, publisher, sequence)
                or self._is_released_early(publisher, source, sequence)
            )
            if not is_promised and not is_lost and sequence not in stream.got:
                self._violations.add(
                    "gap unpromised", f"{subject}, and no broker has lost {sequence}"
                )
            if (is_promised or is_lost) and sequence not in stream.excused:
                is_owed = stream.fence is not None and sequence > stream.fence
                is_owed = is_owed and sequence > stream.lost_until
                # What is in a gap of an accepted loss may be of any age.
                is_young = bool(periods) and not self._is_old(publisher, sequence, periods)
                if is_owed and is_young and not is_absence:
                    self._violations.add("gap early", f"{subject}, and {sequence} is not that old")
                stream.excused.add(sequence)
                self.counts[reason] = self.counts.get(reason, 0) + 1

    def _judge_positions(
        self, subscription: Subscription, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Judge a gap in positions of a stream, which may name publications of several sources."""
        client, number = subscription.client, subscription.number
        origins = self._losses.disk_view.origins_of(source, first, last)
        if origins is None:
            self._excuse_stream(subscription, Stretch(source, first, last))
            return
        for origin, sequence in origins:
            # A restarted subscription may have some of them from before.
            if self._register.has_delivered(subscription, origin, sequence):
                continue
            if self._losses.has_lost(subscription, origin, sequence):
                self.judge(client, number, origin, sequence, sequence, reason)
            else:
                self._unjudged.setdefault((origin, sequence), {})[client, number] = None

    def _excuse_stream(self, subscription: Subscription, gap: Stretch) -> None:
        """Excuse lost publications of a broker in a gap of a stream, which names no source.

        If the broker of the subscriber has lost state, these are publications so far.
        """
        view = self._losses.disk_view
        for publisher in self._register.publishers.values():
            if not view.stores_for(
                gap.stream.broker, self._register.homes.get(publisher.client, -1)
            ):
                continue
            stream = self._register.stream(subscription, publisher)
            lost = {
                n
                for n in stream.matching
                if n in stream.unexplained or (n > stream.last and n not in stream.excused)
                if self._is_in_gap(subscription, gap, publisher, n)
            }
            stream.unexplained -= lost
            stream.excused |= lost
            self.counts[STATE_LOST] = self.counts.get(STATE_LOST, 0) + len(lost)

    def _is_in_gap(
        self, subscription: Subscription, gap: Stretch, publisher: Publisher, sequence: int
    ) -> bool:
        """Return True if a publication is lost at either end, and may be in a gap of a stream."""
        losses, source = self._losses, publisher.source
        if source is None:
            return False
        is_lost_there = not losses.list_unexplained(publisher, [sequence])
        if not is_lost_there and not losses.is_lost_at_home(subscription, publisher, sequence):
            return False
        return losses.disk_view.is_in_gap(gap, source, sequence, is_lost_there=is_lost_there)

    def _is_released_early(self, publisher: Publisher, source: SourceId, sequence: int) -> bool:
        """Return True if a gap of a loss may end behind a publication that was released early.

        The pubend reports both causes as one range.
        """
        changed = [each.reason for changes in self._retentions.values() for each in changes]
        reasons = dict.fromkeys((*self._promises.gaps, *changed))
        periods = [period for reason in reasons for period in self._list_periods(source, reason)]
        return bool(periods) and self._is_old(publisher, sequence, periods)

    def _list_periods(self, source: SourceId, reason: str) -> list[_Period]:
        """Return the periods in which publications of a source may be released, the last open."""
        promised, ages_ns = self._promises, self._promises.gap_ages_ns
        first = ages_ns[source.publisher % len(ages_ns)] if ages_ns else promised.gap_age_ns
        ages: list[tuple[int, int | None]] = [(0, first)] if reason in promised.gaps else []
        for (broker, stream), changes in self._retentions.items():
            ages += [
                (each.from_ns, each.age_ns)
                for each in changes
                if broker == source.broker
                and source.publisher % each.streams == stream
                and reason == each.reason
                and (self.now_ns is None or each.from_ns <= self.now_ns)
            ]
        ends = [*(from_ns for from_ns, _ in ages[1:]), None]
        return [(ends[place], age_ns) for place, (_, age_ns) in enumerate(ages)]

    def _is_old(self, publisher: Publisher, sequence: int, periods: list[_Period]) -> bool:
        """Return True if a publication was old enough for a gap in one of some periods."""
        if self.now_ns is None or periods[-1] == (None, 0):
            return True
        sent_ns = publisher.published_ns[sequence - 1]
        return any(
            min(self.now_ns, self.now_ns if end_ns is None else end_ns) - sent_ns >= age_ns
            for end_ns, age_ns in periods
            if age_ns is not None
        )

    def judge_late(self, publisher: Publisher, source: SourceId, sequence: int) -> None:
        """Judge gaps of a publication that was acknowledged in transit during the loss."""
        gaps = self._unjudged.pop((source, sequence), {})
        if not self._losses.disk_view.has_lost(source, sequence):
            return
        publisher.lost[sequence] = None
        for client, number in gaps:
            subscription = self._register.subscriptions.get((client, number))
            if subscription is not None and not self._register.has_delivered(
                subscription, source, sequence
            ):
                self.judge(client, number, source, sequence, sequence, STATE_LOST)
