"""The agent of a root: commands, leases, and the state that remains after the agent.

After an orderly end (`shutdown`, SIGTERM, or the end of the deployment's lease) no process is left
running. After a kill, the processes run on and the journal remains; the next agent of the same root
and deployment adopts both.
"""

import fcntl
import hashlib
import inspect
import json
import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.agent.facts import clock_reading, disk_bytes_of, machine_facts, read_tails
from brokerd.agent.fault import Fault
from brokerd.agent.faults import FaultKeeper
from brokerd.agent.fork_server import ForkServer, Role
from brokerd.agent.journal import Journal, Recollection, read_journal, recall
from brokerd.agent.metrics import Family, MetricsServer, host_families
from brokerd.agent.paths import AgentPaths, socket_folder
from brokerd.agent.processes import ProcessIdentity, boot_id, machine_busy_s, take_sample
from brokerd.agent.supervisor import Supervisor, parse_signal
from brokerd.agent.watchdog import (
    read_identity,
    run_hold_watchdog,
    run_nft_watchdog,
    run_share_watchdog,
    run_thaw_watchdog,
    write_lease,
)
from brokerd.errors import ControlError
from brokerd.files import write_whole
from brokerd.overlay.topology import nearest
from brokerd.runtime.control import ControlServer, Handler
from brokerd.runtime.control_socket import open_control
from brokerd.runtime.program import Program, read_own_program
from brokerd.runtime.threads import run_in_thread

WATCHDOG_ROLES: Final[Mapping[str, Role]] = {
    "share-watchdog": run_share_watchdog,
    "thaw-watchdog": run_thaw_watchdog,
    "nft-watchdog": run_nft_watchdog,
    "hold-watchdog": run_hold_watchdog,
}
ANSWER_TIMEOUT_MS: Final = 10_000
STOP_TIMEOUT_MS: Final = 10_000
METRICS_TIMEOUT_MS: Final = 2_000
MAXIMUM_PORT: Final = 65_535
MOST_MS: Final = 1 << 50
"""Longest lease or timeout that a request may state."""

_FLUSH_S: Final = 2.0

logger = logging.getLogger(__name__)


class Agent:
    """The agent of a root; `run` is its life.

    Args:
        name: name of this (logical) host.
        deployment: deployment of the processes; processes of another deployment must have ended.
        image: the warm image, forked with WATCHDOG_ROLES besides the agent's own roles.
        socket_path: None for the usual place.
        lease_ms: lease of the deployment from the start on, in case that the controller is killed
            before its first request; 0 for none.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        deployment: str,
        image: ForkServer,
        socket_path: Path | None = None,
        lease_ms: int = 0,
    ) -> None:
        self.paths = AgentPaths(root)
        self.name = name
        self.deployment = deployment
        self.socket_path = socket_path or socket_folder(root) / "agent.sock"
        self._image = image
        self._first_lease_ms = lease_ms
        self._hold_deadline_ns: int | None = None
        self._hold_changed = trio.Event()
        self._hold_watchdog: ProcessIdentity | None = None
        self._metrics_port = 0
        self._serving_metrics = trio.CancelScope()
        self._ending: str | None = None
        self._ended = trio.Event()
        self._server = ControlServer(self._handlers())
        self._supervisor: Supervisor
        self._faults: FaultKeeper
        self._journal: Journal
        self._nursery: trio.Nursery

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until the end is requested; `on_ready` is called once clients can connect.

        Raises:
            ControlError: `busy`: another agent has this root, or processes of another deployment
                are still running there.
            ConfigError: the root or the socket's folder is not this user's.
            StorageCorrupt: the journal is damaged.
        """
        self.paths.make()
        with agent_lock(self.paths):
            left = self._read_journal()
            self._journal = Journal(self.paths.journal)
            try:
                await self._live(left, on_ready)
            finally:
                self._journal.close()

    async def _live(self, left: Recollection, on_ready: Callable[[], None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._supervisor = Supervisor(
                self.paths, self._journal, self._image, nursery, self._on_process_event
            )
            self._faults = FaultKeeper(
                self.paths,
                self._journal,
                self._image,
                self._supervisor,
                self._call_process,
                self._server.publish_event,
            )
            own = ProcessIdentity.of(os.getpid())
            await self._journal.write(
                "agent",
                name=self.name,
                deployment=self.deployment,
                pid=own.pid,
                start_time=own.start_time,
                boot_id=boot_id(),
            )
            await self._supervisor.adopt(left)
            await self._faults.adopt(left)
            await nursery.start(self._take_signals)
            nursery.start_soon(self._faults.heal_by_lease)
            # Before the first request: the lease of a request must not be replaced by an older one.
            if left.boot == boot_id() and left.hold_deadline_ns is not None:
                await self._set_hold(left.hold_deadline_ns)
            elif self._first_lease_ms:
                await self._hold(self._first_lease_ms)
            await nursery.start(self._server.serve, self.socket_path)
            self._announce(own)
            if left.metrics_port:
                await self._serve_metrics_again(left.metrics_port)
            nursery.start_soon(self._end_by_lease)
            on_ready()
            await self._ended.wait()
            with trio.move_on_after(_FLUSH_S):
                await self._server.wait_answered()
            nursery.cancel_scope.cancel()
        self._leave_nothing()

    def _read_journal(self) -> Recollection:
        left = recall(read_journal(self.paths.journal))
        if left.deployment in (None, self.deployment):
            return left
        alive = [
            file.stem
            for file in sorted(self.paths.processes.glob("*.json"))
            if (found := read_identity(file)) is not None and found.is_alive()
        ]
        if alive:
            raise ControlError(
                "busy",
                f"{self.paths.root}: processes of deployment {left.deployment} still run here: "
                f"{', '.join(alive[:12])}; an agent started with that deployment can stop them",
            )
        # The old deployment's entries have no meaning for this one, but are kept for people.
        os.replace(self.paths.journal, self.paths.journal.with_name("journal.previous.jsonl"))
        return Recollection()

    def _announce(self, own: ProcessIdentity) -> None:
        content = {
            "name": self.name,
            "deployment": self.deployment,
            "pid": own.pid,
            "start_time": own.start_time,
            "boot_id": boot_id(),
            "socket": str(self.socket_path),
        }
        write_whole(self.paths.announcement, json.dumps(content) + "\n")

    def _on_process_event(self, name: str, details: dict[str, Any]) -> None:
        self._server.publish_event(name, details)
        if name == "process_exited":
            self._nursery.start_soon(self._faults.process_ended, details["process"])

    async def _take_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        with trio.open_signal_receiver(*numbers) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGCHLD:
                    self._supervisor.reap_strangers()
                elif number != signal.SIGHUP:
                    self._nursery.start_soon(self._end, f"signal {number}", STOP_TIMEOUT_MS)

    # ------------------------------------------------------------ commands

    def _handlers(self) -> dict[str, Handler]:
        commands: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "hello": self._hello,
            "facts": self._facts,
            "clock": self._clock,
            "start": self._start,
            "stop": self._stop,
            "signal": self._signal,
            "status": self._status,
            "broker": self._broker,
            "fault_apply": self._fault_apply,
            "fault_heal": self._fault_heal,
            "fault_renew": self._fault_renew,
            "fault_look": self._fault_look,
            "fault_heal_all": self._fault_heal_all,
            "files": self._files,
            "disk": self._disk,
            "tail": self._tail,
            "shutdown": self._shutdown,
            "hold": self._hold,
            "metrics": self._metrics,
        }
        return {name: _with_arguments(name, command) for name, command in commands.items()}

    async def _hello(self, program: dict[str, Any]) -> dict[str, Any]:
        """Exchange programs with a controller, which decides on the next step."""
        logger.info("a controller of %s is connected", Program.from_mapping(program))
        return {"program": read_own_program().to_mapping()}

    async def _facts(self) -> dict[str, Any]:
        return {"name": self.name, **machine_facts(self.paths.root)}

    async def _clock(self) -> dict[str, Any]:
        return clock_reading()

    async def _start(
        self, process: str, role: str, config: dict[str, Any], control_socket: str
    ) -> dict[str, Any]:
        self._refuse_if_ending()
        started = await self._supervisor.start(process, role, config, control_socket)
        assert started.identity is not None, started
        return {"pid": started.identity.pid, "start_time": started.identity.start_time}

    async def _stop(
        self, process: str, signal: str = "TERM", timeout_ms: int = STOP_TIMEOUT_MS
    ) -> dict[str, Any]:
        forced = await self._supervisor.stop(process, parse_signal(signal), timeout_ms / 1000)
        return {**self._supervisor.find(process).to_row(), "forced": forced}

    async def _signal(self, process: str, signal: str) -> dict[str, Any]:
        number = parse_signal(signal)
        ends = number.name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGQUIT")
        target = self._supervisor.find_running(process)
        cause = "planned" if ends else None
        return {"sent": self._supervisor.signal(target, number, expected_exit=cause)}

    async def _status(self, process: str = "") -> dict[str, Any]:
        lease = None
        if self._hold_deadline_ns is not None:
            lease = {"left_ms": max(0, self._hold_deadline_ns - time.monotonic_ns()) // 1_000_000}
        # A row costs several reads of /proc: a client that waits for one process requests that row
        # alone.
        wanted = (
            [self._supervisor.find(process)] if process else self._supervisor.processes.values()
        )
        return {
            "name": self.name,
            "pid": os.getpid(),
            "deployment": self.deployment,
            "program": read_own_program().to_mapping(),
            "root": str(self.paths.root),
            "socket_folder": str(self.socket_path.parent),
            "boot_id": boot_id(),
            "machine": {"cores": os.cpu_count(), "busy_s": take_sample(machine_busy_s)},
            "ending": self._ending,
            "processes": {each.name: each.to_row() for each in wanted},
            "faults": [fault.to_row() for fault in self._faults.faults.values()],
            "lease": lease,
            "metrics_port": self._metrics_port,
        }

    async def _broker(
        self,
        process: str,
        command: str,
        arguments: dict[str, Any],
        timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> dict[str, Any]:
        return await self._call_process(process, command, arguments, timeout_ms)

    async def _fault_apply(
        self,
        fault_id: str,
        verb: str,
        process: str,
        peer: str = "",
        direction: str = "both",
        lease_ms: int = 0,
        parameters: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        self._refuse_if_ending()
        fault = Fault(fault_id, verb, process, peer, direction, parameters or {}, lease_ms)
        return (await self._faults.apply(fault)).to_row()

    async def _fault_heal(self, fault_id: str) -> dict[str, Any]:
        fault = await self._faults.heal(fault_id)
        return {"fault_id": fault_id, "state": "unknown"} if fault is None else fault.to_row()

    async def _fault_renew(self, fault_id: str, lease_ms: int) -> dict[str, Any]:
        return (await self._faults.renew(fault_id, lease_ms)).to_row()

    async def _fault_look(self, fault_id: str) -> dict[str, Any]:
        return await self._faults.look(fault_id)

    async def _fault_heal_all(self) -> dict[str, Any]:
        return await self._faults.heal_everything()

    async def _files(self, process: str, folder: str = "") -> dict[str, Any]:
        chosen = self._supervisor.find(process).log_folder
        if folder:
            chosen = self.paths.resolve_inside(folder)
        return {
            "folder": str(chosen),
            "files": await run_in_thread(partial(list_files, chosen)),
        }

    async def _disk(self) -> dict[str, Any]:
        configs = {name: each.config for name, each in self._supervisor.processes.items()}
        found = {
            name: await run_in_thread(partial(disk_bytes_of, config))
            for name, config in configs.items()
        }
        return {"disk_bytes": {name: size for name, size in found.items() if size is not None}}

    async def _tail(
        self, process: str, after: dict[str, Any], folder: str = "", last_bytes: int = 65_536
    ) -> dict[str, Any]:
        if process:
            chosen = self._supervisor.find(process).log_folder
        if folder or not process:
            chosen = self.paths.resolve_inside(folder)
        return {
            "folder": str(chosen),
            "files": await run_in_thread(partial(read_tails, chosen, after, last_bytes)),
            "utc_offset_s": time.localtime().tm_gmtoff,
            **clock_reading(),
        }

    async def _shutdown(self, timeout_ms: int = STOP_TIMEOUT_MS) -> dict[str, Any]:
        await self._end("shutdown", timeout_ms)
        rows = {name: p.to_row() for name, p in self._supervisor.processes.items()}
        return {"processes": rows}

    async def _hold(self, lease_ms: int) -> dict[str, Any]:
        self._refuse_if_ending()
        if lease_ms < 0:
            raise ControlError("user", f"lease_ms = {lease_ms}; 0 for none")
        deadline_ns = time.monotonic_ns() + lease_ms * 1_000_000 if lease_ms else None
        await self._set_hold(deadline_ns)
        return {"lease_ms": lease_ms}

    async def _metrics(self, port: int) -> dict[str, Any]:
        """Serve metrics at this port of the loopback address from now on; 0 for none."""
        self._refuse_if_ending()
        if not 0 <= port <= MAXIMUM_PORT:
            raise ControlError("user", f"port = {port}; 1 to {MAXIMUM_PORT}, or 0 for none")
        if port != self._metrics_port:
            before = self._serving_metrics
            if port:
                await self._serve_metrics(port)
            else:
                self._metrics_port = 0
            before.cancel()
            await self._journal.write("metrics", port=port)
        return {"metrics_port": self._metrics_port}

    async def _serve_metrics(self, port: int) -> None:
        scope = trio.CancelScope()

        async def serve(task_status: trio.TaskStatus[int]) -> None:
            with scope:
                await MetricsServer(self._numbers).serve(port, task_status)

        try:
            await self._nursery.start(serve)
        except OSError as error:
            raise ControlError("busy", f"metrics on port {port}: {error.strerror}") from error
        self._serving_metrics = scope
        self._metrics_port = port

    async def _serve_metrics_again(self, port: int) -> None:
        try:
            await self._serve_metrics(port)
        except ControlError as error:
            logger.warning("%s; `pubsubctl deploy` tries again", error.text)

    async def _numbers(self) -> list[Family]:
        """Return all metrics of this host; processes without a timely answer are left out."""
        status = await self._status()
        numbers: dict[str, dict[str, Any]] = {}

        async def request(name: str, role: str) -> None:
            command = "statistics" if role == "broker" else "status"
            try:
                numbers[name] = await self._call_process(name, command, {}, METRICS_TIMEOUT_MS)
            except ControlError as error:
                logger.info("no metrics of %s: %s", name, error.text)

        async with trio.open_nursery() as nursery:
            for name, row in status["processes"].items():
                if self._supervisor.find(name).is_running and not row["frozen"]:
                    nursery.start_soon(request, name, row["role"])
        faults = [each.verb for each in self._faults.faults.values() if each.is_active]
        return host_families(self.name, status["processes"], faults, numbers)

    # ------------------------------------------------------------ leases and the end

    async def _set_hold(self, deadline_ns: int | None) -> None:
        lease_file = self.paths.leases / "deployment.json"
        await self._journal.note("hold", deadline_ns=deadline_ns)
        self._hold_deadline_ns = deadline_ns
        if deadline_ns is None:
            if self._hold_watchdog is not None:
                self._hold_watchdog.signal(signal.SIGKILL)
                self._hold_watchdog = None
            lease_file.unlink(missing_ok=True)
        else:
            try:
                write_lease(lease_file, deadline_ns)
            except OSError as error:
                if not lease_file.exists():
                    raise
                # This agent has the new lease; only without it the older one counts.
                logger.warning("the watchdog has an older lease: %s", error)
            if self._hold_watchdog is None or not self._hold_watchdog.is_alive():
                config = {"root": str(self.paths.root), "lease_file": str(lease_file)}
                self._hold_watchdog = await self._image.fork("hold-watchdog", config, name="hold")
        self._hold_changed.set()

    async def _end_by_lease(self) -> None:
        while True:
            self._hold_changed = trio.Event()
            left_s = math.inf
            if self._hold_deadline_ns is not None:
                left_s = (self._hold_deadline_ns - time.monotonic_ns()) / 1e9
                if left_s <= 0:
                    logger.warning("the deployment's lease has ended: stopping everything")
                    await self._end("lease", STOP_TIMEOUT_MS)
                    return
            with trio.move_on_after(left_s):
                await self._hold_changed.wait()

    def _refuse_if_ending(self) -> None:
        if self._ending is not None:
            raise ControlError("busy", f"this agent is ending ({self._ending})")

    async def _end(self, why: str, timeout_ms: int) -> None:
        """Stop every process; a second call waits for the same end."""
        if self._ending is not None:
            await self._ended.wait()
            return
        self._ending = why
        self._server.publish_event("ending", {"why": why})
        await self._faults.heal_all("lease" if why == "lease" else "request", ending=True)
        await self._supervisor.stop_all(timeout_ms / 1000)
        await self._set_hold(None)
        try:
            await self._journal.write("end", why=why)
        except OSError as error:  # the next agent finds that every process has ended
            logger.warning("the end is not in the journal: %s", error)
        self._ended.set()

    def _leave_nothing(self) -> None:
        for process in self._supervisor.processes.values():
            path = Path(process.control_socket)
            if process.control_socket and path.is_socket():
                path.unlink(missing_ok=True)
        self.paths.announcement.unlink(missing_ok=True)
        try:
            self.socket_path.parent.rmdir()
        except OSError:
            pass  # something else is in there
        self._supervisor.reap_strangers()

    async def _call_process(
        self,
        name: str,
        command: str,
        arguments: dict[str, Any],
        timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> dict[str, Any]:
        process = self._supervisor.find_running(name)
        connected = False
        with trio.move_on_after(timeout_ms / 1000):
            try:
                async with open_control(process.control_socket) as control:
                    connected = True
                    return await control.request(command, **arguments)
            except ControlError as error:
                if error.kind != "closed":
                    raise
                # A process that is still starting, or ending, refuses at once: nothing was done.
                kind = "internal" if connected else "busy"
                raise ControlError(kind, f"{name}: {error.text}") from error
        raise ControlError("busy", f"{name} did not answer {command} within {timeout_ms} ms")


@contextmanager
def agent_lock(paths: AgentPaths) -> Iterator[None]:
    """Hold the lock of the one living agent of a root.

    Raises:
        ControlError: `busy`: another agent holds the lock.
    """
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ControlError("busy", f"{paths.root}: another agent has this root") from None
        yield
    finally:
        os.close(descriptor)


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Return the regular files in `folder`: name, size_bytes, sha256; links are not followed."""
    found = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            digest = hashlib.sha256()
            size_bytes = 0
            with open(entry.path, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    size_bytes += len(chunk)
            found.append(
                {"name": entry.name, "size_bytes": size_bytes, "sha256": digest.hexdigest()}
            )
    return found


def _with_arguments(name: str, command: Callable[..., Awaitable[dict[str, Any]]]) -> Handler:
    """Return a handler that checks names and kinds of arguments against the command's signature."""
    parameters = inspect.signature(command).parameters
    required = [key for key, found in parameters.items() if found.default is found.empty]

    async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
        for key, value in arguments.items():
            if key not in parameters:
                known = nearest(key, sorted(parameters)) if parameters else "; it takes none"
                raise ControlError("user", f"{name}: no argument {key[:40]!r}{known}")
            if not _is_of(value, parameters[key].annotation):
                raise ControlError("user", f"{name}: {key} is a {type(value).__name__}")
            if key.endswith("_ms") and isinstance(value, int) and not 0 <= value <= MOST_MS:
                raise ControlError("user", f"{name}: {key} = {value}; 0 to {MOST_MS}")
        if missing := [key for key in required if key not in arguments]:
            raise ControlError("user", f"{name}: argument {missing[0]!r} is missing")
        return await command(**arguments)

    return handler


def _is_of(value: object, kind: Any) -> bool:
    if kind is str or kind is int:
        return type(value) is kind
    if value is None:
        return type(None) in getattr(kind, "__args__", ())
    return isinstance(value, dict)  # the one other kind
