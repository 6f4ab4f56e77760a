"""Faults on servers of systems under test, which an agent can apply to any process."""

from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from bench.run.testbed import Testbed
from bench.spec.validation import SpecError
from bench.systems.boundary import System
from bench.systems.servers import HOST, RELAY, SystemServers
from bench.systems.synced_files import is_possible
from brokerd.agent.client import AgentClient
from brokerd.model.fault_verbs import DISK_VERBS, RELAY_VERBS, SYSTEM_VERBS
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import RunningProtocol
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.evidence import End, check_is_running
from fault_injection.apply.interface import Evidence, Fault
from fault_injection.schedule.schedule import FaultSchedule

_PROBE_MS: Final = 300
LEADER: Final = "leader"
"""Target of a step: the server that leads when the measurement begins."""


def check_verbs(schedule: FaultSchedule) -> None:
    """Refuse verbs that only the project's brokers support, or that this machine does not support.

    Raises:
        SpecError: names the step, and valid verbs.
    """
    for step in schedule.steps:
        if step.do not in SYSTEM_VERBS:
            raise SpecError(
                f"{schedule.source}: step {step.id}: do = {step.do!r} is nothing that can be done "
                f"to a system under test{nearest(step.do, SYSTEM_VERBS)}"
            )
        if step.do in DISK_VERBS and not is_possible():
            raise SpecError(
                f"{schedule.source}: step {step.id}: do = {step.do!r}: only Linux on x86_64 can "
                "stand between a program of others and its disk"
            )


def check_links(schedule: FaultSchedule, system: System) -> None:
    """Refuse steps that no relay supports between the servers of this system.

    Raises:
        SpecError: names the step, and valid targets.
    """
    for step in schedule.steps:
        if step.do not in RELAY_VERBS:
            continue
        if step.backend == "nft":
            raise SpecError(
                f"{schedule.source}: step {step.id}: backend = 'nft': links of systems under test "
                "are broken by a relay; leave it out"
            )
        if system.dials is None and "-" in (step.on or ""):
            raise SpecError(
                f"{schedule.source}: step {step.id}: on = {step.on!r}: servers of {system.title} "
                "find each other by themselves, and no relay can be between them; a server's own "
                "name means what its clients have with it"
            )


def needs_relay(schedule: FaultSchedule | None) -> bool:
    """Return True if a step targets a link."""
    return schedule is not None and any(step.do in RELAY_VERBS for step in schedule.steps)


def needs_disk(schedule: FaultSchedule | None) -> bool:
    """Return True if a step targets a disk."""
    return schedule is not None and any(step.do in DISK_VERBS for step in schedule.steps)


def aim_at(schedule: FaultSchedule, leader: str) -> FaultSchedule:
    """Return the schedule with this server in place of the leader."""
    steps = [
        step.model_copy(update={"on": leader}) if step.on == LEADER else step
        for step in schedule.steps
    ]
    return replace(schedule, steps=tuple(steps))


def names_leader(schedule: FaultSchedule) -> bool:
    """Return True if a step targets the leader."""
    return any(step.on == LEADER for step in schedule.steps)


class SystemBackend(DeployedBackend):
    """A FaultBackend for servers; evidence is from processes, relay and disks."""

    def __init__(self, testbed: Testbed, servers: SystemServers, ahead_ns: dict[str, int]) -> None:
        super().__init__(testbed, ahead_ns)
        self._servers = servers

    @cached_property
    def running(self) -> RunningProtocol:
        return RunningProtocol(self._deployment.topology, None, None)

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        if fault.verb not in RELAY_VERBS:
            return await super().apply(fault, lease_ns)
        link, direction = relay_names(fault)
        answer = await self._relay.fault_apply(
            fault.fault_id, fault.verb, RELAY, peer=link, direction=direction,
            lease_ms=lease_ns // 1_000_000, parameters=dict(fault.parameters),
        )  # fmt: skip
        return self._add_times({"link": link, "way": direction}, {HOST: answer["t_applied_ns"]})

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        if fault.verb not in RELAY_VERBS:
            await super().renew(fault, lease_ns)
            return
        await self._relay.fault_renew(fault.fault_id, lease_ns // 1_000_000)

    async def undo(self, fault: Fault) -> Evidence:
        if fault.verb not in RELAY_VERBS:
            return await super().undo(fault)
        row = await self._relay.fault_heal(fault.fault_id)
        return self._add_times({}, {HOST: row["t_healed_ns"]} if row.get("t_healed_ns") else {})

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        if fault.verb in RELAY_VERBS:
            counted = (await self._relay.broker(RELAY, "fault_counters"))[fault.fault_id]
            return effect_seen(fault, counted, await self._probe(fault))
        if fault.verb in DISK_VERBS:
            return await self._disk_seen(fault)
        if fault.verb != "restart":
            return await super().verify_effect(fault)
        (end,) = self._ends(fault)
        row = await end.row()
        check_is_running(end, row)
        if not await self._servers.is_up(end.broker):
            return None
        return {"pid": row["pid"], "start_time": row["start_time"]}

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        if fault.verb in RELAY_VERBS:
            status = await self._relay.broker(RELAY, "status")
            if fault.fault_id in status["faults"]:
                return None
            if status["faults"]:
                return {"gone": True}  # a probe may meet another fault
            return verify_undone(fault, await self._probe(fault))
        if fault.verb in DISK_VERBS:
            return await super().verify_undone(fault)
        rows = [await end.row() for end in self._ends(fault)]
        undone = all(row["state"] == "running" and not row["frozen"] for row in rows)
        return {"gone": True} if undone else None

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        ends: list[End] = self._ends(fault, both=True)
        if not all([await self._servers.is_up(end.broker) for end in ends]):
            return None
        return {end.broker: {"state": "up"} for end in ends}

    async def _disk_seen(self, fault: Fault) -> Evidence | None:
        """Return evidence from the server's own disk operations, or None."""
        (end,) = self._ends(fault)
        counted = (await end.command("fault_counters")).get(end.fault_id)
        if counted is None:
            return None  # a restarted server has lost the fault
        name = "refused_writes" if fault.verb == "disk-full" else "slowed_writes"
        return {k: n for k, n in counted.items() if n} if counted[name] else None

    @property
    def _relay(self) -> AgentClient:
        return self._deployment.agents[HOST]

    async def _probe(self, fault: Fault) -> dict[str, Any]:
        """Return the time of a byte over the link in each direction, in µs; -1 if lost."""
        link, _ = relay_names(fault)
        within_ms = 2 * int(fault.parameters.get("delay_ms", 0)) + _PROBE_MS
        return await self._relay.broker(RELAY, "probe", {"link": link, "within_ms": within_ms})


def relay_names(fault: Fault) -> tuple[str, str]:
    """Return link and direction of a fault by the relay's names."""
    target = fault.target
    if not target.is_link:
        return target.brokers[0], "both"
    first, second = sorted(target.brokers)
    is_out = target.brokers[0] == first
    direction = "both" if not target.one_way else "out" if is_out else "in"
    return f"{first}-{second}", direction


def _ways(fault: Fault) -> tuple[str, ...]:
    direction = relay_names(fault)[1]
    return ("out_us", "in_us") if direction == "both" else (f"{direction}_us",)


def effect_seen(fault: Fault, counted: dict[str, int], probed: dict[str, int]) -> Evidence | None:
    """Return evidence of a relay's fault, from counts of the load and a probe, or None."""
    took = [probed[way] for way in _ways(fault)]
    if fault.verb == "cut":
        seen = all(us < 0 for us in took)
    elif fault.verb == "blackhole":
        seen = all(us < 0 for us in took) and counted["dropped_frames"] > 0
    elif fault.verb == "delay":
        least_us = int(fault.parameters["delay_ms"]) * 1_000
        seen = all(us >= least_us for us in took)
    else:
        seen = counted["limited_messages"] > 0
    return {**{k: n for k, n in counted.items() if n}, "probe": probed} if seen else None


def verify_undone(fault: Fault, probed: dict[str, int]) -> Evidence | None:
    """Return evidence that a fault is undone: a probe passes in time in each direction."""
    took = [probed[way] for way in _ways(fault)]
    limit_us = int(fault.parameters.get("delay_ms", _PROBE_MS)) * 1_000
    return {"gone": True, "probe": probed} if all(0 <= us < limit_us for us in took) else None
