"""Checks of a schedule as a whole, before any run.

Every step begins a known time after the origin or after a stage of another step, so the stages form
a tree with an interval of time on every edge. The interval between two stages follows from the
edges below their last common ancestor. Two faults either can overlap within these intervals or
cannot.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from brokerd.model.fault_verbs import (
    ENDING_VERBS,
    FAILING_VERBS,
    HOLDING_VERBS,
    LASTING_VERBS,
    LINK_VERBS,
    MACHINE_VERBS,
)
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import RunningProtocol, protocol_on
from brokerd.units import format_duration
from fault_injection.schedule.client_lint import check_client_overlaps, check_clients
from fault_injection.schedule.limits import Element, FaultGuard, find_failed_elements
from fault_injection.schedule.plan import ender_of
from fault_injection.schedule.schedule import FaultSchedule, Problem, wrong_target
from fault_injection.schedule.step import END, Step
from fault_injection.schedule.targets import (
    Clients,
    Machines,
    Target,
    check_nft_can_separate,
    list_separated_pairs,
    read_target,
)

Moment = tuple[str, str]
"""(step id, stage); ORIGIN for the start of the measure phase."""

ORIGIN: Final[Moment] = ("", "origin")
NEVER: Final[Moment] = ("", "never")


def lint(
    schedule: FaultSchedule,
    topology: Topology,
    *,
    measure_ns: int | None = None,
    machines: Machines | None = None,
    addresses: Mapping[str, str] | None = None,
    clients: Clients | None = None,
    client_linger_ns: int | None = None,
    protocol: str | None = None,
) -> list[Problem]:
    """Return all errors and warnings of a schedule for this topology.

    Every argument that is missing leaves out a check.

    Args:
        measure_ns: length of the measure phase, which every step must fit into.
        machines: the brokers on each machine; without them every machine is assumed to exist.
        addresses: "address:port" of each broker; without them nftables is assumed to distinguish
            all brokers.
        clients: the clients of the load; without them every client is assumed to exist.
        client_linger_ns: the linger of brokers; without it the linger is assumed to be long enough.
        protocol: the protocol that runs; by default the usual protocol of the topology.
    """
    known = protocol_on(topology, protocol)
    topology = known.topology
    problems = list(_check_names(schedule, known, machines))
    publishers_roam = known.protocol is not None and known.protocol.promises.leaves_freely
    problems += check_clients(
        schedule, topology, clients, client_linger_ns, publishers_roam=publishers_roam
    )
    if addresses is not None:
        problems += check_backends(schedule, known, addresses)
    if any(problem.severity == "error" for problem in problems):
        return problems  # the checks below need existing anchors and targets
    cycles = list(_check_cycles(schedule))
    if cycles:
        return problems + cycles
    moments = Moments(schedule)
    problems += _check_states(schedule, topology, moments, machines)
    problems += _check_overlaps(schedule, known, moments, machines)
    problems += check_client_overlaps(schedule, moments.between)
    if measure_ns is not None:
        problems += _check_fit(schedule, moments, measure_ns)
    return problems


class Moments:
    """Intervals between the stages of a schedule's steps.

    The schedule must name only existing steps, and must have no cycle.
    """

    def __init__(self, schedule: FaultSchedule) -> None:
        self._edges: dict[Moment, tuple[Moment, float, float]] = {}
        for step in schedule.steps:
            self._add(step)

    def between(self, first: Moment, second: Moment) -> tuple[float, float]:
        """Return least and greatest time from the first to the second, in ns; infinite if none."""
        if NEVER in (first, second):
            return (math.inf, math.inf) if second == NEVER else (-math.inf, -math.inf)
        chain, other = self._ancestors(first), self._ancestors(second)
        common = next(moment for moment in chain if moment in other)
        low = other[common][0] - chain[common][1]
        high = other[common][1] - chain[common][0]
        return low, high

    def _ancestors(self, moment: Moment) -> dict[Moment, tuple[float, float]]:
        """Return the moments that this moment depends on, with least and greatest time since."""
        found = {moment: (0.0, 0.0)}
        low = high = 0.0
        while moment != ORIGIN:
            moment, least, greatest = self._edges[moment]
            low, high = low + least, high + greatest
            found[moment] = (low, high)
        return found

    def _add(self, step: Step) -> None:
        begin = (step.id, "applied")
        if step.at is not None:
            self._edges[begin] = (ORIGIN, step.at.low_ns, step.at.high_ns)
        else:
            assert step.anchor is not None, step
            low, high = (step.delay.low_ns, step.delay.high_ns) if step.delay else (0, 0)
            self._edges[begin] = (step.anchor, low, high)
        observed_ns = step.expect.within if step.expect else math.inf
        self._edges[(step.id, "observed")] = (begin, 0, observed_ns)
        recovered_ns = step.awaits.within if step.awaits else math.inf
        if step.lasts is not None:
            end = (step.id, END)
            self._edges[end] = (begin, step.lasts.low_ns, step.lasts.high_ns)
            self._edges[(step.id, "healed")] = (end, 0, 0)
            self._edges[(step.id, "recovered")] = (end, 0, recovered_ns)
        elif step.do == "restart":
            self._edges[(step.id, "recovered")] = (begin, 0, recovered_ns)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Elements (brokers, or two ends of a link) that are failed from one moment to another."""

    step: Step
    elements: frozenset[frozenset[str]]
    name: str
    begin: Moment
    end: Moment


def _check_names(
    schedule: FaultSchedule, known: RunningProtocol, machines: Machines | None
) -> Iterator[Problem]:
    topology = known.topology
    ids = [step.id for step in schedule.steps]
    for step in schedule.steps:
        try:
            target = read_target(step.on, topology, step.do, machines)
        except ValueError as error:
            yield schedule.problem(step, "on", step.on, str(error))
        else:
            if target.is_link and step.do not in LINK_VERBS:
                yield schedule.problem(step, "on", step.on, wrong_target(step.do))
        if step.do in MACHINE_VERBS and machines is None:
            text = "what is on this machine is seen only where brokers are placed"
            yield schedule.problem(step, "on", step.on, text, "warning")
        if step.anchor is not None:
            yield from _check_anchor(schedule, step, step.anchor, ids)
    for name in schedule.exercised.subscribers_on_path:
        if name not in topology.brokers:
            text = f"no broker called {name!r}{nearest(name, topology.brokers)}"
            yield Problem(schedule.source, "", "exercised.subscribers_on_path", name, text)
    limit, bound = schedule.guard.max_faulty_brokers, known.fault_bound
    if limit is not None and bound is not None and limit > bound:
        text = f"more than the {bound} that {topology.name} tolerates"
        yield Problem(schedule.source, "", "guard.max_faulty_brokers", limit, text, "warning")


def check_backends(
    schedule: FaultSchedule, known: RunningProtocol, addresses: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield steps that nftables cannot carry out because brokers share an address."""
    for step in schedule.steps:
        if step.backend != "nft":
            continue
        try:
            target = read_target(step.on, known.topology, step.do)
            pairs = list_separated_pairs(target, known.possible_peers)
            check_nft_can_separate(pairs, addresses, known.possible_peers)
        except ValueError as error:
            yield schedule.problem(step, "backend", step.backend, str(error))


def _check_anchor(
    schedule: FaultSchedule, step: Step, anchor: tuple[str, str], ids: Sequence[str]
) -> Iterator[Problem]:
    name, stage = anchor
    if name not in ids:
        parts = [each for each in ids if each.startswith(f"{name}-")]
        remedy = f"; it is {', then '.join(parts)}" if parts else nearest(name, list(ids))
        text = f"no step called {name!r}{remedy}"
        yield schedule.problem(step, "after", step.after, text)
        return
    verb = schedule.step(name).do
    if stage in (END, "healed") and verb not in LASTING_VERBS:
        text = f"{verb} has no end of its own; {name}.applied is when it was done"
        yield schedule.problem(step, "after", step.after, text)
    if stage == "recovered" and verb in ENDING_VERBS:
        restarts = [
            other.id
            for other in schedule.steps
            if other.do == "restart" and other.on == schedule.step(name).on
        ]
        hint = f"; {restarts[0]}.recovered does" if restarts else ""
        text = f"a broker that was ended does not recover by itself{hint}"
        yield schedule.problem(step, "after", step.after, text)
    if stage == "recovered" and verb not in (*LASTING_VERBS, *ENDING_VERBS, "restart"):
        text = f"{verb} does not recover; {name}.observed is when its effect was seen"
        yield schedule.problem(step, "after", step.after, text)
    if stage in ("healed", "recovered") and ender_of(schedule.step(name), schedule.steps):
        text = f"{name} is never healed: its target is killed or cut at its end"
        yield schedule.problem(step, "after", step.after, text)


def _check_cycles(schedule: FaultSchedule) -> Iterator[Problem]:
    waits_for = {step.id: step.anchor[0] for step in schedule.steps if step.anchor}
    reported: set[str] = set()
    for step in schedule.steps:
        path: list[str] = []
        current: str | None = step.id
        while current is not None and current not in path:
            path.append(current)
            current = waits_for.get(current)
        if current == step.id and not reported.intersection(path):
            reported.update(path)
            text = f"{' after '.join([*path, step.id])}: none of them ever begins"
            yield schedule.problem(step, "after", step.after, text)


def _check_states(
    schedule: FaultSchedule, topology: Topology, moments: Moments, machines: Machines | None
) -> Iterator[Problem]:
    """Check that brokers run when a step breaks them, and have ended when a step starts them."""
    enders: dict[str, list[Step]] = {}
    for step in schedule.steps:
        if step.do in ENDING_VERBS:
            enders.setdefault(step.on, []).append(step)
    for step in schedule.steps:
        begin = (step.id, "applied")
        brokers = read_target(step.on, topology, step.do, machines).brokers
        ends = [end for name in dict.fromkeys(brokers) for end in enders.get(name, ())]
        if step.do == "restart":
            if not any(moments.between((end.id, "applied"), begin)[0] >= 0 for end in ends):
                text = f"no step surely ends {step.on} before it is started again"
                yield schedule.problem(step, "do", step.do, text)
            continue
        if step.do == "corrupt":
            if not any(_is_down_at(step, end, schedule, moments) for end in ends):
                text = f"{step.on} runs or may run by then; kill it before"
                yield schedule.problem(step, "do", step.do, text)
            continue
        for end in ends:
            if end.id != step.id and _is_down_at(step, end, schedule, moments):
                text = f"{end.id} has ended {end.on} by then"
                yield schedule.problem(step, "on", step.on, text)
    for step in schedule.steps:
        if step.do in HOLDING_VERBS and ender_of(step, schedule.steps) is None:
            late = [
                other.id
                for other in schedule.steps
                if other.anchor == (step.id, END) and other.do in (*ENDING_VERBS, "cut")
                and read_target(other.on, topology).element
                == read_target(step.on, topology).element
            ]  # fmt: skip
            if late:
                text = f"is released before {late[0]}, which has a delay, starts; nothing is lost"
                yield schedule.problem(step, "for", str(step.lasts), text, "warning")


def _is_down_at(step: Step, end: Step, schedule: FaultSchedule, moments: Moments) -> bool:
    """Return True if a step certainly begins after `end`, and before the restart that follows."""
    begin = (step.id, "applied")
    back = _restart_of(end, schedule, moments)
    back_moment = (back.id, "applied") if back else NEVER
    is_behind_end = moments.between((end.id, "applied"), begin)[0] >= 0
    return is_behind_end and moments.between(begin, back_moment)[0] > 0


def _restart_of(end: Step, schedule: FaultSchedule, moments: Moments) -> Step | None:
    """Return the first step that certainly follows `end` and restarts its broker."""
    found = [
        step
        for step in schedule.steps
        if step.do == "restart"
        and step.on == end.on
        and moments.between((end.id, "applied"), (step.id, "applied"))[0] >= 0
    ]
    return min(
        found,
        key=lambda step: moments.between((end.id, "applied"), (step.id, "applied"))[0],
        default=None,
    )


def _check_overlaps(
    schedule: FaultSchedule, known: RunningProtocol, moments: Moments, machines: Machines | None
) -> Iterator[Problem]:
    guard = FaultGuard(known, schedule.guard.max_faulty_brokers)
    failures = list(_failures(schedule, known.topology, moments, machines))
    for is_certain in (True, False):
        group = _find_excess(failures, guard, moments, is_certain)
        if group:
            yield _explain_group(schedule, group, guard, is_certain)
            return


def _explain_group(
    schedule: FaultSchedule, group: Sequence[_Failure], guard: FaultGuard, is_certain: bool
) -> Problem:
    names = " and ".join(failure.name for failure in group)
    why = guard.explain(_elements(group))
    text = f"{names} may be failed at the same time; {why}"
    count = len(find_failed_elements(_elements(group)))
    if len(group) == 1:
        text = f"fails {count} brokers or links at once; {why}"
        if count == 1:
            text = f"fails {group[0].step.on}; {why}"
    if schedule.guard.max_faulty_brokers is None:
        text += f"; to permit it, set [guard] max_faulty_brokers = {count}"
    severity: Literal["error", "warning"] = "error"
    if not is_certain:
        severity = "warning"
        last = next(failure.end[0] for failure in group if failure.end[1] == "recovered")
        text += (
            f", unless {last} recovers quickly: anchor the later step at {last}.recovered, or "
            'bound it with await = { within = "10s" }'
        )
    step = group[-1].step
    key, value = ("at", str(step.at)) if step.at is not None else ("after", step.after)
    return schedule.problem(step, key, value, text, severity)


def _failures(
    schedule: FaultSchedule, topology: Topology, moments: Moments, machines: Machines | None
) -> Iterator[_Failure]:
    for step in schedule.steps:
        if step.do not in FAILING_VERBS:
            continue
        target = read_target(step.on, topology, step.do, machines)
        begin, end = (step.id, "applied"), (step.id, END)
        if step.do in ENDING_VERBS:
            restart = _restart_of(step, schedule, moments)
            end = (restart.id, "recovered") if restart else NEVER
        elements = frozenset(element for element in target.failed() if element)
        yield _Failure(step, elements, str(target), begin, end)


def _find_excess(
    failures: Sequence[_Failure], guard: FaultGuard, moments: Moments, is_certain: bool
) -> list[_Failure] | None:
    """Return failures of too many elements that can all overlap; None if there are none.

    With `is_certain`, recoveries without a bound count as quick.
    """

    def extend(group: list[_Failure], rest: Sequence[_Failure]) -> list[_Failure] | None:
        if guard.exceeds(_elements(group)):
            return group
        if not guard.exceeds(_elements([*group, *rest])):
            return None
        for place, failure in enumerate(rest):
            if all(_can_overlap(other, failure, moments, is_certain) for other in group):
                found = extend([*group, failure], rest[place + 1 :])
                if found:
                    return found
        return None

    return extend([], failures)


def _elements(group: Sequence[_Failure]) -> frozenset[Element]:
    return frozenset(element for failure in group for element in failure.elements)


def _can_overlap(a: _Failure, b: _Failure, moments: Moments, is_certain: bool) -> bool:
    both, alone = _count([a, b]), (_count([a]), _count([b]))
    if both in alone:
        return False  # one failure adds no element
    return not (_is_over(a, b, moments, is_certain) or _is_over(b, a, moments, is_certain))


def _count(group: Sequence[_Failure]) -> int:
    return len(find_failed_elements(_elements(group)))


def _is_over(first: _Failure, second: _Failure, moments: Moments, is_certain: bool) -> bool:
    """Return True if the first failure is certainly over when the second begins."""
    least, _ = moments.between(first.end, second.begin)
    if is_certain and least == -math.inf and first.end[1] == "recovered":
        least, _ = moments.between((first.end[0], "applied"), second.begin)
        return least > 0
    return least >= 0


def _check_fit(schedule: FaultSchedule, moments: Moments, measure_ns: int) -> Iterator[Problem]:
    for step in schedule.steps:
        ends_lasting = (step.id, END) if step.do in LASTING_VERBS else (step.id, "applied")
        earliest_ns, _ = moments.between(ORIGIN, (step.id, "applied"))
        _, latest_ns = moments.between(ORIGIN, ends_lasting)
        measure = format_duration(measure_ns)
        key, value = ("at", str(step.at)) if step.at is not None else ("after", step.after)
        if earliest_ns >= measure_ns:
            at = format_duration(int(earliest_ns))
            text = f"begins {at} after the origin at the earliest; measure is {measure}"
            yield schedule.problem(step, key, value, text)
        elif math.isfinite(latest_ns) and latest_ns > measure_ns:
            at = format_duration(int(latest_ns))
            text = f"may last until {at} after the origin; measure is {measure}"
            yield schedule.problem(step, key, value, text, "warning")


def targets_of(
    schedule: FaultSchedule, topology: Topology, machines: Machines | None = None
) -> Mapping[str, Target]:
    """Return the target of each step by step id. The schedule must have passed `lint`."""
    return {step.id: read_target(step.on, topology, step.do, machines) for step in schedule.steps}
