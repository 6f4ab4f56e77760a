"""Deliveries and latencies of each subscription before, during and after the faults of a run.

The numbers show whether a fault slows unaffected subscriptions.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.record_rows import rows_of, transposed
from brokerd.history.records import APPLICATION, DATA, ROW_BYTES

STRETCHES: Final = ("before", "during", "after")
MOST_SUBSCRIPTIONS: Final = 16
"""Greatest number of subscriptions in this report; larger runs have no report."""
_MOST_ROWS: Final = 2_000_000
"""Number of deliveries beyond which only every k-th delivery is evaluated."""

Times = Mapping[tuple[str, int], tuple["array[int]", "array[int]"]]
"""Per source, intended and sent times by sequence number; 0 for an unused number."""


@dataclass(frozen=True)
class Stretch:
    """Deliveries to one subscription of publications intended in one stretch of a run.

    Attributes:
        per_s: deliveries per second of the stretch.
        p50_us, p99_us: received minus intended.
    """

    per_s: float
    p50_us: float
    p99_us: float


Around = Mapping[str, Mapping[str, Stretch]]
"""By subscription and stretch."""


def fault_edges(
    rows: Sequence[Mapping[str, Any]], measured: tuple[int, int]
) -> tuple[int, int, int, int] | None:
    """Return begin and end of the stretches of a measure phase; None if no fault struck within.

    The middle stretch reaches from the first applied fault of the phase to the last healed fault,
    or to the end of the phase.
    """
    from_ns, to_ns = measured
    struck = [row for row in rows if row["t_applied_ns"] and row["t_applied_ns"] < to_ns]
    applied = [row["t_applied_ns"] for row in struck]
    if not applied or not from_ns < min(applied):
        return None
    healed = [row["t_healed_ns"] or to_ns for row in struck]
    return from_ns, min(applied), min(max(healed), to_ns), to_ns


def around_faults(raw: Path, times: Times, edges: tuple[int, int, int, int]) -> Around:
    """Evaluate the deliveries below `raw`, by intended time of the publications."""
    waits: dict[str, list[array[int]]] = {}
    paths = sorted(raw.glob("*/*/deliveries.rec"))
    step = 1 + sum(path.stat().st_size for path in paths) // (ROW_BYTES * _MOST_ROWS)
    for path in paths:
        rows, tables = rows_of(path)
        publishers, subscriptions = tables.get("publishers"), tables.get("subscriptions", ())
        if not publishers or len({*waits, *subscriptions}) > MOST_SUBSCRIPTIONS:
            return {}
        if "sample" in tables:
            return {}  # most rows stand for many deliveries without times
        for name in subscriptions:
            waits.setdefault(name, [array("q") for _ in STRETCHES])
        words, halves = rows.cast("q"), rows.cast("I")
        columns = (words[0::4], words[1::4], halves[5::8], halves[6::8], halves[7::8])
        every = tuple(column[::step] for column in columns)
        for sequence, received, subscription, source, flags in transposed(every):
            if flags & 0xFF != DATA or flags >> 8 & 0xFF != APPLICATION:
                continue
            of_source = times.get((publishers[source & 0xFFFF], source >> 16))
            if of_source is None or not 0 < sequence < len(of_source[0]):
                continue
            intended = of_source[0][sequence]
            stretch = bisect_right(edges, intended) - 1
            if 0 <= stretch < len(STRETCHES):
                waits[subscriptions[subscription]][stretch].append(received - intended)
    return {
        name: {
            stretch: _stretch(sorted(each), (edges[place + 1] - edges[place]) / (1e9 * step))
            for place, (stretch, each) in enumerate(zip(STRETCHES, of, strict=True))
            if each
        }
        for name, of in sorted(waits.items())
    }


def _stretch(waits_ns: Sequence[int], seconds: float) -> Stretch:
    p50, p99 = (waits_ns[max(0, math.ceil(s * len(waits_ns)) - 1)] / 1000 for s in (0.5, 0.99))
    return Stretch(len(waits_ns) / seconds if seconds else 0.0, p50, p99)


def in_words(around: Around) -> list[str]:
    """Return a line for each subscription."""
    return [
        f"{name}: "
        + " · ".join(
            f"{stretch} {of[stretch].per_s:,.0f}/s, p50 {of[stretch].p50_us / 1000:.2f} ms, "
            f"p99 {of[stretch].p99_us / 1000:.2f} ms"
            for stretch in STRETCHES
            if stretch in of
        )
        for name, of in around.items()
    ]
