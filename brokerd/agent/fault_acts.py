"""The application, inspection and undoing of faults on a machine's processes and links."""

import logging
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from brokerd.agent import nft
from brokerd.agent.corruption import ALL_FILES, Corruption, corrupt
from brokerd.agent.facts import data_folder
from brokerd.agent.fault import Fault
from brokerd.agent.fork_server import ForkServer
from brokerd.agent.paths import AgentPaths
from brokerd.agent.supervisor import ManagedProcess, Supervisor
from brokerd.agent.watchdog import read_heal_time, write_lease
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import DAMAGES, STOPPING_VERBS
from brokerd.runtime.threads import run_in_thread

CallProcess = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]

_OBSERVE_S: Final = 5.0
_SAMPLES: Final = 50
_SAMPLE_S: Final = 0.007
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class FaultActs:
    """The operations on the faults of an agent, without leases except those of watchdogs.

    Args:
        request: passes a control command to a process and returns the answer.
        watched: called when a fault has its watchdog, and returns once that is durable; only then
            the fault is applied.
    """

    def __init__(
        self,
        paths: AgentPaths,
        image: ForkServer,
        supervisor: Supervisor,
        request: CallProcess,
        watched: Callable[[Fault], Awaitable[None]],
    ) -> None:
        self._paths = paths
        self._image = image
        self._supervisor = supervisor
        self._call = request
        self._watched = watched

    # ------------------------------------------------------------ doing

    async def apply(self, fault: Fault, process: ManagedProcess) -> None:
        """Apply a fault; sets its stamps and evidence.

        Raises:
            ControlError: the fault could not be applied; `undo_half` must follow.
        """
        if fault.uses_nft:
            await self._separate(fault)
        elif fault.is_of_broker:
            await self._send_to_broker(fault, process)
        elif fault.verb == "freeze":
            await self._freeze(fault, process)
        elif fault.verb == "cpu-share":
            await self._share(fault, process)
        elif fault.verb == "restart":
            fault.applied_ns = time.monotonic_ns()
            await self._start_again(fault)
        elif fault.verb == "corrupt":
            await self._corrupt(fault, process)
        else:
            await self._end(fault, process)

    def undo_plan(self, fault: Fault) -> str:
        """Return the steps that undo a fault, for a reader of the journal."""
        if fault.uses_nft:
            return f"nft delete table inet {self.table(fault).name}"
        if fault.is_of_broker:
            return f"fault_heal at {fault.process}, or the end of the broker's lease"
        if fault.verb in STOPPING_VERBS:
            return "SIGCONT"
        return {"host-loss": "start it again"}.get(fault.verb, "nothing")

    async def _send_to_broker(self, fault: Fault, process: ManagedProcess) -> None:
        arguments = {
            "fault_id": fault.fault_id,
            "verb": fault.verb,
            "peer": fault.peer,
            "direction": fault.direction,
            "lease_ms": fault.lease_ms,
        }
        parameters = {key: v for key, v in fault.parameters.items() if key != "backend"}
        if parameters:
            arguments["parameters"] = parameters
        fault.result = await self._call(process.name, "fault_apply", arguments)
        stamp = fault.result.get("t_applied_ns")
        fault.applied_ns = stamp if isinstance(stamp, int) else time.monotonic_ns()

    async def _start_again(self, fault: Fault) -> None:
        process = await self._supervisor.restart(fault.process)
        assert process.identity is not None, process
        identity = {"pid": process.identity.pid, "start_time": process.identity.start_time}
        fault.result = {**fault.result, **identity}

    async def _corrupt(self, fault: Fault, process: ManagedProcess) -> None:
        folder = self._folder_of(process)
        parameters = fault.parameters
        # No start may read the files meanwhile.
        async with process.starting:
            if process.is_running:
                raise ControlError("user", f"{process.name} was started meanwhile; kill it first")
            damage, file = parameters.get("damage", DAMAGES[0]), parameters.get("file", ALL_FILES)
            done = await run_in_thread(partial(corrupt, folder, damage, file, parameters["draw"]))
            fault.applied_ns = time.monotonic_ns()
        fault.result = done.to_row()

    def _folder_of(self, process: ManagedProcess) -> Path:
        folder = data_folder(process.config)
        if folder is None or not folder.is_dir():
            raise ControlError("user", f"{process.name} has no folder with data")
        return folder

    async def _end(self, fault: Fault, process: ManagedProcess) -> None:
        number = fault.end_signal()
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
        identity = process.identity
        target = {"pid": identity.pid, "start_time": identity.start_time}
        await self._set_watchdog(fault, "thaw-watchdog", target, f"thaw-{process.name}")
        if not self._supervisor.signal(process, signal.SIGSTOP):
            raise ControlError("user", f"{process.name} ended before it could be frozen")
        fault.applied_ns = time.monotonic_ns()
        with trio.move_on_after(_OBSERVE_S):
            while not identity.is_stopped():
                await trio.sleep(0.001)
        fault.result = {"pid": identity.pid, "stopped": identity.is_stopped()}

    async def _share(self, fault: Fault, process: ManagedProcess) -> None:
        assert process.identity is not None, process
        assert fault.deadline_ns is not None, fault
        identity = process.identity
        share = {"share_percent": fault.parameters["share_percent"]}
        target = {"pid": identity.pid, "start_time": identity.start_time, **share}
        await self._set_watchdog(fault, "share-watchdog", target, f"share-{process.name}")
        write_lease(self.lease_file(fault), fault.deadline_ns)
        fault.applied_ns = time.monotonic_ns()
        with trio.move_on_after(_OBSERVE_S):
            while not identity.is_stopped():
                await trio.sleep(0.001)
            fault.result = {"pid": identity.pid, **share}
            return
        raise ControlError("internal", f"{process.name} was not stopped in {_OBSERVE_S:g} s")

    async def _separate(self, fault: Fault) -> None:
        table = self.table(fault)
        separation = nft.Separation.read(fault.verb, fault.direction, fault.parameters)
        if table.name in await self._with_nft(nft.list_tables):
            text = f"nft: there is a table inet {table.name} already, and it is not this fault's"
            raise ControlError("user", text)
        names = {"table": table.name, "owner": table.owner}
        await self._set_watchdog(fault, "nft-watchdog", names, "nft-watchdog")
        await self._with_nft(partial(nft.make_table, table, separation))
        fault.applied_ns = time.monotonic_ns()
        fault.result = {"table": table.name}

    async def _set_watchdog(
        self, fault: Fault, role: str, config: dict[str, Any], name: str
    ) -> None:
        """Start the watchdog, which undoes the fault even without the agent.

        Raises:
            ControlError: `internal`: the watchdog has ended at once.
        """
        assert fault.deadline_ns is not None, fault
        lease_file = self.lease_file(fault)
        write_lease(lease_file, fault.deadline_ns, has_begun=False)
        config = {**config, "lease_file": str(lease_file)}
        fault.watchdog = await self._image.fork(role, config, name=name)
        if not fault.watchdog.is_alive():
            raise ControlError(
                "internal",
                f"{fault.fault_id}: the watchdog ended at once, so the fault was not applied",
            )
        await self._watched(fault)

    # ------------------------------------------------------------ looking

    async def look(self, fault: Fault) -> dict[str, Any]:
        """Return the effect of a fault that is visible on this machine only."""
        if fault.uses_nft:
            packets = await self._with_nft(partial(nft.count_packets, self.table(fault)))
            return {"present": packets is not None, "stopped_packets": packets or 0}
        if fault.verb == "cpu-share" and fault.is_active:
            return {"present": True, **await self._sample(fault)}
        if fault.verb == "corrupt" and fault.result:  # an adopted fault has none
            folder = self._folder_of(self._supervisor.find(fault.process))
            done = Corruption(**fault.result)
            is_there = await run_in_thread(partial(done.is_on_disk, folder))
            return {"present": is_there, **fault.result}
        return {"present": fault.is_active}

    async def _sample(self, fault: Fault) -> dict[str, int]:
        identity, stopped = self._supervisor.find(fault.process).identity, 0
        for _ in range(_SAMPLES):
            stopped += identity is not None and identity.is_stopped()
            await trio.sleep(_SAMPLE_S)
        return {"samples": _SAMPLES, "stopped_samples": stopped}

    async def tables_left(self) -> list[str]:
        """Return the tables of this namespace that could be a fault's; none without nft."""
        try:
            tables = await self._with_nft(nft.list_tables)
        except ControlError:
            return []  # then this agent cannot have made one
        return [name for name in tables if name.startswith("pubsubctl_")]

    def table(self, fault: Fault) -> nft.Table:
        """Return the nft table of a fault of this agent."""
        return nft.Table.of(str(self._paths.root), fault.fault_id)

    # ------------------------------------------------------------ renewing and undoing

    async def renew(self, fault: Fault, deadline_ns: int, lease_ms: int) -> None:
        """Extend the lease at the broker or the watchdog that undoes a fault by itself."""
        if fault.is_of_broker:
            arguments = {"fault_id": fault.fault_id, "lease_ms": lease_ms}
            await self._call(fault.process, "fault_renew", arguments)
        elif fault.watchdog is not None:
            write_lease(self.lease_file(fault), deadline_ns)

    async def undo(self, fault: Fault) -> None:
        """Undo a fault, and check the result; no effect on a fault that was undone already.

        Raises:
            ControlError: the fault could not be undone.
        """
        process = self._supervisor.find(fault.process)
        if fault.uses_nft:
            await self._with_nft(partial(nft.delete_table, self.table(fault)))
            if (await self.look(fault))["present"]:
                raise ControlError("internal", f"{fault.fault_id}: its table is still there")
        elif fault.verb in STOPPING_VERBS:
            await self._end_stopping(fault)
            await self._thaw(process)
        elif fault.verb == "host-loss":
            if not process.is_running:
                await self._start_again(fault)
        elif process.is_running:
            answer = await self._call(fault.process, "fault_heal", {"fault_id": fault.fault_id})
            fault.result = {**fault.result, **answer}
        self.dismiss_watchdog(fault)

    async def undo_half(self, fault: Fault, process: ManagedProcess) -> None:
        """Undo a fault that could not be applied, as far as possible."""
        try:
            if fault.uses_nft:
                # Without a watchdog the fault was refused before its table was made: nothing may be
                # deleted.
                if fault.watchdog is not None:
                    await self._with_nft(partial(nft.delete_table, self.table(fault)))
            elif fault.verb in STOPPING_VERBS:
                await self._end_stopping(fault)
                self._supervisor.signal(process, signal.SIGCONT)
            elif fault.is_of_broker:
                await self._call(process.name, "fault_heal", {"fault_id": fault.fault_id})
            elif fault.verb == "host-loss" and fault.applied_ns and not process.is_running:
                await self._start_again(fault)
        except (ControlError, OSError) as error:  # its own lease ends it
            logger.warning("fault %s, half applied: %s", fault.fault_id, error)
        else:
            self.dismiss_watchdog(fault)

    async def _end_stopping(self, fault: Fault) -> None:
        """End the watchdog that stops the process, if any."""
        if fault.verb == "cpu-share" and fault.watchdog is not None:
            fault.watchdog.signal(signal.SIGKILL)
            while fault.watchdog.is_alive():
                await trio.sleep(0.001)

    async def _thaw(self, process: ManagedProcess) -> None:
        if not process.is_running:
            return
        assert process.identity is not None, process
        self._supervisor.signal(process, signal.SIGCONT)
        with trio.move_on_after(_OBSERVE_S):
            while process.identity.is_stopped():
                await trio.sleep(0.001)
        if process.identity.is_stopped():
            raise ControlError("internal", f"{process.name} is still stopped")

    def watchdog_heal_time(self, fault: Fault) -> int | None:
        """Return the time at which the watchdog undid a fault; None if it has not."""
        return read_heal_time(self.lease_file(fault)) if fault.watchdog is not None else None

    def dismiss_watchdog(self, fault: Fault) -> None:
        if fault.watchdog is not None:
            fault.watchdog.signal(signal.SIGKILL)
            self.lease_file(fault).unlink(missing_ok=True)

    def lease_file(self, fault: Fault) -> Path:
        """Return the file from which the watchdog reads the lease."""
        # Fault ids are free text; a file name is not.
        return self._paths.leases / f"{fault.fault_id.encode().hex()[:200]}.json"

    async def _with_nft(self, act: Callable[[], _T]) -> _T:
        # nft is a child of this process; its status must reach the call that waits for it.
        with self._supervisor.suspend_reaping():
            return await run_in_thread(act)
