"""Real processes without the import of their modules: forks of a warm image of a program.

Tests start hundreds of interpreters, and each would import the same modules for a quarter of a
second. A fork runs `python -m MODULE ARGUMENTS` too, with a folder, an environment, streams and a
session of its own. Each test worker has one image per program, from the first use on.

    python -m tests.helpers.warm_image MODULE SOCKET
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = {
    "brokerd": ("brokerd.runtime.process", "brokerd.protocols.*.core"),
    "pubsubctl": (
        "pubsubctl.entry",
        "pubsubctl.commands.*",
        "pubsubctl.deployment.*",
        "pubsubctl.hosts.*",
        "pubsubctl.running.*",
        "pubsubctl.lab.*",
        "bench.run.*",
        "trio",
    ),
}
"""The programs of images, with their modules: all that a pattern matches."""
_PATH: Final = os.environ.get("PYTHONPATH")
_MOST_BYTES: Final = 1 << 20
_STATUS_BYTES: Final = 4
_PID_BYTES: Final = 32


class WarmProcess(subprocess.Popen[str]):
    """A process that was forked off the image of its program."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        **streams: Any,
    ) -> None:
        self._program = command[2]
        self._request = {
            "arguments": [*map(str, command[3:])],
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "is_session": start_new_session,
        }
        assert [*command[:2]] == [sys.executable, "-m"], command
        super().__init__(command, **streams)

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        """Fork the process off the image, in place of a start of the interpreter."""
        handles = options[9:15]  # for standard input, output and error: one to read, one to write
        ours = [handles[0], handles[3], handles[5]]
        descriptors = [ours[place] if ours[place] >= 0 else place for place in range(3)]
        self._status, theirs = os.pipe()
        image = _image(self._program)
        try:
            request = json.dumps(self._request).encode()
            socket.send_fds(image, [request], [*descriptors, theirs])
            answer = image.recv(_PID_BYTES)
            if not answer:
                _image.cache_clear()
            assert answer, f"the image of {self._program} has died"
            self.pid = int(answer)
        finally:
            os.close(theirs)
        self._child_created = True
        self._close_pipe_fds(*handles)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return the pid and the wait status; the pid is 0 if the process runs."""
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status, _STATUS_BYTES)
        os.close(self._status)
        assert status, "the image has died"
        return self.pid, int.from_bytes(status, "little")

    def _internal_poll(self, _deadstate: int | None = None, *_: Any) -> int | None:
        if self.returncode is None:
            if _deadstate is not None:
                return _deadstate
            if self._waitpid_lock.acquire(blocking=False):  # otherwise another thread waits
                try:
                    pid, status = (
                        (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                    )
                    if pid:
                        self._handle_exitstatus(status)
                finally:
                    self._waitpid_lock.release()
        return self.returncode


def start_program(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start one of `PROGRAMS`; the arguments are those of `subprocess.Popen`.

    The process is a fork of the image of the program, unless it imports from elsewhere.
    """
    environment = options.get("env") or os.environ
    is_same = environment.get("PYTHONPATH") == _PATH
    start = WarmProcess if is_same else subprocess.Popen
    return start(command, **options)


@cache
def _image(program: str) -> socket.socket:
    """Return the connection to the image of a program; start the image."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.warm_image", program, str(theirs.fileno())],
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            ours.close()
            process.wait()

    atexit.register(end)
    return ours


def _modules(pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    paths = ROOT.glob(pattern.replace(".", "/") + ".py")
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


def serve(program: str, connection: socket.socket) -> None:
    """Fork processes on request, and report their ends, until the connection ends."""
    for pattern in PROGRAMS[program]:
        for name in _modules(pattern):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    readable, writable = os.pipe()
    for descriptor in (readable, writable):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection, readable], [], [])
        if readable in ready:
            os.read(readable, _MOST_BYTES)
            while statuses:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                _report(statuses.pop(pid), status)
        if connection in ready:
            text, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 4)
            if not text:
                return
            pid = os.fork()
            if pid == 0:
                for descriptor in (connection.detach(), readable, writable, *statuses.values()):
                    os.close(descriptor)
                _run(program, json.loads(text), descriptors)
            statuses[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(b"%d" % pid)


def _report(descriptor: int, status: int) -> None:
    try:
        os.write(descriptor, status.to_bytes(_STATUS_BYTES, "little"))
    except BrokenPipeError:
        pass  # nothing waits for this process
    os.close(descriptor)


def _run(program: str, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the program in this fork as an interpreter would; end with its status."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(descriptors.pop())
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
    for descriptor in descriptors:
        os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        _reopen(name)
    if request["is_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [program, *request["arguments"]]
    sys.path[0] = request["folder"]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit(0)


def _reopen(name: str) -> None:
    """Replace a standard stream: a file object remembers properties of its file."""
    stream = getattr(sys, f"__{name}__")
    stream.flush()
    new = open(  # noqa: SIM115
        stream.fileno(), stream.mode, buffering=1 if name == "stderr" else -1,
        encoding=stream.encoding, errors=stream.errors, closefd=False,
    )  # fmt: skip
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as image_socket:
        serve(sys.argv[1], image_socket)
