"""An agent as a background process: started once, and independent of its starter."""

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import trio

from brokerd.agent.agent import WATCHDOG_ROLES, Agent
from brokerd.agent.fork_server import EXIT_INTERNAL, ForkServer, Role, fork_image
from brokerd.agent.paths import AgentPaths
from brokerd.errors import BrokerError, ConfigError
from brokerd.interpreter import (
    NO_PROCESS,
    NO_PROCESS_ADVICE,
    has_met_process_limit,
    raise_descriptor_limit,
)
from brokerd.runtime.program import read_own_program

EXIT_USAGE: Final = 2
EXIT_PREFLIGHT: Final = 4


def run_agent(
    root: Path,
    name: str,
    deployment: str,
    roles: Mapping[str, Role],
    socket_path: Path | None = None,
    ready: int | None = None,
    lease_ms: int = 0,
) -> int:
    """Run the agent of `root` in this process until the end; return the exit status.

    All imports of the roles should be done by now, and nothing of trio may run. If `ready` is a
    descriptor, a line of JSON is written there once clients can connect: the identity of the agent,
    or the reason for the failure.
    """
    os.umask(0o077)
    raise_descriptor_limit()
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    read_own_program()  # of the present files, for the image, too
    has_published = False

    def publish(**line: Any) -> None:
        nonlocal has_published
        if ready is not None and not has_published:
            os.write(ready, json.dumps(line).encode() + b"\n")
            os.close(ready)
        has_published = True

    image: ForkServer | None = None
    try:
        image = fork_image({**WATCHDOG_ROLES, **roles})
        agent = Agent(root, name, deployment, image, socket_path, lease_ms)

        def on_ready() -> None:
            socket = str(agent.socket_path)
            publish(pid=os.getpid(), socket=socket, name=name, deployment=deployment)

        trio.run(agent.run, on_ready)
    except BaseException as group:
        error = _innermost(group)
        status = EXIT_INTERNAL
        if isinstance(error, ConfigError):
            status = EXIT_USAGE
        elif isinstance(error, BrokerError):
            status = EXIT_PREFLIGHT
        elif has_met_process_limit(error):
            error, status = BrokerError(f"{NO_PROCESS}; {NO_PROCESS_ADVICE}"), EXIT_PREFLIGHT
        publish(error=str(error) or type(error).__name__, status=status)
        if status == EXIT_INTERNAL:
            raise
        return _fail(error, status)
    finally:
        if image is not None:
            _end_image(image)
    return 0


def start_daemon(
    root: Path, name: str, deployment: str, roles: Mapping[str, Role], *, lease_ms: int = 0
) -> int:
    """Start the agent of `root` in the background; return the exit status of the start.

    Returns when clients can connect, with a line of JSON on standard output (`pid`, `socket`), or
    when the start has failed, with the reason on standard error.
    """
    paths = AgentPaths(root)
    try:
        paths.make()
    except ConfigError as error:
        return _fail(error, EXIT_USAGE)
    readable, writable = os.pipe()
    try:
        pid = os.fork()
    except BlockingIOError:
        return _fail(f"{NO_PROCESS}; {NO_PROCESS_ADVICE}", EXIT_PREFLIGHT)
    if pid == 0:
        os.close(readable)
        _run_in_background(paths, name, deployment, roles, writable, lease_ms)
    os.close(writable)
    with open(readable, "rb") as pipe:
        line = pipe.readline()
    if not line:
        return _fail(f"the agent died at its start; see {paths.log}", EXIT_INTERNAL)
    answer = json.loads(line)
    if "error" in answer:
        return _fail(answer["error"], answer["status"])
    sys.stdout.write(line.decode())
    sys.stdout.flush()
    return 0


def _run_in_background(
    paths: AgentPaths,
    name: str,
    deployment: str,
    roles: Mapping[str, Role],
    ready: int,
    lease_ms: int,
) -> NoReturn:
    status = EXIT_INTERNAL
    try:
        os.setsid()
        os.chdir("/")
        source = os.open(os.devnull, os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        target = os.open(paths.log, flags, 0o600)
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(source)
        os.close(target)
        status = run_agent(paths.root, name, deployment, roles, ready=ready, lease_ms=lease_ms)
    except BaseException:
        logging.getLogger(__name__).exception("the agent failed")
    finally:
        os._exit(status)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _end_image(image: ForkServer) -> None:
    image.close()
    try:
        os.waitpid(image.pid, 0)
    except ChildProcessError:
        pass  # it died before, and was waited for then


def _fail(reason: object, status: int) -> int:
    sys.stderr.write(f"{reason}\n")
    return status
