"""Which faults there were, which ways lead through them, and what they put at risk."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

HOLDING_VERBS = ("absorb", "freeze", "blackhole", "cut")
ENDING_VERBS = ("kill", "term", "cut")
NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as the fault log has it; None where a stage was not reached."""

    fault_id: str
    verb: str
    target: str
    applied_ns: int | None
    observed_ns: int | None
    healed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RiskWindow:
    """A time in which what was sent through a target might have been lost.

    Attributes:
        fault_ids: the fault that opened it, and the one that ended it.
        verb: of the first, such as "absorb".
        target: broker or link.
        ended_by: "kill", "cut", "release" (healed), or "" when it lasted to the end.
    """

    fault_ids: tuple[str, ...]
    verb: str
    target: str
    from_ns: int
    to_ns: int
    ended_by: str


def risk_windows(faults: Iterable[Fault]) -> list[RiskWindow]:
    """When something was at risk, and where.

    A fault that holds or drops data opens a window when it is applied. A kill or cut of the
    same target ends it, or its heal does. A kill that ends no other fault's window opens its
    own, up to the restart; delay and bandwidth limits open none, because they lose nothing.
    """
    applied = sorted(
        (fault for fault in faults if fault.applied_ns is not None),
        key=lambda fault: (fault.applied_ns, fault.fault_id),
    )
    windows: list[RiskWindow] = []
    enders: set[str] = set()
    for place, fault in enumerate(applied):
        if fault.verb not in (*HOLDING_VERBS, *ENDING_VERBS) or fault.fault_id in enders:
            continue
        from_ns = fault.applied_ns or 0
        healed_ns = NEVER_NS if fault.healed_ns is None else fault.healed_ns
        later = [other for other in applied[place + 1 :] if other.target == fault.target]
        if fault.verb in ("kill", "term"):
            ends = [other for other in later if other.verb == "restart"]
        else:
            ends = [other for other in later if other.verb in ENDING_VERBS]
        end = ends[0] if ends else None
        if end is not None and end.applied_ns is not None and end.applied_ns <= healed_ns:
            if end.verb in ENDING_VERBS:
                enders.add(end.fault_id)
            ended_by = {"term": "kill", "restart": "release"}.get(end.verb, end.verb)
            ids: tuple[str, ...] = (fault.fault_id, end.fault_id)
            to_ns = end.applied_ns
        else:
            ended_by = "release" if healed_ns < NEVER_NS else ""
            ids, to_ns = (fault.fault_id,), healed_ns
        windows.append(RiskWindow(ids, fault.verb, fault.target, from_ns, to_ns, ended_by))
    return windows


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

    def passes(self, target: str, start: str, end: str) -> bool:
        """Whether what goes from `start` to `end` runs through a broker or a link.

        A link is "a-b", or "a->b" for one direction.
        """
        path = self.path(start, end)
        hops = [*pairwise(path)]
        links = {f"{a}->{b}" for a, b in hops}
        links |= {f"{a}-{b}" for a, b in hops} | {f"{b}-{a}" for a, b in hops}
        return target in path or target in links
