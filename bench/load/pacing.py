"""Instants of an open loop, and the wake-ups at these instants.

Wake-ups at instants of CLOCK_MONOTONIC are exact to some tens of microseconds. epoll rounds the
sleep of an event loop up to whole milliseconds, which would dominate latencies at low rates. A
timerfd is a file that becomes readable at the instant.

The schedule of publications and of subscribers' absences follows from rate and seed alone and never
adapts to the system under test. A late publication keeps its intended time, and its latency counts
from that time. So a stall delays everything that was intended during the stall, not only one
message.
"""

import ctypes
import math
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

from bench.load.splitmix import splitmix64
from brokerd.units import SECOND_NS

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_PR_SET_TIMERSLACK = 29


class Alarm:
    """A timer that sleeps until instants; for one task at a time."""

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
        os.close(self._descriptor)

    async def sleep_until(self, at_ns: int) -> None:
        """Sleep until `at_ns`, or return at once if the instant has passed."""
        import trio  # slow to import, and schedules are computed without it

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
    """A limit on the work of busy tasks before other tasks run.

    All busy tasks of a process share the turn. The end of the turn is the end for all busy tasks,
    until the first task that yielded resumes. So every other task, with the control socket, waits
    for little more than one turn, for any number of busy tasks.
    """

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._spent_ns = 0

    def is_over(self, worked_ns: int) -> bool:
        """Add the working time of a task; return True if the task must yield, and then `renew`."""
        self._spent_ns += worked_ns
        return self._spent_ns >= self._length_ns

    def renew(self) -> None:
        """Begin a new turn, after other tasks ran."""
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
        """Count a duration; a negative duration counts as 0."""
        duration_ns = max(0, duration_ns)
        bucket = _bucket(duration_ns)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times
        self.sum_ns += duration_ns * times
        self.largest_ns = max(self.largest_ns, duration_ns)

    def add_all(self, other: "Histogram") -> None:
        """Add all counts of another histogram."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += other.total
        self.sum_ns += other.sum_ns
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def snapshot(self) -> dict[str, Any]:
        """Return cumulative counts for a collector, with bounds in seconds.

        A count is a lower bound of the number of durations up to its bound.
        """
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
        """Return the least upper bound of a bucket with at least `share` below; 0 if empty."""
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
    """Return the largest duration of a bucket."""
    if bucket < _STEPS:
        return bucket
    doublings = bucket // _STEPS - 1
    return ((bucket % _STEPS + _STEPS + 1) << doublings) - 1


_CHUNK = 4096
_PHASES = 0x7E57_0001
_GAPS = 0x7E57_0002
_ABSENCES = 0x7E57_0003
_STRIDE = 1_000_003


def intended_offsets(
    *, numerator: int, denominator: int, arrivals: str, seed: int, index: int, duration_ns: int
) -> "Iterator[array[int]]":
    """Return the intended times of publisher `index`, as ns from the start, in ascending chunks.

    The rate is numerator / denominator per second. "fixed" publishers are equally spaced, each with
    a phase drawn from the seed, so that every stretch of n periods contains exactly n publications
    and publishers are not synchronous. "poisson" publishers have exponential gaps.
    """
    assert numerator > 0, "a publisher at rate `max` has no schedule"
    assert denominator > 0, denominator
    if arrivals == "poisson":
        return _poisson(numerator / denominator, seed, index, duration_ns)
    assert arrivals == "fixed", arrivals
    return _fixed_offsets(numerator, denominator, seed, index, duration_ns)


SEGMENT_STRIDE: Final = 65_536
"""Distance of the indices from which segments of a shape draw, above the index of any publisher."""


def shaped_offsets(
    segments: Sequence[tuple[int, int, int]], *, arrivals: str, seed: int, index: int
) -> "Iterator[array[int]]":
    """Return the intended times of a publisher with a rate shape; see `intended_offsets`.

    Each segment (length in ns, numerator and denominator of the rate) is a schedule of its own, as
    of the publisher `index` + 65,536 times the number of the segment.
    """
    begin_ns = 0
    for number, (length_ns, numerator, denominator) in enumerate(segments):
        if numerator:
            for chunk in intended_offsets(
                numerator=numerator,
                denominator=denominator,
                arrivals=arrivals,
                seed=seed,
                index=index + number * SEGMENT_STRIDE,
                duration_ns=length_ns,
            ):
                yield array("q", [begin_ns + at_ns for at_ns in chunk])
        begin_ns += length_ns


def offsets_of(
    rate: Fraction,
    segments: Sequence[tuple[int, int, int]],
    *,
    arrivals: str,
    seed: int,
    index: int,
    duration_ns: int,
) -> "Iterator[array[int]]":
    """Return the intended times of a publisher, by its shape or else by its rate."""
    if segments:
        return shaped_offsets(segments, arrivals=arrivals, seed=seed, index=index)
    return intended_offsets(
        numerator=rate.numerator,
        denominator=rate.denominator,
        arrivals=arrivals,
        seed=seed,
        index=index,
        duration_ns=duration_ns,
    )


def _fixed_offsets(
    numerator: int, denominator: int, seed: int, index: int, duration_ns: int
) -> "Iterator[array[int]]":
    drawn = splitmix64(splitmix64(seed ^ _PHASES) + index * _STRIDE)
    period_ns = SECOND_NS * denominator // numerator
    phase_ns = drawn % max(1, period_ns)
    # `phase + k * rounded period` would drift away from the rate.
    count = max(0, -(-(duration_ns - phase_ns) * numerator // (SECOND_NS * denominator)))
    step = SECOND_NS * denominator
    for first in range(0, count, _CHUNK):
        yield array(
            "q",
            [phase_ns + k * step // numerator for k in range(first, min(first + _CHUNK, count))],
        )


def _poisson(per_second: float, seed: int, index: int, duration_ns: int) -> "Iterator[array[int]]":
    start = splitmix64(splitmix64(seed ^ _GAPS) + index * _STRIDE)
    mean_ns = SECOND_NS / per_second
    at, drawn = 0.0, 0
    while True:
        chunk = array("q")
        while len(chunk) < _CHUNK:
            uniform = (splitmix64(start + drawn) >> 11) / (1 << 53)
            drawn += 1
            at -= mean_ns * math.log1p(-uniform)
            if at >= duration_ns:
                if chunk:
                    yield chunk
                return
            chunk.append(int(at))
        yield chunk


def absences(
    *,
    disconnected_ns: int,
    every_ns: int,
    pattern: str,
    seed: int,
    index: int,
    duration_ns: int,
) -> list[tuple[int, int]]:
    """Return begin and end of each absence of subscriber `index`, as ns from the start, in order.

    "independent" subscribers each have a phase drawn from the seed; "simultaneous" subscribers
    share a phase. No subscriber is absent at the end: an absence is cut there.
    """
    assert pattern in ("independent", "simultaneous"), pattern
    place = index if pattern == "independent" else 0
    phase_ns = splitmix64(splitmix64(seed ^ _ABSENCES) + place * _STRIDE) % every_ns
    return [
        (from_ns, min(from_ns + disconnected_ns, duration_ns))
        for from_ns in range(phase_ns, duration_ns, every_ns)
    ]
