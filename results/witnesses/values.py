"""Values that no process writes: counts below nothing, text for numbers, and counts of others.

A run folder is read as it is. A number of another type, or a count of a process that never counts,
was written by hand.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from results.witnesses.folder import (
    FAULTS,
    JOURNAL,
    MANIFEST,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
)

_PLACEMENT = "spec/placement.json"
_FRACTIONS = ("cpu_s", "cpu_ratio")
"""Values of statistics that are no counts."""
_WORDS: Mapping[str, type] = {"proc_id": str, "saturated": bool}
_OF_PUBLISHERS = (
    *("offered", "sent", "acknowledged", "rejected", "backlog", "open", "blocked_us", "skipped"),
    *("late_p99_us", "late_max_us", "saturated"),
)
_OF_SUBSCRIBERS = ("delivered", "withheld")
_HEADLINE = (
    *("published", "delivered", "delivered_per_s", "response_us", "service_us", "acknowledged_us"),
    *("limited_by", "lateness_p99_us", "saturated", "online", "not_healed", "down"),
)
"""Figures that each run with a measure phase has."""
_FEW, _TIMES_LESS = 50, 2
"""Of so few publications in a second, one in a hundred is the latest."""
_LIFE = ("t_start_ns", "t_exit_ns", "pid")
_USAGE = ("user_s", "system_s", "peak_rss_bytes")


_ONCE = (("closed", "process"), ("processors", "stage"), ("phase", "phase"))
"""Lines of the journal that there is one of for each value of a key."""


def doubts_about_values(folder: RunFolder) -> Iterator[str]:
    """Yield values that are impossible wherever they stand."""
    if not folder.is_of_processes:
        return
    for process in folder.processes:
        is_ours = process.is_load or not folder.is_foreign
        if is_ours and (process.is_load or process.name in {*folder.brokers}):
            yield from _check_statistics(process)
        if process.has("exit.json"):
            yield from _check_exit(process)
    for row in folder.fault_rows:
        for key, value in row.items():
            if key.startswith("t_") and value is not None and not _is_count(value):
                yield differ(FAULTS, FAULTS, f"{key} of {row.get('fault_id')}", value, "a time")
    yield from _check_clocks(folder)
    yield from _check_journal(folder)
    yield from _check_manifest(folder)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and value >= 0


def _check_statistics(process: ProcessFolder) -> Iterator[str]:
    """Yield statistics with impossible values, or with counts of the other role."""
    name = f"{process.place}/stats.jsonl"
    lines = process.lines("stats.jsonl")
    for line in lines:
        for key, value in line.items():
            if not _is_plausible(key, value):
                yield differ(name, name, f"{key} at {line.get('t_ns')}", value, "a count")
                return
    if not process.is_load:
        return
    yield from _check_lateness(name, lines)
    strange = [
        *(() if process.is_publisher else _OF_PUBLISHERS),
        *(() if process.is_subscriber else _OF_SUBSCRIBERS),
    ]
    for key in strange:
        if found := next((line[key] for line in lines if line.get(key)), None):
            yield differ(name, process.place, key, found, 0)
            return


def _check_lateness(name: str, lines: Sequence[Line]) -> Iterator[str]:
    """Yield seconds of few publications with a p99 lateness far below the largest one."""
    for before, line in pairwise(lines):
        sent = line.get("sent", 0) - before.get("sent", 0)
        usual_us, largest_us = line.get("late_p99_us"), line.get("late_max_us")
        if usual_us is None or largest_us is None or not 0 < sent < _FEW:
            continue
        if usual_us * _TIMES_LESS < largest_us:
            yield differ(name, name, f"late_p99_us at {line.get('t_ns')}", usual_us, largest_us)
            return


def _is_plausible(key: str, value: Any) -> bool:
    if key in _WORDS:
        return type(value) is _WORDS[key]
    if value is None:
        return key.endswith("_bytes")
    return _is_amount(value) if key in _FRACTIONS else _is_count(value)


def _check_exit(process: ProcessFolder) -> Iterator[str]:
    name, stated = f"{process.place}/exit.json", process.document("exit.json")
    usage = stated.get("usage") or {}
    wrong = [key for key in _LIFE if key in stated and not _is_whole(stated[key])]
    wrong += [
        key
        for key in ("exit_code", "exit_signal")
        if stated.get(key) is not None and type(stated[key]) is not int
    ]
    wrong += [key for key in _USAGE if usage.get(key) is not None and not _is_amount(usage[key])]
    if stated.get("exit_signal") is not None and stated.get("exit_code") is not None:
        wrong.append("exit_code")
    for key in wrong:
        yield differ(name, name, key, stated.get(key, usage.get(key)), "a number")


def _is_whole(value: Any) -> bool:
    return value is None or _is_count(value)


def _check_clocks(folder: RunFolder) -> Iterator[str]:
    """Yield comparisons of clocks without a trip, or of hosts that the manifest does not name."""
    known = (folder.manifest.get("clock") or {}).get("clock_ids") or {}
    named = [(line["host_id"], line["phase"]) for line in folder.lines("clock.jsonl")]
    for host, phase in sorted({each for each in named if named.count(each) > 1}):
        yield differ("clock.jsonl", MANIFEST, f"lines of {host} {phase} the load", 2, 1)
    for line in folder.lines("clock.jsonl"):
        where = f"{line['host_id']} {line['phase']} the load"
        for key in ("n", "rtt_min_ns"):
            if not _is_count(line.get(key)) or not line[key]:
                yield differ(
                    "clock.jsonl", "clock.jsonl", f"{key} of {where}", line.get(key), "> 0"
                )
        if known and line["host_id"] not in known:
            yield differ("clock.jsonl", MANIFEST, "clock_ids", line["host_id"], sorted(known)[:4])


def _check_manifest(folder: RunFolder) -> Iterator[str]:
    """Yield figures of machines that none has, a headline without a figure, and other hosts."""
    manifest = folder.manifest
    stated = [
        (key, value, is_possible(value))
        for key, is_possible in (("cores", _is_count), ("payload_bytes", _is_count))
        if (value := manifest.get(key)) is not None
    ]
    stated += [
        (f"{key} of {name}", value, is_possible(value))
        for key, is_possible in (("disk_bytes", _is_count), ("waited_share", _is_amount))
        for name, value in (manifest.get(key) or {}).items()
        if value is not None
    ]
    stated.append(("cores", manifest.get("cores"), manifest.get("cores") != 0))
    for key, value, is_possible_value in stated:
        if not is_possible_value:
            yield differ(MANIFEST, MANIFEST, key, value, "a number")
    headline = manifest.get("headline")
    is_whole = folder.is_closed and manifest.get("state") == "complete"
    if is_whole and isinstance(headline, Mapping) and folder.phase_ns("measure") is not None:
        for key in _HEADLINE:
            if headline.get(key) is None:
                yield differ(MANIFEST, "*.rec", f"headline.{key}", headline.get(key), "a figure")
    stated_host = folder.document(_PLACEMENT).get("clients_host")
    hosts = sorted({process.host for process in folder.processes if process.is_load})
    if stated_host is not None and hosts and stated_host not in hosts:
        yield differ(_PLACEMENT, "raw/", "clients_host", stated_host, hosts)


def _check_journal(folder: RunFolder) -> Iterator[str]:
    """Yield closed files of processes without a folder, and second ends."""
    there = {process.name for process in folder.processes}
    lines: dict[str, list[Line]] = {}
    for line in folder.journal:
        lines.setdefault(str(line.get("what")), []).append(line)
    for line in lines.get("closed", ()):
        if line.get("process") not in there:
            yield differ(JOURNAL, "raw/", "closed files of", line.get("process"), None)
    for what in ("end", "collected", "specification"):
        if len(lines.get(what, ())) > 1:
            yield differ(JOURNAL, MANIFEST, f"lines about {what}", len(lines[what]), 1)
    for what, key in _ONCE if folder.is_closed else ():
        named = [str(line.get(key)) for line in lines.get(what, ())]
        for name in sorted({name for name in named if named.count(name) > 1}):
            yield differ(JOURNAL, MANIFEST, f"lines about {name}", named.count(name), 1)
