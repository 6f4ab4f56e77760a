"""Fault schedules at the command line: from a file or from a single verb, checked and printed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokerd.model.fault_verbs import CLIENT_VERBS, FAILING_VERBS, LINK_VERBS, VERBS
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol, parameters_on, protocol_on
from brokerd.text import nearest
from fault_injection.schedule.limits import FaultGuard
from fault_injection.schedule.lint import check_backends, lint
from fault_injection.schedule.plan import Placed, draw_targets, resolve_roles
from fault_injection.schedule.schedule import (
    SCHEMA,
    FaultSchedule,
    Problem,
    ScheduleError,
    load_schedule,
    read_schedule,
    wrong_target,
)
from fault_injection.schedule.step import MOST_PICKED
from fault_injection.schedule.targets import Clients, Machines, read_target
from pubsubctl.deployment.placement import Placement
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.project import Project

COMMAND_LINE = "command line"
CLIENTS_BY_SCHEDULE = (
    "client faults need a running load: use `pubsubctl bench WORKLOAD "
    "--faults SCHEDULE`, see `pubsubctl help faults`"
)


def schedule_of(
    project: Project, name: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> FaultSchedule:
    """Return the schedule in a file.

    Args:
        changes: by id of a step, values that replace values of the file.

    Raises:
        UserError: the schedule is missing, or steps are invalid; names every problem.
    """
    return _load(project.find("schedule", name), changes)


def one_step(verb: str, target: str, options: Mapping[str, Any]) -> FaultSchedule:
    """Return the schedule of a single verb, applied at once.

    Args:
        target: "" if `options` has a pick.
        options: options of the step: for, signal, stall, down, pick; None if not given.

    Raises:
        UserError: unknown verb, or an option that the verb does not take.
    """
    if verb not in VERBS:
        raise UserError(f"inject: no verb called {shown(verb)}{nearest(verb, VERBS)}")
    if verb in CLIENT_VERBS:
        raise UserError(f"inject: {verb} {shown(target)}: {CLIENTS_BY_SCHEDULE}")
    given = {key: value for key, value in options.items() if value is not None}
    step = {"at": "0s", "do": verb, **({"on": target} if target else {}), **given}
    name = f"{verb}-{target or 'picked'}".lower()
    guard = {"max_faulty_brokers": MOST_PICKED}
    document = {"schema": SCHEMA, "name": name, "guard": guard, "step": [step]}
    try:
        return read_schedule(document, COMMAND_LINE)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def check_by_hand(schedule: FaultSchedule) -> None:
    """Refuse steps that need a bench.

    Raises:
        UserError: a step targets clients of a load.
    """
    for step in schedule.steps:
        if step.do in CLIENT_VERBS:
            raise UserError(
                f"{schedule.source}: step {step.id}: {step.do} {step.on}: {CLIENTS_BY_SCHEDULE}"
            )


def bind_to_load(schedule: FaultSchedule, publishers: Placed, subscribers: Placed) -> FaultSchedule:
    """Return the schedule with names of the load's brokers and clients replaced by real names.

    Raises:
        UserError: the load lacks a named broker or client; names every problem.
    """
    try:
        return resolve_roles(schedule, publishers, subscribers)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def settle_schedule(
    schedule: FaultSchedule,
    topology: Topology,
    seed: int | None = None,
    placement: Placement | None = None,
    protocol: str | None = None,
) -> FaultSchedule:
    """Return the schedule for this topology, with every random target drawn by the seed.

    Args:
        seed: replaces the schedule's own seed.
        protocol: the running protocol; None for the default protocol of the topology.

    Raises:
        UserError: the elements to pick from are missing, or too few.
    """
    try:
        machines = placement.machines() if placement else None
        return draw_targets(schedule, topology, seed, machines=machines, protocol=protocol)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def check_schedule(
    schedule: FaultSchedule,
    topology: Topology,
    *,
    measure_ns: int | None = None,
    placement: Placement | None = None,
    clients: Clients | None = None,
    protocol: str | None = None,
) -> list[str]:
    """Return warnings about a schedule on this topology, with the placement if available.

    Args:
        clients: the clients of the accompanying load, if any.
        protocol: the running protocol; None for the default protocol of the topology.

    Raises:
        UserError: the schedule cannot be carried out there; names every problem.
    """
    machines = placement.machines() if placement else None
    addresses = placement.addresses() if placement else None
    if schedule.source == COMMAND_LINE:
        known = protocol_on(topology, protocol)
        problems = _targets(schedule, known, machines)
        if addresses is not None and not any(row.severity == "error" for row in problems):
            problems += list(check_backends(schedule, known, addresses))
    else:
        client_linger_ns: int | None = None
        if clients is not None and protocol is not None:
            client_linger_ns = parameters_on(topology, protocol).client_linger_ns
        problems = lint(
            schedule,
            topology,
            measure_ns=measure_ns,
            machines=machines,
            addresses=addresses,
            clients=clients,
            client_linger_ns=client_linger_ns,
            protocol=protocol,
        )
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if errors:
        raise UserError(*errors)
    return [str(problem) for problem in problems]


def _load(path: Path, changes: Mapping[str, Mapping[str, Any]] | None = None) -> FaultSchedule:
    try:
        return load_schedule(path, changes)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def _targets(
    schedule: FaultSchedule, known: RunningProtocol, machines: Machines | None
) -> list[Problem]:
    """Return problems with the targets; a single verb may do more than a schedule should."""
    found: list[Problem] = []
    failed: set[frozenset[str]] = set()
    for step in schedule.steps:
        try:
            target = read_target(step.on, known.topology, step.do, machines)
        except ValueError as error:
            found.append(Problem(COMMAND_LINE, step.id, "on", step.on, str(error)))
            continue
        if target.is_link and step.do not in LINK_VERBS:
            found.append(Problem(COMMAND_LINE, step.id, "on", step.on, wrong_target(step.do)))
        if step.do in FAILING_VERBS:
            failed |= {element for element in target.failed() if element}
    guard = FaultGuard(known)
    if guard.exceeds(failed):
        text = f"fails {len(failed)} brokers or links at once; {guard.explain(failed)}"
        found.append(Problem(COMMAND_LINE, "", "", None, text, "warning"))
    return found
