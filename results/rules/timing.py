"""Times of a run: the records against the schedule of the specification, and the phases.

The intended times of a publisher follow from rate, seed and the beginning of the load. A log with
other or missing times is not from this workload. Phases have the lengths in the workload. All
publications and deliveries lie within the phases.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from results.rules.expectation import splitmix64
from results.rules.terms import doubt
from results.tables.logs import Logs
from results.tables.manifest import Run
from results.tables.record_files import RECORDS, STAMPS, STRETCH, RecordFile

SECOND_NS = 1_000_000_000
SLACK_NS = SECOND_NS
"""Tolerance between the controller's clock and the actions of processes on its commands."""
AFTER_NS = 120 * SECOND_NS
"""Limit of the receipts after a drain that did not observe every delivery."""
RESOLUTION_NS = 100_000_000
"""Length of a stretch, unless nothing arrived behind the stretch."""
SAMPLES = {"sampled": 16, "hist": 256}

_PHASES = 0x7E57_0001
_GAPS = 0x7E57_0002
_STRIDE = 1_000_003
_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": SECOND_NS, "min": 60 * SECOND_NS}
_UNITS_NS |= {"h": 3600 * SECOND_NS}
_PERIODS_S = {"s": 1, "min": 60, "h": 3600}


def find_timing_doubts(run: Run, logs: Logs) -> Iterator[str]:
    """Yield contradictions between times and specification, naming both files."""
    if not run.has_measured or run.manifest["state"] == "aborted":
        return
    yield from _phases(run)
    for file in logs.files("publications"):
        yield from _schedules(run, file)
        yield from _lateness(run, logs, file)
    for layout in ("publications", "acks", "deliveries"):
        for file in logs.files(layout):
            yield from _find_outside(run, file)
    for file in logs.files("deliveries"):
        yield from _stretches(run, file)


# --- Phases -----------------------------------------------------------------------------------


def _phases(run: Run) -> Iterator[str]:
    if (run.manifest.get("labels") or {}).get("history"):
        return
    phases = run.workload.get("phases", {})
    found = {phase.name: phase for phase in run.phases}
    wanted = {"measure": duration_ns(phases.get("measure", "0s"))}
    if not run.is_simulated:
        wanted["warmup"] = duration_ns(phases.get("warmup", "2s"))
    for name, length_ns in wanted.items():
        phase = found.get(name)
        took_ns = None if phase is None else phase.to_ns - phase.from_ns
        if took_ns is None or abs(took_ns - length_ns) > SECOND_NS // 1000:
            yield doubt(
                "phase_length", phase=name, found=_seconds(took_ns), wanted=_seconds(length_ns)
            )
    if found["measure"].from_ns != 0:
        yield doubt("phase_origin", phase="measure", s=found["measure"].from_ns / SECOND_NS)
    ordered = [found[name] for name in ("deploy", "warmup", "measure", "drain") if name in found]
    for before, after in pairwise(ordered):
        if after.from_ns < before.to_ns:
            yield doubt("phases_overlap", before=before.name, after=after.name)
    if (drain := found.get("drain")) is not None:
        drain_ns = duration_ns(phases.get("drain", "30s"))
        bound_ns = duration_ns(phases["drain_bound"]) if "drain_bound" in phases else 10 * drain_ns
        took_s = (run.manifest.get("drain") or {}).get("took_s")
        lasted_ns = drain.to_ns - drain.from_ns
        # Behind the bound are a fence of each publisher, and the extension of the load.
        if isinstance(took_s, int | float) and took_s * SECOND_NS > lasted_ns + SLACK_NS:
            yield doubt("drain_length", found=_seconds(lasted_ns), wanted=f"{took_s:.3f} s")
        elif isinstance(took_s, int | float) and took_s * SECOND_NS > 2 * bound_ns + AFTER_NS:
            yield doubt("drain_length", found=f"{took_s:.3f} s", wanted=_seconds(bound_ns))


def _seconds(length_ns: int | None) -> str:
    return "no time" if length_ns is None else f"{length_ns / SECOND_NS:.3f} s"


def duration_ns(text: str) -> int:
    """Return the length of a duration in the specification."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    return int(Fraction(number) * _UNITS_NS[text[len(number) :].strip()])


# --- Schedules --------------------------------------------------------------------------------


def _schedules(run: Run, file: RecordFile) -> Iterator[str]:
    """Compare the intended times of the publishers of a log with the schedules."""
    rows = _rows(file)
    names: Any = file.tables.get("publisher_names") or {}
    entries = publisher_entries(run.workload)
    begin_ns, end_ns = _load_times(run)
    order = np.argsort(rows["publisher"], kind="stable")
    bounds = np.flatnonzero(np.diff(rows["publisher"][order])) + 1
    for places in np.split(order, bounds):
        if not len(places):
            continue
        source = file.tables["publishers"][rows["publisher"][places[0]]]
        name = names.get(source, "")
        if name not in entries:
            continue
        mine = rows[places]
        keys = mine["incarnation"].astype("i8") << 47 | mine["sequence"]
        mine = mine[np.argsort(keys, kind="stable")]
        fence = mine["attribute_set"] == run.content.fence_set
        place = f"raw/{file.name}"
        if (early := int((mine["sent_ns"] < mine["intended_ns"]).sum())) > 0:
            yield doubt("sent_early", file=place, source=source, n=early)
        data = mine["intended_ns"][~fence]
        rate, arrivals = entries[name]
        if rate is None:
            if not run.is_simulated and (mine["sent_ns"] != mine["intended_ns"]).any():
                yield doubt("off_schedule", file=place, source=source, n=len(data), first=1)
            continue
        index = run.content.publishers[name].index
        moved = [run.to_timeline(int(data[0]), file.host) - int(data[0])] if len(data) else [0]
        is_exact = run.clocks.share(file.host, run.clocks.reference)
        slack_ns = (0 if is_exact else 50_000_000 + (end_ns - begin_ns) // 10_000) + 1000
        lead_ns = 0 if run.is_simulated else run.phase("measure").from_ns - begin_ns
        wanted = shaped_schedule(
            segments_of(rate, lead_ns, end_ns - begin_ns),
            arrivals, run.content.seed, index, len(data) + 1,
        )  # fmt: skip
        offsets = data + moved[0] - begin_ns
        both = min(len(offsets), len(wanted))
        off = np.flatnonzero(np.abs(offsets[:both] - wanted[:both]) > slack_ns)
        wrong = len(off) + max(0, len(offsets) - len(wanted))
        if wrong:
            first = int(off[0]) if len(off) else len(wanted)
            yield doubt("off_schedule", file=place, source=source, n=wrong, first=first + 1)
        elif fence.any() and fence[-1] and fence.sum() > 1 and len(offsets) < len(wanted):
            yield doubt("schedule_unmet", file=place, source=source, n=len(offsets))


def _load_times(run: Run) -> tuple[int, int]:
    """Return the begin and the end of the load; simulated brokers have no warm-up."""
    measure = run.phase("measure")
    warmups = [phase for phase in run.phases if phase.name == "warmup"]
    begin_ns = measure.from_ns if run.is_simulated or not warmups else warmups[0].from_ns
    return begin_ns, measure.to_ns


Shape = tuple[tuple[int, Fraction], ...]
"""Steps of a rate: length in ns, and rate per second. The steps repeat."""


def publisher_entries(workload: Mapping[str, Any]) -> dict[str, tuple[Shape | None, str]]:
    """Return rate (None: the highest possible) and arrivals, by publisher."""
    found = {}
    numbers: dict[str, int] = {}
    for entry in workload.get("publishers", ()):
        places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
        for broker in (broker for broker in places for _ in range(entry.get("count", 1))):
            numbers[broker] = numbers.get(broker, 0) + 1
            rate = _shape(entry.get("rate", "max"))
            found[f"{broker}-pub-{numbers[broker]}"] = rate, entry.get("arrivals", "fixed")
    return found


_FOREVER_NS = 1 << 62
_STAIRS = 20
_SEGMENT_STRIDE = 65_536


def _shape(value: Any) -> Shape | None:
    if not isinstance(value, list):
        rate = _rate(str(value))
        return None if rate is None else ((_FOREVER_NS, rate),)
    steps: list[tuple[int, Fraction]] = []
    for step in value:
        length_ns, first = duration_ns(step["for"]), _rate(step["at"]) or Fraction(0)
        last = _rate(step["to"]) if "to" in step else None
        if last is None:
            steps.append((length_ns, first))
            continue
        bounds = [length_ns * stair // _STAIRS for stair in range(_STAIRS + 1)]
        steps += [
            (to_ns - from_ns, first + (last - first) * Fraction(2 * stair + 1, 2 * _STAIRS))
            for stair, (from_ns, to_ns) in enumerate(pairwise(bounds))
        ]
    return tuple(steps)


def segments_of(shape: Shape, lead_ns: int, length_ns: int) -> Iterator[tuple[int, int, Fraction]]:
    """Yield begin, length and rate of each part of a load.

    Args:
        lead_ns: the warm-up, with the first rate of the shape.
        length_ns: the whole load, warm-up included.
    """
    if not shape:
        return
    if lead_ns and shape[0][0] != _FOREVER_NS:
        yield 0, lead_ns, shape[0][1]
    at_ns = lead_ns if shape[0][0] != _FOREVER_NS else 0
    for step_ns, rate in cycle(shape):
        if at_ns >= length_ns:
            return
        yield at_ns, min(step_ns, length_ns - at_ns), rate
        at_ns += step_ns


def shaped_schedule(
    segments: Iterable[tuple[int, int, Fraction]], arrivals: str, seed: int, index: int, most: int
) -> Any:
    """Return up to `most` intended times of a publisher, from the beginning of the load."""
    found = [np.zeros(0, "i8")]
    for number, (begin_ns, length_ns, rate) in enumerate(segments):
        if rate:
            own = index + number * _SEGMENT_STRIDE
            found.append(begin_ns + schedule(rate, arrivals, seed, own, length_ns, most))
    return np.concatenate(found)[:most]


def _rate(text: str) -> Fraction | None:
    if text == "max":
        return None
    number, _, period = text.partition("/")
    thousands = {"k": 1000, "M": 1_000_000}.get(number[-1:], 1)
    return Fraction(number.rstrip("kM ")) * thousands / _PERIODS_S[period]


def schedule(
    rate: Fraction, arrivals: str, seed: int, index: int, length_ns: int, most: int
) -> Any:
    """Return up to `most` intended times of a publisher, from the beginning of the load."""
    if arrivals == "poisson":
        return np.array([*_poisson(float(rate), seed, index, length_ns, most)], "i8")
    drawn = splitmix64((splitmix64(seed ^ _PHASES) + index * _STRIDE) & (1 << 64) - 1)
    phase_ns = drawn % max(1, SECOND_NS * rate.denominator // rate.numerator)
    step = SECOND_NS * rate.denominator
    count = max(0, -(-(length_ns - phase_ns) * rate.numerator // step))
    numbers = np.arange(min(count, most), dtype="i8")
    whole, part = numbers // rate.numerator, numbers % rate.numerator
    return phase_ns + whole * step + part * step // rate.numerator


def _poisson(per_second: float, seed: int, index: int, length_ns: int, most: int) -> Iterator[int]:
    start = splitmix64((splitmix64(seed ^ _GAPS) + index * _STRIDE) & (1 << 64) - 1)
    at = 0.0
    for drawn in range(most):
        uniform = (splitmix64(start + drawn) >> 11) / (1 << 53)
        at -= SECOND_NS / per_second * math.log1p(-uniform)
        if at >= length_ns:
            return
        yield int(at)


# --- Lateness ---------------------------------------------------------------------------------


def _lateness(run: Run, logs: Logs, file: RecordFile) -> Iterator[str]:
    """Compare the lateness in a log with the statistics of the load generator.

    Load generators hold their rate by what was due in the measure phase, not in the warm-up.
    """
    limit = str((run.workload.get("thresholds") or {}).get("loadgen.lateness_p99", "< 50ms"))
    limit_ns = duration_ns(limit.removeprefix("<").strip())
    if run.is_simulated or run.manifest.get("loadgen_saturated"):
        return
    (process,) = (p for p in logs.processes if (p.host, p.name) == (file.host, file.process))
    stats = process.lines("stats.jsonl")
    if stats and stats[-1].get("backlog"):
        return
    # Publications that waited for the brokers were late without a fault of the load generator.
    limit_ns += 1000 * max((line.get("blocked_us") or 0 for line in stats), default=0)
    rows = _rows(file)
    rows = rows[rows["attribute_set"] != run.content.fence_set]
    if not len(rows):
        return
    moved_ns = run.to_timeline(int(rows["intended_ns"][0]), file.host) - rows["intended_ns"][0]
    rows = rows[rows["intended_ns"] + moved_ns >= run.phase("measure").from_ns]
    late_ns = rows["sent_ns"] - rows["intended_ns"]
    late = int((late_ns >= 1.1 * limit_ns).sum())
    if late > 0.01 * len(rows) + 1:
        yield doubt("late_unreported", file=f"raw/{file.name}", n=late, ms=1.1 * limit_ns / 1e6)


# --- The run's bounds -------------------------------------------------------------------------


def _find_outside(run: Run, file: RecordFile) -> Iterator[str]:
    """Yield stamps before or after the run."""
    if not file.rows:
        return
    stamps = _rows(file)[STAMPS[file.layout]]
    stamps = stamps[stamps > 0]
    if not len(stamps):
        return
    error_ns = run.clock_error_ns(file.host, run.clocks.reference)
    if error_ns is None:
        return
    ended_by = (run.manifest.get("drain") or {}).get("ended_by", "evidence")
    after_ns = 5 * SLACK_NS if ended_by == "evidence" else AFTER_NS
    from_ns = min(phase.from_ns for phase in run.phases) - SLACK_NS - error_ns
    to_ns = max(phase.to_ns for phase in run.phases) + after_ns + error_ns
    moved = stamps + (run.to_timeline(int(stamps[0]), file.host) - int(stamps[0]))
    if n := int(((moved < from_ns) | (moved > to_ns)).sum()):
        yield doubt("outside", file=f"raw/{file.name}", n=n)


# --- Stretches --------------------------------------------------------------------------------


def _stretches(run: Run, file: RecordFile) -> Iterator[str]:
    """Yield stretches that `load.records` does not allow."""
    level = str((run.workload.get("load") or {}).get("records", "full"))
    place = f"raw/{file.name}"
    sample: Any = file.tables.get("sample") or {}
    one_in = sample.get("one_in", 1)
    if one_in != SAMPLES.get(level, 1):
        yield doubt("sample", file=place, found=one_in, wanted=level)
    if not file.scan.in_stretches:
        return
    if level == "full":
        yield doubt("stretches", file=place, n=file.scan.in_stretches)
        return
    rows = _rows(file)
    stamps = np.maximum.accumulate(rows["received_ns"])
    folded = np.flatnonzero(rows["kind"] == STRETCH)
    lasted_ns = rows["partition"][folded].astype("i8") * 1_000_000
    # The last stamp before the stretch was written: a later arrival ended the stretch if complete.
    before = np.searchsorted(stamps, rows["received_ns"][folded], "left") - 1
    latest_ns = np.where(before >= 0, stamps[np.maximum(before, 0)], 0)
    began_ns = rows["received_ns"][folded] - lasted_ns
    long = (lasted_ns > RESOLUTION_NS + 1_000_000) & (
        latest_ns > began_ns + RESOLUTION_NS + 2_000_000
    )
    if n := int(long.sum()):
        yield doubt("long_stretch", file=place, n=n, ms=int(lasted_ns[long].max()) // 1_000_000)


def _rows(file: RecordFile) -> Any:
    if not file.rows:
        return np.empty(0, RECORDS[file.layout])
    return np.memmap(file.path, RECORDS[file.layout], mode="r", shape=(file.rows,))
