"""Backends of faults: real processes, and clients of the load.

Agents apply the faults of real processes, which are observed at agents and brokers. A link is
broken at both of its ends, at each towards the other. So the counters of each end show the fault,
and the end of one process leaves the other half in force. A partition is applied at every broker in
a set, and the loss of a machine at every broker on the machine.

The load generator of a client applies a fault, reports the effect, and ends the fault by its own
clock when the lease expires. A generator never outlives its controller's lease.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    CRASH,
    DISCONNECT,
    MACHINE_VERBS,
    ROAM,
    SLOW,
    STANDING_VERBS,
)
from brokerd.protocols.interface import CoreStatus
from brokerd.protocols.registry import RunningProtocol, protocol_on
from fault_injection.apply.evidence import (
    Deployment,
    End,
    check_is_running,
    direct_sessions,
    find_observer,
    is_killed_again,
    observe_sessions_down,
    on_all,
)
from fault_injection.apply.interface import Evidence, Fault, FaultBackend
from fault_injection.schedule.targets import Machines, check_nft_can_separate, list_separated_pairs


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
            pairs = list_separated_pairs(fault.target, self.running.possible_peers)
            try:
                check_nft_can_separate(pairs, self._addresses(), self.running.possible_peers)
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
        return self._add_times(evidence, stamps)

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        ends = self._ends(fault)
        if fault.verb == "cut":
            far = self._ends(fault, both=True)
            return await observe_sessions_down(far, self._neighbours, self._broker_status)
        seen = await find_observer(fault.verb)(fault, ends)
        return self._add_times(seen, seen.pop("host_stamps", {})) if seen is not None else None

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
        return self._add_times({}, stamps)

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

        undone = await on_all(self._ends(fault), is_gone)
        return {"gone": True} if all(undone) else None

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        seen: Evidence = {}
        for end in self._ends(fault, both=True):
            if fault.verb == "restart":
                row = await end.row()
                if is_killed_again(end, row):
                    return None
                check_is_running(end, row)
            status = await end.command("status")
            direct = direct_sessions(status)
            core = CoreStatus.from_mapping(status)
            if core.state != "running" or any(name not in direct for name in core.wanted):
                return None
            seen[end.broker] = {"state": core.state, "sessions": len(core.ready)}
        return seen

    def _add_times(self, evidence: Evidence, stamps: Mapping[str, int]) -> Evidence:
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
            around = self.running.possible_peers(broker)
            across = fault.target.separated_from(broker, around)
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
        return [end.peer] if end.peer else self.running.possible_peers(end.broker)

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


class Load(Protocol):
    """Running load generators, all on one host."""

    @property
    def clients_host(self) -> str:
        """The host with the clock of the clients' stamps."""
        ...

    @property
    def processes(self) -> Mapping[str, str]:
        """Client → the load generator that runs the client."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """Broker → the address for clients."""
        ...

    async def load_command(self, process: str, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to a load generator, and return the answer."""
        ...


class ClientFaults:
    """The faults on clients for `WithClients`; the methods are the methods of a FaultBackend.

    Args:
        ahead_ns: host → lead of the host's clock over the clock of the injector.
    """

    def __init__(self, load: Load, ahead_ns: Mapping[str, int]) -> None:
        self._load = load
        self._ahead_ns = ahead_ns

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        more: dict[str, Any] = {}
        if fault.verb == CRASH:
            more = {"down_ms": int(fault.parameters.get("down_ms", 0))}
        if fault.verb == ROAM:
            broker = str(fault.parameters["to"])
            more = {"to": broker, "address": self._load.addresses[broker]}
        row = await self._call(
            fault,
            "fault_apply",
            verb=fault.verb,
            client=fault.target.client,
            lease_ms=lease_ns // 1_000_000,
            **more,
        )
        evidence = {"broker": row["broker"], "session": row["session_before"]}
        return self._add_times(evidence, row["t_applied_ns"])

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        row = await self._call(fault, "fault_look")
        if fault.verb == CRASH:
            crashes = sum(row["crashes"].values())
            return {"crashes": crashes} if crashes else None
        if fault.verb == SLOW:
            if not row["waiting_bytes"]:
                return None
            keys = ("waiting_bytes", "taken", "session")
            return {key: row[key] for key in keys}
        if fault.verb == DISCONNECT:
            if row["attached"]:
                return None
            evidence = {"lost_session": row["session_before"], "reason": row["lost_because"]}
            return self._add_times(evidence, row["t_lost_ns"])
        if not row["attached"] or row["broker"] != fault.parameters["to"]:
            return None
        assert row["session"] > row["session_before"], row
        evidence = {"broker": row["broker"], "session": row["session"]}
        return self._add_times(evidence, row["t_attached_ns"])

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._call(fault, "fault_renew", lease_ms=lease_ns // 1_000_000)

    async def undo(self, fault: Fault) -> Evidence:
        row = await self._call(fault, "fault_heal")
        return self._add_times({}, row["t_healed_ns"])

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        row = await self._call(fault, "fault_look")
        return None if row["active"] else {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        """Return evidence that the client is connected again and receives waiting publications."""
        row = await self._call(fault, "fault_look")
        if not row["attached"]:
            return None
        evidence = {"broker": row["broker"], "session": row["session"]}
        if fault.verb == SLOW:
            if row["waiting_bytes"] and not row["taken_since_end"]:
                return None
            return {**evidence, "taken": row["taken_since_end"]}
        if row["session"] == row["session_before"]:
            return None
        if fault.verb == CRASH:
            evidence["crashes"] = row["crashes"]
            return self._add_times(evidence, max(row["t_attached_ns"], row["t_healed_ns"]))
        return self._add_times(evidence, row["t_attached_ns"])

    async def _call(self, fault: Fault, command: str, **arguments: Any) -> dict[str, Any]:
        process = self._load.processes.get(fault.target.client)
        if process is None:
            raise ControlError("user", f"no client called {fault.target.client!r} in this load")
        return await self._load.load_command(process, command, fault_id=fault.fault_id, **arguments)

    def _add_times(self, evidence: Evidence, at_ns: int) -> Evidence:
        host = self._load.clients_host
        on_line_ns = at_ns - self._ahead_ns.get(host, 0)
        return {**evidence, "host_stamps": {host: at_ns}, "t_ns": on_line_ns}


class WithClients:
    """A FaultBackend for brokers that also applies faults to the clients of a load."""

    def __init__(self, brokers: FaultBackend, clients: ClientFaults) -> None:
        self._brokers = brokers
        self._clients = clients

    @property
    def running(self) -> RunningProtocol:
        return self._brokers.running

    @property
    def machines(self) -> Machines | None:
        return self._brokers.machines

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        return await self._backend_of(fault).apply(fault, lease_ns)

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        return await self._backend_of(fault).verify_effect(fault)

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._backend_of(fault).renew(fault, lease_ns)

    async def undo(self, fault: Fault) -> Evidence:
        return await self._backend_of(fault).undo(fault)

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        return await self._backend_of(fault).verify_undone(fault)

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        return await self._backend_of(fault).verify_recovered(fault)

    def _backend_of(self, fault: Fault) -> FaultBackend | ClientFaults:
        return self._clients if fault.verb in CLIENT_VERBS else self._brokers
