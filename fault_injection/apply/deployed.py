"""Faults on real processes, applied by agents and observed at agents and brokers.

A link is broken at both of its ends, at each towards the other. So the counters of each end show
the fault, and the end of one process leaves the other half in force. A partition is applied at
every broker in a set, and the loss of a machine at every broker on the machine.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import MACHINE_VERBS, STANDING_VERBS
from brokerd.protocols.interface import CoreStatus
from brokerd.protocols.registry import RunningProtocol, protocol_on
from fault_injection.apply.evidence import (
    Deployment,
    End,
    direct_sessions,
    look_for,
    on_all,
    see_sessions_down,
)
from fault_injection.apply.injector import Evidence, Fault
from fault_injection.schedule.targets import check_nft_can_tell, parted_pairs


class DeployedBackend:
    """A FaultBackend for agents and brokers.

    Args:
        ahead_ns: host → lead of the host's clock over the clock of the injector; 0 for any other
            host.
    """

    def __init__(self, deployment: Deployment, ahead_ns: Mapping[str, int] | None = None) -> None:
        self._deployment = deployment
        self._ahead_ns = ahead_ns or {}

    @cached_property
    def running(self) -> RunningProtocol:
        return protocol_on(self._deployment.topology, self._deployment.protocol)

    @property
    def machines(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for broker, place in self._deployment.brokers.items():
            found.setdefault(place.host, []).append(broker)
        return found

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        ends = self._ends(fault)
        if fault.parameters.get("backend") == "nft":
            pairs = parted_pairs(fault.target, self.running.around)
            try:
                check_nft_can_tell(pairs, self._addresses(), self.running.around)
            except ValueError as error:
                raise ControlError("user", f"{fault.fault_id}: {error}") from None

        async def apply(end: End) -> dict[str, Any]:
            return await end.agent.fault_apply(
                end.fault_id,
                fault.verb,
                end.process,
                peer=end.peer,
                # Each end of a link stops its output; a broker stops both input and output.
                direction="out" if end.peer else "both",
                lease_ms=lease_ns // 1_000_000,
                parameters=self._parameters(fault, end),
            )

        evidence: Evidence = {}
        stamps: dict[str, int] = {}
        for end, answer in zip(ends, await on_all(ends, apply), strict=True):
            found = {k: v for k, v in answer["result"].items() if not k.startswith("t_")}
            evidence.update({end.broker: found} if len(ends) > 1 or end.peer else found)
            stamps[end.host] = max(stamps.get(end.host, 0), answer["t_applied_ns"])
        return self._timed(evidence, stamps)

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        ends = self._ends(fault)
        if fault.verb == "cut":
            far = self._ends(fault, both=True)
            return await see_sessions_down(far, self._neighbours, self._broker_status)
        seen = await look_for(fault.verb)(fault, ends)
        return self._timed(seen, seen.pop("host_stamps", {})) if seen is not None else None

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        async def renew(end: End) -> None:
            await end.agent.fault_renew(end.fault_id, lease_ns // 1_000_000)

        await on_all(self._ends(fault), renew)

    async def undo(self, fault: Fault) -> Evidence:
        async def undo(end: End) -> dict[str, Any]:
            return await end.agent.fault_heal(end.fault_id)

        ends = self._ends(fault)
        stamps: dict[str, int] = {}
        for end, row in zip(ends, await on_all(ends, undo), strict=True):
            healed_ns = row.get("t_healed_ns")
            if healed_ns is not None:
                stamps[end.host] = max(stamps.get(end.host, 0), healed_ns)
        return self._timed({}, stamps)

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        async def is_gone(end: End) -> bool:
            row = await end.row()
            if fault.parameters.get("backend") == "nft":
                return (
                    not await self._is_known(end)
                    or not (await end.agent.fault_look(end.fault_id))["present"]
                )
            if row["state"] != "running":
                return fault.verb not in MACHINE_VERBS  # other faults ended with the process
            if row["frozen"]:
                return False
            if fault.verb == "cpu-share":
                return not (await end.agent.fault_look(end.fault_id))["present"]
            if fault.verb in (*STANDING_VERBS, *MACHINE_VERBS):
                return True
            return end.fault_id not in (await end.command("status"))["faults"]

        gone = await on_all(self._ends(fault), is_gone)
        return {"gone": True} if all(gone) else None

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        seen: Evidence = {}
        for end in self._ends(fault, both=True):
            status = await end.command("status")
            direct = direct_sessions(status)
            core = CoreStatus.from_mapping(status)
            if core.state != "running" or any(name not in direct for name in core.wanted):
                return None
            seen[end.broker] = {"state": core.state, "sessions": len(core.ready)}
        return seen

    def _timed(self, evidence: Evidence, stamps: Mapping[str, int]) -> Evidence:
        """Add times to the evidence: a fault of several parts is complete with the last part."""
        if stamps:
            evidence["host_stamps"] = dict(stamps)
            on_line = [ns - self._ahead_ns.get(host, 0) for host, ns in stamps.items()]
            evidence["t_ns"] = max(on_line)
        return evidence

    # ------------------------------------------------------------ ends of faults

    def _ends(self, fault: Fault, both: bool = False) -> list[End]:
        """Return the ends of a fault; with `both`, include the far end of a one-way link."""
        target, deployment = fault.target, self._deployment
        if target.machine:
            return [End(deployment, fault, one, is_one_of_many=True) for one in target.brokers]
        if target.sets:
            return self._ends_of_partition(fault)
        if not target.is_link:
            return [End(deployment, fault, target.brokers[0])]
        a, b = target.brokers
        ends = [End(deployment, fault, a, b)]
        if both or not target.one_way:
            ends.append(End(deployment, fault, b, a))
        return ends

    def _ends_of_partition(self, fault: Fault) -> list[End]:
        ends = []
        for broker in self.running.topology.brokers:
            around = self.running.around(broker)
            across = fault.target.others(broker, around)
            # A lone set is kept from all other brokers, which need no fault of their own.
            if across and broker in fault.target.brokers:
                end = End(self._deployment, fault, broker, is_one_of_many=True)
                end.across = across
                end.inside = tuple(name for name in around if name not in across)
                ends.append(end)
        return ends

    def _parameters(self, fault: Fault, end: End) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(fault.parameters)
        if fault.verb == "kill":
            parameters["signal"] = fault.signal
        if end.across:
            parameters["peers"] = list(end.across)
        if parameters.get("backend") == "nft":
            addresses = self._addresses()
            parameters["own"] = addresses[end.broker]
            parameters["peers"] = [addresses[peer] for peer in self._peers_of(end)]
            parameters["protect"] = list(self._deployment.protected_ports)
        return parameters

    def _peers_of(self, end: End) -> Sequence[str]:
        if end.across:
            return end.across
        return [end.peer] if end.peer else self.running.around(end.broker)

    def _neighbours(self, broker: str) -> list[str]:
        topology = self.running.topology
        near = topology.neighbours()[topology.number_of(broker)]
        return [topology.brokers[other] for other in near]

    def _addresses(self) -> dict[str, str]:
        return {broker: place.address for broker, place in self._deployment.brokers.items()}

    async def _broker_status(self, broker: str) -> dict[str, Any]:
        place = self._deployment.brokers[broker]
        return await self._deployment.agents[place.host].broker(place.process, "status")

    async def _is_known(self, end: End) -> bool:
        faults = (await end.agent.status())["faults"]
        return any(row["fault_id"] == end.fault_id for row in faults)
