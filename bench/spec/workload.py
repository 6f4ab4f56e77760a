"""Schedules of an open loop: intended times of publications and of subscribers' absences.

The schedule follows from rate and seed alone and never adapts to the system under test. A late
publication keeps its intended time, and its latency counts from that time. So a stall delays
everything that was intended during the stall, not only one message.
"""

import math
from array import array
from collections.abc import Iterator

from bench.load.splitmix import splitmix64
from brokerd.units import SECOND_NS

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
    return _fixed(numerator, denominator, seed, index, duration_ns)


def _fixed(
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
