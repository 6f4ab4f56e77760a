"""The rank-delta rule while the run is going on, in constant memory per subscription and source.

A subscriber's process knows the seed, so it knows what every publication contains and which
ones match. It need not keep any: usually a run of deliveries is exactly the matching
publications that come next, which is one comparison.

It takes every sequence number for published and acknowledged, up to the last fence. Where a
publisher was refused one, or does not know, only the checkers that read the publishers' logs can
tell; whether a partition had a reason, only those that read the fault log. The verdict of record is
theirs, and this one is there to agree with them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.load.content import SourceContent
from bench.load.matching_sequences import MatchingSequences
from bench.load.shared_order import SharedOrder
from bench.load.stream_progress import StreamCounts, StreamProgress


class OnlineChecker:
    """Judges the deliveries of every subscription of one process.

    Args:
        matching: for a subscription, one byte per attribute set: 1 where it matches.
        content_of: the contents of a source, by publisher identity and incarnation; None for a
            source that is no publisher of this run.
        in_total_order: whether subscriptions must get what two of them get in the same order.
        may_overtake: whether a publication may come before an earlier one of its source.

    Attributes:
        foreign: publications delivered of sources that are no publishers of this run.
        order: compares subscriptions; None where each may have an order of its own.
    """

    def __init__(
        self,
        matching: Mapping[str, bytes],
        content_of: Callable[[str, int], SourceContent | None],
        *,
        in_total_order: bool = False,
        may_overtake: bool = False,
    ) -> None:
        self._matching = matching
        self._may_overtake = may_overtake
        self.order = SharedOrder([*matching]) if in_total_order else None
        self._content_of = content_of
        self._shared: dict[tuple[bytes, str, int], MatchingSequences] = {}
        self._progress: dict[tuple[str, str, int], StreamProgress] = {}
        self._with_fences: set[tuple[str, int]] = set()
        self.foreign = 0

    def progress_of(
        self, subscription: str, publisher: str, incarnation: int
    ) -> StreamProgress | None:
        """How far a subscription has come with a source; None: the source is not of this run."""
        key = (subscription, publisher, incarnation)
        lane = self._progress.get(key)
        if lane is None:
            content = self._content_of(publisher, incarnation)
            if content is None:
                return None
            table = self._matching[subscription]
            shared = self._shared.get((table, publisher, incarnation))
            if shared is None:
                shared = MatchingSequences(content, table)
                self._shared[table, publisher, incarnation] = shared
            lane = self._progress[key] = StreamProgress(shared)
        return lane

    def know_fence(self, publisher: str, incarnation: int, sequence: int) -> None:
        """A publisher says that this sequence number is one of its fences."""
        self._with_fences.add((publisher, incarnation))
        for subscription in self._matching:
            lane = self.progress_of(subscription, publisher, incarnation)
            if lane is not None:
                lane.know_fence(sequence)

    def fences_missing(self, fences: Iterable[tuple[str, int, int]]) -> int:
        """How many of these fences (publisher, incarnation, sequence) a subscription awaits.

        Where publications may overtake each other, one that has come is awaited as long as
        something from before it is: only with that it says that all has come.
        """
        missing = 0
        for publisher, incarnation, sequence in fences:
            for subscription in self._matching:
                lane = self._progress.get((subscription, publisher, incarnation))
                missing += (
                    lane is None
                    or lane.accounted_to() < sequence
                    or (self._may_overtake and lane.has_hole_below(sequence))
                )
        return missing

    def report(self) -> dict[str, Any]:
        """What was seen, in all and per subscription and source (`online.json`)."""
        lanes = []
        totals = StreamCounts().as_mapping()
        del totals["low"], totals["high"]
        for (subscription, publisher, incarnation), lane in self._progress.items():
            counts = lane.settled()
            if self._with_fences and (publisher, incarnation) not in self._with_fences:
                # Its publisher never was in this incarnation.
                phantom = counts.deliveries + counts.fences
                counts = StreamCounts(counts.deliveries, counts.fences, phantom=phantom)
            row = counts.as_mapping()
            totals = {name: value + row[name] for name, value in totals.items()}
            source: dict[str, Any] = {"publisher": publisher, "incarnation": incarnation}
            if lane.told:
                source["announced"] = lane.announcements()
            lanes.append({"subscription": subscription, **source, **row, "exact": lane.exact})
        totals["phantom"] += self.foreign
        if self.order is not None:
            totals["order_differs"] = self.order.differing
        return {"schema": "pubsubctl/online/2", "totals": totals, "lanes": lanes}
