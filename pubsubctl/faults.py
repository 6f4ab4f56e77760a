"""Fault schedules at the command line: from a file or from one verb, checked, and shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerd.overlay.topology import Topology, nearest
from fault_injection.lint import lint
from fault_injection.schedule import (
    SCHEMA,
    FaultSchedule,
    Problem,
    ScheduleError,
    load_schedule,
    read_schedule,
    wrong_target,
)
from fault_injection.targets import Machines, read_target
from fault_injection.verbs import LINK_VERBS, VERBS
from pubsubctl.errors import UserError
from pubsubctl.files import shown
from pubsubctl.project import Project

COMMAND_LINE = "command line"


def schedule_of(project: Project, name: str) -> FaultSchedule:
    """The schedule in a file.

    Raises:
        UserError: there is none, or steps are wrong by themselves; every problem is named.
    """
    return _loaded(project.find("schedule", name))


def one_step(verb: str, target: str, options: Mapping[str, Any]) -> FaultSchedule:
    """The schedule of a single verb, done at once.

    Args:
        options: of the step: for, signal, stall, down; None where not given.

    Raises:
        UserError: no such verb, or an option it does not take.
    """
    if verb not in VERBS:
        raise UserError(f"inject: no verb called {shown(verb)}{nearest(verb, VERBS)}")
    given = {key: value for key, value in options.items() if value is not None}
    step = {"at": "0s", "do": verb, "on": target, **given}
    document = {"schema": SCHEMA, "name": f"{verb}-{target}".lower(), "step": [step]}
    try:
        return read_schedule(document, COMMAND_LINE)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def checked(
    schedule: FaultSchedule,
    topology: Topology,
    *,
    measure_ns: int | None = None,
    machines: Machines | None = None,
) -> list[str]:
    """Warnings about a schedule on this topology, placed on these machines where that is known.

    Raises:
        UserError: it cannot be carried out there; every problem is named.
    """
    problems = (
        _targets(schedule, topology, machines)
        if schedule.source == COMMAND_LINE
        else lint(schedule, topology, measure_ns=measure_ns, machines=machines)
    )
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if errors:
        raise UserError(*errors)
    return [str(problem) for problem in problems]


def _loaded(path: Path) -> FaultSchedule:
    try:
        return load_schedule(path)
    except ScheduleError as error:
        raise UserError(*map(str, error.problems)) from None


def _targets(
    schedule: FaultSchedule, topology: Topology, machines: Machines | None
) -> Sequence[Problem]:
    """What is wrong with the targets; a single verb is free to do what no schedule should."""
    found: list[Problem] = []
    for step in schedule.steps:
        try:
            target = read_target(step.on, topology, step.do, machines)
        except ValueError as error:
            found.append(Problem(COMMAND_LINE, step.id, "on", step.on, str(error)))
            continue
        if target.is_link and step.do not in LINK_VERBS:
            found.append(Problem(COMMAND_LINE, step.id, "on", step.on, wrong_target(step.do)))
    return found
