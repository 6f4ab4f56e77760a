"""Faults on real processes: through the agents of their machines, seen in agents and brokers.

A link is broken at both of its ends, each towards the other; so each end's own counters show
it, and either end's death leaves the other half in force.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from brokerd.agent.client import AgentClient
from brokerd.overlay.topology import Topology
from fault_injection.injector import Evidence, Fault
from fault_injection.schedule import ENDING_VERBS

_COUNTED = (
    *("absorbed_messages", "absorbed_publications", "absorbed_bytes", "forwarded_since_applied"),
    *("dropped_frames", "sessions_down"),
)


class Place(Protocol):
    """Where a broker is: its host, and what that host's agent calls it."""

    @property
    def host(self) -> str: ...

    @property
    def process(self) -> str: ...


class Deployment(Protocol):
    """Brokers that run, and the agents of their hosts."""

    @property
    def agents(self) -> Mapping[str, AgentClient]: ...

    @property
    def brokers(self) -> Mapping[str, Place]: ...

    @property
    def topology(self) -> Topology: ...


class _End:
    """One process's share of a fault: the broker, or one end of a link."""

    def __init__(self, deployment: Deployment, fault: Fault, broker: str, peer: str) -> None:
        place = deployment.brokers[broker]
        self.broker = broker
        self.peer = peer
        self.process = place.process
        self.agent = deployment.agents[place.host]
        self.fault_id = f"{fault.fault_id}@{broker}" if peer else fault.fault_id

    async def command(self, command: str) -> dict[str, Any]:
        return await self.agent.broker(self.process, command)

    async def row(self) -> Mapping[str, Any]:
        """The process's row in its agent's status."""
        row = (await self.agent.status())["processes"][self.process]
        assert isinstance(row, dict), row
        return row


class DeployedBackend:
    """A FaultBackend on agents and brokers."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @property
    def topology(self) -> Topology:
        return self._deployment.topology

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        evidence: Evidence = {}
        for end in self._ends(fault):
            answer = await end.agent.fault_apply(
                end.fault_id,
                fault.verb,
                end.process,
                peer=end.peer,
                # Each end stops what it sends; a broker as a whole, all that comes and goes.
                direction="out" if end.peer else "both",
                lease_ms=lease_ns // 1_000_000,
                parameters={"signal": fault.signal} if fault.verb == "kill" else None,
            )
            found = {k: v for k, v in answer["result"].items() if not k.startswith("t_")}
            evidence.update({end.broker: found} if end.peer else found)
            # A fault of two halves is applied when the second one is.
            evidence["t_ns"] = max(evidence.get("t_ns", 0), answer["t_applied_ns"])
        return evidence

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        if fault.verb in ENDING_VERBS:
            return await self._see_end(fault)
        if fault.verb == "restart":
            return await self._see_start(fault)
        if fault.verb == "freeze":
            (end,) = self._ends(fault)
            row = await end.row()
            return {"pid": row["pid"], "process_state": "T"} if row["frozen"] else None
        if fault.verb == "cut":
            return await self._see_sessions_down(fault)
        counters = await self._counters(fault)
        if fault.verb == "blackhole":
            # It drops nothing by itself: frames wait, until the failure detector gives up.
            return counters if counters["dropped_frames"] or counters["sessions_down"] else None
        holds = counters["absorbed_messages"] and not counters["forwarded_since_applied"]
        return counters if holds else None

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        for end in self._ends(fault):
            await end.agent.fault_renew(end.fault_id, lease_ns // 1_000_000)

    async def undo(self, fault: Fault) -> Evidence:
        evidence: Evidence = {}
        for end in self._ends(fault):
            row = await end.agent.fault_heal(end.fault_id)
            healed_ns = row.get("t_healed_ns")
            if healed_ns is not None:
                evidence["t_ns"] = max(evidence.get("t_ns", 0), healed_ns)
        return evidence

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        for end in self._ends(fault):
            row = await end.row()
            if row["state"] != "running":
                continue  # its faults died with it
            if row["frozen"]:
                return None
            if fault.verb != "freeze" and end.fault_id in (await end.command("status"))["faults"]:
                return None
        return {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        seen: Evidence = {}
        for end in self._ends(fault, both=True):
            status = await end.command("status")
            direct = _direct(status)
            missing = [name for name in status["wanted"] if name not in direct]
            if status["state"] != "running" or missing:
                return None
            seen[end.broker] = {"state": status["state"], "sessions": len(status["ready"])}
        return seen

    # ------------------------------------------------------------ effects

    async def _see_end(self, fault: Fault) -> Evidence | None:
        (end,) = self._ends(fault)
        row = await end.row()
        if row["state"] == "running" or row["exit_cause"] != f"fault:{fault.fault_id}":
            return None
        keys = ("pid", "exit_code", "exit_signal", "exit_cause")
        return {"t_ns": row["t_exit_ns"], **{key: row[key] for key in keys}}

    async def _see_start(self, fault: Fault) -> Evidence | None:
        (end,) = self._ends(fault)
        row, status = await end.row(), await end.command("status")
        if row["state"] != "running" or status["pid"] != row["pid"]:
            return None
        keys = ("pid", "start_time")
        return {"incarnation": status["incarnation"], **{key: row[key] for key in keys}}

    async def _see_sessions_down(self, fault: Fault) -> Evidence | None:
        seen: Evidence = {}
        for end in self._ends(fault, both=True):
            others = [end.peer] if end.peer else self._neighbours(end.broker)
            ready = _direct(await end.command("status"))
            if any(other in ready for other in others):
                return None
            seen[end.broker] = {"ready": ready}
            if not end.peer:
                for other in others:
                    place = self._deployment.brokers[other]
                    agent = self._deployment.agents[place.host]
                    if end.broker in _direct(await agent.broker(place.process, "status")):
                        return None
        return seen

    async def _counters(self, fault: Fault) -> Evidence:
        """The counters of both halves, summed."""
        total: Evidence = dict.fromkeys(_COUNTED, 0)
        for end in self._ends(fault):
            own = (await end.command("fault_counters"))[end.fault_id]
            for name in total:
                total[name] += own[name]
        return total

    def _ends(self, fault: Fault, both: bool = False) -> Iterator[_End]:
        """Whom the fault is done at; with `both`, also the far end of a one-way link."""
        brokers = fault.target.brokers
        if not fault.target.is_link:
            yield _End(self._deployment, fault, brokers[0], "")
            return
        a, b = brokers
        yield _End(self._deployment, fault, a, b)
        if both or not fault.target.one_way:
            yield _End(self._deployment, fault, b, a)

    def _neighbours(self, broker: str) -> list[str]:
        number = self.topology.number_of(broker)
        return [self.topology.brokers[other] for other in self.topology.neighbours()[number]]


def _direct(status: Evidence) -> list[str]:
    """With whom a broker has a session over a link of its own, not through a third broker."""
    return [name for name in status["ready"] if name not in status.get("relayed", ())]
