"""Which faults there were, which ways lead through them, and what they put at risk.

What opens a window in which deliveries are at risk, and why:

- absorb, freeze, blackhole and cut of a broker or link, send-omission of a broker, and a partition,
  which does that to every link between its sets: what is sent meanwhile does not get through, and
  may be lost with what holds it. Until a kill or cut of the same, or the heal.
- kill, term and host-loss, which kills every broker of a machine: until the restart. A kill that
  ends another fault's window opens none of its own: what it destroys was sent in that one.
- delay, bandwidth and cpu-share: what is sent meanwhile is held on its way, dies with its broker
  or session as if it had been absorbed, and may be bypassed and arrive twice. Until kill, cut or
  heal.
- client-disconnect, client-slow and client-crash, of what is for that client: it waits at its
  broker until the heal. client-roam, of the same: what is sent while it moves may come from
  either broker, or neither, until it is seen at the other one. So may what a publisher sends
  while it moves.
- churn, of what is for that client: as client-disconnect, but the workload's, see
  `results.rules.churn`.
- disk-full and slow-fsync only if a kill ends them: no delivery waits for a disk, so nothing hangs
  on it before. A restart opens none.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from results.rules.terms import CHURN, NEVER_NS, Fault, RiskWindow

PASSING_VERBS = (
    *("absorb", "send-omission", "freeze", "blackhole", "cut", "partition", "delay", "bandwidth"),
    "cpu-share",
)
"""What these are done to still stands in the way, and does not let through what it should."""
HOLDING_VERBS = ("absorb", "send-omission")
"""Those that say how many publications they held."""
DISK_VERBS = ("disk-full", "slow-fsync")
ROAM = "client-roam"
CLIENT_VERBS = ("client-disconnect", "client-slow", "client-crash", ROAM)
KILLING_VERBS = ("kill", "term", "host-loss")
ENDING_VERBS = (*KILLING_VERBS, "cut")
VERBS = (*PASSING_VERBS, *DISK_VERBS, *KILLING_VERBS, *CLIENT_VERBS, "restart")


def parts_of(
    verb: str,
    target: str,
    brokers: Sequence[str],
    links: Iterable[tuple[str, str]],
    machines: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    """The brokers and links of a tree that a fault was done to.

    A link is "a-b" in the order of `links`, whatever the order it was named in, or "a->b" for
    one direction. A partition's parts are all pairs of brokers that it keeps apart, linked or
    not; a machine's, the brokers on it. A client is "client:NAME".

    Args:
        machines: the brokers on each.
    """
    if verb in CLIENT_VERBS:
        return (client_part(target),)
    if verb == "host-loss":
        return tuple(broker for broker in brokers if broker in machines.get(target, ()))
    if verb == "partition":
        sets = [part.split(",") for part in target.split("|")]
        if len(sets) == 1:  # kept from all others
            sets.append([broker for broker in brokers if broker not in sets[0]])
        return tuple(
            f"{a}-{b}"
            for place, one in enumerate(sets)
            for other in sets[place + 1 :]
            for a in one
            for b in other
        )
    for a, b in links:
        if target == f"{b}-{a}":
            return (f"{a}-{b}",)
    return (target,)


def client_part(name: str) -> str:
    """How a client stands among the brokers and links that faults are done to."""
    return f"client:{name}"


def sure_ns(window: RiskWindow) -> tuple[int, int]:
    """From when, and until before when, it surely held, however far the clocks are apart."""
    return window.from_ns + window.err_ns, window.to_ns - window.err_ns


def surely_holds(window: RiskWindow, sent_ns: int) -> bool:
    """Whether what was sent then was surely sent in it."""
    first_ns, end_ns = sure_ns(window)
    return first_ns <= sent_ns < end_ns


def risk_windows(faults: Iterable[Fault]) -> list[RiskWindow]:
    """When something was at risk, and where; the module says what opens a window, and why."""
    applied = sorted(
        (fault for fault in faults if fault.applied_ns is not None),
        key=lambda fault: (fault.applied_ns, fault.fault_id),
    )
    windows: list[RiskWindow] = []
    enders: set[str] = set()
    for place, fault in enumerate(applied):
        if fault.verb == "restart" or fault.fault_id in enders:
            continue
        assert fault.verb in (*VERBS, CHURN), fault
        end = _end_of(fault, [*_maybe_later(fault, applied[:place]), *applied[place + 1 :]])
        over_ns = fault.observed_ns if fault.verb == ROAM else fault.healed_ns
        healed_ns = NEVER_NS if over_ns is None else over_ns
        ids, ended_by, to_ns = [fault.fault_id], "release", healed_ns
        if end is not None and end.applied_ns is not None and end.applied_ns <= healed_ns:
            ids, to_ns = [*ids, end.fault_id], end.applied_ns
            ended_by = {"cut": "cut", "restart": "release"}.get(end.verb, "kill")
            if end.verb in ENDING_VERBS and end.struck == fault.struck:
                enders.add(end.fault_id)
        elif fault.verb in DISK_VERBS:
            continue
        elif healed_ns == NEVER_NS:
            ended_by = ""
        err_ns = max(_error(one) for one in (fault, end) if one is not None)
        from_ns = fault.applied_ns or 0
        windows.append(
            RiskWindow(
                tuple(ids), fault.verb, fault.target, from_ns, to_ns, ended_by, fault.struck, err_ns
            )
        )
    # Between clocks, one that seemed to come first may have ended another.
    return [window for window in windows if window.fault_ids[0] not in enders]


def _maybe_later(fault: Fault, earlier: Iterable[Fault]) -> Iterator[Fault]:
    """Those that were applied before it as it seems, and after it for all that clocks can tell."""
    for other in earlier:
        error_ns = _error(fault) + _error(other)
        if (other.applied_ns or 0) > (fault.applied_ns or 0) - error_ns:
            yield other


def _end_of(fault: Fault, later: Iterable[Fault]) -> Fault | None:
    """The first fault to end another: it strikes all that the other one does, if not more."""
    ends: Sequence[str] = ENDING_VERBS
    if fault.verb in KILLING_VERBS:
        ends = ("restart",)
    elif fault.verb in DISK_VERBS:
        ends = KILLING_VERBS
    found = (other for other in later if other.verb in ends and other.struck >= fault.struck)
    return next(found, None)


def _error(fault: Fault) -> int:
    return NEVER_NS if fault.err_ns is None else fault.err_ns


class Tree:
    """Paths in the tree of brokers, by name."""

    def __init__(self, links: Iterable[tuple[str, str]]) -> None:
        self._near: dict[str, list[str]] = defaultdict(list)
        for a, b in links:
            self._near[a].append(b)
            self._near[b].append(a)
        self._paths: dict[str, dict[str, tuple[str, ...]]] = {}

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """All brokers from `start` to `end`, both included; empty where there is no way."""
        if start not in self._paths:
            paths: dict[str, tuple[str, ...]] = {start: (start,)}
            frontier = [start]
            for broker in frontier:
                for near in self._near[broker]:
                    if near not in paths:
                        paths[near] = (*paths[broker], near)
                        frontier.append(near)
            self._paths[start] = paths
        return self._paths[start].get(end, ())

    def passes(self, parts: Collection[str], start: str, end: str) -> bool:
        """Whether what goes from `start` to `end` runs through one of these brokers and links.

        A link is "a-b", or "a->b" for one direction.
        """
        path = self.path(start, end)
        on_the_way = {*path}
        for a, b in pairwise(path):
            on_the_way |= {f"{a}->{b}", f"{a}-{b}", f"{b}-{a}"}
        return not on_the_way.isdisjoint(parts)


class Routes:
    """What may be passed between brokers of an overlay that is no tree.

    Args:
        over: by origin and home, the brokers, and the links as "a->b", of any way there is.
    """

    def __init__(self, over: Mapping[tuple[str, str], Collection[str]]) -> None:
        self._over = {pair: frozenset(_either_way(passed)) for pair, passed in over.items()}

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Of the rows of a run's file."""
        return cls({(row["from"], row["to"]): row["over"] for row in rows})

    def passes(self, parts: Collection[str], start: str, end: str) -> bool:
        """Whether what goes from `start` to `end` may run through one of these."""
        return not self._over.get((start, end), frozenset()).isdisjoint(parts)


def _either_way(passed: Iterable[str]) -> Iterator[str]:
    for part in passed:
        yield part
        a, arrow, b = part.partition("->")
        if arrow:
            yield from (f"{a}-{b}", f"{b}-{a}")


class Exposure:
    """Which deliveries a fault stood in the way of.

    Without routes, the links are those of a tree. A client that roams was at the one broker
    before, and at the other one after; in between, only what is on both ways counts.
    """

    def __init__(
        self,
        links: Iterable[tuple[str, str]],
        faults: Iterable[Fault],
        routes: Routes | None = None,
    ) -> None:
        self._ways = Tree(links) if routes is None else routes
        self._roams = sorted(
            (fault for fault in faults if fault.verb == ROAM and fault.applied_ns is not None),
            key=lambda fault: (fault.applied_ns, fault.fault_id),
        )

    def holds(
        self, window: RiskWindow, publisher: str, start: str, subscriber: str, home: str
    ) -> bool:
        """Whether what is published in this window had to pass the fault, or may have passed it
        where there are several ways.

        Args:
            start: where the publisher was in the beginning.
            home: where the subscriber was.
        """
        if not window.parts.isdisjoint(map(client_part, (publisher, subscriber))):
            return True
        return all(
            self._ways.passes(window.parts, begin, end)
            for begin in self._places(window, publisher, start)
            for end in self._places(window, subscriber, home)
        )

    def _places(self, window: RiskWindow, client: str, home: str) -> list[str]:
        """Where a client may have been in a window."""
        places = [home]
        for roam in self._roams:
            if roam.target != client or (roam.applied_ns or 0) > window.to_ns:
                continue
            if roam.observed_ns is not None and roam.observed_ns <= window.from_ns:
                places = []
            places.append(roam.to)
        return places
