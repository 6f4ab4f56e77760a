"""Process identities: a pid and the instant of the start, never a pid alone.

A pid is reused after the end of its process. Pid and start time together identify a process of one
boot of a machine, and a pidfd that was opened before the start time was compared keeps the
identity, so that no signal ever reaches an unrelated process.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

STOPPED = "T"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this boot of this machine.

    Attributes:
        pid: number during its life.
        start_time: clock ticks from boot to its start (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the process that has this pid now.

        Raises:
            ProcessLookupError: no process has the pid.
        """
        return cls(pid, _stat(f"/proc/{pid}/stat")[1])

    def is_alive(self) -> bool:
        """Return True if the process runs or is stopped; a zombie is not alive."""
        try:
            state, start_time = _stat(f"/proc/{self.pid}/stat")
        except ProcessLookupError:
            return False
        except OSError:
            return self._has_pid()  # as precise as possible without a descriptor
        return start_time == self.start_time and state not in "ZX"

    def _has_pid(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def shares_root(self) -> bool:
        """Return True if the process has the same root folder as this process.

        The processes of a container are visible outside it, and its paths name other folders.
        """
        try:
            return os.path.samefile(f"/proc/{self.pid}/root", "/")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False

    def is_stopped(self) -> bool:
        """Return True if every thread of the process is stopped by a signal."""
        try:
            if ProcessIdentity.of(self.pid) != self:
                return False
            threads = os.listdir(f"/proc/{self.pid}/task")
            states = {_stat(f"/proc/{self.pid}/task/{thread}/stat")[0] for thread in threads}
        except (ProcessLookupError, FileNotFoundError):
            return False
        return states == {STOPPED}

    def cores(self) -> list[int] | None:
        """Return the CPUs that any thread of the process may run on.

        None if the process has ended.
        """
        found: set[int] = set()
        try:
            if ProcessIdentity.of(self.pid) != self:
                return None
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{thread}/status", encoding="utf-8") as file:
                    for line in file:
                        if line.startswith("Cpus_allowed_list:"):
                            found |= _cpu_list(line.partition(":")[2])
        except (ProcessLookupError, FileNotFoundError):
            return None
        return sorted(found)

    def processor_s(self) -> float | None:
        """Return the user and system time used so far; None if the process has ended."""
        try:
            fields = _fields(f"/proc/{self.pid}/stat")
        except ProcessLookupError:
            return None
        if int(fields[19]) != self.start_time:
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def busiest_thread(self) -> tuple[float, float] | None:
        """Return the seconds for which the busiest thread has run, and has waited for a core.

        Other work on the machine shows in the waiting. None if the process has ended.
        """
        found: list[tuple[float, float]] = []
        try:
            if ProcessIdentity.of(self.pid) != self:
                return None
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    ran_ns, waited_ns, _ = map(int, file.read().split())
                found.append((ran_ns / 1e9, waited_ns / 1e9))
        except (ProcessLookupError, FileNotFoundError):
            return None
        return max(found, default=None)

    def open(self) -> int:
        """Return a pidfd that identifies this process and no other.

        Raises:
            ProcessLookupError: the process has ended, or its pid belongs to another process by now.
        """
        descriptor = os.pidfd_open(self.pid)
        try:
            if ProcessIdentity.of(self.pid) != self:
                raise ProcessLookupError(f"pid {self.pid} is another process by now")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; return False if it has ended."""
        try:
            descriptor = self.open()
        except ProcessLookupError:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def take_sample(take: Callable[[], Sample]) -> Sample | None:
    """Return a sample of /proc; None if it cannot be taken.

    No file descriptor or memory may be free, and a kernel may hide or lack a file.
    """
    try:
        return take()
    except OSError:
        return None


def machine_busy_s() -> float:
    """Return the seconds for which the machine's cores have worked since boot, in sum.

    Raises:
        OSError: the file cannot be read, as without a free file descriptor.
    """
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupt, soft_interrupt, *_ = map(
            int, file.readline().split()[1:]
        )
    return (user + nice + system + interrupt + soft_interrupt) / _TICKS_PER_S


@cache
def boot_id() -> str:
    """Return the id of this boot of this machine; start times of other boots are invalid here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat(path: str) -> tuple[str, int]:
    fields = _fields(path)
    return fields[0].decode("ascii"), int(fields[19])


def _fields(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"{path}: no such process") from None
    # The second field is the name in brackets, and may contain spaces and brackets itself.
    return content[content.rindex(b")") + 2 :].split()


def _cpu_list(text: str) -> set[int]:
    """Return the numbers in 0-3,8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
