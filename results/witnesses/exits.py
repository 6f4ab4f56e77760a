"""Exit records and standard error of processes, against the fault log."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from brokerd.model.fault_verbs import KILLING_VERBS, MACHINE_VERBS
from brokerd.text import parse_json
from results.rules.terms import doubt
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULTS,
    MANIFEST,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
    stamp_of,
)

_SLACK_NS = 300_000_000
_REAPED_NS = 20_000_000
"""A kill is observed when the agent reaps the process."""
_TRACEBACK = b"Traceback (most recent call last)"

_MOST_PRINTED = 1 << 24


def check_output(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield processes that printed the traceback of a mistake of their own, or any output.

    Brokers and load generators write nothing to their standard output.
    """
    name = f"{process.place}/stdout.log"
    with suppress(OSError):
        if n := (process.path / "stdout.log").stat().st_size:
            other = f"{process.place}/events.jsonl" if not process.is_load else MANIFEST
            yield differ(name, other, "printed bytes", n, 0)
    name = f"{process.place}/stderr.log"
    try:
        with (process.path / "stderr.log").open("rb") as file:
            printed = file.read(_MOST_PRINTED)
    except OSError:
        return
    if _TRACEBACK in printed:
        yield differ(name, MANIFEST, "the end", "a traceback", folder.manifest.get("state"))


def check_exit(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield differences between the exit record of a process and the fault log."""
    name = f"{process.place}/exit.json"
    kills = [row for row in faults_at(folder, process.name) if row["verb"] in KILLING_VERBS]
    ended = [row for row in kills if row.get("t_observed_ns") is not None]
    any_exits = any(other.has("exit.json") for other in folder.processes)
    if not process.has("exit.json"):
        if ended and (folder.is_witnessed or any_exits):
            yield doubt("missing_file", file=name, other=FAULTS)
        return
    stated = process.document("exit.json")
    if stated.get("process") != process.name:
        yield differ(name, process.place, "process", stated.get("process"), process.name)
    cause = str(stated.get("exit_cause"))
    if cause.startswith("fault:"):
        # Of a fault that ends several brokers, each names itself behind an "@".
        named = cause.removeprefix("fault:").removesuffix(f"@{process.name}")
        matching = [row for row in kills if named == row["fault_id"]]
        if not matching:
            yield doubt("exit_of_no_fault", file=name, cause=cause, other=FAULTS)
            return
        yield from _check_end(folder, process, name, stated, matching[0])
    elif (folder.manifest.get("state") == "complete" and stated.get("state") == "exited") or (
        ended and cause == "planned" and not folder.is_foreign
    ):
        yield doubt("exit_of_no_fault", file=name, cause=cause, other=FAULTS)
    if stated.get("t_start_ns", 0) > stated.get("t_exit_ns", 0):
        yield differ(name, name, "t_start_ns", stated.get("t_start_ns"), stated.get("t_exit_ns"))


def _check_end(
    folder: RunFolder, process: ProcessFolder, name: str, stated: Line, row: Line
) -> Iterator[str]:
    fault = row["fault_id"]
    signals = {"KILL": 9, "TERM": 15, "INT": 2, "HUP": 1}
    wanted = signals.get(str((row.get("params") or {}).get("signal", "KILL")))
    if row["verb"] == "kill" and wanted == 9 and stated.get("exit_signal") != 9:
        yield differ(name, FAULTS, f"signal of {fault}", stated.get("exit_signal"), 9)
    seen = _find_pid(row, process.name)
    if seen is not None and stated.get("pid") != seen:
        yield differ(name, FAULTS, f"pid after {fault}", stated.get("pid"), seen)
    if stated.get("state") != "exited":
        yield differ(name, FAULTS, f"state after {fault}", stated.get("state"), "exited")
    at_ns = stated.get("t_exit_ns")
    applied_ns = stamp_of(folder, row, "applied", last=False)
    observed_ns = stamp_of(folder, row, "observed")
    requested_ns = row.get("t_requested_ns")
    if not isinstance(at_ns, int) or applied_ns is None or observed_ns is None:
        return
    exit_ns = folder.timeline.to_timeline(at_ns, process.host)
    from_ns = applied_ns if requested_ns is None else requested_ns - folder.origin_ns
    reference = (folder.manifest.get("clock") or {}).get("host_id", process.host)
    error_ns = folder.timeline.error_ns(process.host, reference)
    if error_ns is None:
        return
    slack_ns = _SLACK_NS if row["verb"] in MACHINE_VERBS else _REAPED_NS
    if not from_ns - error_ns - slack_ns <= exit_ns <= observed_ns + error_ns + slack_ns:
        yield differ(name, FAULTS, f"end by {fault}", exit_ns, observed_ns)
    started_ns = stated.get("t_start_ns")
    restarts = [
        stamp_of(folder, other, "applied")
        for other in faults_at(folder, process.name)
        if other["verb"] == "restart"
    ]
    if isinstance(started_ns, int):
        began_ns = folder.timeline.to_timeline(started_ns, process.host)
        first = folder.phase_ns("warmup")
        if first is not None and began_ns > first[0] - folder.origin_ns and not restarts:
            yield differ(name, FAULTS, "t_start_ns", began_ns, "no restart before")


def _find_pid(row: Line, broker: str) -> Any:
    """Return the process that a fault ended, by its evidence; None if it names none."""
    try:
        seen = parse_json(str(row.get("evidence")))
    except ValueError:
        return None
    if isinstance(seen, Mapping) and isinstance(seen.get(broker), Mapping):
        seen = seen[broker]
    return seen.get("pid") if isinstance(seen, Mapping) else None
