"""Whether a subscriber may be left without publications that it was told it does not get.

A gate is closed when a subscription starts past brokers that nobody can reach, and only then; it
opens when they are back. So of what a notice names, a publication is excused if

- the partition lies on the way from the subscriber to the source, in that order, with its
  detector right before it; and the source is its last broker, or behind it where it is one more
  than the δ that the tree gets around, or at a broker that has joined the tree since;
- each of its brokers was cut off from the detector by a fault that had begun when the
  subscription was accepted and when it was told, and that was not over, with some time to
  settle, when it was asked for;
- it was sent before the last of these faults was over, or any that followed on that way before
  things had settled, and things had settled.

Clocks may be off by as much as the fault's stamps are. Where nobody knows when a subscription was
asked for and accepted, that is no reason to hold it against a broker, but one to doubt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.reference.paths import Tree
from results.rules.terms import NEVER_NS, Fault, Partition

SETTLING_NS = 15 * 10**9

_HOLDS = {"absorb", "freeze", "blackhole", "cut"}
_KILLS = {"kill", "term", "host-loss"}
_PARTS = {*_HOLDS, *_KILLS, "send-omission", "partition", "restart"}


@dataclass(frozen=True)
class _Outage:
    """One fault that cuts brokers off, between its earliest beginning and its latest end."""

    verb: str
    struck: frozenset[str]
    from_ns: int
    to_ns: int

    def parts(self, a: str, b: str) -> bool:
        """Whether it keeps `a` from hearing of `b`."""
        hit = {b, f"{a}-{b}", f"{b}-{a}", f"{a}->{b}", f"{b}->{a}"}
        return bool(self.struck & (hit | {a} if self.verb in _HOLDS else hit))

    def is_on(self, way: Sequence[str]) -> bool:
        """Whether it was done to a broker of a way or to a link between two of them."""
        links = {f"{a}{sign}{b}" for a in way for b in way for sign in ("-", "->")}
        return bool(self.struck & ({*way} | links))


class Reasons:
    """What faults have to say for partitions."""

    def __init__(
        self, tree: Tree, delta: int, faults: Iterable[Fault], newcomers: Iterable[str]
    ) -> None:
        self._tree = tree
        self._delta = delta
        self._newcomers = {*newcomers}
        self._outages = [*_outages(faults)]

    def excused_until(
        self,
        partition: Partition,
        home: str,
        source: str,
        issued_ns: int | None,
        accepted_ns: int | None,
        told_ns: int,
    ) -> int | None:
        """Until when what is sent is excused by this partition; None where nothing is."""
        way = self._tree.way(home, source)
        if not self._leads_past(partition, way, source):
            return None
        known_ns = told_ns if accepted_ns is None else min(told_ns, accepted_ns)
        asked_ns = -NEVER_NS if issued_ns is None else issued_ns
        until_ns = -NEVER_NS
        for node in partition.nodes:
            ends = [
                outage.to_ns
                for outage in self._outages
                if outage.parts(partition.detector, node)
                and outage.from_ns <= known_ns
                and asked_ns <= outage.to_ns + SETTLING_NS
            ]
            if not ends:
                return None
            until_ns = max(until_ns, *ends)
        on_the_way = sorted(
            (outage for outage in self._outages if outage.is_on(way)), key=lambda o: o.from_ns
        )
        for outage in on_the_way:
            if outage.from_ns <= until_ns + SETTLING_NS:
                until_ns = max(until_ns, outage.to_ns)
        return until_ns + SETTLING_NS

    def _leads_past(self, partition: Partition, way: Sequence[str], source: str) -> bool:
        nodes = partition.nodes
        places = [n for n, broker in enumerate(way) if broker == partition.detector]
        if not nodes or not places or tuple(way[places[0] + 1 :][: len(nodes)]) != nodes:
            return False
        return nodes[-1] == source or len(nodes) == self._delta + 1 or source in self._newcomers


def _outages(faults: Iterable[Fault]) -> Iterable[_Outage]:
    done = [f for f in faults if f.applied_ns is not None and f.verb in _PARTS]
    for fault in done:
        from_ns = fault.applied_ns or 0
        to_ns = NEVER_NS if fault.healed_ns is None else fault.healed_ns
        if fault.verb == "restart":
            to_ns = min(to_ns, from_ns)
        for other in done:
            is_later = (other.applied_ns or 0, other.fault_id) > (from_ns, fault.fault_id)
            takes_over = other.verb in {*_KILLS, "cut", "restart"}
            if is_later and takes_over and other.struck >= fault.struck:
                to_ns = min(to_ns, other.applied_ns or 0)
        err_ns = NEVER_NS if fault.err_ns is None else fault.err_ns
        yield _Outage(fault.verb, fault.struck, from_ns - err_ns, min(NEVER_NS, to_ns + err_ns))
