"""Waking at given instants of CLOCK_MONOTONIC, to some tens of microseconds.

An event loop's own sleep is rounded up to whole milliseconds by epoll, which would be most of
the latency measured at low rates. A timerfd is a file that becomes readable at the instant.
"""

import ctypes
import os
import time
from array import array
from typing import Any, Final

import trio

from brokerd.units import SECOND_NS

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_PR_SET_TIMERSLACK = 29


class Alarm:
    """Sleeps until instants; for one task at a time."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the kernel's default adds 50 µs
        self._descriptor = self._library.timerfd_create(
            _CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC
        )
        if self._descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_create: {os.strerror(error)}")

    def close(self) -> None:
        """Give the timer back."""
        os.close(self._descriptor)

    async def sleep_until(self, at_ns: int) -> None:
        """Return at `at_ns` or as soon after it as the machine lets us."""
        if at_ns <= time.monotonic_ns():
            await trio.lowlevel.checkpoint()
            return
        # struct itimerspec: interval, then the instant, each as seconds and nanoseconds.
        when = array("q", [0, 0, at_ns // SECOND_NS, at_ns % SECOND_NS])
        address, _ = when.buffer_info()
        if self._library.timerfd_settime(
            self._descriptor, _ABSOLUTE, ctypes.c_void_p(address), None
        ):
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_settime: {os.strerror(error)}")
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, 8)


class Turn:
    """How long tasks that could work on for ever may do so before others get their turn.

    It is shared by all such tasks of a process: when it is over, it is for all of them, until
    the first that gave way is back. So whoever else is there, the control socket too, waits for
    little more than one turn, however many they are.
    """

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._spent_ns = 0

    def is_over(self, worked_ns: int) -> bool:
        """One of the tasks has worked for so long; whether to give way now, and then `renew`."""
        self._spent_ns += worked_ns
        return self._spent_ns >= self._length_ns

    def renew(self) -> None:
        """Others had their turn."""
        self._spent_ns = 0


BOUNDS_NS: Final = tuple(
    step * 10**power
    for power in range(5, 10)
    for step in (1, 2, 5)  # 0.1 ms to 5 s
)


class Histogram:
    """Counts of durations by size, to within 6 %, in a fixed number of buckets."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.largest_ns = 0
        self.sum_ns = 0

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration; one below nothing counts as nothing."""
        duration_ns = max(0, duration_ns)
        bucket = _bucket(duration_ns)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times
        self.sum_ns += duration_ns * times
        self.largest_ns = max(self.largest_ns, duration_ns)

    def add_all(self, other: "Histogram") -> None:
        """Count all that `other` counted."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += other.total
        self.sum_ns += other.sum_ns
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def told(self) -> dict[str, Any]:
        """For a collector: bounds in seconds, and how many are no longer than each, at least."""
        return {
            "le_s": [bound / 1e9 for bound in BOUNDS_NS],
            "counts": [
                sum(times for bucket, times in self.counts.items() if _upper_bound(bucket) <= bound)
                for bound in BOUNDS_NS
            ],
            "count": self.total,
            "sum_s": self.sum_ns / 1e9,
        }

    def quantile_ns(self, share: float) -> int:
        """The least upper bound of a bucket below which at least `share` lie; 0 when empty."""
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= share * self.total:
                return min(_upper_bound(bucket), self.largest_ns)
        return 0


_STEPS = 16  # buckets per doubling


def _bucket(duration_ns: int) -> int:
    if duration_ns < _STEPS:
        return duration_ns
    doublings = duration_ns.bit_length() - 5
    return (doublings + 1) * _STEPS + (duration_ns >> doublings) - _STEPS


def _upper_bound(bucket: int) -> int:
    """The largest duration of a bucket."""
    if bucket < _STEPS:
        return bucket
    doublings = bucket // _STEPS - 1
    return ((bucket % _STEPS + _STEPS + 1) << doublings) - 1
