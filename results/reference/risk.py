"""Paths between brokers, and deliveries at risk: sent while a fault held, through its targets.

A fault holds from its application. A fault that absorbs or holds messages (absorb, send-omission,
freeze, blackhole, cut, partition, delay, bandwidth, cpu-share) holds until a kill or cut of at
least the same targets, or until its heal. A fault that kills holds until the restart. A fault that
keeps a client away, also the workload's churn, holds until its heal. A client that moves is at risk
until its observation at the new place. A disk fault holds only if a kill ends it. A restart holds
nothing. A kill or cut that ends another fault's time, with exactly the same brokers and links, has
no time of its own. Between different clocks, only certain times count, and a fault that may have
been later, within the errors of clocks, may have ended another fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product

from results.reference.fault_log import ENDING_VERBS
from results.rules.terms import NEVER_NS, Fault, RiskWindow


class Tree:
    """A tree of brokers, by name."""

    def __init__(self, links: Iterable[tuple[str, str]]) -> None:
        self._links = {frozenset(link) for link in links}
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """Return the brokers from `start` to `end`, both included; empty without a path."""
        if (start, end) not in self._known:
            self._known[start, end] = self._found((start,), end)
        return self._known[start, end]

    def list_passed(self, start: str, end: str) -> set[str]:
        """Return all brokers and links of the path, with links in either direction."""
        return steps(self.path(start, end))

    def _found(self, so_far: tuple[str, ...], end: str) -> tuple[str, ...]:
        stack = [so_far]
        while stack:
            way = stack.pop()
            if way[-1] == end:
                return way
            stack += [
                (*way, broker)
                for link in self._links
                if way[-1] in link
                for broker in link
                if broker not in way
            ]
        return ()


class Routes:
    """An overlay with several routes between two brokers."""

    def __init__(self, over: Mapping[tuple[str, str], Sequence[str]]) -> None:
        self._through = over

    def list_passed(self, start: str, end: str) -> set[str]:
        """Return all brokers and links of possible routes, with links in either direction."""
        found: set[str] = set()
        for part in self._through.get((start, end), ()):
            ends = part.split("->")
            found |= {part, "-".join(ends), "-".join(ends[::-1])}
        return found


def steps(way: tuple[str, ...]) -> set[str]:
    """Return all brokers and links of a path, with links in either direction."""
    passed = set(way)
    for a, b in pairwise(way):
        passed.update((f"{a}-{b}", f"{b}-{a}", f"{a}->{b}"))
    return passed


_ENDS = {*ENDING_VERBS, "cut"}
_DISKS = {"disk-full", "slow-fsync"}


def times_of_risk(faults: Sequence[Fault]) -> list[RiskWindow]:
    """Return the times and places of risks, in the order of time."""
    done = sorted((f for f in faults if f.applied_ns is not None), key=_find_time)
    found: list[tuple[Fault, RiskWindow]] = []
    used: set[str] = set()
    for fault in done:
        if fault.verb in ("restart", "corrupt") or fault.fault_id in used:
            continue
        ender = min((o for o in done if _can_end(o, fault)), key=_find_time, default=None)
        over_ns = fault.observed_ns if fault.verb == "client-roam" else fault.healed_ns
        until_ns = NEVER_NS if over_ns is None else over_ns
        ids: tuple[str, ...] = (fault.fault_id,)
        how = "" if until_ns == NEVER_NS else "release"
        if ender is not None and _find_at(ender) <= until_ns:
            until_ns, ids = _find_at(ender), (fault.fault_id, ender.fault_id)
            how = (
                "cut"
                if ender.verb == "cut"
                else "kill"
                if ender.verb in ENDING_VERBS
                else "release"
            )
            if ender.verb in _ENDS and ender.struck == fault.struck:
                used.add(ender.fault_id)
        elif fault.verb in _DISKS:
            continue
        err_ns = max(_error(fault), _error(ender) if ender is not None else 0)
        window = RiskWindow(
            ids, fault.verb, fault.target, _find_at(fault), until_ns, how, fault.struck, err_ns
        )
        found.append((fault, window))
    return [window for fault, window in found if fault.fault_id not in used]


def is_certainly_sent_in(window: RiskWindow, sent_ns: int) -> bool:
    """Return True if a publication was certainly sent in a window, within clock errors."""
    return window.from_ns + window.err_ns <= sent_ns < window.to_ns - window.err_ns


class DeliveryPaths:
    """The paths of deliveries, while clients move between brokers."""

    def __init__(self, passing: Tree | Routes, faults: Sequence[Fault]) -> None:
        self._passing = passing
        self._moves = sorted(
            (f for f in faults if f.verb == "client-roam" and f.applied_ns is not None),
            key=_find_time,
        )

    def lead_through(
        self, window: RiskWindow, publisher: str, start: str, subscriber: str, home: str
    ) -> bool:
        """Return True if a publication must pass the targets of a fault.

        With several routes, any route through a target is sufficient.

        Args:
            start: broker of the publisher before its first move.
            home: broker of the subscriber before its first move.
        """
        if {f"client:{publisher}", f"client:{subscriber}"} & window.parts:
            return True
        sent_at, due_at = (
            self._list_seen(window, publisher, start),
            self._list_seen(window, subscriber, home),
        )
        pairs = product(sent_at, due_at)
        return all(self._passing.list_passed(*pair) & window.parts for pair in pairs)

    def _list_seen(self, window: RiskWindow, client: str, first: str) -> set[str]:
        at = {first}
        for move in self._moves:
            if move.target == client and _find_at(move) <= window.to_ns:
                if move.observed_ns is not None and move.observed_ns <= window.from_ns:
                    at.clear()
                at.add(move.to)
        return at


def _find_time(fault: Fault) -> tuple[int, str]:
    return _find_at(fault), fault.fault_id


def _find_at(fault: Fault) -> int:
    assert fault.applied_ns is not None, fault
    return fault.applied_ns


def _error(fault: Fault) -> int:
    return NEVER_NS if fault.err_ns is None else fault.err_ns


def _can_end(other: Fault, fault: Fault) -> bool:
    """Return True if another fault ends this fault's time, if early enough."""
    enders = _ENDS
    if fault.verb in ENDING_VERBS:
        enders = {"restart"}
    elif fault.verb in _DISKS:
        enders = ENDING_VERBS
    if other is fault or other.verb not in enders or not other.struck >= fault.struck:
        return False
    is_later = _find_time(other) > _find_time(fault)
    return is_later or _find_at(other) > _find_at(fault) - _error(fault) - _error(other)
