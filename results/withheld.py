"""What subscribers were told that they do not get, and whether anything was in the way.

A subscription may start around brokers that nobody can reach. Of a source at or behind them it
gets nothing until they know of it; what it misses meanwhile is announced: so many publications
of that source, withheld by that partition. An announcement excuses a missing delivery only if
the tree and the fault log bear it out: the partition lies on the way from the subscriber to the
source, each of its brokers was really cut off from the one that detected it, and what lies
behind them is only out of reach if they are one more than the tree is wired to get around. A
source at a broker that has joined the running tree is the exception: what it knows it has from
those it joined behind, so it may be withheld until all of them are back.

Paper: [DFT11] §III (partitions), §VI lines 663-675.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.risks import NEVER_NS, Fault, Tree

SETTLING_NS = 15_000_000_000
"""How long after its end a fault may still keep brokers apart: suspicion, retries, recovery."""

_CUTS_OFF = (
    *("absorb", "freeze", "blackhole", "cut", "partition", "kill", "term", "host-loss", "restart"),
)
_DEAFENS = ("absorb", "freeze", "blackhole", "cut")
_TAKES_OVER = ("kill", "term", "host-loss", "cut", "restart")


@dataclass(frozen=True, slots=True)
class Partition:
    """One broker that another one could not reach, by names.

    Attributes:
        detector: who could not.
        incarnation, number: of the partition at its detector.
        nodes: the way from the detector to the broker that is meant, which is the last.
    """

    detector: str
    incarnation: int
    number: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.detector}#{self.incarnation}.{self.number}:{'-'.join(self.nodes)}"

    @classmethod
    def of_mapping(cls, values: Mapping[str, Any]) -> "Partition":
        """From an entry of a sidecar's table of partitions."""
        return cls(
            str(values["detector"]),
            int(values["incarnation"]),
            int(values["number"]),
            tuple(map(str, values["nodes"])),
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """A subscriber was told that it does not get some publications.

    Attributes:
        first, last: sequence numbers, both included; of these, what its predicate matches.
        place: in the log; what was delivered before has a lower one.
    """

    source: str
    incarnation: int
    first: int
    last: int
    partition: Partition
    place: int
    received_ns: int


class Barriers:
    """What a run's faults really kept apart.

    Args:
        delta: how many brokers in a row the tree is wired to get around.
        newcomers: brokers that have joined the tree since it was deployed.
    """

    def __init__(
        self, tree: Tree, delta: int, faults: Iterable[Fault], newcomers: Iterable[str] = ()
    ) -> None:
        self._tree = tree
        self._delta = delta
        self._newcomers = frozenset(newcomers)
        self._spans = [*_spans(faults)]

    def justify(
        self, partition: Partition, home: str, source: str, issued_ns: int | None, told_ns: int
    ) -> tuple[str, ...]:
        """The faults that explain why a partition is in the way; none if it cannot be.

        Args:
            home, source: the brokers of the subscriber and of the publisher.
            issued_ns: when the subscription was asked for; None where nobody knows.
            told_ns: when the subscriber was first told of this partition and source.
        """
        if not self._is_on_the_way(partition, home, source):
            return ()
        found: dict[str, None] = {}
        for node in partition.nodes:
            of_node = [
                fault_id
                for fault_id, verb, struck, from_ns, to_ns in self._spans
                if from_ns <= told_ns
                and (issued_ns is None or issued_ns <= to_ns + SETTLING_NS)
                and _separates(verb, struck, partition.detector, node)
            ]
            if not of_node:
                return ()
            found.update(dict.fromkeys(of_node))
        return tuple(found)

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


def _spans(faults: Iterable[Fault]) -> Iterable[tuple[str, str, frozenset[str], int, int]]:
    """Of each fault that cuts brokers off: id, verb, what it struck, earliest begin, latest end."""
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
        # Between clocks that nobody compared every fault may explain everything.
        err_ns = NEVER_NS if fault.err_ns is None else fault.err_ns
        latest_ns = min(NEVER_NS, min(ends) + err_ns)
        yield fault.fault_id, fault.verb, fault.struck, from_ns - err_ns, latest_ns


def _separates(verb: str, struck: frozenset[str], detector: str, node: str) -> bool:
    """Whether a fault can keep `detector` from reaching `node`."""
    between = {f"{a}{sign}{b}" for a, b in ((detector, node), (node, detector)) for sign in "-"}
    between |= {f"{detector}->{node}", f"{node}->{detector}"}
    between.add(node)
    if verb in _DEAFENS:
        between.add(detector)
    return not between.isdisjoint(struck)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Publications of one source that one subscription was told of first by one notice.

    Attributes:
        first, last: keys, both included: (incarnation, sequence).
        begun: whether the subscription had received something of the source before.
        justified: whether faults explain the partition.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    partition: Partition
    place: int
    told_ns: int
    begun: bool
    justified: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """The violations that each matching publication in it stands for."""
        found = () if self.justified else ("withheld_unjustified",)
        return (*found, "withheld_late") if self.begun else found


def stretches_of(
    notices: Sequence[Notice],
    first_place: int | None,
    barriers: Barriers,
    home: str,
    source: str,
    issued_ns: int | None,
) -> list[Stretch]:
    """What one subscription was told of one source, each publication once, in the log's order.

    Neighbouring stretches that are alike are one.

    Args:
        first_place: of the first delivery of that source; None when there was none.
        source: the publisher's broker.
    """
    found: list[Stretch] = []
    told: list[tuple[tuple[int, int], tuple[int, int]]] = []
    justified: dict[Partition, bool] = {}
    for notice in notices:
        partition = notice.partition
        if partition not in justified:
            justified[partition] = bool(
                barriers.justify(partition, home, source, issued_ns, notice.received_ns)
            )
        begun = first_place is not None and first_place < notice.place
        first, last = (notice.incarnation, notice.first), (notice.incarnation, notice.last)
        for low, high in _without(first, last, told):
            stretch = Stretch(
                low, high, partition, notice.place, notice.received_ns, begun, justified[partition]
            )
            before = found[-1] if found else None
            if (
                before is not None
                and before.partition == partition
                and before.begun == begun
                and (before.last[0], before.last[1] + 1) == low
            ):
                found[-1] = Stretch(
                    before.first, high, partition, before.place, before.told_ns, begun,
                    before.justified,
                )  # fmt: skip
            else:
                found.append(stretch)
        told = [(stretch.first, stretch.last) for stretch in found]
    return found


def _without(
    first: tuple[int, int],
    last: tuple[int, int],
    known: Iterable[tuple[tuple[int, int], tuple[int, int]]],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The parts of [first, last], of one incarnation, that lie in none of the known stretches."""
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


def in_words(withheld: Mapping[str, int]) -> str:
    """How many were withheld by which partitions, for people; empty where none were."""
    if not withheld:
        return ""
    named = ", ".join(f"{n:,} by {partition}" for partition, n in sorted(withheld.items())[:8])
    more = f" and {len(withheld) - 8} more partitions" if len(withheld) > 8 else ""
    return f"{sum(withheld.values()):,} withheld ({named}{more})"
