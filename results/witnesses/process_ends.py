"""The ends of processes, against the journal.

A load generator or broker closes its files when a run ends, and reports their digests. The
controller logs the reports before it collects the files. A file that was changed afterwards
therefore differs from the journal. The last event of a broker repeats the last counters. The
journal also has the processor times of brokers at both ends of the measure phase, from which the
controller made the headline.
"""

import hashlib
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any

from brokerd.model.fault_verbs import KILLING_VERBS
from results.rules.terms import doubt
from results.witnesses.brokers import replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    CLOSED,
    COLLECTED,
    JOURNAL,
    MANIFEST,
    PROCESSORS,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
)

_WITH_DIGEST = (".json", ".jsonl", ".log")
_OF_AGENTS = ("exit.json",)
"""Files of a process folder that agents write, after the process ended."""
_TICK_S = 0.02
"""An agent reads processor times in ticks of the kernel, a broker in nanoseconds."""


def doubts_about_closing(folder: RunFolder) -> Iterator[str]:
    """Yield files and figures that differ from those that were reported when the run ended."""
    if folder.is_simulated or not folder.is_closed:
        return
    reports = {
        str(line["process"]): line["digests"]
        for line in folder.journal
        if line.get("what") == CLOSED
    }
    yield from _about_collected(folder)
    for process in folder.processes:
        yield from _about_files(folder, process, reports.get(process.name))
        yield from _about_counters(process)
    yield from _about_processors(folder)


# --- Files ----------------------------------------------------------------------------------


def _about_collected(folder: RunFolder) -> Iterator[str]:
    """Yield files that are not as the controller collected or wrote them."""
    lines = [line for line in folder.journal if line.get("what") == COLLECTED]
    if not lines:
        if folder.manifest.get("state") == "complete":
            yield doubt("missing_line", file=JOURNAL, what="the collected files", other="raw/")
        return
    files = [*folder.path.glob("raw/*/*/*"), *folder.path.glob("faults/*")]
    found = {
        path.relative_to(folder.path).as_posix(): _digest_of(path)
        for path in sorted([*files, folder.path / "clock.jsonl"])
        if path.suffix in _WITH_DIGEST and path.is_file()
    }
    yield from _differences("", found, lines[-1]["digests"], "the digest of the collected file")


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(
    place: str, found: Mapping[str, str], logged: Mapping[str, str], subject: str
) -> Iterator[str]:
    for name in sorted({*found} | {*logged}):
        if found.get(name) != logged.get(name):
            own, theirs = str(found.get(name))[:8], str(logged.get(name))[:8]
            yield differ(f"{place}{name}", JOURNAL, subject, own, theirs)


def _about_files(
    folder: RunFolder, process: ProcessFolder, reported: Mapping[str, str] | None
) -> Iterator[str]:
    """Yield files that are not as their process closed them."""
    ended = any(line.get("event") == "run_ended" for line in process.lines("events.jsonl"))
    if reported is None:
        if ended or (process.is_load and folder.manifest.get("state") == "complete"):
            subject = f"the files of {process.name}"
            yield doubt("missing_line", file=JOURNAL, what=subject, other=process.place)
        return
    if process.is_uncollected:
        return
    found = {
        path.name: _digest_of(path)
        for path in sorted(process.path.iterdir())
        if path.suffix in (".json", ".jsonl") and path.name not in _OF_AGENTS
    }
    yield from _differences(f"{process.place}/", found, reported, "the digest of the closed file")


# --- Counters -------------------------------------------------------------------------------


def _about_counters(process: ProcessFolder) -> Iterator[str]:
    """Yield last statistics of a broker that differ from the broker's last event."""
    name = f"{process.place}/events.jsonl"
    ended = [line for line in process.lines("events.jsonl") if line.get("event") == "run_ended"]
    if not ended:
        return
    if "counters" not in ended[-1]:
        yield doubt("missing_line", file=name, what="the last counters", other=MANIFEST)
        return
    counters: Mapping[str, Any] = ended[-1]["counters"]
    last: Line = {}
    for line in process.lines("stats.jsonl"):
        last = line
    found = {key: value for key, value in last.items() if key != "t_ns"}
    for key in sorted({*found} | {*counters}):
        if found.get(key) != counters.get(key):
            yield differ(
                f"{process.place}/stats.jsonl", name, f"the last {key}", found.get(key),
                counters.get(key),
            )  # fmt: skip
            return


# --- Processor times ------------------------------------------------------------------------


def _about_processors(folder: RunFolder) -> Iterator[str]:
    """Yield processor times of the headline that do not follow from those of the journal."""
    headline, phase = folder.manifest.get("headline"), folder.phase_ns("measure")
    readings = {
        str(line["stage"]): line for line in folder.journal if line.get("what") == PROCESSORS
    }
    if not isinstance(headline, dict) or phase is None:
        return
    if readings.keys() != {"begun", "ended"}:
        if folder.manifest.get("state") == "complete":
            yield doubt("missing_line", file=JOURNAL, what="processor times", other=MANIFEST)
        return
    before, after = readings["begun"]["seconds"], readings["ended"]["seconds"]
    used_s = [after[broker] - before.get(broker, 0.0) for broker in after]
    delivered = headline.get("delivered") or 0
    length_s = (phase[1] - phase[0]) / 1e9
    costs = [used * 1e6 / delivered for used in used_s] if delivered else []
    for name, values, nothing in (
        ("broker_cpu_us_per_message_mean", costs, 0.0),
        ("broker_core_share_mean", [used / length_s for used in used_s], None),
    ):
        wanted = sum(values) / len(values) if values else nothing
        found = headline.get(name)
        if found != wanted and (not found or not wanted or not isclose(found, wanted)):
            yield differ(MANIFEST, JOURNAL, f"headline.{name}", found, wanted)
    for process in folder.processes:
        if process.name in {*folder.brokers}:
            yield from _about_readings(folder, process, (before, after), phase)


def _about_readings(
    folder: RunFolder,
    process: ProcessFolder,
    readings: tuple[Mapping[str, float], Mapping[str, float]],
    phase: tuple[int, int],
) -> Iterator[str]:
    """Yield readings outside of what the broker itself counted before and after.

    Both readings are taken after the end of a phase, and before the journal has them.
    """
    restarts = (
        row["verb"] in ("restart", *KILLING_VERBS) for row in faults_at(folder, process.name)
    )
    reference = str((folder.manifest.get("clock") or {}).get("host_id", process.host))
    error_ns = folder.timeline.error_ns(process.host, reference)
    if error_ns is None or any(restarts) or replacements(folder, process):
        return
    written = [line["t_ns"] for line in folder.journal if line.get("what") == PROCESSORS]
    counted = [
        (folder.timeline.to_timeline(line["t_ns"], process.host) + folder.origin_ns, line["cpu_s"])
        for line in process.lines("stats.jsonl")
        if "cpu_s" in line
    ]
    for from_ns, to_ns, reading in zip(phase, written, readings, strict=True):
        least_s = max((cpu for at, cpu in counted if at < from_ns - error_ns), default=0.0)
        most_s = min((cpu for at, cpu in counted if at > to_ns + error_ns), default=None)
        found = reading.get(process.name)
        is_low = found is not None and found < least_s - _TICK_S
        if is_low or (found is not None and most_s is not None and found > most_s + _TICK_S):
            yield differ(
                JOURNAL, f"{process.place}/stats.jsonl", f"processor time of {process.name}",
                found, (least_s, most_s),
            )  # fmt: skip
            return
