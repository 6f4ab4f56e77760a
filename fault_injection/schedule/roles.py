"""Targets by role: brokers and clients that a schedule names by their part in the load.

A schedule with roles fits brokers of any names. "publishers" is the broker of the first publisher,
"subscribers" the broker of the first subscriber. "publisher 1" and "subscriber 2" are clients,
numbered in the order of the workload.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from brokerd.model.fault_verbs import CLIENT_VERBS
from fault_injection.schedule.schedule import FaultSchedule, Problem, ScheduleError
from fault_injection.schedule.step import Step

ROLES: Final = ("publisher", "subscriber")
_CLIENT: Final = re.compile(rf"({'|'.join(ROLES)}) ([1-9][0-9]{{0,5}})\Z")

Placed = Sequence[tuple[str, str]]
"""Clients in their order: name, and broker that the client is attached to."""


def placed(schedule: FaultSchedule, publishers: Placed, subscribers: Placed) -> FaultSchedule:
    """Return the schedule with names in place of roles. A broker name precedes an equal role name.

    Raises:
        ScheduleError: the load has no client with this role and number.
    """
    clients = dict(zip(ROLES, (publishers, subscribers), strict=True))
    brokers = {broker for each in clients.values() for _, broker in each}
    steps, problems = [], []
    for step in schedule.steps:
        try:
            on = step.on if step.on in brokers else _named(step, clients)
        except LookupError as error:
            problems.append(Problem(schedule.source, step.id, "on", step.on, str(error.args[0])))
            continue
        steps.append(step if on == step.on else step.model_copy(update={"on": on}))
    if problems:
        raise ScheduleError(problems)
    return replace(schedule, steps=tuple(steps))


def _named(step: Step, clients: dict[str, Placed]) -> str:
    for role, those in clients.items():
        if step.on == f"{role}s" and step.do not in CLIENT_VERBS:
            if not those:
                raise LookupError(f"the load has no {role}")
            return those[0][1]
    found = _CLIENT.match(step.on)
    if found is None or step.do not in CLIENT_VERBS:
        return step.on
    role, number = found[1], int(found[2])
    if number > len(clients[role]):
        raise LookupError(f"the load has {len(clients[role])} {role}s")
    return clients[role][number - 1][0]
