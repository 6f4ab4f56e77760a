"""Faults on servers of systems under test: what an agent can do to any process."""

from dataclasses import replace
from functools import cached_property
from typing import Final

from bench.run.testbed import Testbed
from bench.spec.spec import SpecError
from bench.systems.servers import SystemServers
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import RunningProtocol
from fault_injection.apply.deployed import DeployedBackend
from fault_injection.apply.injector import Evidence, Fault
from fault_injection.schedule.ends import End
from fault_injection.schedule.schedule import FaultSchedule

VERBS: Final = ("kill", "term", "freeze", "restart", "host-loss")
LEADER: Final = "leader"
"""As a step's target: the server that leads when the measurement begins."""


def check_verbs(schedule: FaultSchedule) -> None:
    """Refuse what only brokers of ours can have done to them.

    Raises:
        SpecError: names the step, and what can be done.
    """
    for step in schedule.steps:
        if step.do not in VERBS:
            raise SpecError(
                f"{schedule.source}: step {step.id}: do = {step.do!r} is nothing that can be done "
                f"to a system under test{nearest(step.do, VERBS)}"
            )


def aimed(schedule: FaultSchedule, leader: str) -> FaultSchedule:
    """The schedule with this server in the place of the leader."""
    steps = [
        step.model_copy(update={"on": leader}) if step.on == LEADER else step
        for step in schedule.steps
    ]
    return replace(schedule, steps=tuple(steps))


def names_leader(schedule: FaultSchedule) -> bool:
    """Whether any step's target is the leader."""
    return any(step.on == LEADER for step in schedule.steps)


class SystemBackend(DeployedBackend):
    """A FaultBackend on servers; what their processes do not show, the servers are asked for."""

    def __init__(self, testbed: Testbed, servers: SystemServers, ahead_ns: dict[str, int]) -> None:
        super().__init__(testbed, ahead_ns)
        self._servers = servers

    @cached_property
    def running(self) -> RunningProtocol:
        return RunningProtocol(self._deployment.topology, None, None)

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        if fault.verb != "restart":
            return await super().verify_effect(fault)
        (end,) = self._ends(fault)
        row = await end.row()
        if row["state"] != "running" or not await self._servers.is_up(end.broker):
            return None
        return {"pid": row["pid"], "start_time": row["start_time"]}

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        rows = [await end.row() for end in self._ends(fault)]
        gone = all(row["state"] == "running" and not row["frozen"] for row in rows)
        return {"gone": True} if gone else None

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        ends: list[End] = self._ends(fault, both=True)
        if not all([await self._servers.is_up(end.broker) for end in ends]):
            return None
        return {end.broker: {"state": "up"} for end in ends}
