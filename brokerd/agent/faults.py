"""Faults on this machine's processes: applied, undone on request, and undone by lease.

Every fault that lasts has a lease. The agent undoes the fault when the lease ends; if the agent has
died by then, a watchdog of the fault thaws a frozen process or deletes its nft table, and a broker
itself drops its faults. The processes of a lost machine are restarted by the agent, or by the next
agent.
"""

import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import trio

from brokerd.agent.fault import Fault, check_lease
from brokerd.agent.fault_acts import CallProcess, FaultActs
from brokerd.agent.fork_server import ForkServer
from brokerd.agent.journal import Journal, Recollection
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.agent.supervisor import ManagedProcess, Supervisor
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import LASTING_VERBS, OFFLINE_VERBS, STOPPING_VERBS, VERB_TABLE

HealedBy = Literal["request", "lease", "process-death"]

_REMEMBERED: Final = (
    *("fault_id", "verb", "process", "peer", "direction", "parameters", "lease_ms"),
    *("deadline_ns", "state", "applied_ns", "healed_ns", "healed_by"),
)
_RETRY_S: Final = 1.0
_NEVER_KEPT: Final = 1_024
_ROLES_WITH_FAULTS: Final = ("broker", "load", "relay")

logger = logging.getLogger(__name__)


class FaultKeeper:
    """The faults of one agent.

    Args:
        request: passes a control command to a process and returns the answer.
        publish: publishes fault_applied and fault_healed.
    """

    def __init__(
        self,
        paths: AgentPaths,
        journal: Journal,
        image: ForkServer,
        supervisor: Supervisor,
        request: CallProcess,
        publish: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.faults: dict[str, Fault] = {}
        self._journal = journal
        self._supervisor = supervisor
        self._acts = FaultActs(paths, image, supervisor, request, self._note)
        self._call = request
        self._publish = publish
        self._changed = trio.Event()
        self._never: deque[str] = deque(maxlen=_NEVER_KEPT)

    async def apply(self, fault: Fault) -> Fault:
        """Apply a fault; its entry is durable before, and the outcome is in the returned fault.

        A repeated fault, by id and definition, is not applied twice.

        Raises:
            ControlError: `user`: an invalid fault, or a missing target; nothing was done. Else: the
                fault could not be applied (its state is `failed`).
        """
        known = self.faults.get(fault.fault_id)
        if known is not None:
            if known.definition() != fault.definition():
                raise ControlError("user", f"{fault.fault_id} is another fault already")
            async with known.changing:
                return known
        if fault.fault_id in self._never:
            raise ControlError("user", f"{fault.fault_id} was to be healed before it was done")
        process = self._check(fault)
        self.faults[fault.fault_id] = fault
        async with fault.changing:
            if fault.verb in LASTING_VERBS:
                fault.deadline_ns = time.monotonic_ns() + fault.lease_ms * 1_000_000
            try:
                await self._journal.write(
                    "fault",
                    **fault.definition(),
                    lease_ms=fault.lease_ms,
                    deadline_ns=fault.deadline_ns,
                    undo=self._acts.undo_plan(fault),
                )
            except OSError:
                fault.state = "failed"
                del self.faults[fault.fault_id]
                raise
            try:
                await self._acts.apply(fault, process)
            except BaseException:
                fault.state = "failed"
                with trio.CancelScope(shield=True):
                    await self._acts.undo_half(fault, process)
                    await self._note(fault)
                raise
            fault.state = "applied"
            await self._note(fault)
        self._publish("fault_applied", fault.to_row())
        self._wake()
        return fault

    async def heal(self, fault_id: str, by: HealedBy = "request") -> Fault | None:
        """Undo a fault; a healed fault stays unchanged, and None is returned for an unknown fault.

        An unknown fault is refused from now on: a client that abandoned its request may request the
        end on another connection, and that request may arrive first.

        Raises:
            ControlError: the fault could not be undone now (its process does not answer); the lease
                still stands.
        """
        fault = self.faults.get(fault_id)
        if fault is None:
            self._never.append(fault_id)
            return None
        async with fault.changing:
            if not fault.is_active:
                return fault
            await self._acts.undo(fault)
            await self._note_healed(fault, by)
        return fault

    async def renew(self, fault_id: str, lease_ms: int) -> Fault:
        """Extend the lease of a lasting fault to `lease_ms` from now.

        Raises:
            ControlError: `user`: no such fault is active.
        """
        fault = self.faults.get(fault_id)
        if fault is None or not fault.is_active:
            state = "unknown here" if fault is None else fault.state
            raise ControlError("user", f"fault {fault_id} is {state}; there is no lease to renew")
        check_lease(fault.fault_id, lease_ms)
        async with fault.changing:
            if not fault.is_active:
                raise ControlError("user", f"fault {fault_id} is {fault.state} by now")
            deadline_ns = time.monotonic_ns() + lease_ms * 1_000_000
            await self._acts.renew(fault, deadline_ns, lease_ms)
            fault.lease_ms, fault.deadline_ns = lease_ms, deadline_ns
            await self._note(fault)
        return fault

    async def heal_all(self, by: HealedBy = "request", *, ending: bool = False) -> list[Fault]:
        """Undo all faults as far as possible; failures are logged.

        Returns the healed faults. With `ending`, no process is restarted.
        """
        healed = []
        for fault in [fault for fault in self.faults.values() if fault.is_active]:
            try:
                if ending and fault.verb == "host-loss":
                    await self._note_healed(fault, by)
                else:
                    await self.heal(fault.fault_id, by)
                healed.append(fault)
            except (ControlError, OSError) as error:
                logger.warning("fault %s was not healed: %s", fault.fault_id, error)
        return healed

    async def heal_everything(self) -> dict[str, Any]:
        """Undo every fault, of any origin, including faults that brokers received directly.

        Returns the rows of the faults `healed` and, in words, the faults `left`.
        """
        healed = [fault.to_row() for fault in await self.heal_all()]
        left = [
            f"fault {fault.fault_id} ({fault.verb} {fault.process}) could not be undone"
            for fault in self.faults.values()
            if fault.is_active
        ]
        for process in list(self._supervisor.processes.values()):
            if process.is_running:
                await self._heal_process(process, healed, left)
        ours = {self._acts.table(fault).name: fault for fault in self.faults.values()}
        left += [
            f"table inet {name} of fault {ours[name].fault_id}"
            for name in await self._acts.tables_left()
            if name in ours and not ours[name].is_active
        ]
        return {"healed": healed, "left": left}

    async def _heal_process(
        self, process: ManagedProcess, healed: list[dict[str, Any]], left: list[str]
    ) -> None:
        """Heal faults without an entry here.

        A stop by another program, and faults by another socket.
        """
        assert process.identity is not None, process
        if process.identity.is_stopped():
            self._supervisor.signal(process, signal.SIGCONT)
            healed.append({"fault_id": f"stop of {process.name}", "verb": "freeze"})
        if process.role not in _ROLES_WITH_FAULTS:
            return
        try:
            known = (await self._call(process.name, "status", {}))["faults"]
            for fault_id in known:
                await self._call(process.name, "fault_heal", {"fault_id": fault_id})
                healed.append({"fault_id": fault_id, "verb": "", "process": process.name})
        except ControlError as error:
            left.append(f"{process.name} did not report its faults: {error}")

    async def look(self, fault_id: str) -> dict[str, Any]:
        """Return the effect of a fault on this machine, with `present`."""
        fault = self.faults.get(fault_id)
        if fault is None:
            raise ControlError("user", f"fault {fault_id} is unknown here")
        return await self._acts.look(fault)

    async def process_ended(self, name: str) -> None:
        """Mark the faults of a process healed after its end."""
        for fault in [fault for fault in self.faults.values() if fault.process == name]:
            if fault.dies_with_process and fault.state == "applied":
                async with fault.changing:
                    if fault.is_active:
                        self._acts.dismiss_watchdog(fault)
                        await self._note_healed(fault, "process-death")

    async def heal_by_lease(self) -> None:
        """Undo each fault when its lease ends; runs until cancelled."""
        healing: set[str] = set()

        async def heal(fault: Fault) -> None:
            try:
                await self.heal(fault.fault_id, "lease")
            except (ControlError, OSError) as error:  # a full disk, or no free descriptor
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
                        # A process that does not answer must not prevent the healing of other
                        # faults.
                        healing.add(fault.fault_id)
                        nursery.start_soon(heal, fault)
                with trio.move_on_after((next_ns - now_ns) / 1e9):
                    await self._changed.wait()

    async def adopt(self, left: Recollection) -> None:
        """Adopt the faults that the last agent left, with the changes since."""
        for entry in left.faults.values():
            fault = Fault(**{key: entry[key] for key in _REMEMBERED if key in entry})
            if (watchdog := entry.get("watchdog")) is not None:
                fault.watchdog = ProcessIdentity(*watchdog)
            self.faults[fault.fault_id] = fault
            if not fault.is_active:
                continue
            process = self._supervisor.processes.get(fault.process)
            has_ended = process is None or not process.is_running
            if left.boot != boot_id() or (has_ended and fault.dies_with_process):
                await self._note_healed(fault, "process-death")
            elif (healed_ns := self._acts.watchdog_heal_time(fault)) is not None:
                await self._note_healed(fault, "lease", healed_ns)
        self._wake()

    # ------------------------------------------------------------ one fault

    def _check(self, fault: Fault) -> ManagedProcess:
        fault.check()
        where = f"fault {fault.fault_id}"
        process = self._supervisor.find(fault.process)
        if fault.verb in OFFLINE_VERBS:
            if process.is_running:
                raise ControlError("user", f"{where}: {process.name} is running; kill it first")
        elif not process.is_running and not fault.uses_nft:
            raise ControlError("user", f"{where}: {process.name} is not running ({process.state})")
        if VERB_TABLE[fault.verb].already:
            for other in self.faults.values():
                same = other.verb == fault.verb or {other.verb, fault.verb} == {*STOPPING_VERBS}
                if same and other.process == process.name and other.is_active:
                    already = VERB_TABLE[other.verb].already
                    text = f"{where}: {process.name} is {already} already, by {other.fault_id}"
                    raise ControlError("user", text)
        return process

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

    def _wake(self) -> None:
        self._changed.set()
