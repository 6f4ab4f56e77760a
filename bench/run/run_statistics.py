"""Statistics of a run, from its record files and from the reports of agents.

The numbers are the publishers' waiting times for acknowledgements, the deliveries and latencies of
each subscription before, during and after the faults, memory and sessions of every process (each
records its statistics once a second), and the processor time of brokers over restarts. Deliveries
around faults show whether a fault slows unaffected subscriptions.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from brokerd.history.records import ACKNOWLEDGED, ACKS, APPLICATION, DATA, ROW_BYTES
from brokerd.quantiles import quantile

_CHUNK_ROWS = 1 << 16


def rows_of(path: Path) -> tuple[memoryview, Mapping[str, Any]]:
    """Return the complete rows of a record file, and its tables; a torn last row is left out."""
    content = path.read_bytes()
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    whole = len(content) // ROW_BYTES * ROW_BYTES
    return memoryview(content)[:whole], sidecar["tables"]


def transpose(columns: Sequence[memoryview]) -> Iterator[tuple[int, ...]]:
    """Yield rows, converted in chunks, because a list of numbers needs several times the memory."""
    for first in range(0, len(columns[0]), _CHUNK_ROWS):
        chunks = [column[first : first + _CHUNK_ROWS].tolist() for column in columns]
        yield from zip(*chunks, strict=True)


LARGEST_SAMPLE: Final = 200_000
_SHORTEST_RUN: Final = 16
_OPEN_SHARE: Final = 0.02

Times = Mapping[tuple[str, int], tuple["array[int]", "array[int]"]]
"""Per source, intended and sent times by sequence number; 0 for an unused number."""


@dataclass(frozen=True)
class Acknowledgements:
    """The acknowledgements of publications that were intended in one stretch of time.

    Attributes:
        waits_ns: times from intended publication to acknowledgement; a sample of many.
        due: number of publications that were intended before the end.
        done: number of publications that were acknowledged before the end.
    """

    waits_ns: list[int] = field(default_factory=list)
    due: int = 0
    done: int = 0

    @property
    def has_kept_up(self) -> bool:
        """True if all due publications were acknowledged by the end, apart from a few in flight."""
        return self.due - self.done <= max(_SHORTEST_RUN, _OPEN_SHARE * self.due)


def acknowledgements(raw: Path, times: Times, from_ns: int, to_ns: int) -> Acknowledgements:
    """Return the acknowledgements below `raw` of publications intended in [`from_ns`, `to_ns`)."""
    due = sum(0 < at < to_ns for intended, _ in times.values() for at in intended)
    rows = [
        (source, first, last, at)
        for path in sorted(raw.glob("*/*/acks.rec"))
        for source, first, last, at in _rows(path)
    ]
    numbers = sum(last - first + 1 for _, first, last, _ in rows)
    step = max(1, -(-numbers // LARGEST_SAMPLE))
    done = 0
    waits_ns = []
    for source, first, last, at in rows:
        intended = times.get(source, (array("q"), array("q")))[0]
        if at < to_ns:
            done += last - first + 1
        for sequence in range(-(-first // step) * step, min(last + 1, len(intended)), step):
            if from_ns <= intended[sequence] < to_ns:
                waits_ns.append(at - intended[sequence])
    return Acknowledgements(waits_ns, due, done)


def _rows(path: Path) -> Sequence[tuple[tuple[str, int], int, int, int]]:
    """Return (source, first, last, time) of each acknowledgement in a file that was closed."""
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    publishers = sidecar["tables"].get("publishers")
    if not publishers:
        return []
    content = path.read_bytes()
    whole = memoryview(content)[: len(content) // ROW_BYTES * ROW_BYTES]
    return [
        ((publishers[publisher], incarnation), first, last, at)
        for first, last, at, publisher, incarnation, outcome in ACKS.row.iter_unpack(whole)
        if outcome == ACKNOWLEDGED
    ]


STRETCHES: Final = ("before", "during", "after")
MOST_SUBSCRIPTIONS: Final = 16
"""Greatest number of subscriptions in this report; larger runs have no report."""
_MOST_ROWS: Final = 2_000_000
"""Number of deliveries beyond which only every k-th delivery is evaluated."""


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
        for sequence, received, subscription, source, flags in transpose(every):
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
    p50, p99 = (quantile(waits_ns, share) / 1000 for share in (0.5, 0.99))
    return Stretch(len(waits_ns) / seconds if seconds else 0.0, p50, p99)


def describe_subscriptions(around: Around) -> list[str]:
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


_LOST: Final = "broker_sessions_lost"

_LAST: Final = ("resent_publications", "duplicates_received")

Memory = Mapping[str, int]
"""`first`, `largest` and `last`: resident memory in bytes.

Brokers also have `retained`, the most payload bytes kept for others, and `private`, the memory that
was shared with no other process at the end.
"""


@dataclass(frozen=True)
class ProcessStatistics:
    """The recorded statistics of the processes of a run.

    Attributes:
        memory_bytes: memory by process.
        sessions_lost: number of lost sessions between brokers during the record, over all brokers.
        resent_publications, duplicates_received: the last totals of all brokers.
    """

    memory_bytes: Mapping[str, Memory]
    sessions_lost: int
    resent_publications: int = 0
    duplicates_received: int = 0


def statistics_of(raw: Path) -> ProcessStatistics:
    """Return the statistics of all processes below `raw`, without torn last lines."""
    found: dict[str, Memory] = {}
    sessions_lost = 0
    last = dict.fromkeys(_LAST, 0)
    for path in sorted(raw.glob("*/*/stats.jsonl")):
        rows = [*map(_row, path.read_bytes().splitlines())]
        sizes = [size for row in rows if (size := _number(row, "rss_bytes"))]
        if sizes:
            memory = {"first": sizes[0], "largest": max(sizes), "last": sizes[-1]}
            if any("queue_bytes" in row for row in rows):
                memory["retained"] = max(_number(row, "queue_bytes") for row in rows)
            if private := max(_number(row, "private_bytes") for row in rows):
                memory["private"] = private
            found[path.parent.name] = memory
        for name in _LAST:
            last[name] += _number(rows[-1], name) if rows else 0
        counts = [_number(row, _LOST) for row in rows if _LOST in row]
        sessions_lost += sum(max(0, now - before) for before, now in pairwise(counts))
    return ProcessStatistics(found, sessions_lost, **last)


def _row(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name, 0)
    return value if isinstance(value, int) else 0


@dataclass
class ProcessorTime:
    """Processor time of named processes, summed over their restarts.

    The processor time of a killed process after the last sample is lost: sample often.
    """

    _used_s: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the reports of agents: name → {"pid", "start_time", "processor_s"}."""
        for name, row in processes.items():
            if (used_s := row["processor_s"]) is not None:
                used = self._used_s.setdefault(name, {})
                used[row["pid"], row["start_time"]] = used_s

    def totals_s(self) -> dict[str, float]:
        """Return the seconds by name, over all samples so far."""
        return {name: sum(used.values()) for name, used in self._used_s.items()}
