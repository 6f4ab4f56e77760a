"""Faults and churn of a load generator's clients.

A load generator applies and observes a fault on command. A lasting fault ends on command, or by the
clock of this process when its lease expires. The process itself does not outlive its controller for
long.

Under churn, subscribers disconnect and reconnect as the workload defines. A disconnected subscriber
does not subscribe again. Its client library resumes from its last acknowledgement. Each completed
absence is a line of absences.jsonl, from which checkers derive the publications at risk. A late
return delays the next absence.

Paper: [DS03] §5.1.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import trio

from bench.load.load_clients import LoadClient, SubscriberClient
from bench.load.remote_subscriber import ProcessSubscriber
from brokerd.client.client import ClientError
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import CLIENT_VERBS, CRASH, DISCONNECT, ROAM
from brokerd.overlay.topology import nearest
from brokerd.units import SECOND_NS

EndedBy = Literal["request", "lease", "done"]
AnyClient = LoadClient | ProcessSubscriber


@dataclass(slots=True, eq=False)
class ClientFault:
    """A fault of one client.

    Attributes:
        applied_ns, ended_ns: times by this machine's clock; 0 for a fault that has not ended.
        session: session of the client at the application of the fault.
        taken: number of runs that the client had processed at the application.
        taken_before_end: number of runs that the client had processed at the end.
        lease: cancelled at the end of the fault; a roam has no lease.
    """

    fault_id: str
    verb: str
    client: AnyClient
    applied_ns: int
    session: int
    taken: int
    taken_before_end: int = 0
    lease: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended_ns: int = 0
    ended_by: EndedBy | None = None
    crashes_before: Mapping[str, int] = field(default_factory=dict)

    @property
    def crashes(self) -> dict[str, int]:
        """Number of kills of the client's process by this fault, by moment."""
        if not isinstance(self.client, ProcessSubscriber):
            return {}
        before = self.crashes_before
        return {when: count - before[when] for when, count in self.client.crashes.items()}

    @property
    def is_active(self) -> bool:
        """True until the fault ends."""
        return self.ended_by is None

    def to_row(self) -> dict[str, Any]:
        """Return the observable state of the fault and its client."""
        client = self.client
        return {
            "fault_id": self.fault_id,
            "verb": self.verb,
            "client": client.name,
            "active": self.is_active,
            "healed_by": self.ended_by,
            "t_applied_ns": self.applied_ns,
            "t_healed_ns": self.ended_ns,
            "session_before": self.session,
            "session": client.session,
            "attached": client.is_known,
            "broker": client.broker,
            "t_attached_ns": client.attached_ns,
            "t_lost_ns": client.lost_ns,
            "lost_because": client.lost_because,
            "taken": client.processed - self.taken,
            "taken_since_end": client.processed - self.taken_before_end,
            "waiting_bytes": client.waiting_bytes,
            "crashes": self.crashes,
        }


class ClientFaults:
    """The faults of the clients of one load generator.

    Args:
        start: starts a task that lives as long as the load generator.
        note_problem: receives problems for the verdict.
    """

    def __init__(
        self,
        clients: Mapping[str, AnyClient],
        start: Callable[..., None],
        note_problem: Callable[[str], None],
    ) -> None:
        self._clients = clients
        self._start = start
        self._note_problem = note_problem
        self._faults: dict[str, ClientFault] = {}

    @property
    def active(self) -> list[str]:
        """The ids of the active faults."""
        return [fault.fault_id for fault in self._faults.values() if fault.is_active]

    async def on_apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `fault_apply`: fault_id, verb, client, lease_ms; for a roam to, address.

        For a crash, `down_ms` is the time between a kill and the next start of the process.
        """
        fault_id, verb = arguments["fault_id"], arguments["verb"]
        client = self._client(arguments["client"], verb)
        if fault_id in self._faults:
            raise ControlError("user", f"there has been a fault {fault_id} already")
        held = [f for f in self._faults.values() if f.is_active and f.client is client]
        if held:
            raise ControlError("user", f"{client.name} is under fault {held[0].fault_id}")
        if not client.is_known:
            raise ControlError("user", f"{client.name} has no session with {client.broker}")
        if verb == ROAM and arguments["to"] == client.broker:
            raise ControlError("user", f"{client.name} is at {client.broker} already")
        fault = ClientFault(
            fault_id, verb, client, time.monotonic_ns(), client.session, client.processed
        )
        if verb == ROAM:
            self._faults[fault_id] = fault
            self._start(self._roam, fault, arguments["to"], arguments["address"])
            return fault.to_row()
        self._renew(fault, arguments["lease_ms"])
        self._faults[fault_id] = fault  # not before the request is known to be good
        if isinstance(client, ProcessSubscriber):
            fault.crashes_before = dict(client.crashes)
            self._start(self._crash_with_lease, fault, client, arguments["down_ms"] / 1000)
            return fault.to_row()
        if verb == DISCONNECT:
            client.gate.shut()
        else:
            assert isinstance(client, SubscriberClient), client
            client.stop_taking()
        self._start(self._end_with_lease, fault)
        return fault.to_row()

    async def on_look(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `fault_look`: return the observable state."""
        return self._fault(arguments).to_row()

    async def on_renew(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `fault_renew`: renew the lease to `lease_ms` from now."""
        fault = self._fault(arguments)
        if not fault.is_active:
            raise ControlError("user", f"fault {fault.fault_id} is over: {fault.ended_by}")
        self._renew(fault, arguments["lease_ms"])
        return {}

    async def on_heal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `fault_heal`: undo a fault. A fault that has ended remains so."""
        fault = self._fault(arguments)
        if fault.verb != ROAM:
            self._end(fault, "request")
        return fault.to_row()

    def _client(self, name: str, verb: str) -> AnyClient:
        if verb not in CLIENT_VERBS:
            raise ControlError(
                "user", f"no verb {verb[:40]!r} for clients{nearest(verb, CLIENT_VERBS)}"
            )
        client = self._clients.get(name)
        if client is None:
            known = nearest(name, list(self._clients))
            raise ControlError("user", f"no client called {name[:80]!r}{known}")
        if (verb == CRASH) != isinstance(client, ProcessSubscriber):
            text = f"{CRASH}, and nothing else, is for subscribers that are processes"
            raise ControlError("user", f"{text}: {name}")
        if verb == ROAM and isinstance(client, LoadClient) and client.leaves_freely:
            return client
        if verb not in (DISCONNECT, CRASH) and not isinstance(client, SubscriberClient):
            raise ControlError("user", f"{verb} is for subscribers; {name} is a publisher")
        return client

    def _fault(self, arguments: Mapping[str, Any]) -> ClientFault:
        fault = self._faults.get(arguments["fault_id"])
        if fault is None:
            raise ControlError("user", f"fault {arguments['fault_id']} is unknown here")
        return fault

    def _renew(self, fault: ClientFault, lease_ms: int) -> None:
        if type(lease_ms) is not int or lease_ms <= 0:
            raise ControlError("user", f"lease_ms = {lease_ms!r}; a positive number")
        fault.lease.deadline = trio.current_time() + lease_ms / 1000

    async def _end_with_lease(self, fault: ClientFault) -> None:
        with fault.lease:
            await trio.sleep_forever()
        self._end(fault, "lease")

    async def _crash_with_lease(
        self, fault: ClientFault, client: ProcessSubscriber, down_s: float
    ) -> None:
        with fault.lease:
            await client.crash_again_and_again(down_s)
        self._end(fault, "lease")

    def _end(self, fault: ClientFault, by: EndedBy) -> None:
        if not fault.is_active:
            return
        fault.ended_by, fault.ended_ns = by, time.monotonic_ns()
        fault.lease.cancel()
        fault.taken_before_end = fault.client.processed
        if isinstance(fault.client, ProcessSubscriber):
            return
        if fault.verb == DISCONNECT:
            fault.client.gate.open()
        elif isinstance(fault.client, SubscriberClient):
            fault.client.take_on()

    async def _roam(self, fault: ClientFault, broker: str, address: str) -> None:
        assert isinstance(fault.client, LoadClient), fault.client
        try:
            await fault.client.move(broker, address)
        except ClientError as error:
            self._note_problem(f"{fault.client.name} could not move to {broker}: {error}")
        fault.ended_by, fault.ended_ns = "done", time.monotonic_ns()


_POLL_S: Final = 0.02


class Churn:
    """The absences of one load generator's subscribers.

    Args:
        start: starts a task that lives as long as the load generator.
        write_line: appends a line to a file of this name.
    """

    def __init__(
        self,
        clients: Sequence[SubscriberClient | ProcessSubscriber],
        start: Callable[..., None],
        write_line: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._clients = clients
        self._start = start
        self._write_line = write_line

    async def on_churn(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Handle command `churn`: measure_from_ns, the origin of all absences."""
        for client in self._clients:
            if client.absences:
                self._start(self._keep_away, client, arguments["measure_from_ns"])
        return {}

    async def _keep_away(
        self, client: SubscriberClient | ProcessSubscriber, measure_from_ns: int
    ) -> None:
        for from_ns, to_ns in client.absences:
            await _sleep_until(measure_from_ns + from_ns)
            session, left_ns = client.session, time.monotonic_ns()
            client.gate.shut()
            # The absence has its full length even if this process is late.
            await _sleep_until(left_ns + to_ns - from_ns)
            back_ns = time.monotonic_ns()
            client.gate.open()
            line = {"subscriber": client.name, "t_left_ns": left_ns, "t_back_ns": back_ns}
            self._write_line("absences", line)
            # Two absences without a session in between would be one long absence.
            while client.session == session:
                await trio.sleep(_POLL_S)


async def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        await trio.sleep(left_ns / SECOND_NS)
