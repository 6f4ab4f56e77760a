"""Faults on this machine's processes: done, undone, and undone without being asked to.

Every fault that lasts has a lease. The agent undoes it when that ends; should the agent have
died by then, a watchdog of the fault's own thaws a frozen process, and a broker itself drops
what its link layer was told.
"""

import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import trio

from brokerd.agent.fork_server import ForkServer
from brokerd.agent.journal import Journal, Recollection
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.agent.supervisor import ManagedProcess, Supervisor, parse_signal
from brokerd.agent.watchdog import healed_at, write_lease
from brokerd.errors import ControlError
from brokerd.overlay.topology import nearest

AskProcess = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
HealedBy = Literal["request", "lease", "process-death"]

ENDING_VERBS: Final = ("kill", "term")
LINK_VERBS: Final = ("absorb", "blackhole", "cut", "delay", "bandwidth")
LASTING_VERBS: Final = (*LINK_VERBS, "freeze")
VERBS: Final = (*LASTING_VERBS, *ENDING_VERBS, "restart")
DIRECTIONS: Final = ("both", "out", "in")
MINIMUM_LEASE_MS: Final = 100

_PARAMETERS: Final = {
    "kill": ("signal",),
    "delay": ("delay_ms",),
    "bandwidth": ("bytes_per_second",),
}
_REMEMBERED: Final = (
    *("fault_id", "verb", "process", "peer", "direction", "parameters", "lease_ms"),
    *("deadline_ns", "state", "applied_ns", "healed_ns", "healed_by"),
)
_OBSERVE_S: Final = 5.0
_RETRY_S: Final = 1.0

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Fault:
    """One fault, as far as it has come.

    Attributes:
        fault_id: given by whoever injected it.
        process, peer, direction: its target; peer is "" unless it is one of the process's links.
        deadline_ns: end of its lease; None for one that is over once done.
        state: requested, applied, healed (also when its process ended), or failed.
        result: what applying it gave: stamps and evidence.
    """

    fault_id: str
    verb: str
    process: str
    peer: str = ""
    direction: str = "both"
    parameters: dict[str, Any] = field(default_factory=dict)
    lease_ms: int = 0
    deadline_ns: int | None = None
    state: str = "requested"
    applied_ns: int | None = None
    healed_ns: int | None = None
    healed_by: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    watchdog: ProcessIdentity | None = None
    changing: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_active(self) -> bool:
        return self.verb in LASTING_VERBS and self.state in ("requested", "applied")

    def definition(self) -> dict[str, Any]:
        return {
            "fault_id": self.fault_id,
            "verb": self.verb,
            "process": self.process,
            "peer": self.peer,
            "direction": self.direction,
            "parameters": self.parameters,
        }

    def to_row(self) -> dict[str, Any]:
        """Its part of the agent's `status`, and the answer to fault commands."""
        left_ns = None if self.deadline_ns is None else self.deadline_ns - time.monotonic_ns()
        return {
            **self.definition(),
            "state": self.state,
            "lease_left_ms": left_ns // 1_000_000 if left_ns and self.is_active else None,
            "t_applied_ns": self.applied_ns,
            "t_healed_ns": self.healed_ns,
            "healed_by": self.healed_by,
            "result": self.result,
        }


class FaultKeeper:
    """The faults of one agent.

    Args:
        ask: passes a control command on to a process and gives its answer.
        publish: is told fault_applied and fault_healed.
    """

    def __init__(
        self,
        paths: AgentPaths,
        journal: Journal,
        image: ForkServer,
        supervisor: Supervisor,
        ask: AskProcess,
        publish: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.faults: dict[str, Fault] = {}
        self._paths = paths
        self._journal = journal
        self._image = image
        self._supervisor = supervisor
        self._ask = ask
        self._publish = publish
        self._changed = trio.Event()

    async def apply(self, fault: Fault) -> Fault:
        """Do what the fault says; written down before, and given back with what came of it.

        The same fault again, by id and definition, is not done twice.

        Raises:
            ControlError: `user`: nonsense, or a target that is not there; nothing was done.
                Else: it could not be done (its state is `failed`).
        """
        known = self.faults.get(fault.fault_id)
        if known is not None:
            if known.definition() != fault.definition():
                raise ControlError("user", f"{fault.fault_id} is another fault already")
            async with known.changing:
                return known
        process = self._check(fault)
        self.faults[fault.fault_id] = fault
        async with fault.changing:
            if fault.verb in LASTING_VERBS:
                fault.deadline_ns = time.monotonic_ns() + fault.lease_ms * 1_000_000
            await self._journal.write(
                "fault",
                **fault.definition(),
                lease_ms=fault.lease_ms,
                deadline_ns=fault.deadline_ns,
            )
            try:
                await self._do(fault, process)
            except BaseException:
                fault.state = "failed"
                with trio.CancelScope(shield=True):
                    await self._undo_half(fault, process)
                    await self._note(fault)
                raise
            fault.state = "applied"
            await self._note(fault)
        self._publish("fault_applied", fault.to_row())
        self._wake()
        return fault

    async def heal(self, fault_id: str, by: HealedBy = "request") -> Fault | None:
        """Undo a fault; one that is over stays as it is, and of an unknown one None is said.

        Raises:
            ControlError: it could not be undone now (its process does not answer); the lease
                still stands.
        """
        fault = self.faults.get(fault_id)
        if fault is None:
            return None
        async with fault.changing:
            if not fault.is_active:
                return fault
            await self._undo(fault)
            await self._note_healed(fault, by)
        return fault

    async def renew(self, fault_id: str, lease_ms: int) -> Fault:
        """Let the lease of a lasting fault end `lease_ms` from now.

        Raises:
            ControlError: `user`, no such fault is active.
        """
        fault = self.faults.get(fault_id)
        if fault is None or not fault.is_active:
            state = "unknown here" if fault is None else fault.state
            raise ControlError("user", f"fault {fault_id} is {state}; there is no lease to renew")
        _check_lease(fault.fault_id, lease_ms)
        async with fault.changing:
            if not fault.is_active:
                raise ControlError("user", f"fault {fault_id} is {fault.state} by now")
            if fault.verb in LINK_VERBS:
                arguments = {"fault_id": fault_id, "lease_ms": lease_ms}
                await self._ask(fault.process, "fault_renew", arguments)
            fault.lease_ms = lease_ms
            fault.deadline_ns = time.monotonic_ns() + lease_ms * 1_000_000
            if fault.verb == "freeze":
                write_lease(self._lease_file(fault), fault.deadline_ns)
            await self._note(fault)
        return fault

    async def heal_all(self, by: HealedBy = "request") -> None:
        """Undo whatever can be undone; says in the log what could not."""
        for fault in [fault for fault in self.faults.values() if fault.is_active]:
            try:
                await self.heal(fault.fault_id, by)
            except ControlError as error:
                logger.warning("fault %s was not healed: %s", fault.fault_id, error)

    async def process_ended(self, name: str) -> None:
        """A process has ended, and the faults in it with it."""
        for fault in [fault for fault in self.faults.values() if fault.process == name]:
            if fault.is_active and fault.state == "applied":
                async with fault.changing:
                    if fault.is_active:
                        self._dismiss_watchdog(fault)
                        await self._note_healed(fault, "process-death")

    async def heal_by_lease(self) -> None:
        """Undo each fault when its lease ends; runs until cancelled."""
        healing: set[str] = set()

        async def heal(fault: Fault) -> None:
            try:
                await self.heal(fault.fault_id, "lease")
            except ControlError as error:
                logger.warning("fault %s outlives its lease: %s", fault.fault_id, error)
                await trio.sleep(_RETRY_S)
            finally:
                healing.discard(fault.fault_id)
                self._wake()

        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                next_ns, now_ns = math.inf, time.monotonic_ns()
                for fault in self.faults.values():
                    if not fault.is_active or fault.deadline_ns is None:
                        continue
                    if fault.deadline_ns > now_ns:
                        next_ns = min(next_ns, fault.deadline_ns)
                    elif fault.fault_id not in healing:
                        # One that does not answer must not keep the others from being healed.
                        healing.add(fault.fault_id)
                        nursery.start_soon(heal, fault)
                with trio.move_on_after((next_ns - now_ns) / 1e9):
                    await self._changed.wait()

    async def adopt(self, left: Recollection) -> None:
        """Take over the faults that the last agent left, and what became of them meanwhile."""
        for entry in left.faults.values():
            fault = Fault(**{key: entry[key] for key in _REMEMBERED if key in entry})
            if (watchdog := entry.get("watchdog")) is not None:
                fault.watchdog = ProcessIdentity(*watchdog)
            self.faults[fault.fault_id] = fault
            if not fault.is_active:
                continue
            process = self._supervisor.processes.get(fault.process)
            if left.boot != boot_id() or process is None or not process.is_running:
                await self._note_healed(fault, "process-death")
            elif fault.verb == "freeze":
                healed_ns = healed_at(self._lease_file(fault))
                if healed_ns is not None:
                    await self._note_healed(fault, "lease", healed_ns)
        self._wake()

    # ------------------------------------------------------------ one fault

    def _check(self, fault: Fault) -> ManagedProcess:
        where = f"fault {fault.fault_id}"
        if not fault.fault_id or len(fault.fault_id) > 200:
            raise ControlError("user", f"fault_id = {fault.fault_id[:40]!r} cannot be an id")
        if fault.verb not in VERBS:
            raise ControlError(
                "user", f"{where}: no verb {fault.verb[:40]!r}{nearest(fault.verb, VERBS)}"
            )
        if fault.direction not in DIRECTIONS:
            known = nearest(fault.direction, DIRECTIONS)
            raise ControlError("user", f"{where}: direction = {fault.direction[:40]!r}{known}")
        if fault.peer and fault.verb not in LINK_VERBS:
            raise ControlError("user", f"{where}: {fault.verb} is for processes, not for links")
        if fault.verb in LASTING_VERBS:
            _check_lease(fault.fault_id, fault.lease_ms)
        known_parameters = _PARAMETERS.get(fault.verb, ())
        for key in fault.parameters:
            if key not in known_parameters:
                raise ControlError("user", f"{where}: {fault.verb} takes no parameter {key[:40]!r}")
        _ending_signal(fault)
        process = self._supervisor.find(fault.process)
        if fault.verb == "restart":
            if process.is_running:
                raise ControlError("user", f"{where}: {process.name} is running; kill it first")
        elif not process.is_running:
            raise ControlError("user", f"{where}: {process.name} is not running ({process.state})")
        if fault.verb == "freeze":
            for other in self.faults.values():
                if other.verb == "freeze" and other.process == process.name and other.is_active:
                    text = f"{where}: {process.name} is frozen already, by {other.fault_id}"
                    raise ControlError("user", text)
        return process

    async def _do(self, fault: Fault, process: ManagedProcess) -> None:
        if fault.verb in ENDING_VERBS:
            await self._end(fault, process)
        elif fault.verb == "restart":
            fault.applied_ns = time.monotonic_ns()
            await self._supervisor.restart(process.name)
            assert process.identity is not None, process
            fault.result = {
                "pid": process.identity.pid,
                "start_time": process.identity.start_time,
            }
        elif fault.verb == "freeze":
            await self._freeze(fault, process)
        else:
            arguments = {
                "fault_id": fault.fault_id,
                "verb": fault.verb,
                "peer": fault.peer,
                "direction": fault.direction,
                "lease_ms": fault.lease_ms,
            }
            if fault.parameters:
                arguments["parameters"] = fault.parameters
            fault.result = await self._ask(process.name, "fault_apply", arguments)
            stamp = fault.result.get("t_applied_ns")
            fault.applied_ns = stamp if isinstance(stamp, int) else time.monotonic_ns()

    async def _end(self, fault: Fault, process: ManagedProcess) -> None:
        number = _ending_signal(fault)
        ended, pid = process.ended, process.identity.pid if process.identity else None
        if not self._supervisor.signal(process, number, expected_exit=f"fault:{fault.fault_id}"):
            raise ControlError("user", f"{process.name} ended before it could be killed")
        fault.applied_ns = time.monotonic_ns()
        with trio.move_on_after(_OBSERVE_S):
            await ended.wait()
        fault.result = {
            "pid": pid,
            "exit_code": process.exit_code,
            "exit_signal": process.exit_signal,
            "ended": ended.is_set(),
            "t_exit_ns": process.exited_ns,
        }

    async def _freeze(self, fault: Fault, process: ManagedProcess) -> None:
        assert process.identity is not None, process
        assert fault.deadline_ns is not None, fault
        lease_file = self._lease_file(fault)
        write_lease(lease_file, fault.deadline_ns)
        fault.watchdog = await self._image.fork(
            "thaw-watchdog",
            {
                "pid": process.identity.pid,
                "start_time": process.identity.start_time,
                "lease_file": str(lease_file),
            },
            name=f"thaw-{process.name}",
        )
        if not fault.watchdog.is_alive():
            raise ControlError("internal", f"{process.name}: nobody would be there to thaw it")
        await self._note(fault)
        if not self._supervisor.signal(process, signal.SIGSTOP):
            raise ControlError("user", f"{process.name} ended before it could be frozen")
        fault.applied_ns = time.monotonic_ns()
        with trio.move_on_after(_OBSERVE_S):
            while not process.identity.is_stopped():
                await trio.sleep(0.001)
        fault.result = {"pid": process.identity.pid, "stopped": process.identity.is_stopped()}

    async def _undo_half(self, fault: Fault, process: ManagedProcess) -> None:
        """Leave nothing of a fault that could not be applied, as far as that can be done."""
        if fault.verb == "freeze":
            self._supervisor.signal(process, signal.SIGCONT)
            self._dismiss_watchdog(fault)
        elif fault.verb in LINK_VERBS:
            try:
                await self._ask(process.name, "fault_heal", {"fault_id": fault.fault_id})
            except ControlError as error:  # its own lease ends it
                logger.warning("fault %s, half applied: %s", fault.fault_id, error)

    async def _undo(self, fault: Fault) -> None:
        process = self._supervisor.find(fault.process)
        if fault.verb == "freeze":
            if process.is_running:
                assert process.identity is not None, process
                self._supervisor.signal(process, signal.SIGCONT)
                with trio.move_on_after(_OBSERVE_S):
                    while process.identity.is_stopped():
                        await trio.sleep(0.001)
                if process.identity.is_stopped():
                    raise ControlError("internal", f"{process.name} is still stopped")
            self._dismiss_watchdog(fault)
        elif process.is_running:
            answer = await self._ask(fault.process, "fault_heal", {"fault_id": fault.fault_id})
            fault.result = {**fault.result, **answer}

    def _dismiss_watchdog(self, fault: Fault) -> None:
        if fault.watchdog is not None:
            fault.watchdog.signal(signal.SIGKILL)
            self._lease_file(fault).unlink(missing_ok=True)

    async def _note_healed(self, fault: Fault, by: HealedBy, healed_ns: int | None = None) -> None:
        fault.state, fault.healed_by = "healed", by
        fault.healed_ns = healed_ns or time.monotonic_ns()
        with trio.CancelScope(shield=True):
            await self._note(fault)
        row = fault.to_row()
        self._publish("fault_healed", {**row, "by": by})

    async def _note(self, fault: Fault) -> None:
        watchdog = fault.watchdog
        await self._journal.note(
            "fault_state",
            fault_id=fault.fault_id,
            state=fault.state,
            lease_ms=fault.lease_ms,
            deadline_ns=fault.deadline_ns,
            applied_ns=fault.applied_ns,
            healed_ns=fault.healed_ns,
            healed_by=fault.healed_by,
            watchdog=[watchdog.pid, watchdog.start_time] if watchdog else None,
        )

    def _lease_file(self, fault: Fault) -> Path:
        # Fault ids are free text; a file name is not.
        return self._paths.leases / f"{fault.fault_id.encode().hex()[:200]}.json"

    def _wake(self) -> None:
        self._changed.set()


def _ending_signal(fault: Fault) -> signal.Signals:
    if fault.verb != "kill":
        return signal.SIGTERM
    number = parse_signal(fault.parameters.get("signal", "KILL"))
    if number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        raise ControlError("user", f"fault {fault.fault_id}: {number.name} does not kill")
    return number


def _check_lease(fault_id: str, lease_ms: object) -> None:
    if type(lease_ms) is not int or lease_ms < MINIMUM_LEASE_MS:
        raise ControlError(
            "user", f"fault {fault_id}: lease_ms = {lease_ms!r}; at least {MINIMUM_LEASE_MS}"
        )
