"""A server that forks processes off a warm image, at milliseconds and 3 MiB per process.

Without the image, a start takes 0.3 s and 26 MiB. The image has imported everything and never runs
an event loop, a thread or any other code but this file, so a fork of the image has nothing to clean
up. The image forks twice, and the agent has declared itself subreaper: so the new process is the
agent's own child and can be waited for.
"""

import ctypes
import errno
import fcntl
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import trio

from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.errors import BrokerError, BrokerMustEnd, ConfigError, ControlError, StorageCorrupt
from brokerd.interpreter import NO_PROCESS, NO_PROCESS_ADVICE
from brokerd.text import named
from brokerd.wire.control import (
    PREFIX,
    Answer,
    ControlMessage,
    Refusal,
    Request,
    decode_control,
    encode_control,
    header_length,
)

Role = Callable[[dict[str, Any]], None]
"""The work of a process, given its configuration; the process ends when this returns or raises."""

EXIT_INTERNAL: Final = 70
EXIT_ALREADY_RUNNING: Final = 75
EXIT_CONFIG: Final = 78
OUTPUT_FILES: Final = ("stdout.log", "stderr.log")
OUTPUT_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_NICE_S: Final = 5.0
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36


class ForkServer:
    """The agent's end of the connection to the warm image.

    Made before the agent runs an event loop, by `fork_image`.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._stream: trio.SocketStream | None = None
        self._lock = trio.Lock()
        self._requests = 0
        self._in_flight = 0

    @property
    def is_forking(self) -> bool:
        """Return True if a child may exist with a pid that `fork` has not returned yet."""
        return self._in_flight > 0

    async def fork(
        self, role: str, config: dict[str, Any], *, name: str, **options: Any
    ) -> ProcessIdentity:
        """Return a new child of this process, named `name` in top, that has begun `role(config)`.

        Options: `lock_file` (the process locks the file and writes its identity there, or ends with
        EXIT_ALREADY_RUNNING), `output_folder` (stdout.log, stderr.log), `core` (the CPU to pin to;
        -1 for any), `nice` (its niceness). If an option could not be applied, the process has ended
        with a status for that cause.

        Raises:
            ControlError: `internal`: the image is gone or out of processes.
        """
        self._in_flight += 1
        try:
            with trio.CancelScope(shield=True):
                arguments = {"role": role, "config": config, "name": name, **options}
                reply = await self._call("fork", arguments)
        finally:
            self._in_flight -= 1
            # A handler that was notified of a child's end meanwhile ignored it, and is notified
            # again.
            signal.raise_signal(signal.SIGCHLD)
        if isinstance(reply, Refusal):
            raise ControlError(reply.kind, reply.text)
        assert isinstance(reply, Answer), reply
        pid, start_time = reply.result["pid"], reply.result["start_time"]
        assert isinstance(pid, int), reply
        assert isinstance(start_time, int), reply
        return ProcessIdentity(pid, start_time)

    async def _call(self, command: str, arguments: dict[str, Any]) -> ControlMessage:
        if self._stream is None:
            self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(self._connection))
        async with self._lock:
            self._requests += 1
            try:
                await self._stream.send_all(
                    encode_control(Request(self._requests, command, arguments))
                )
                prefix = await self._receive(PREFIX.size)
                return decode_control(await self._receive(header_length(prefix)))
            except (trio.BrokenResourceError, EOFError) as error:
                raise ControlError("internal", "the agent's fork server has died") from error

    async def _receive(self, size: int) -> bytes:
        assert self._stream is not None
        received = b""
        while len(received) < size:
            chunk = await self._stream.receive_some(size - len(received))
            if not chunk:
                raise EOFError
            received += chunk
        return received

    def close(self) -> None:
        """End the image; its forked processes run on."""
        self._connection.close()
        if self._stream is not None:
            self._stream.socket.close()


def fork_image(roles: Mapping[str, Role]) -> ForkServer:
    """Fork the warm image off this process, and make this process adopt its forks.

    To be called with everything imported, before any thread or event loop. The caller must wait for
    the image's pid after closing the server.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    gc.collect()
    gc.freeze()
    agent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = EXIT_INTERNAL
        try:
            _close_inherited(keep=theirs.fileno())
            os.setsid()
            _prctl(_PR_SET_NAME, b"pubsub:image")
            _serve_forks(theirs, roles, agent_pid)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            _exit(status)
    theirs.close()
    return ForkServer(ours, pid)


def _serve_forks(connection: socket.socket, roles: Mapping[str, Role], agent_pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while (request := _receive_request(connection)) is not None:
        reply: ControlMessage
        if request.arguments["role"] not in roles:
            reply = Refusal(request.id, "user", f"no role {request.arguments['role']!r}")
        else:
            try:
                pid, settled = _fork_orphan(roles, agent_pid, request.arguments)
                # Read here: the agent may have no free descriptor, and would lose its child. The
                # process is there until the agent waits for it.
                start_time = ProcessIdentity.of(pid).start_time
                reply = Answer(
                    request.id, {"pid": pid, "start_time": start_time, "settled": settled}
                )
            except BlockingIOError:
                reply = Refusal(request.id, "busy", f"{NO_PROCESS}; {NO_PROCESS_ADVICE}")
            except OSError as error:
                reply = Refusal(request.id, "internal", f"cannot fork: {error}")
        connection.sendall(encode_control(reply))


def _receive_request(connection: socket.socket) -> Request | None:
    prefix = connection.recv(PREFIX.size, socket.MSG_WAITALL)
    if len(prefix) < PREFIX.size:
        return None
    length = header_length(prefix)
    header = b""
    while len(header) < length:
        chunk = connection.recv(length - len(header))
        if not chunk:
            return None
        header += chunk
    request = decode_control(header)
    assert isinstance(request, Request), request
    return request


def _fork_orphan(
    roles: Mapping[str, Role], agent_pid: int, options: dict[str, Any]
) -> tuple[int, bool]:
    """Return the pid of the new process, and True if it has begun its role."""
    readable, writable = os.pipe()
    middle = os.fork()
    if middle == 0:
        status = EXIT_INTERNAL
        try:
            middle_pid = os.getpid()
            pid = os.fork()
            if pid == 0:
                _become(roles, options, agent_pid, middle_pid, writable)
            os.write(writable, b"%d\n" % pid)
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    os.waitpid(middle, 0)  # from here on its child is the agent's
    with open(readable, "rb") as pipe:
        output = pipe.read().splitlines()
    if not output:
        raise BlockingIOError(errno.EAGAIN, "the process in the middle could not fork")
    return int(output[0]), len(output) > 1


def _become(
    roles: Mapping[str, Role],
    options: dict[str, Any],
    agent_pid: int,
    middle_pid: int,
    settled: int,
) -> NoReturn:
    """Turn this fork of the image into the requested process; never returns."""
    status = EXIT_INTERNAL
    try:
        _leave_image(options, keep=settled)
        lock = _lock(options["lock_file"], options["name"]) if "lock_file" in options else -1
        _check_agent(agent_pid, middle_pid)
        os.write(settled, b"settled\n")
        os.close(settled)
        roles[options["role"]](options["config"])
        del lock  # held by the process until here
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except (ConfigError, StorageCorrupt, BrokerMustEnd) as error:
        print(named(options["name"], str(error)), file=sys.stderr)  # noqa: T201
        status = EXIT_CONFIG
    except BrokerError as error:
        print(named(options["name"], str(error)), file=sys.stderr)  # noqa: T201
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(status)


def _leave_image(options: dict[str, Any], keep: int) -> None:
    """Discard all state of the image except its memory."""
    os.setsid()
    os.umask(0o077)
    _close_inherited(keep)
    _prctl(_PR_SET_NAME, f"pubsub:{options['name']}".encode()[:15])
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond `ulimit -f` fails with a reason
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _redirect(options.get("output_folder"))
    if options.get("core", -1) >= 0:
        os.sched_setaffinity(0, {options["core"]})
    if nice := options.get("nice", 0):
        _lower_priority(nice)


def _lower_priority(nice: int) -> None:
    """Lower the priority: among processes, and among sessions."""
    nice = os.nice(nice)  # so much more than the agent, which may give way itself
    # If the kernel divides time among sessions first, processes of different sessions are not
    # compared. The kernel accepts ten changes per second, over all users.
    deadline = time.monotonic() + _NICE_S
    while True:
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(nice))
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _check_agent(agent_pid: int, middle_pid: int) -> None:
    # The agent may have died meanwhile. Then there is no record of this process, unless the next
    # agent found the lock; so the process must not begin.
    while os.getppid() == middle_pid:
        time.sleep(0.001)
    if os.getppid() != agent_pid:
        raise BrokerError("the agent that requested this process has died")


def _lock(path: str, name: str) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{name}: another process of this name is alive", file=sys.stderr)  # noqa: T201
        raise SystemExit(EXIT_ALREADY_RUNNING) from None
    own = ProcessIdentity.of(os.getpid())
    identity = {"process": name, "pid": own.pid, "start_time": own.start_time, "boot_id": boot_id()}
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps(identity).encode())
    return lock


def _redirect(output_folder: str | None) -> None:
    source = os.open(os.devnull, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    if output_folder is None:
        return
    for descriptor, file in enumerate(OUTPUT_FILES, 1):
        target = os.open(Path(output_folder) / file, OUTPUT_FLAGS, 0o600)
        os.dup2(target, descriptor)
        os.close(target)


def _close_inherited(keep: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor that listed the folder


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(value if isinstance(value, bytes) else b"")
    argument = ctypes.c_ulong(value if isinstance(value, int) else ctypes.addressof(text))
    zero = ctypes.c_ulong(0)
    if libc.prctl(ctypes.c_int(option), argument, zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _exit(status: int) -> NoReturn:
    # Not sys.exit: nothing above a fork may unwind, run exit handlers or flush twice.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(status & 0xFF)
