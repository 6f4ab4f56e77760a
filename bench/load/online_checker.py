"""The rank-delta rule during the run, in constant memory per subscription and source.

From the seed, a subscriber's process computes the content of every publication, and its matches.
Nothing is kept: usually a run of deliveries is exactly the next matching publications, which costs
one comparison.

The rule assumes that every sequence number up to the last fence was published and acknowledged.
Only checkers with the publishers' logs decide about rejected publications and open outcomes, and
only checkers with the fault log about the reasons of partitions. Their verdict is the verdict of
record, and this checker must agree.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.load.content import SourceContent
from bench.load.matching_sequences import MatchingSequences
from bench.load.shared_order import SharedOrder
from bench.load.stream_progress import StreamCounts, StreamProgress


class OnlineChecker:
    """A checker of the deliveries of every subscription of one process.

    Args:
        matching: for a subscription, one byte per attribute set: 1 for a match.
        content_of: the contents of a source, by publisher identity and incarnation; None for a
            source that is no publisher of this run.
        in_total_order: True if all subscriptions must receive shared publications in the same
            order.
        may_overtake: True if a publication may arrive before an earlier publication of its source.

    Attributes:
        foreign: delivered publications of sources that are no publishers of this run.
        order: compares subscriptions; None if subscriptions may have different orders.
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
        """Return the progress of a subscription with a source; None for a foreign source."""
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
        """Record the sequence number of a fence, as announced by its publisher."""
        self._with_fences.add((publisher, incarnation))
        for subscription in self._matching:
            lane = self.progress_of(subscription, publisher, incarnation)
            if lane is not None:
                lane.know_fence(sequence)

    def fences_missing(self, fences: Iterable[tuple[str, int, int]]) -> int:
        """Return the number of fences (publisher, incarnation, sequence) that subscriptions await.

        If publications may overtake each other, an arrived fence is awaited until all publications
        before it have arrived. Only then does the fence prove that everything arrived.
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
        """Return the counts, in total and per subscription and source (`online.json`)."""
        lanes = []
        totals = StreamCounts().as_mapping()
        del totals["low"], totals["high"]
        for (subscription, publisher, incarnation), lane in self._progress.items():
            counts = lane.settled()
            if self._with_fences and (publisher, incarnation) not in self._with_fences:
                # The publisher never had this incarnation.
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
