"""Faults on the clients of a load, applied by the load generators of the clients.

The load generator of a client applies a fault, reports the effect, and ends the fault by its own
clock when the lease expires. A generator never outlives its controller's lease.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import CLIENT_VERBS, CRASH, DISCONNECT, ROAM, SLOW
from brokerd.protocols.registry import RunningProtocol
from fault_injection.apply.injector import Evidence, Fault, FaultBackend
from fault_injection.schedule.targets import Machines


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
        row = await self._ask(
            fault,
            "fault_apply",
            verb=fault.verb,
            client=fault.target.client,
            lease_ms=lease_ns // 1_000_000,
            **more,
        )
        evidence = {"broker": row["broker"], "session": row["session_before"]}
        return self._timed(evidence, row["t_applied_ns"])

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        row = await self._ask(fault, "fault_look")
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
            return self._timed(evidence, row["t_lost_ns"])
        if not row["attached"] or row["broker"] != fault.parameters["to"]:
            return None
        assert row["session"] > row["session_before"], row
        evidence = {"broker": row["broker"], "session": row["session"]}
        return self._timed(evidence, row["t_attached_ns"])

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._ask(fault, "fault_renew", lease_ms=lease_ns // 1_000_000)

    async def undo(self, fault: Fault) -> Evidence:
        row = await self._ask(fault, "fault_heal")
        return self._timed({}, row["t_healed_ns"])

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        row = await self._ask(fault, "fault_look")
        return None if row["active"] else {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        """Return evidence that the client is connected again and receives waiting publications."""
        row = await self._ask(fault, "fault_look")
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
            return self._timed(evidence, max(row["t_attached_ns"], row["t_healed_ns"]))
        return self._timed(evidence, row["t_attached_ns"])

    async def _ask(self, fault: Fault, command: str, **arguments: Any) -> dict[str, Any]:
        process = self._load.processes.get(fault.target.client)
        if process is None:
            raise ControlError("user", f"no client called {fault.target.client!r} in this load")
        return await self._load.load_command(process, command, fault_id=fault.fault_id, **arguments)

    def _timed(self, evidence: Evidence, at_ns: int) -> Evidence:
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
        return await self._at(fault).apply(fault, lease_ns)

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        return await self._at(fault).verify_effect(fault)

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._at(fault).renew(fault, lease_ns)

    async def undo(self, fault: Fault) -> Evidence:
        return await self._at(fault).undo(fault)

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        return await self._at(fault).verify_undone(fault)

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        return await self._at(fault).verify_recovered(fault)

    def _at(self, fault: Fault) -> FaultBackend | ClientFaults:
        return self._clients if fault.verb in CLIENT_VERBS else self._brokers
