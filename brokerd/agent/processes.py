"""Which process is meant: a pid and the instant it started, never a pid alone.

A pid is used again once its process is gone. Pid and start time together name one process of
one boot of one machine, and a pidfd that was opened before the start time was compared keeps
naming it, so that no signal ever reaches a stranger.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

from brokerd.storage.room import is_out_of_descriptors

STOPPED = "T"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this boot of this machine.

    Attributes:
        pid: its number while it lives.
        start_time: clock ticks from boot to its start (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this pid now.

        Raises:
            ProcessLookupError: none has.
        """
        return cls(pid, _stat(f"/proc/{pid}/stat")[1])

    def is_alive(self) -> bool:
        """Whether it runs or is stopped; a zombie is not alive."""
        try:
            state, start_time = _stat(f"/proc/{self.pid}/stat")
        except ProcessLookupError:
            return False
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            return self._has_pid()  # as much as is known without a descriptor
        return start_time == self.start_time and state not in "ZX"

    def _has_pid(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def is_stopped(self) -> bool:
        """Whether every thread of it is stopped by a signal."""
        try:
            if ProcessIdentity.of(self.pid) != self:
                return False
            threads = os.listdir(f"/proc/{self.pid}/task")
            states = {_stat(f"/proc/{self.pid}/task/{thread}/stat")[0] for thread in threads}
        except (ProcessLookupError, FileNotFoundError):
            return False
        return states == {STOPPED}

    def cores(self) -> list[int] | None:
        """The CPUs that its threads may run on, all of them together; None when it is gone."""
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
        """User and system time it has used so far; None when it is gone."""
        try:
            fields = _fields(f"/proc/{self.pid}/stat")
        except ProcessLookupError:
            return None
        if int(fields[19]) != self.start_time:
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def busiest_thread(self) -> tuple[float, float] | None:
        """Of its thread that has run longest: for how many seconds, and waited for a core.

        Other work on the machine shows in the waiting. None when the process is gone.
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
        """A pidfd that names this process and no other.

        Raises:
            ProcessLookupError: it has ended, or its pid belongs to another process by now.
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
        """Send a signal to this very process; False when it has ended."""
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


def sampled(take: Callable[[], Sample]) -> Sample | None:
    """Return a sample of /proc; None if no file descriptor is free to take it."""
    try:
        return take()
    except OSError as error:
        if not is_out_of_descriptors(error):
            raise
        return None


def machine_busy_s() -> float:
    """Return for how many seconds the machine's cores have worked since boot, in sum.

    Raises:
        OSError: it cannot be read, as without a free file descriptor.
    """
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupt, soft_interrupt, *_ = map(
            int, file.readline().split()[1:]
        )
    return (user + nice + system + interrupt + soft_interrupt) / _TICKS_PER_S


@cache
def boot_id() -> str:
    """Return the id of this boot of this machine; start times of another mean nothing here."""
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
    # The second field is the name in brackets, and may hold spaces and brackets itself.
    return content[content.rindex(b")") + 2 :].split()


def _cpu_list(text: str) -> set[int]:
    """The numbers in 0-3,8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
