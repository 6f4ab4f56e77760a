"""Checks of the deliveries of a process during the run.

The rank-delta rule takes constant memory per subscription and source. From the seed, a subscriber's
process computes the content of every publication, and its matches. Nothing is kept: usually a run
of deliveries is exactly the next matching publications, which costs one comparison.

The rule assumes that every sequence number up to the last fence was published and acknowledged.
Only checkers with the publishers' logs decide about rejected publications and open outcomes, and
only checkers with the fault log about the reasons of partitions. Their verdict is the verdict of
record, and this checker must agree.

The orders in which subscriptions of one process receive shared publications are compared, too, in
bounded memory: the comparison covers the last publications, and the first few subscriptions.
Checkers that read all logs compare the other deliveries, and subscriptions of other processes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bench.load.content import SourceContent
from bench.load.expected_content import MatchingSequences
from bench.load.stream_progress import StreamCounts, StreamProgress

_KEPT: Final = 8192
"""Number of publications with remembered places."""
COMPARED: Final = 16
"""Number of subscriptions that are compared; each delivery costs as many steps."""

Publication = tuple[str, int, int]
"""Publisher, incarnation, sequence number."""


class SharedOrder:
    """A comparison of each delivery with deliveries of the same publication to other subscriptions.

    Args:
        subscriptions: all subscriptions of this process.
    """

    def __init__(self, subscriptions: Sequence[str]) -> None:
        compared = subscriptions[:COMPARED]
        self._numbers = {name: number for number, name in enumerate(compared)}
        self._next = [0] * len(compared)
        self._highest = [[-1] * len(compared) for _ in compared]
        self._places: dict[Publication, dict[int, int]] = {}
        self._differing: dict[tuple[int, int], None] = {}

    @property
    def differing_pairs(self) -> int:
        """The number of pairs of subscriptions with different orders."""
        return len(self._differing)

    def got(
        self, subscription: str, publisher: str, incarnation: int, sequences: Sequence[int]
    ) -> None:
        """Record publications in the order of a subscription; repetitions do not count."""
        number = self._numbers.get(subscription)
        if number is None:
            return
        highest = self._highest
        for sequence in sequences:
            places = self._places_of((publisher, incarnation, sequence))
            if number in places:
                continue
            for other, there in places.items():
                if there < highest[number][other]:
                    self._differing[min(number, other), max(number, other)] = None
                highest[number][other] = max(there, highest[number][other])
                highest[other][number] = self._next[number]
            places[number] = self._next[number]
            self._next[number] += 1

    def _places_of(self, publication: Publication) -> dict[int, int]:
        found = self._places.get(publication)
        if found is None:
            found = self._places[publication] = {}
            if len(self._places) > _KEPT:
                del self._places[next(iter(self._places))]
        return found


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

    def add_fence(self, publisher: str, incarnation: int, sequence: int) -> None:
        """Record the sequence number of a fence, as announced by its publisher."""
        self._with_fences.add((publisher, incarnation))
        for subscription in self._matching:
            lane = self.progress_of(subscription, publisher, incarnation)
            if lane is not None:
                lane.add_fence(sequence)

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
                    or lane.last_accounted() < sequence
                    or (self._may_overtake and lane.has_hole_below(sequence))
                )
        return missing

    def report(self) -> dict[str, Any]:
        """Return the counts, in total and per subscription and source (`online.json`)."""
        lanes = []
        totals = StreamCounts().as_mapping()
        del totals["low"], totals["high"]
        for (subscription, publisher, incarnation), lane in self._progress.items():
            counts = lane.compute_counts()
            if self._with_fences and (publisher, incarnation) not in self._with_fences:
                # The publisher never had this incarnation.
                phantom = counts.deliveries + counts.fences
                counts = StreamCounts(counts.deliveries, counts.fences, phantom=phantom)
            row = counts.as_mapping()
            totals = {name: value + row[name] for name, value in totals.items()}
            source: dict[str, Any] = {"publisher": publisher, "incarnation": incarnation}
            if lane.announced:
                source["announced"] = lane.announcements()
            lanes.append({"subscription": subscription, **source, **row, "exact": lane.exact})
        totals["phantom"] += self.foreign
        if self.order is not None:
            totals["order_differs"] = self.order.differing_pairs
        return {"schema": "pubsubctl/online/2", "totals": totals, "lanes": lanes}
