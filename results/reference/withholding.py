"""Justifications of publications that did not arrive: faults, and absences of subscribers.

A gate is closed only when a subscription starts around brokers that no broker can reach, and opens
when these brokers are back. So a publication in a notice is excused if

- the partition lies on the path from the subscriber to the source, in that order, with its detector
  right before it; and the source is its last broker, or is behind a partition with one broker more
  than the δ that the tree bypasses, or is at a broker that has joined the tree since;
- each of its brokers was cut off from the detector by a fault that had begun at the acceptance of
  the subscription and at the notice, and that had not ended, with some time to settle, at the
  request;
- the publication was sent before the end of the last of these faults, or of any fault that followed
  on the path before the path had settled, plus the time to settle.

Clocks may have the errors of the fault's stamps. If the times of a subscription's request and
acceptance are unknown, a broker is not to blame, but the verdict is in doubt.

A broker may end the subscriptions of a client that it has not heard of for `absence_ns`. What is
published until then, and until the client has a session with any broker again, may be lost to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.reference.fault_log import DEAFENING_VERBS, ENDING_VERBS, HOLDING_VERBS
from results.reference.risk import Tree
from results.rules.terms import NEVER_NS, Fault, Gap, Partition, Promises

SETTLING_NS = 15 * 10**9

_PARTS = {*DEAFENING_VERBS, *HOLDING_VERBS, *ENDING_VERBS, "partition", "restart"}


@dataclass(frozen=True)
class _Outage:
    """A fault that cuts brokers off, between its earliest beginning and its latest end."""

    verb: str
    struck: frozenset[str]
    from_ns: int
    to_ns: int

    def parts(self, a: str, b: str) -> bool:
        """Return True if the outage keeps `a` from receiving messages of `b`."""
        hit = {b, f"{a}-{b}", f"{b}-{a}", f"{a}->{b}", f"{b}->{a}"}
        return bool(self.struck & (hit | {a} if self.verb in DEAFENING_VERBS else hit))

    def is_on(self, way: Sequence[str]) -> bool:
        """Return True if the outage affects a broker or link of a path."""
        links = {f"{a}{sign}{b}" for a in way for b in way for sign in ("-", "->")}
        return bool(self.struck & ({*way} | links))


class Reasons:
    """The faults as reasons of partitions."""

    def __init__(
        self, tree: Tree, delta: int, faults: Iterable[Fault], newcomers: Iterable[str]
    ) -> None:
        self._tree = tree
        self._delta = delta
        self._newcomers = {*newcomers}
        self._outages = [*_outages(faults)]

    def excuse_end(
        self,
        partition: Partition,
        home: str,
        source: str,
        issued_ns: int | None,
        accepted_ns: int | None,
        announced_ns: int,
    ) -> int | None:
        """Return the end of the excuse by this partition; None without an excuse."""
        way = self._tree.path(home, source)
        if not self._leads_past(partition, way, source):
            return None
        known_ns = announced_ns if accepted_ns is None else min(announced_ns, accepted_ns)
        requested_ns = -NEVER_NS if issued_ns is None else issued_ns
        until_ns = -NEVER_NS
        for node in partition.nodes:
            ends = [
                outage.to_ns
                for outage in self._outages
                if outage.parts(partition.detector, node)
                and outage.from_ns <= known_ns
                and requested_ns <= outage.to_ns + SETTLING_NS
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
            takes_over = other.verb in {*ENDING_VERBS, "cut", "restart"}
            if is_later and takes_over and other.struck >= fault.struck:
                to_ns = min(to_ns, other.applied_ns or 0)
        err_ns = NEVER_NS if fault.err_ns is None else fault.err_ns
        yield _Outage(fault.verb, fault.struck, from_ns - err_ns, min(NEVER_NS, to_ns + err_ns))


SESSION_SLACK_NS = 1_000_000_000
"""A broker and its client see the end of a session no further apart than that."""

SessionRow = tuple[int, bool, str, int]
"""Time, whether the session begins, its broker, its number."""


class _Walk:
    """A walk through the sessions of a client: the brokers that it has left, and since when."""

    def __init__(self, promises: Promises) -> None:
        self.found_ns: list[int] = []
        self._absence_ns = promises.absence_ns
        self._at: dict[int, str] = {}
        self._left_ns: dict[str, int] = {}
        self._again_ns: dict[str, int] = {}

    def begin(self, at_ns: int, broker: str, session: int) -> None:
        """Begin a session, which ends the absence from its broker only."""
        for other in self._left_ns:
            self._again_ns.setdefault(other, at_ns)
        self._count(broker, at_ns)
        self._left_ns.pop(broker, None)
        self._at[session] = broker

    def end(self, at_ns: int, broker: str, session: int) -> None:
        """End a session; the absence begins with the last session at its broker."""
        self._at.pop(session, None)
        if broker not in self._at.values():
            self._left_ns[broker] = at_ns
            self._again_ns.pop(broker, None)
            if self._at:
                self._again_ns[broker] = at_ns

    def stop(self, at_ns: int) -> None:
        """Count the absences that last until the end of the walk."""
        for broker in self._left_ns:
            self._count(broker, at_ns)

    def _count(self, broker: str, at_ns: int) -> None:
        left_ns = self._left_ns.get(broker)
        if left_ns is not None and at_ns - left_ns + SESSION_SLACK_NS >= self._absence_ns:
            again_ns = self._again_ns.get(broker, at_ns)
            self.found_ns.append(max(left_ns + self._absence_ns, again_ns) + SESSION_SLACK_NS)


def explained_until_ns(gap: Gap, sessions: Sequence[SessionRow], promises: Promises) -> int | None:
    """Return the latest time of publications that an absence explains; None without an absence.

    Args:
        sessions: of the subscriber, in the order of time.
    """
    if gap.reason not in promises.absence_gaps:
        return None
    walk = _Walk(promises)
    for at_ns, is_up, broker, session in sessions:
        if at_ns > gap.received_ns:
            break
        (walk.begin if is_up else walk.end)(at_ns, broker, session)
    walk.stop(gap.received_ns)
    return min(max(walk.found_ns), gap.received_ns) if walk.found_ns else None
