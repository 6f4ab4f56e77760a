"""Faults, the paths through faults, and the deliveries at risk.

Windows in which deliveries are at risk, by fault:

- absorb, freeze, blackhole and cut of a broker or link, send-omission of a broker, and a partition,
  which affects every link between its sets: publications sent meanwhile do not pass, and may be
  lost with their holder. Until a kill or cut of the same target, or the heal.
- kill, term and host-loss, which kills every broker of a machine: until the restart. A kill that
  ends another fault's window opens no window of its own: the destroyed publications were sent in
  the earlier window.
- delay, bandwidth and cpu-share: publications sent meanwhile are held on the path, are lost with
  their broker or session as if absorbed, and may be bypassed and arrive twice. Until kill, cut or
  heal.
- client-disconnect, client-slow and client-crash, for publications to this client: the publications
  wait at the broker until the heal. client-roam, for the same publications: a publication sent
  during the move may arrive from either broker, or neither, until the client is observed at the
  other broker. The same is true for publications from a publisher that moves.
- churn, for publications to this client: as client-disconnect, but by the workload, see
  `results.rules.absences`.
- disk-full and slow-fsync only if a kill ends the fault: no delivery waits for a disk, so nothing
  is at risk before. A restart opens no window.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    DISK_VERBS,
    KILLING_VERBS,
    MACHINE_VERBS,
    OFFLINE_VERBS,
    PASSING_VERBS,
    ROAM,
    SET_VERBS,
)
from results.rules.terms import CHURN, NEVER_NS, Fault, RiskWindow

BREAKING_VERBS = (*KILLING_VERBS, "cut")
"""Verbs that destroy held publications of their target."""
JUDGED_VERBS = (*PASSING_VERBS, *DISK_VERBS, *KILLING_VERBS, *CLIENT_VERBS, *OFFLINE_VERBS)


def parts_of(
    verb: str,
    target: str,
    brokers: Sequence[str],
    links: Iterable[tuple[str, str]],
    machines: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    """Return the brokers and links of a tree that a fault affects.

    A link is "a-b" in the order of `links`, for any order in the name, or "a->b" for a single
    direction. A partition's parts are all pairs of brokers that it separates, linked or not; a
    machine's parts are the brokers on the machine. A client is "client:NAME".

    Args:
        machines: brokers by machine.
    """
    if verb in CLIENT_VERBS:
        return (client_part(target),)
    if verb in MACHINE_VERBS:
        return tuple(broker for broker in brokers if broker in machines.get(target, ()))
    if verb in SET_VERBS:
        sets = [part.split(",") for part in target.split("|")]
        if len(sets) == 1:  # separated from all others
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
    """Return the name of a client among the brokers and links that faults affect."""
    return f"client:{name}"


def certain_window_ns(window: RiskWindow) -> tuple[int, int]:
    """Return the first instant and the end of the certain window, for any permitted clock error."""
    return window.from_ns + window.err_ns, window.to_ns - window.err_ns


def risk_windows(faults: Iterable[Fault]) -> list[RiskWindow]:
    """Return the times and places of risks; see the module for the windows of each fault."""
    applied = sorted(
        (fault for fault in faults if fault.applied_ns is not None),
        key=lambda fault: (fault.applied_ns, fault.fault_id),
    )
    windows: list[RiskWindow] = []
    enders: set[str] = set()
    for place, fault in enumerate(applied):
        if fault.verb in OFFLINE_VERBS or fault.fault_id in enders:
            continue
        assert fault.verb in (*JUDGED_VERBS, CHURN), fault
        end = _end_of(fault, [*_find_maybe_later(fault, applied[:place]), *applied[place + 1 :]])
        over_ns = fault.observed_ns if fault.verb == ROAM else fault.healed_ns
        healed_ns = NEVER_NS if over_ns is None else over_ns
        ids, ended_by, to_ns = [fault.fault_id], "release", healed_ns
        if end is not None and end.applied_ns is not None and end.applied_ns <= healed_ns:
            ids, to_ns = [*ids, end.fault_id], end.applied_ns
            ended_by = {"cut": "cut", "restart": "release"}.get(end.verb, "kill")
            if end.verb in BREAKING_VERBS and end.struck == fault.struck:
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
    # Between clocks, a fault that seemed to be first may have ended another fault.
    return [window for window in windows if window.fault_ids[0] not in enders]


def _find_maybe_later(fault: Fault, earlier: Iterable[Fault]) -> Iterator[Fault]:
    """Yield faults that seem to be earlier, but may be later within the errors of clocks."""
    for other in earlier:
        error_ns = _error(fault) + _error(other)
        if (other.applied_ns or 0) > (fault.applied_ns or 0) - error_ns:
            yield other


def _end_of(fault: Fault, later: Iterable[Fault]) -> Fault | None:
    """Return the first fault that ends another: a fault of all targets of the other, or more."""
    ends: Sequence[str] = BREAKING_VERBS
    if fault.verb in KILLING_VERBS:
        ends = ("restart",)
    elif fault.verb in DISK_VERBS:
        ends = KILLING_VERBS
    found = (other for other in later if other.verb in ends and other.struck >= fault.struck)
    return next(found, None)


def _error(fault: Fault) -> int:
    return NEVER_NS if fault.err_ns is None else fault.err_ns


class Tree:
    """The paths in the tree of brokers, by name."""

    def __init__(self, links: Iterable[tuple[str, str]]) -> None:
        self._near: dict[str, list[str]] = defaultdict(list)
        for a, b in links:
            self._near[a].append(b)
            self._near[b].append(a)
        self._paths: dict[str, dict[str, tuple[str, ...]]] = {}

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """Return all brokers from `start` to `end`, both included; empty without a path."""
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
        """Return True if the path from `start` to `end` contains a broker or link of `parts`.

        A link is "a-b", or "a->b" for a single direction.
        """
        path = self.path(start, end)
        on_the_way = {*path}
        for a, b in pairwise(path):
            on_the_way |= {f"{a}->{b}", f"{a}-{b}", f"{b}-{a}"}
        return not on_the_way.isdisjoint(parts)


class Routes:
    """The possible routes between brokers of an overlay that is no tree.

    Args:
        over: brokers, and links as "a->b", of all routes, by origin and access broker.
    """

    def __init__(self, over: Mapping[tuple[str, str], Collection[str]]) -> None:
        self._through = {pair: frozenset(_both_directions(passed)) for pair, passed in over.items()}

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return the routes in the rows of a run's file."""
        return cls({(row["from"], row["to"]): row["over"] for row in rows})

    def passes(self, parts: Collection[str], start: str, end: str) -> bool:
        """Return True if a route from `start` to `end` may contain a broker or link of `parts`."""
        return not self._through.get((start, end), frozenset()).isdisjoint(parts)


def _both_directions(passed: Iterable[str]) -> Iterator[str]:
    for part in passed:
        yield part
        a, arrow, b = part.partition("->")
        if arrow:
            yield from (f"{a}-{b}", f"{b}-{a}")


class Exposure:
    """The deliveries that a fault could affect.

    Without routes, the links are links of a tree. A client that roams was at the first broker
    before, and at the second broker after. In between, only brokers and links on both paths count.
    """

    def __init__(
        self,
        links: Iterable[tuple[str, str]],
        faults: Iterable[Fault],
        routes: Routes | None = None,
    ) -> None:
        self._routes = Tree(links) if routes is None else routes
        self._roams = sorted(
            (fault for fault in faults if fault.verb == ROAM and fault.applied_ns is not None),
            key=lambda fault: (fault.applied_ns, fault.fault_id),
        )

    def holds(
        self, window: RiskWindow, publisher: str, start: str, subscriber: str, home: str
    ) -> bool:
        """Return True if a publication in this window had to pass the fault.

        With several routes, any route through the fault is sufficient.

        Args:
            start: first broker of the publisher.
            home: first broker of the subscriber.
        """
        if not window.parts.isdisjoint(map(client_part, (publisher, subscriber))):
            return True
        return all(
            self._routes.passes(window.parts, begin, end)
            for begin in self._places(window, publisher, start)
            for end in self._places(window, subscriber, home)
        )

    def _places(self, window: RiskWindow, client: str, home: str) -> list[str]:
        """Return the possible brokers of a client in a window."""
        places = [home]
        for roam in self._roams:
            if roam.target != client or (roam.applied_ns or 0) > window.to_ns:
                continue
            if roam.observed_ns is not None and roam.observed_ns <= window.from_ns:
                places = []
            places.append(roam.to)
        return places
