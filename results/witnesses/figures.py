"""Figures of the headline that are no counts of records, against statistics and the fault log.

Processes write processor time, memory and lateness once a second. The headline has the values at
the ends of the measure phase, so a figure lies between two sums of differences.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from brokerd.model.fault_verbs import KILLING_VERBS, MACHINE_VERBS
from results.rules.terms import doubt
from results.witnesses.brokers import replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import FAULTS, MANIFEST, ProcessFolder, RunFolder
from results.witnesses.load_seconds import lateness_bounds_us, least_quantile
from results.witnesses.recovery import doubts_about_recovery
from results.witnesses.rows import Rows

_AROUND_NS = 1_500_000_000
"""Statistics and the readings of the controller are apart by less than that."""
_ROUGHLY = 1.5
_CPU_S = 0.05
"""Processor time of one broker below which nothing is compared."""
_LEAST_US = 1_000
_SHORTEST_RUN, _OPEN_SHARE = 16, 0.02
"""Publications in flight at the end of a phase in which the rate was met, and their share."""
_RATE = "rate"
_LOAD_GENERATOR = "load generator "
_BROKER = re.compile(r"broker (\S+): (\d+)% of a core.*")


def doubts_about_figures(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield figures of the headline that other files contradict."""
    headline = folder.manifest.get("headline")
    if not isinstance(headline, dict) or folder.is_simulated:
        return
    yield from _check_faults(folder, headline)
    phase = folder.phase_ns("measure")
    if phase is None:
        return
    yield from _check_lateness(folder, headline, phase, rows)
    yield from _check_limit(folder, headline, phase, rows)
    yield from _check_processors(folder, headline, phase)
    yield from _check_memory(folder, headline)
    yield from doubts_about_recovery(folder, headline, phase)


def _differ(other: str, subject: str, found: Any, wanted: Any) -> str:
    return doubt(
        "disagree",
        one=MANIFEST,
        other=other,
        what=f"headline.{subject}",
        found=found,
        wanted=wanted,
    )


def _check_faults(folder: RunFolder, headline: dict[str, Any]) -> Iterator[str]:
    """Yield brokers that are down, or faults that are not healed, by one of both files."""
    if "down" in headline:
        ended = [row for row in folder.fault_rows if row["verb"] in KILLING_VERBS]
        down = sorted(
            {
                str(row["target"])
                for row in ended
                if row["verb"] not in MACHINE_VERBS
                and row.get("t_applied_ns") is not None
                and row.get("t_recovered_ns") is None
            }
        )
        found = sorted(map(str, headline["down"]))
        hosts = any(row["verb"] in MACHINE_VERBS for row in ended)
        if not hosts and found != down:
            yield _differ(FAULTS, "down", found, down)
    healed = {row["fault_id"] for row in folder.fault_rows if row.get("t_healed_ns") is not None}
    known = {row["fault_id"] for row in folder.fault_rows}
    for fault in headline.get("not_healed", ()):
        if fault in healed or fault not in known:
            yield _differ(FAULTS, "not_healed", fault, None)


def _check_lateness(
    folder: RunFolder, headline: dict[str, Any], phase: tuple[int, int], rows: Rows
) -> Iterator[str]:
    """Yield a lateness that differs from the records, or from the statistics of each second."""
    largest: list[int] = []
    least_us = 0
    bounds: list[tuple[float, float]] = []
    is_exact = folder.has_due_times
    for process in folder.processes:
        lines = process.lines("stats.jsonl") if process.is_publisher else ()
        # A process that was stopped offers publications of the phase after the phase.
        late_us = [line.get("late_max_us") or 0 for line in lines if line["t_ns"] >= phase[0]]
        largest += [us for us in late_us if us]
        least_us = max(least_us, least_quantile(lines, phase[0], "late_p99_us"))
        found = lateness_bounds_us(process, lines, rows, phase[0]) if lines else (0.0, 0.0)
        is_exact = is_exact and found is not None and is_reference(folder, process)
        bounds += [] if found is None else [found]
    stated = headline.get("lateness_p99_us")
    if not largest or not isinstance(stated, int | float):
        return
    most_us = max(largest) * _ROUGHLY + _LEAST_US
    if not least_us <= stated <= most_us:
        yield _differ("stats.jsonl", "lateness_p99_us", stated, (least_us, most_us))
    elif is_exact and bounds:
        least, most = (max(each) for each in zip(*bounds, strict=True))
        if not least <= stated <= most:
            yield _differ("publications.rec", "lateness_p99_us", stated, (least, most))


def is_reference(folder: RunFolder, process: ProcessFolder) -> bool:
    """Return True if a process has the clock of the phases."""
    reference = str((folder.manifest.get("clock") or {}).get("host_id", process.host))
    return folder.timeline.error_ns(process.host, reference) == 0


def _check_limit(
    folder: RunFolder, headline: dict[str, Any], phase: tuple[int, int], rows: Rows
) -> Iterator[str]:
    """Yield a limit that acknowledgements or the statistics of the named broker contradict."""
    limit, counted = headline.get("limited_by"), rows.headline
    if not isinstance(limit, str) or not limit or counted is None:
        return
    has_rate = folder.has_due_times
    n_open = counted.due - counted.answered
    is_met = has_rate and n_open <= max(_SHORTEST_RUN, _OPEN_SHARE * counted.due)
    if (limit == _RATE) != is_met:
        wanted = _RATE if is_met else f"{n_open} unanswered publications"
        yield _differ("acks.rec", "limited_by", limit, wanted)
    is_load = limit.startswith(_LOAD_GENERATOR)
    if headline.get("is_load_generator_limit") is not is_load:
        stated = headline.get("is_load_generator_limit")
        yield _differ(MANIFEST, "is_load_generator_limit", stated, is_load)
    named = _BROKER.fullmatch(limit)
    process = next((each for each in folder.processes if named and each.name == named[1]), None)
    if named and process is None:
        yield _differ("raw/", "limited_by", limit, sorted(folder.brokers)[:4])
    elif named and process is not None:
        span, length_s = _processor_s(folder, process, phase), (phase[1] - phase[0]) / 1e9
        if span is not None and span[1] * _ROUGHLY + _CPU_S < int(named[2]) / 100 * length_s:
            name = f"{process.place}/stats.jsonl"
            yield _differ(name, "limited_by", limit, f"{span[1] / length_s:.0%} of a core")


def _check_processors(
    folder: RunFolder, headline: dict[str, Any], phase: tuple[int, int]
) -> Iterator[str]:
    """Yield processor times of brokers outside of the values that brokers wrote every second."""
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    if not brokers or headline.get("down"):
        return  # the mean is of brokers that were up at the end
    spans = [_processor_s(folder, process, phase) for process in brokers]
    if any(span is None for span in spans):
        return
    within_s = sum(span[0] for span in spans if span is not None) / len(spans)
    around_s = sum(span[1] for span in spans if span is not None) / len(spans)
    least_s, most_s = within_s / _ROUGHLY - _CPU_S, around_s * _ROUGHLY + _CPU_S
    delivered = headline.get("delivered") or 0
    length_s = (phase[1] - phase[0]) / 1e9
    for name, per in (
        ("broker_cpu_us_per_message_mean", 1e6 / delivered if delivered else 0.0),
        ("broker_core_share_mean", 1 / length_s),
    ):
        stated = headline.get(name)
        if stated is not None and per and not least_s * per <= stated <= most_s * per:
            yield _differ("stats.jsonl", name, stated, (least_s * per, most_s * per))


def _processor_s(
    folder: RunFolder, process: ProcessFolder, phase: tuple[int, int]
) -> tuple[float, float] | None:
    """Return the processor times within the phase and around it, in s; None if unknown."""
    shift_ns = folder.origin_ns
    used = [
        (folder.timeline.to_timeline(line["t_ns"], process.host) + shift_ns, line["cpu_s"])
        for line in process.lines("stats.jsonl")
        if "cpu_s" in line
    ]
    if not used:
        return None
    before = [cpu for at, cpu in used if at < phase[0] - _AROUND_NS]
    from_s = before[-1] if before else 0.0
    if any(one[1] > other[1] for one, other in pairwise(used)) or _is_renewed(folder, process):
        # A new process counts from 0, so the difference may be less than nothing.
        return -max(cpu for _, cpu in used), max(cpu for _, cpu in used)
    within = [cpu for at, cpu in used if phase[0] + _AROUND_NS <= at <= phase[1] - _AROUND_NS]
    after = [cpu for at, cpu in used if at > phase[1] + _AROUND_NS]
    to_s = after[0] if after else used[-1][1] * _ROUGHLY
    return within[-1] - within[0] if within else 0.0, to_s - from_s


def _is_renewed(folder: RunFolder, process: ProcessFolder) -> bool:
    stops = any(
        row["verb"] in ("restart", *KILLING_VERBS) for row in faults_at(folder, process.name)
    )
    return stops or bool(replacements(folder, process))


def _check_memory(folder: RunFolder, headline: dict[str, Any]) -> Iterator[str]:
    if "broker_private_bytes_max" not in headline:
        return
    found = [
        line.get("private_bytes") or 0
        for process in folder.processes
        for line in process.lines("stats.jsonl")
    ]
    wanted = max(found, default=0) or None
    if headline["broker_private_bytes_max"] != wanted:
        yield _differ(
            "stats.jsonl", "broker_private_bytes_max", headline["broker_private_bytes_max"], wanted
        )
