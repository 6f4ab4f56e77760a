"""Checks of the steps of a schedule that target clients of the load."""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    CRASH,
    DISCONNECT,
    ENDING_VERBS,
    FAILING_VERBS,
    ROAM,
    SLOW,
    VERB_TABLE,
)
from brokerd.overlay.topology import Topology, nearest
from brokerd.units import format_duration
from fault_injection.schedule.schedule import FaultSchedule, Problem
from fault_injection.schedule.step import END, STARTED_WITHIN_NS, Step
from fault_injection.schedule.targets import Clients, Role

Between = Callable[[tuple[str, str], tuple[str, str]], tuple[float, float]]
"""Least and greatest time from a stage of a step to a stage of another step."""

RECONNECTS_WITHIN_NS: Final = 2_000_000_000
"""Longest time in which a client reconnects once a fault lets it."""


def check_clients(
    schedule: FaultSchedule,
    topology: Topology,
    clients: Clients | None,
    client_linger_ns: int | None,
    *,
    publishers_roam: bool = False,
) -> Iterator[Problem]:
    """Yield steps that name a missing client or a missing broker, or that last too long.

    Without `clients` every client is assumed to exist. Without `client_linger_ns` brokers are
    assumed to keep state of absent clients. With `publishers_roam` a publisher remains the same
    source at another broker.
    """
    for step in _steps(schedule):
        if clients is None:
            text = "which clients there are is seen only with a workload: bench WORKLOAD --faults"
            yield schedule.problem(step, "on", step.on, text, "warning")
        elif step.on not in clients:
            text = f"the load has no client called {step.on!r}{nearest(step.on, list(clients))}"
            yield schedule.problem(step, "on", step.on, text)
        elif publishers_roam and step.do == ROAM and clients[step.on] == "publisher":
            pass
        elif not _kinds(clients[step.on]).intersection(VERB_TABLE[step.do].on):
            role = clients[step.on]
            article = "an" if role[0] in "aeiou" else "a"
            text = f"is {article} {role}; {step.do} is for {VERB_TABLE[step.do].on[0]}s"
            if step.do == ROAM and role == "publisher":
                text += ", and for publishers that are the same source at another broker"
            yield schedule.problem(step, "on", step.on, text)
        if step.to is not None and step.to not in topology.present():
            text = f"no broker called {step.to!r}{nearest(step.to, topology.present())}"
            yield schedule.problem(step, "to", step.to, text)
        yield from _check_length(schedule, step, topology, client_linger_ns)


def _kinds(role: Role) -> set[str]:
    """Return the target kinds of a client; a client with a process of its own has only one kind."""
    return {role} if role == "own-process subscriber" else {role, "client"}


def _check_length(
    schedule: FaultSchedule, step: Step, topology: Topology, linger_ns: int | None
) -> Iterator[Problem]:
    if step.lasts is None:
        return
    longest_ns = step.lasts.high_ns
    slow_after_ns = topology.session_parameters().slow_after_ns
    longest_away_ns = longest_ns + RECONNECTS_WITHIN_NS
    if linger_ns is not None and step.do == DISCONNECT and longest_away_ns > linger_ns:
        text = (
            f"is disconnected for up to {format_duration(longest_ns)} and reconnects within "
            f"{format_duration(RECONNECTS_WITHIN_NS)}, but a broker keeps the state of a client "
            f"for {format_duration(linger_ns)} (client_linger_ns)"
        )
        yield schedule.problem(step, "for", str(step.lasts), text)
    if linger_ns is not None and step.down is not None and step.down.high_ns > linger_ns:
        text = (
            f"a broker keeps the state of a client for {format_duration(linger_ns)} "
            "(client_linger_ns), and owed deliveries after that do not arrive"
        )
        yield schedule.problem(step, "down", str(step.down), text, "warning")
    if step.do == SLOW and longest_ns > slow_after_ns:
        text = (
            f"accepts nothing for up to {format_duration(longest_ns)}; a broker evicts a "
            f"subscriber that others have waited for during {format_duration(slow_after_ns)} "
            "(slow_after), and owed deliveries after that do not arrive"
        )
        yield schedule.problem(step, "for", str(step.lasts), text, "warning")


def check_client_overlaps(schedule: FaultSchedule, between: Between) -> Iterator[Problem]:
    """Yield clients under two faults at once, and moves of clients while a broker or link fails."""
    for one, other in combinations(_steps(schedule), 2):
        if one.on == other.on and not _is_disjoint(one, other, schedule, between):
            is_later = between(_begin(one), _begin(other))[1] >= 0
            first, second = (one, other) if is_later else (other, one)
            stage = "observed" if first.do == ROAM else "recovered"
            text = f"{one.on} may still be under {first.id}; anchor the step at {first.id}.{stage}"
            yield schedule.problem(second, *_moment(second), text)
    for roam in (step for step in _steps(schedule) if step.do == ROAM):
        for failure in (step for step in schedule.steps if step.do in FAILING_VERBS):
            if not _is_disjoint(roam, failure, schedule, between):
                text = (
                    f"{failure.id} may be in force while {roam.on} moves; what its broker cannot "
                    "deliver then, it never does"
                )
                yield schedule.problem(roam, *_moment(roam), text, "warning")


def _is_disjoint(one: Step, other: Step, schedule: FaultSchedule, between: Between) -> bool:
    """Return True if one step is certainly over when the other step begins."""
    return any(
        _is_over(first, second, schedule, between) for first, second in ((one, other), (other, one))
    )


def _is_over(first: Step, second: Step, schedule: FaultSchedule, between: Between) -> bool:
    begin = _begin(second)
    if first.do in ENDING_VERBS:
        restarts = [step for step in schedule.steps if (step.do, step.on) == ("restart", first.on)]
        return any(
            between(_begin(first), _begin(step))[0] >= 0
            and between((step.id, "recovered"), begin)[0] >= 0
            for step in restarts
        )
    if first.do == ROAM:
        return (
            between((first.id, "observed"), begin)[0] >= 0
            or between(_begin(first), begin)[0] >= STARTED_WITHIN_NS
        )
    pause_ns = RECONNECTS_WITHIN_NS if first.do in (DISCONNECT, CRASH) else 0
    return (
        between((first.id, "recovered"), begin)[0] >= 0
        or between((first.id, END), begin)[0] >= pause_ns
    )


def _steps(schedule: FaultSchedule) -> list[Step]:
    return [step for step in schedule.steps if step.do in CLIENT_VERBS]


def _begin(step: Step) -> tuple[str, str]:
    return step.id, "applied"


def _moment(step: Step) -> tuple[str, object]:
    return ("at", str(step.at)) if step.at is not None else ("after", step.after)
