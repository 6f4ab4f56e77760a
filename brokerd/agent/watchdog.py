"""Watchdog processes that heal faults if no agent is left.

A watchdog waits until the lease in its file has expired, regardless of the number of extensions,
and then undoes a single fault. A watchdog runs in a session of its own, so neither the controller's
death nor the agent's ends the watchdog. On SIGTERM, a fault's watchdog undoes the fault at once: a
shutdown of a host must not depend on a list of its faults.
"""

import fcntl
import json
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from brokerd.agent.nft import Table, delete_table
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.errors import ControlError
from brokerd.files import write_whole

GRACE_NS: Final = 500_000_000
"""Time between the lease and the action of a watchdog: a living agent acts first."""
SHARE_PERIOD_MS: Final = 100
"""Period in which a process runs once for its share."""
_ATTEMPTS: Final = 60
_RETRY_S: Final = 1.0


def write_lease(path: Path, deadline_ns: int, *, has_begun: bool = True) -> None:
    """Write the deadline (CLOCK_MONOTONIC) until which the watchdog of this file waits.

    Args:
        has_begun: True if a watchdog that acts during the lease must act.
    """
    write_whole(path, json.dumps({"deadline_ns": deadline_ns, "has_begun": has_begun}))


def read_heal_time(path: Path) -> int | None:
    """Return the time at which the watchdog of this file healed; None if it has not."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    healed_ns = found.get("healed_ns")
    assert healed_ns is None or isinstance(healed_ns, int), found
    return healed_ns


def run_thaw_watchdog(config: dict[str, Any]) -> None:
    """Continue the frozen process `pid`, `start_time` once the lease in `lease_file` has expired.

    No effect if that process ends first.
    """
    lease_file = Path(config["lease_file"])
    with suppress(ProcessLookupError):
        descriptor, ended = _watch(config)
        with _until_terminated():
            while (left_ns := _remaining_ns(lease_file)) > 0:
                if ended.poll(left_ns / 1_000_000):
                    return
        _resume(descriptor, lease_file)


def run_share_watchdog(config: dict[str, Any]) -> None:
    """Let the process `pid`, `start_time` run for `share_percent` of the time, else stop it.

    Once the lease in `lease_file` has expired, the process runs on for good. No further effect if
    that process ends first.
    """
    lease_file = Path(config["lease_file"])
    running_ms = SHARE_PERIOD_MS * config["share_percent"] // 100
    with suppress(ProcessLookupError):
        descriptor, ended = _watch(config)
        with _until_terminated():
            while _remaining_ns(lease_file) > 0:
                if _has_begun(lease_file):
                    signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
                    if ended.poll(SHARE_PERIOD_MS - running_ms):
                        return
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                if ended.poll(running_ms):
                    return
        _resume(descriptor, lease_file)


def run_nft_watchdog(config: dict[str, Any]) -> None:
    """Delete the nft table `table` with the marker `owner` once the lease has expired.

    A table of this name without that marker has another owner, and stays.
    """
    lease_file = Path(config["lease_file"])
    with _until_terminated():
        while (left_ns := _remaining_ns(lease_file)) > 0:
            time.sleep(left_ns / 1e9)
    for attempts_left in range(_ATTEMPTS, 0, -1):
        try:
            delete_table(Table(config["table"], config["owner"]))
            break
        except ControlError as error:
            if error.kind == "user" or attempts_left == 1:
                raise
            time.sleep(_RETRY_S)
    write_whole(lease_file, json.dumps({"healed_ns": time.monotonic_ns()}))


def run_hold_watchdog(config: dict[str, Any]) -> None:
    """Kill the processes of a dead agent, once the lease of its deployment has expired.

    No effect while an agent of this root lives: ending the deployment is its task. No effect either
    if the lease was released, perhaps by a later agent that has a watchdog of its own.
    """
    paths = AgentPaths(Path(config["root"]))
    lease_file = Path(config["lease_file"])
    while (left_ns := _remaining_ns(lease_file)) > 0:
        time.sleep(left_ns / 1e9)
    if not lease_file.exists():
        return
    with open(paths.lock, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for process in sorted(paths.processes.glob("*.json")):
            if (identity := read_identity(process)) is not None:
                identity.signal(signal.SIGKILL)
        lease_file.unlink(missing_ok=True)


def read_identity(process_file: Path) -> ProcessIdentity | None:
    """Return the process that wrote this file of AgentPaths.processes, alive or not.

    None if the file is empty, torn, or from before the boot of the machine.
    """
    try:
        found = json.loads(process_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if found.get("boot_id") != boot_id():
        return None
    return ProcessIdentity(found["pid"], found["start_time"])


def _watch(config: dict[str, Any]) -> tuple[int, select.poll]:
    """Return a descriptor of the process `pid`, `start_time`, and a poll object for its end.

    Raises:
        ProcessLookupError: the process has ended.
    """
    descriptor = ProcessIdentity(config["pid"], config["start_time"]).open()
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return descriptor, ended


def _resume(descriptor: int, lease_file: Path) -> None:
    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    write_whole(lease_file, json.dumps({"healed_ns": time.monotonic_ns()}))


class _StopRequest(BaseException):
    """The receipt of SIGTERM."""


@contextmanager
def _until_terminated() -> Iterator[None]:
    """Leave this block on SIGTERM; the following code is not disturbed by another signal."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _StopRequest

    try:
        signal.signal(signal.SIGTERM, stop)
        yield
    except _StopRequest:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _has_begun(lease_file: Path) -> bool:
    try:
        return bool(json.loads(lease_file.read_text(encoding="utf-8"))["has_begun"])
    except (OSError, ValueError, KeyError):
        return False


def _remaining_ns(lease_file: Path) -> int:
    # A lease that cannot be read counts as expired: healing early is the smaller harm.
    try:
        found = json.loads(lease_file.read_text(encoding="utf-8"))
        return int(found["deadline_ns"]) + GRACE_NS - time.monotonic_ns()
    except (OSError, ValueError, KeyError):
        return 0
