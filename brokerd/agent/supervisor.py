"""The supervisor of an agent's processes: starts them, records their exits, signals no others."""

import errno
import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import trio

from brokerd.agent.fork_server import OUTPUT_FILES, OUTPUT_FLAGS, ForkServer
from brokerd.agent.journal import Entry, Journal, Recollection
from brokerd.agent.paths import PROCESS_NAME, AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id, take_sample
from brokerd.agent.watchdog import read_identity
from brokerd.errors import ControlError
from brokerd.files import write_whole
from brokerd.overlay.topology import nearest
from brokerd.runtime.state_folder import describe_obstacle, read_loss

logger = logging.getLogger(__name__)

_TAIL_BYTES: Final = 2_048

SIGNALS: Final = ("TERM", "KILL", "INT", "STOP", "CONT", "HUP", "USR1", "USR2", "QUIT")
_WATCH_RETRY_S: Final = 0.1
_OBSTACLES: Final = (
    errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    errno.ENAMETOOLONG, errno.EROFS,
)  # fmt: skip
"""Failures of a folder that only its owner can mend; others are the disk's."""


@dataclass(slots=True, eq=False)
class ManagedProcess:
    """A process that was started here, or adopted from an agent that died.

    Attributes:
        state: running; stopped (ended by a `stop` request); exited (otherwise).
        exit_code, exit_signal: of its last end, one is set; both None while the process runs, and
            for an adopted process, because only its first agent could have received its status.
        exit_cause: planned, fault:ID, unexpected, or unknown (adopted).
        exit_text: the last line printed, if the exit code was not 0.
        expected_exit: the cause to record if the process ends now.
    """

    name: str
    role: str
    config: dict[str, Any]
    control_socket: str
    log_folder: Path
    identity: ProcessIdentity | None = None
    adopted: bool = False
    state: str = "exited"
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_cause: str | None = None
    exit_text: str = ""
    expected_exit: str | None = None
    started_ns: int = 0
    exited_ns: int | None = None
    starting: trio.Lock = field(default_factory=trio.Lock)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def to_row(self) -> dict[str, Any]:
        """Return the entry of the agent's `status`; a sample that cannot be taken is None."""
        identity = self.identity
        running = identity if self.is_running else None
        return {
            "role": self.role,
            "pid": identity.pid if identity else None,
            "start_time": identity.start_time if identity else None,
            "state": self.state,
            "processor_s": take_sample(running.processor_s) if running else None,
            "busiest_thread_s": take_sample(running.busiest_thread) if running else None,
            "cores": take_sample(running.cores) if running else None,
            "frozen": take_sample(running.is_stopped) if running else False,
            "exit_code": self.exit_code,
            "exit_signal": self.exit_signal,
            "exit_cause": self.exit_cause,
            "exit_text": self.exit_text,
            "loss": "" if self.is_running else self._recorded_loss(),
            "adopted": self.adopted,
            "t_start_ns": self.started_ns,
            "t_exit_ns": self.exited_ns,
            "control_socket": self.control_socket,
            "log_folder": str(self.log_folder),
            "config_digest": config_digest(self.role, self.config, self.control_socket),
        }

    def _recorded_loss(self) -> str:
        """Return the cause of the loss that the state folder of a broker records; "" if none.

        A folder that this user may not read records nothing; the broker states that cause itself.
        """
        folder = self.config.get("state_folder")
        if not folder or not os.access(f"{folder}/.", os.R_OK | os.X_OK):
            return ""
        return read_loss(Path(folder)).cause


class Supervisor:
    """The processes of one agent.

    Args:
        publish: publishes process_started and process_exited.
    """

    def __init__(
        self,
        paths: AgentPaths,
        journal: Journal,
        image: ForkServer,
        nursery: trio.Nursery,
        publish: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.processes: dict[str, ManagedProcess] = {}
        self._paths = paths
        self._journal = journal
        self._image = image
        self._nursery = nursery
        self._publish = publish
        self._is_closing = False
        self._helpers = 0

    def find(self, name: str) -> ManagedProcess:
        """Return the process called `name`.

        Raises:
            ControlError: `user`: no process was ever called so here.
        """
        try:
            return self.processes[name]
        except KeyError:
            known = sorted(self.processes)
            hint = nearest(name, known) if known else "; none was started yet"
            raise ControlError("user", f"no process called {name!r}{hint}") from None

    def find_running(self, name: str) -> ManagedProcess:
        """Return the running process called `name`.

        Raises:
            ControlError: `user`: there is none.
        """
        process = self.find(name)
        if not process.is_running:
            raise ControlError("user", f"{name} is not running ({process.state})")
        return process

    async def start(
        self, name: str, role: str, config: dict[str, Any], control_socket: str
    ) -> ManagedProcess:
        """Start a process, unless it runs already with exactly this configuration.

        Raises:
            ControlError: `user`: an invalid name, folder or core, or the process runs with another
                configuration. `internal`: the process could not be forked.
        """
        if not PROCESS_NAME.fullmatch(name):
            raise ControlError("user", f"process = {name!r} is not of [a-z0-9._-], at most 64")
        log_folder = config.get("log_folder")
        if not isinstance(log_folder, str) or not log_folder:
            raise ControlError("user", f"{name}: log_folder = {log_folder!r} is not a folder")
        _check_core(name, config.get("core", -1))
        # Accepted once: a later start with the same configuration accepts nothing.
        once = {"accept_loss": act} if (act := config.get("accept_loss")) else {}
        config = {key: value for key, value in config.items() if key != "accept_loss"}
        process = self.processes.get(name)
        if process is None:
            process = ManagedProcess(
                name, role, config, control_socket, self._paths.resolve_inside(log_folder)
            )
            self.processes[name] = process
        async with process.starting:
            if process.is_running:
                old = config_digest(process.role, process.config, process.control_socket)
                if old == config_digest(role, config, control_socket):
                    return process
                raise ControlError("user", f"{name} runs with another configuration; stop it first")
            process.role, process.config = role, config
            process.control_socket = control_socket
            process.log_folder = self._paths.resolve_inside(log_folder)
            await self._launch(process, once)
        return process

    async def restart(self, name: str) -> ManagedProcess:
        """Start a process that has ended again, with its last configuration.

        Raises:
            ControlError: `user`: the process runs; `internal`: it could not be forked.
        """
        process = self.find(name)
        async with process.starting:
            if process.is_running:
                raise ControlError("user", f"{name} is running; kill or stop it first")
            await self._launch(process)
        return process

    async def stop(self, name: str, number: signal.Signals, timeout_s: float) -> bool:
        """End a process in order: by the signal, then by SIGKILL after the timeout.

        Returns True if it had to be killed. No effect on a process that has ended.
        """
        process = self.find(name)
        if not process.is_running:
            return False
        if not process.expected_exit:
            await self._journal.note("stop", process=name)
        self.signal(process, number, expected_exit="planned")
        self.signal(process, signal.SIGCONT)  # a frozen process would not receive it
        with trio.move_on_after(timeout_s) as scope:
            await process.ended.wait()
        if scope.cancelled_caught:
            self.signal(process, signal.SIGKILL)
            await process.ended.wait()
        return bool(scope.cancelled_caught)

    async def stop_all(self, timeout_s: float) -> None:
        """Stop every process, and permit no further starts."""
        self._is_closing = True

        async def stop(process: ManagedProcess) -> None:
            async with process.starting:
                pass  # one that is just being started
            await self.stop(process.name, signal.SIGTERM, timeout_s)

        async with trio.open_nursery() as nursery:
            for process in list(self.processes.values()):
                nursery.start_soon(stop, process)

    def signal(
        self, process: ManagedProcess, number: signal.Signals, expected_exit: str | None = None
    ) -> bool:
        """Send a signal to this process and no other; return False if it has ended already."""
        if not process.is_running:
            return False
        assert process.identity is not None, process
        if expected_exit is not None and process.expected_exit is None:
            process.expected_exit = expected_exit
        return process.identity.signal(number)

    async def adopt(self, left: Recollection) -> None:
        """Adopt the processes of the last agent: living ones are watched, ended ones recorded."""
        for name, entry in left.starts.items():
            process = ManagedProcess(
                name,
                entry["role"],
                entry["config"],
                entry["control_socket"],
                Path(entry["log_folder"]),
                adopted=True,
                started_ns=entry["t_ns"],
            )
            self.processes[name] = process
            if (exit_entry := entry.get("exit")) is not None:
                if "identity" in entry:
                    process.identity = ProcessIdentity(*entry["identity"])
                process.state, process.adopted = exit_entry["state"], False
                process.exit_code = exit_entry["exit_code"]
                process.exit_signal = exit_entry["exit_signal"]
                process.exit_cause = exit_entry["exit_cause"]
                process.exit_text = _last_words(process)
                process.exited_ns = exit_entry["t_ns"]
                process.ended.set()
                continue
            process.identity = self._read_identity(name, entry, left.boot)
            if process.identity is not None and process.identity.is_alive():
                process.state = "running"
                await self._watch(process)
            else:
                await self._note_end(process, None, None, None)

    def reap_strangers(self) -> None:
        """Wait for children without another waiter: watchdogs, and orphans of processes."""
        if self._image.is_forking or self._helpers:
            return  # a child may be a process with a pid that is not reported yet
        own = {
            process.identity.pid
            for process in self.processes.values()
            if process.is_running and process.identity is not None
        }
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in own:
                return  # its own watch comes for it, and calls this again
            os.waitpid(found.si_pid, 0)
            if found.si_pid == self._image.pid:
                logger.error("the fork server has died; nothing more can be started here")

    @contextmanager
    def suspend_reaping(self) -> Iterator[None]:
        """Leave the children that are started meanwhile to their own waiters."""
        self._helpers += 1
        try:
            yield
        finally:
            self._helpers -= 1
            self.reap_strangers()

    def _read_identity(self, name: str, entry: Entry, boot: str | None) -> ProcessIdentity | None:
        # The process itself wrote the file, even if its agent died before it received the pid.
        found = read_identity(self._paths.process_file(name))
        if found is None and boot == boot_id() and "identity" in entry:
            found = ProcessIdentity(*entry["identity"])
        return found

    async def _launch(
        self, process: ManagedProcess, once: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Start a process; `once` is added to its configuration for this start."""
        if self._is_closing:
            raise ControlError("busy", "this agent is ending; it starts nothing")
        make_log_folder(process.name, process.log_folder)
        if process.control_socket and (stale := Path(process.control_socket)).is_socket():
            stale.unlink()  # a killed process left it; it reappears when the new process answers
        await self._journal.write(
            "start",
            process=process.name,
            role=process.role,
            config=process.config,
            control_socket=process.control_socket,
            log_folder=str(process.log_folder),
        )
        # From here to the watch nothing may be cut off, or a child would run unwatched.
        with trio.CancelScope(shield=True):
            started_ns = time.monotonic_ns()
            process.identity = identity = await self._image.fork(
                process.role,
                {**process.config, **once},
                name=process.name,
                lock_file=str(self._paths.process_file(process.name)),
                output_folder=str(process.log_folder),
                core=process.config.get("core", -1),
                nice=process.config.get("nice", 0),
            )
            process.adopted = False
            process.state, process.expected_exit = "running", None
            process.exit_code = process.exit_signal = process.exit_cause = None
            process.started_ns, process.exited_ns = started_ns, None
            process.ended = trio.Event()
            await self._watch(process)
            row = {"process": process.name, "pid": identity.pid, "start_time": identity.start_time}
            await self._journal.note("started", **row)
        self._publish("process_started", row)

    async def _watch(self, process: ManagedProcess) -> None:
        assert process.identity is not None, process
        try:
            descriptor = process.identity.open()  # a zombie of ours still can be
        except ProcessLookupError:
            assert process.adopted, process
            await self._note_end(process, None, None, None)
            return
        except OSError:  # no descriptor or memory is free
            self._nursery.start_soon(self._watch_later, process)
            return
        self._nursery.start_soon(self._wait_end, process, descriptor)

    async def _watch_later(self, process: ManagedProcess) -> None:
        """Watch a process once there may be a free file descriptor to do so."""
        await trio.sleep(_WATCH_RETRY_S)
        await self._watch(process)

    async def _wait_end(self, process: ManagedProcess, descriptor: int) -> None:
        identity = process.identity
        assert identity is not None, process
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        exit_code = exit_signal = None
        usage: dict[str, Any] | None = None
        if not process.adopted:
            # Before the wait, the pid still belongs to the process and its group.
            try:
                os.killpg(identity.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            _, status, resources = os.wait4(identity.pid, 0)
            exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            exit_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            usage = {
                "user_s": resources.ru_utime,
                "system_s": resources.ru_stime,
                "peak_rss_bytes": resources.ru_maxrss * 1024,
            }
        await self._note_end(process, exit_code, exit_signal, usage)
        self.reap_strangers()

    async def _note_end(
        self,
        process: ManagedProcess,
        exit_code: int | None,
        exit_signal: int | None,
        usage: dict[str, Any] | None,
    ) -> None:
        process.exited_ns = time.monotonic_ns()
        process.exit_code, process.exit_signal = exit_code, exit_signal
        if process.expected_exit is not None:
            process.exit_cause = process.expected_exit
        elif process.adopted:
            process.exit_cause = "unknown"
        else:
            # A process that ends by itself, in order, was asked to by other means or is complete.
            process.exit_cause = "planned" if exit_code == 0 else "unexpected"
        process.state = "stopped" if process.expected_exit == "planned" else "exited"
        process.exit_text = _last_words(process)
        identity = process.identity
        row = {
            "process": process.name,
            "pid": identity.pid if identity else None,
            "state": process.state,
            "exit_code": exit_code,
            "exit_signal": exit_signal,
            "exit_cause": process.exit_cause,
        }
        with trio.CancelScope(shield=True):
            await self._journal.note("exited", **row)
        _write_exit(process, row, usage)
        process.ended.set()
        self._publish("process_exited", {**row, "t_exit_ns": process.exited_ns})


def config_digest(role: str, config: dict[str, Any], control_socket: str) -> str:
    """Return a digest that is equal for equal starts, as 16 hex digits."""
    text = json.dumps([role, config, control_socket], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def parse_signal(name: object) -> signal.Signals:
    """Return the signal called "KILL", "SIGKILL" or "kill".

    Raises:
        ControlError: `user`: none of SIGNALS.
    """
    word = str(name).upper().removeprefix("SIG")
    if word not in SIGNALS:
        raise ControlError("user", f"no signal {str(name)[:40]!r}{nearest(word, SIGNALS)}")
    return signal.Signals[f"SIG{word}"]


def _check_core(name: str, core: object) -> None:
    available = os.sched_getaffinity(0)
    if type(core) is not int or not (core == -1 or core in available):
        cores = ", ".join(map(str, sorted(available)))
        raise ControlError("user", f"{name}: core = {core!r}; available: {cores} (-1 for any)")


def make_log_folder(name: str, folder: Path) -> None:
    """Make the log folder of a process, with the files of its output.

    Without these files the process could not state the reason for its end.

    Raises:
        ControlError: `user`: the folder or a file cannot be used.
        OSError: the disk has no room or has failed, or no file descriptor is free.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in OUTPUT_FILES:
            os.close(os.open(folder / file, OUTPUT_FLAGS, 0o600))
    except OSError as error:
        if error.errno not in _OBSTACLES:
            raise
        text = describe_obstacle(folder, error)
        advice = "give the folder to this account, or move it away"
        raise ControlError("user", f"{name}: its log folder {text}; {advice}") from None


def _last_words(process: ManagedProcess) -> str:
    """Return the last line that a process printed, if its exit code is not 0."""
    return _last_line(process.log_folder / "stderr.log") if process.exit_code else ""


def _last_line(path: Path) -> str:
    """Return the last line of a file, cut off; "" if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write_exit(process: ManagedProcess, row: dict[str, Any], usage: dict[str, Any] | None) -> None:
    content = {
        **row,
        "t_start_ns": process.started_ns,
        "t_exit_ns": process.exited_ns,
        "usage": usage,
    }
    try:
        write_whole(process.log_folder / "exit.json", json.dumps(content) + "\n")
    except OSError as error:  # its folder was taken away; the journal has it
        logger.warning("%s: exit.json: %s", process.name, error)
