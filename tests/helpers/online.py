"""The online checker's result for a history."""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from bench.load.content import ContentTables, SourceContent
from bench.load.expected_content import MatchTables, RunContent
from bench.load.online_checker import OnlineChecker
from results.reference.history import GAP, DeliveryRow, History, SubscriptionLog
from results.rules.expectation import encode_attributes, parse_predicate

RIGHT = {"deliveries", "fences", "owed", "delivered", "withheld"}


class Online:
    """The checker of the subscribers' process, after all deliveries of a history.

    Args:
        truth: the history with the specified publishers and subscriptions, for the checker. By
            default the same history.
        rng: cuts deliveries into more runs than necessary.
    """

    def __init__(
        self, history: History, truth: History | None = None, rng: Random | None = None
    ) -> None:
        self._truth = truth or history
        self._rng = rng or Random(0)
        content = self._truth.content
        self._logs = {log.source: log for log in self._truth.publishers}
        self._fences = [
            (log.source, row.incarnation, row.sequence)
            for log in self._truth.publishers
            for row in log.published
            if row.attribute_set == content.fence_set
        ]
        tables = {
            publisher.size_bytes: ContentTables.build(
                content.seed, content.attribute_sets, publisher.size_bytes, encode_attributes
            )
            for publisher in content.publishers.values()
        }

        def content_of(source: str, incarnation: int) -> SourceContent | None:
            if source not in self._logs:
                return None
            publisher = content.publishers[self._logs[source].name]
            return SourceContent(
                tables[publisher.size_bytes], content.seed, publisher.index, incarnation,
                block_size=16,
            )  # fmt: skip

        match = MatchTables(content.attribute_sets)
        self.checker = OnlineChecker(
            {
                s.subscription: match.table(parse_predicate(s.predicate))
                for s in self._truth.subscriptions
            },
            content_of,
            in_total_order=self._truth.order == "total",
        )
        known = [s.subscription for s in self._truth.subscriptions]
        for subscription in history.subscriptions:
            if subscription.subscription in known:
                self._take(subscription)
        for fence in self._fences:
            self.checker.add_fence(*fence)

    def anomalies(self) -> set[str]:
        """Return the counted anomalies, and "fences awaited" for a run that would not end."""
        totals = self.checker.report()["totals"]
        found = {name for name, n in totals.items() if n and name not in RIGHT}
        return found | ({"fences awaited"} if self.checker.fences_missing(self._fences) else set())

    def _take(self, subscription: SubscriptionLog) -> None:
        waiting = [*subscription.notices]
        places = {notice.place for notice in waiting}
        for start, run in self._runs(subscription.delivered, places):
            while waiting and waiting[0].place <= start:
                notice = waiting.pop(0)
                lane = self.checker.progress_of(
                    subscription.subscription, notice.source, notice.incarnation
                )
                assert lane is not None
                told_ns = notice.received_ns
                lane.withhold(notice.first, notice.last, str(notice.partition), told_ns)
            if not run:
                continue
            source, incarnation = run[0].source, run[0].incarnation
            if source not in self._logs:
                self.checker.foreign += len(run)
                continue
            lane = self.checker.progress_of(subscription.subscription, source, incarnation)
            assert lane is not None
            lane.take([row.sequence for row in run], self._content(run))
            if self.checker.order is not None:
                name, numbers = subscription.subscription, [row.sequence for row in run]
                self.checker.order.got(name, source, incarnation, numbers)
        assert not waiting

    def _runs(
        self, rows: tuple[DeliveryRow, ...] | list[DeliveryRow], places: set[int]
    ) -> Iterator[tuple[int, list[DeliveryRow]]]:
        """Yield runs of consecutive deliveries of a source, numbers rising; last, an empty run."""
        cuts = {0, len(rows), *places, *(self._rng.randrange(len(rows) + 1) for _ in range(4))}
        cuts |= {
            n + 1
            for n, (a, b) in enumerate(pairwise(rows))
            if (a.source, a.incarnation) != (b.source, b.incarnation) or b.sequence <= a.sequence
        }
        for start, end in pairwise([*sorted(cuts), len(rows)]):
            yield start, [row for row in rows[start:end] if row.kind != GAP]

    def _content(self, run: list[DeliveryRow]) -> RunContent:
        content, log = self._truth.content, self._logs[run[0].source]
        fences, corrupted = [], []
        for place, row in enumerate(run):
            fence = (row.source, row.incarnation, row.sequence) in self._fences
            publisher = content.publishers[log.name]
            digest = content.digest(publisher, row.incarnation, row.sequence, fence=fence)
            fences += [place] * fence
            corrupted += [place] * (row.digest != digest)
        digests = array("I", [row.digest for row in run])
        return RunContent(digests, tuple(corrupted), tuple(fences))
