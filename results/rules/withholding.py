"""Announcements to subscribers of withheld publications, and their justification by faults.

A subscription may start around brokers that no broker can reach. Publications of a source at or
behind these brokers do not arrive until the brokers have the subscription. Missed publications are
announced: a range of publications of the source, withheld by the partition. An announcement excuses
a missing delivery only if the tree and the fault log confirm it. The partition must lie on the path
from the subscriber to the source. Each of its brokers must have been cut off from the detector.
Brokers behind them are unreachable only if the partition has one broker more than the tree is wired
to bypass. A source at a broker that has joined the running tree is an exception: the broker has its
state from the brokers that it joined behind, so its publications may be withheld until all these
brokers are back.

A gate is closed at a start and at no other time, and opens once the cause has ended. So a fault
that began after the acceptance of the subscription excuses no announcement. No fault excuses
publications that were sent long enough after its end, and after the end of all faults on the path
meanwhile.

Paper: [DFT11] §III (partitions), §VI lines 663-675.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from brokerd.model.fault_verbs import DEAF_VERBS, FAILING_VERBS, KILLING_VERBS
from results.rules.risks import Tree
from results.rules.terms import NEVER_NS, Fault, Gap, Notice, Partition

SETTLING_NS = 15_000_000_000
"""Time after the end of a fault in which brokers may stay separated: suspicion, retries,
recovery."""

_CUTS_OFF = (*FAILING_VERBS, "restart")
_TAKES_OVER = (*KILLING_VERBS, "cut", "restart")


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of a subscription's request and acceptance; None if unknown."""

    issued_ns: int | None = None
    accepted_ns: int | None = None

    @property
    def is_known(self) -> bool:
        """True if a fault can be compared with the times."""
        return self.issued_ns is not None and self.accepted_ns is not None


@dataclass(frozen=True, slots=True)
class Excuse:
    """The excuse for withheld publications.

    Attributes:
        fault_ids: the faults that explain the notice.
        until_ns: publications sent later are not excused.
    """

    fault_ids: tuple[str, ...]
    until_ns: int


@dataclass(frozen=True, slots=True)
class _Span:
    """A fault that cuts brokers off, from the earliest begin to the latest end."""

    fault_id: str
    verb: str
    struck: frozenset[str]
    from_ns: int
    to_ns: int


class Barriers:
    """The separations by a run's faults.

    Args:
        delta: number of consecutive failed brokers that the tree is wired to bypass.
        newcomers: brokers that have joined the tree since its deployment.
    """

    def __init__(
        self, tree: Tree, delta: int, faults: Iterable[Fault], newcomers: Iterable[str] = ()
    ) -> None:
        self._tree = tree
        self._delta = delta
        self._newcomers = frozenset(newcomers)
        self._spans = [*_spans(faults)]

    def excuse(
        self,
        partition: Partition,
        home: str,
        source: str,
        requests: RequestTimes,
        announced_ns: int,
    ) -> Excuse | None:
        """Return the faults that explain a partition, with the end; None without any.

        Args:
            home, source: the brokers of the subscriber and of the publisher.
            requests: times of the subscription.
            announced_ns: time of the first notice of this partition and source to the subscriber.
        """
        if not self._is_on_the_way(partition, home, source):
            return None
        found: dict[str, int] = {}
        for node in partition.nodes:
            of_node = {
                span.fault_id: span.to_ns
                for span in self._spans
                if span.from_ns <= announced_ns
                and (requests.accepted_ns is None or span.from_ns <= requests.accepted_ns)
                and (requests.issued_ns is None or requests.issued_ns <= span.to_ns + SETTLING_NS)
                and _separates(span.verb, span.struck, partition.detector, node)
            }
            if not of_node:
                return None
            found |= of_node
        until_ns = self._settle_time_ns(self._tree.path(home, source), max(found.values()))
        return Excuse(tuple(found), until_ns)

    def _settle_time_ns(self, way: Sequence[str], over_ns: int) -> int:
        """Return the time at which a path is settled, given the end of its fault.

        A further fault on the path before this time delays the time.
        """
        for span in sorted(self._spans, key=lambda span: span.from_ns):
            if span.from_ns <= over_ns + SETTLING_NS and _affects(span.struck, way):
                over_ns = max(over_ns, span.to_ns)
        return over_ns + SETTLING_NS

    def _is_on_the_way(self, partition: Partition, home: str, source: str) -> bool:
        way = self._tree.path(home, source)
        nodes = partition.nodes
        if partition.detector not in way or not nodes:
            return False
        start = way.index(partition.detector) + 1
        if way[start : start + len(nodes)] != nodes:
            return False
        reaches_behind = len(nodes) == self._delta + 1 or source in self._newcomers
        return source == nodes[-1] or reaches_behind


def _spans(faults: Iterable[Fault]) -> Iterable[_Span]:
    applied = sorted(
        (fault for fault in faults if fault.applied_ns is not None and fault.verb in _CUTS_OFF),
        key=lambda fault: (fault.applied_ns, fault.fault_id),
    )
    for place, fault in enumerate(applied):
        from_ns = fault.applied_ns or 0
        ends = [NEVER_NS if fault.healed_ns is None else fault.healed_ns]
        if fault.verb == "restart":
            ends.append(from_ns)
        ends += [
            other.applied_ns or 0
            for other in applied[place + 1 :]
            if other.struck >= fault.struck and other.verb in _TAKES_OVER
        ]
        # Without a comparison of clocks, every fault may explain everything.
        err_ns = NEVER_NS if fault.err_ns is None else fault.err_ns
        latest_ns = min(NEVER_NS, min(ends) + err_ns)
        yield _Span(fault.fault_id, fault.verb, fault.struck, from_ns - err_ns, latest_ns)


def _affects(struck: frozenset[str], way: Sequence[str]) -> bool:
    """Return True if a fault affects a broker of a path or a link between its brokers."""
    links = (f"{a}{sign}{b}" for a in way for b in way for sign in ("-", "->"))
    return not struck.isdisjoint(way) or not struck.isdisjoint(links)


def _separates(verb: str, struck: frozenset[str], detector: str, node: str) -> bool:
    """Return True if a fault can separate `detector` from `node`."""
    between = {f"{a}{sign}{b}" for a, b in ((detector, node), (node, detector)) for sign in "-"}
    between |= {f"{detector}->{node}", f"{node}->{detector}"}
    between.add(node)
    if verb in DEAF_VERBS:
        between.add(detector)
    return not between.isdisjoint(struck)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Publications of a source that a notice announced first to a subscription.

    Attributes:
        first, last: keys, both included: (incarnation, sequence).
        begun: the subscription had received publications of the source before.
        until_ns: publications sent later are not excused by any fault; None if no publication is
            excused.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    partition: Partition
    place: int
    announced_ns: int
    begun: bool
    until_ns: int | None


def stretches_of(
    notices: Sequence[Notice],
    first_place: int | None,
    barriers: Barriers,
    home: str,
    source: str,
    requests: RequestTimes,
) -> list[Stretch]:
    """Return the notices of a source to a subscription, each publication once, in the log's order.

    Adjacent stretches with equal attributes are joined.

    Args:
        first_place: place of the first delivery of the source; None without a delivery.
        source: the publisher's broker.
    """
    found: list[Stretch] = []
    announced: list[tuple[tuple[int, int], tuple[int, int]]] = []
    until_ns: dict[Partition, int | None] = {}
    for notice in notices:
        partition = notice.partition
        if partition not in until_ns:
            # A reason of a partition holds for all its later notices.
            excuse = barriers.excuse(partition, home, source, requests, notice.received_ns)
            until_ns[partition] = None if excuse is None else excuse.until_ns
        begun = first_place is not None and first_place < notice.place
        first, last = (notice.incarnation, notice.first), (notice.incarnation, notice.last)
        for low, high in _without(first, last, announced):
            before = found[-1] if found else None
            if (
                before is not None
                and before.partition == partition
                and before.begun == begun
                and (before.last[0], before.last[1] + 1) == low
            ):
                found[-1] = replace(before, last=high)
            else:
                found.append(
                    Stretch(
                        low, high, partition, notice.place, notice.received_ns, begun,
                        until_ns[partition],
                    )
                )  # fmt: skip
        announced = [(stretch.first, stretch.last) for stretch in found]
    return found


def stretches_in_gaps(
    gaps: Iterable[Gap], reasons: Sequence[str], announced: Iterable[Stretch]
) -> list[tuple[Gap, tuple[int, int], tuple[int, int]]]:
    """Return the ranges in gaps for these reasons without an earlier notice, each key once.

    Returns: the first gap with the range, and the first and last key.
    """
    found: list[tuple[Gap, tuple[int, int], tuple[int, int]]] = []
    known = [(stretch.first, stretch.last) for stretch in announced]
    for gap in gaps:
        if gap.reason not in reasons:
            continue
        first, last = (gap.incarnation, gap.first), (gap.incarnation, gap.last)
        parts = _without(first, last, known)
        found += [(gap, *part) for part in parts]
        known += parts
    return found


def _without(
    first: tuple[int, int],
    last: tuple[int, int],
    known: Iterable[tuple[tuple[int, int], tuple[int, int]]],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the parts of [first, last] outside of all known stretches."""
    parts = [(first[1], last[1])]
    for low, high in known:
        if low[0] != first[0]:
            continue
        parts = [
            part
            for start, end in parts
            for part in ((start, min(end, low[1] - 1)), (max(start, high[1] + 1), end))
            if part[0] <= part[1]
        ]
    return [((first[0], start), (first[0], end)) for start, end in parts]
