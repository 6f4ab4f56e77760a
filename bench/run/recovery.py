"""Recovery of a run: the time from the last change of its faults to latencies as before.

A system that recovers returns to the latency before the faults by itself. A metastable system stays
slow after its trigger has ended, for example because it repeats publications. The measure phase is
cut into windows of equal length, by the intended time of publications. A window is as before if all
its publications have arrived, and its 99th percentile is within a band around the windows before
the faults. A burst of the load is a trigger, too.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.run_statistics import Times, rows_of, transpose
from bench.spec.values import Segment
from brokerd.history.records import APPLICATION, DATA, ROW_BYTES
from brokerd.quantiles import quantile

SHORTEST_WINDOW_NS: Final = 100_000_000
DELIVERIES_PER_WINDOW: Final = 20
"""Mean number of deliveries before the faults that a window should have."""
LEAST_WINDOWS: Final = 5
"""Number of windows before the trigger, and as before at the end, that prove anything."""
BAND: Final = 2.0
SLACK_NS: Final = 1_000_000
"""A window is late if its p99 is above BAND times the highest p99 before, plus this."""
_MOST_ROWS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Trigger:
    """The disturbance of a measure phase.

    Attributes:
        from_ns: start of the measure phase.
        begin_ns: the first fault, or the start of the burst.
        end_ns: the last change by the schedule (a fault that was applied, healed or ended), or the
            end of the burst.
        to_ns: end of the measure phase.
    """

    from_ns: int
    begin_ns: int
    end_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery after a trigger.

    Attributes:
        us: time from the end of the trigger to the end of the last late window; 0 if none is late.
        is_over: True if the last windows of the phase were as before; else `us` is a lower bound.
        limit_us: the highest p99 of a window that is as before.
    """

    us: float
    is_over: bool
    limit_us: float


def trigger_of(
    faults: Sequence[Mapping[str, Any]],
    shapes: Sequence[Sequence[Segment]],
    measured: tuple[int, int],
) -> Trigger | None:
    """Return the trigger of a measure phase; None without faults and bursts, or without a start.

    Args:
        faults: rows of faults.
        shapes: by publisher, the times of one rate in the measure phase. A burst is above the first
            rate.
    """
    from_ns, to_ns = measured
    struck = [row for row in faults if row["t_applied_ns"] and row["t_applied_ns"] < to_ns]
    spans = [(row["t_applied_ns"], row["t_healed_ns"] or row["t_applied_ns"]) for row in struck]
    for shape in shapes:
        at_ns = from_ns
        for length_ns, numerator, denominator in shape:
            _, first_numerator, first_denominator = shape[0]
            if numerator * first_denominator > first_numerator * denominator:
                spans.append((at_ns, at_ns + length_ns))
            at_ns += length_ns
    if not spans:
        return None
    begin_ns, end_ns = min(spans)[0], max(end for _, end in spans)
    return Trigger(from_ns, begin_ns, end_ns, to_ns) if from_ns < begin_ns else None


def recovery_after(raw: Path, times: Times, trigger: Trigger) -> Recovery | None:
    """Return the recovery after a trigger, from the records below `raw`.

    Returns None if the phase is too short before or after the trigger, or if its deliveries have no
    times of their own.
    """
    waits = list(_waits(raw, times, trigger))
    before = [wait for at, wait in waits if at < trigger.begin_ns]
    span_ns = trigger.begin_ns - trigger.from_ns
    if not before:
        return None
    window_ns = max(SHORTEST_WINDOW_NS, DELIVERIES_PER_WINDOW * span_ns // len(before))
    calm = _windows(waits, trigger.from_ns, trigger.begin_ns, window_ns)
    later = _windows(waits, trigger.end_ns, trigger.to_ns, window_ns)
    if len(calm) < LEAST_WINDOWS or len(later) < LEAST_WINDOWS or not all(calm):
        return None
    limit_ns = BAND * max(map(_p99, calm)) + SLACK_NS
    published = _published(times, trigger.from_ns, trigger.begin_ns, span_ns)[0]
    counts = _published(times, trigger.end_ns, trigger.to_ns, window_ns)
    late = [
        place
        for place, (each, count) in enumerate(zip(later, counts, strict=True))
        if count and (2 * len(each) * published < len(before) * count or _p99(each) > limit_ns)
    ]
    after = (late[-1] + 1) if late else 0
    is_over = len(later) - after >= LEAST_WINDOWS
    return Recovery(after * window_ns / 1000, is_over, limit_ns / 1000)


def _waits(raw: Path, times: Times, trigger: Trigger) -> Iterator[tuple[int, int]]:
    """Yield (intended, received minus intended) of deliveries of the phase; every k-th of many."""
    paths = sorted(raw.glob("*/*/deliveries.rec"))
    step = 1 + sum(path.stat().st_size for path in paths) // (ROW_BYTES * _MOST_ROWS)
    for path in paths:
        rows, tables = rows_of(path)
        if not tables.get("publishers") or "sample" in tables:
            continue
        publishers = tables["publishers"]
        words, halves = rows.cast("q"), rows.cast("I")
        columns = (words[0::4], words[1::4], halves[6::8], halves[7::8])
        for sequence, received, source, flags in transpose([each[::step] for each in columns]):
            if flags & 0xFF != DATA or flags >> 8 & 0xFF != APPLICATION:
                continue
            intended = times.get((publishers[source & 0xFFFF], source >> 16), _NONE)[0]
            if 0 < sequence < len(intended):
                at = intended[sequence]
                if at and trigger.from_ns <= at < trigger.to_ns:
                    yield at, received - at


def _windows(
    waits: Sequence[tuple[int, int]], from_ns: int, to_ns: int, window_ns: int
) -> list[list[int]]:
    """Return the sorted waits of each whole window."""
    found: list[list[int]] = [[] for _ in range(max(0, to_ns - from_ns) // window_ns)]
    for at, wait in waits:
        place = (at - from_ns) // window_ns
        if 0 <= place < len(found):
            found[place].append(wait)
    for each in found:
        each.sort()
    return found


def _published(times: Times, from_ns: int, to_ns: int, window_ns: int) -> list[int]:
    """Return the number of publications that were due in each whole window."""
    found = [0] * (max(0, to_ns - from_ns) // window_ns)
    for intended, _ in times.values():
        for at in intended:
            place = (at - from_ns) // window_ns
            if at and 0 <= place < len(found):
                found[place] += 1
    return found


_NONE: Final = (array("q"), array("q"))


def _p99(ordered: Sequence[int]) -> int:
    return quantile(ordered, 0.99)
