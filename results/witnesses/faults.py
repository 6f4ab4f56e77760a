"""The fault log against everything else that shows a fault.

A verdict reads `faults/faults.jsonl`. Each row derives from lines of `faults/log.jsonl`, which the
journal of the controller repeats, and starts as a line of `faults/plan.jsonl`, which was drawn from
`spec/faults.toml`.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from brokerd.model.fault_verbs import KILLING_VERBS, MACHINE_VERBS
from brokerd.units import parse_duration_ns
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.folder import (
    FAULT_JOURNAL,
    FAULTS,
    JOURNAL,
    MANIFEST,
    PLAN,
    SCHEDULE,
    Line,
    RunFolder,
    differ,
)

STAGES: Final = (
    *("planned", "requested", "applied", "observed"),
    *("heal_requested", "healed", "recovered"),
)
_PROGRESS: Final = ("planned", "requested", "applied", "observed", "healed", "recovered")
_NAMED: Final = ("step", "verb", "target", "params")
_ENDED_BY_RESTART: Final = (
    ("heal_requested", "requested"), ("healed", "applied"), ("recovered", "recovered"),
)  # fmt: skip
_SLACK_NS = 2_000_000
_LEASE_NS = 15_000_000_000
"""The lease of a fault if its schedule names none."""
_DEATH_NS = 200_000_000
"""A fault that dies with a process ends when the process is killed, give or take so much."""
_LEASES = ("lease", "user", "process-death")


def doubts_about_faults(folder: RunFolder) -> Iterator[str]:
    """Yield a doubt for each contradiction between the files about faults."""
    yield from _check_schedule(folder)
    yield from _check_plan(folder)
    yield from _check_stages(folder)
    yield from _check_journals(folder)
    for row in folder.fault_rows:
        yield from _check_times(folder, row)
        mode = (row.get("params") or {}).get("mode", "")
        if folder.is_closed and row.get("mode", mode) != mode:
            yield differ(FAULTS, FAULTS, f"mode of {row['fault_id']}", row["mode"], mode)


def _check_schedule(folder: RunFolder) -> Iterator[str]:
    has_schedule = folder.has(SCHEDULE)
    if "schedule" in folder.manifest:
        wanted = folder.schedule.get("name") if has_schedule else None
        if folder.manifest["schedule"] != wanted:
            yield differ(MANIFEST, SCHEDULE, "schedule", folder.manifest["schedule"], wanted)
    if not has_schedule:
        return
    plan = {line["step"]: line for line in folder.lines(PLAN)}
    steps = {step["id"]: step for step in folder.schedule.get("step", ())}
    if folder.schedule and "step" in folder.schedule:
        repeated = {name.rpartition(".")[0] or name for name in plan}
        if not {*steps} <= {*plan} | repeated or not repeated | {*plan} >= {*steps}:
            yield differ(PLAN, SCHEDULE, "steps", sorted(plan), sorted(steps))
    for name, step in steps.items():
        line = plan.get(name)
        if line is None:
            continue
        if line["verb"] != step.get("do"):
            yield differ(PLAN, SCHEDULE, f"verb of {name}", line["verb"], step.get("do"))
        yield from _check_step(folder, name, line, step)
        on = step.get("on")
        names = {*folder.brokers}
        if isinstance(on, str) and on in names and line["target"] != on:
            yield differ(PLAN, SCHEDULE, f"target of {name}", line["target"], on)


def _check_step(folder: RunFolder, name: str, line: Line, step: Line) -> Iterator[str]:
    """The times of a planned step, where the schedule leaves nothing to be drawn."""
    after = step.get("after")
    wanted: dict[str, Any] = {"delay_ns": _scheduled_ns(step.get("delay", "0s"))}
    if isinstance(after, str):
        before, _, stage = after.partition(".")
        wanted |= {"after": [before, stage or "end"], "at_ns": None}
    elif after is None:
        wanted |= {"after": None, "at_ns": _scheduled_ns(step.get("at", "0s"))}
    if "for" in line.get("params", {}):
        wanted["duration_ns"] = _scheduled_ns(line["params"]["for"])
        drawn = _scheduled_ns(step.get("for"))
        if drawn is not None and drawn != wanted["duration_ns"]:
            yield differ(PLAN, SCHEDULE, f"duration of {name}", line["params"]["for"], drawn)
    elif "for" not in step:
        wanted["duration_ns"] = None
    for key, value in wanted.items():
        is_drawn = value is None and key in ("delay_ns", "at_ns") and after is None
        if (key in line or folder.is_witnessed) and not is_drawn and line.get(key) != value:
            yield differ(PLAN, SCHEDULE, f"{key} of {name}", line.get(key), value)


def _scheduled_ns(text: Any) -> int | None:
    """Return the duration that a schedule fixes; None if the duration is drawn."""
    try:
        return parse_duration_ns(text)
    except ValueError:
        return None


def _check_plan(folder: RunFolder) -> Iterator[str]:
    """Yield rows of the fault log that differ from their line of the plan."""
    plan = {str(line["fault_id"]): line for line in folder.lines(PLAN)}
    steps = {str(line["step"]) for line in folder.lines(PLAN)}
    for planned in folder.lines(PLAN) if folder.is_closed else ():
        if planned.get("ended_by") and planned["ended_by"] not in steps:
            subject = f"ended_by of {planned['fault_id']}"
            yield differ(PLAN, SCHEDULE, subject, planned["ended_by"], sorted(steps))
    if len(plan) < len(folder.lines(PLAN)):
        yield doubt("twice", what=f"one fault of {PLAN}")
    for row in folder.fault_rows:
        line = plan.get(str(row["fault_id"]))
        if line is None:
            continue
        for name in _NAMED:
            is_stated = folder.is_witnessed or (name in line and name in row)
            if is_stated and line.get(name) != row.get(name):
                yield differ(
                    FAULTS, PLAN, f"{name} of {row['fault_id']}", row.get(name), line.get(name)
                )
        yield from _check_planned_time(folder, row, line)


def _check_planned_time(folder: RunFolder, row: Line, line: Line) -> Iterator[str]:
    planned_ns = row.get("t_planned_ns")
    if planned_ns is None and folder.is_simulated:
        # No time passes in a simulation between the plan and the request.
        planned_ns = row.get("t_requested_ns")
    if planned_ns is None:
        return
    wanted = None
    if line.get("at_ns") is not None:
        wanted = folder.origin_ns + line["at_ns"] + line.get("delay_ns", 0)
    elif line.get("after"):
        step, stage = line["after"]
        before = [other for other in folder.fault_rows if other["step"] == step]
        if before and stage in STAGES:
            stamp = before[0].get(f"t_{stage}_ns")
            wanted = None if stamp is None else stamp + line.get("delay_ns", 0)
    if wanted is not None and planned_ns != wanted:
        yield differ(FAULTS, PLAN, f"planned time of {row['fault_id']}", planned_ns, wanted)
    yield from _check_following(folder, row, line)
    duration_ns = line.get("duration_ns")
    requested_ns, healing_ns = row.get("t_requested_ns"), row.get("t_heal_requested_ns")
    # A fault that failed is undone at once.
    is_timed = row.get("healed_by") == "schedule" and row.get("state") != "failed"
    if not (is_timed and requested_ns and healing_ns and duration_ns):
        return
    if healing_ns - requested_ns < duration_ns - _SLACK_NS:
        yield differ(
            FAULTS, PLAN, f"duration of {row['fault_id']}", healing_ns - requested_ns, duration_ns
        )


def _check_following(folder: RunFolder, row: Line, line: Line) -> Iterator[str]:
    """Yield steps that started before the end of the preceding step."""
    step, stage = line.get("after") or ("", "")
    others = [other for other in folder.fault_rows if other["step"] == step]
    if stage != "end" or len(others) != 1 or others[0].get("healed_by") != "process-death":
        return
    other = others[0]
    plan = {each["step"]: each for each in folder.lines(PLAN)}
    lasts_ns, requested_ns = plan.get(step, {}).get("duration_ns"), other.get("t_requested_ns")
    if lasts_ns and requested_ns and row["t_planned_ns"] < requested_ns + lasts_ns - _SLACK_NS:
        yield differ(
            FAULTS, PLAN, f"planned time of {row['fault_id']}", row["t_planned_ns"],
            requested_ns + lasts_ns,
        )  # fmt: skip
    applied_ns, healed_ns = row.get("t_applied_ns"), other.get("t_healed_ns")
    if applied_ns is None or healed_ns is None or row.get("target") != other.get("target"):
        return
    if abs(healed_ns - applied_ns) > _DEATH_NS:
        subject = f"end of {other['fault_id']} by {row['fault_id']}"
        yield differ(FAULTS, FAULTS, subject, healed_ns, applied_ns)


def _check_times(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield the stages of a fault that are out of order or outside of the run."""
    name = row["fault_id"]
    reached = [(stage, row.get(f"t_{stage}_ns")) for stage in STAGES]
    stamps = [(stage, at_ns) for stage, at_ns in reached if at_ns is not None]
    chain = [each for each in stamps if each[0] not in ("observed", "recovered")]
    for (before, one_ns), (after, other_ns) in pairwise(chain):
        least_ns = one_ns
        if (before, after) == ("heal_requested", "healed"):
            least_ns = min([one_ns, *_ends_by_itself(folder, row)]) - _error_ns(folder, row)
        if other_ns < least_ns - _SLACK_NS:
            yield doubt("stage_order", fault=name, before=before, after=after, file=FAULTS)
    yield from _check_lease(folder, row)
    yield from _check_recovery(folder, row)
    began = folder.phase_ns("deploy") or folder.phase_ns("warmup") or folder.phase_ns("measure")
    over = folder.phase_ns("drain")
    for stage, at_ns in stamps:
        is_early = began is not None and at_ns < began[0]
        is_late = over is not None and stage != "planned" and at_ns > over[1]
        if (is_early or is_late) and row.get("healed_by") not in _LEASES:
            yield doubt("fault_outside", fault=name, stage=stage, file=FAULTS, other=MANIFEST)
    for stage, of_hosts in (row.get("host_stamps") or {}).items():
        at_ns = row.get(f"t_{stage}_ns")
        if at_ns is None:
            yield differ(FAULTS, FAULT_JOURNAL, f"{stage} of {name}", None, dict(of_hosts))
            continue
        reference = (folder.manifest.get("clock") or {}).get("host_id", "")
        for host, ns in of_hosts.items():
            error_ns = folder.timeline.error_ns(host, reference)
            off_ns = abs(folder.timeline.to_timeline(ns, host) - (at_ns - folder.origin_ns))
            if error_ns is not None and off_ns > error_ns + 10_000_000_000:
                yield differ(FAULTS, FAULTS, f"{stage} of {name} at {host}", ns, at_ns)
    done = [stage for stage in _PROGRESS if row.get(f"t_{stage}_ns") is not None]
    state = row.get("state")
    is_announced = folder.has(FAULT_JOURNAL) and state not in ("failed", "unknown")
    if is_announced and done and state != done[-1]:
        yield differ(FAULTS, FAULT_JOURNAL, f"state of {name}", state, done[-1])


def _check_recovery(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield faults that recovered before their end, or ended apart from the restart that ends them.

    A restart ends a kill: all its later stages are stages of the restart.
    """
    name, recovered_ns = row["fault_id"], row.get("t_recovered_ns")
    for stage in ("applied", "observed", "healed") if recovered_ns is not None else ():
        at_ns = row.get(f"t_{stage}_ns")
        if at_ns is not None and recovered_ns < at_ns - _SLACK_NS - _error_ns(folder, row):
            yield doubt("stage_order", fault=name, before=stage, after="recovered", file=FAULTS)
    if row["verb"] not in KILLING_VERBS or row["verb"] in MACHINE_VERBS or folder.is_simulated:
        return
    if not folder.is_witnessed or folder.is_foreign:
        return
    restarts = [
        other
        for other in folder.fault_rows
        if (other["verb"], other["target"]) == ("restart", row["target"])
        and other.get("state") not in ("failed", "unknown")
        and (other.get("t_applied_ns") or 0) >= (row.get("t_applied_ns") or NEVER_NS)
    ]
    if not restarts or row.get("healed_by") != "schedule":
        return
    restart = min(restarts, key=lambda other: int(other["t_applied_ns"]))
    for own, its in _ENDED_BY_RESTART:
        if row.get(f"t_{own}_ns") != restart.get(f"t_{its}_ns"):
            subject = f"{own} of {name} by {restart['fault_id']}"
            yield differ(
                FAULTS, FAULTS, subject, row.get(f"t_{own}_ns"), restart.get(f"t_{its}_ns")
            )


def _check_lease(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield faults that their lease ended sooner than a lease lasts."""
    applied_ns, healed_ns = row.get("t_applied_ns"), row.get("t_healed_ns")
    lease = (folder.schedule.get("guard") or {}).get("lease")
    lease_ns = _LEASE_NS if lease is None else _scheduled_ns(lease)
    if row.get("healed_by") != "lease" or lease_ns is None:
        return
    if applied_ns is None or healed_ns is None:
        return
    if healed_ns - applied_ns < lease_ns - _SLACK_NS - _error_ns(folder, row):
        yield differ(
            FAULTS, SCHEDULE, f"lease of {row['fault_id']}", healed_ns - applied_ns, lease_ns
        )


def _ends_by_itself(folder: RunFolder, row: Line) -> Iterator[int]:
    """Yield the earliest stamps at which a fault may have ended before its heal was requested.

    A fault ends with its lease, its duration, or the process of its target.
    """
    applied_ns = row.get("t_applied_ns")
    if applied_ns is None:
        return
    plan = {line["fault_id"]: line for line in folder.lines(PLAN)}
    lease = (folder.schedule.get("guard") or {}).get("lease")
    spans = (
        plan.get(row["fault_id"], {}).get("duration_ns"),
        _LEASE_NS if lease is None else _scheduled_ns(lease),
    )
    yield from (applied_ns + lasts_ns for lasts_ns in spans if lasts_ns)
    for other in faults_at(folder, str(row["target"])):
        ended_ns = other.get("t_applied_ns")
        if other["verb"] in KILLING_VERBS and ended_ns is not None and ended_ns >= applied_ns:
            yield ended_ns


def _error_ns(folder: RunFolder, row: Line) -> int:
    """Return how far the stamps of a fault's end may be from the controller's clock."""
    reference = (folder.manifest.get("clock") or {}).get("host_id", "")
    hosts = (row.get("host_stamps") or {}).get("healed") or {}
    errors = [folder.timeline.error_ns(host, reference) for host in hosts]
    return NEVER_NS if None in errors else max(filter(None, errors), default=0)


def _check_stages(folder: RunFolder) -> Iterator[str]:
    """Yield stages of the fault log without a line of the journal, and the reverse."""
    if not folder.has(FAULT_JOURNAL):
        if folder.is_witnessed and folder.fault_rows:
            yield doubt("missing_file", file=FAULT_JOURNAL, other=FAULTS)
        return
    rows = {str(row["fault_id"]): row for row in folder.fault_rows}
    lines_of: dict[tuple[str, str], Line] = {}
    absorbed: dict[str, dict[str, int]] = {}
    failed: dict[str, Line] = {}
    for line in folder.lines(FAULT_JOURNAL):
        fault = str(line["fault_id"])
        if line["stage"] == "failed":
            failed[fault] = line
        elif not _is_late(line):
            lines_of[fault, str(line["stage"])] = line
        for key, column in (
            ("absorbed_publications", "absorbed_msgs"), ("absorbed_bytes", "absorbed_bytes"),
        ):  # fmt: skip
            if (line.get("evidence") or {}).get(key) is not None:
                of = absorbed.setdefault(fault, {})
                of[column] = max(of.get(column, 0), line["evidence"][key])
        if folder.is_witnessed and fault in rows:
            for name in _NAMED:
                if line.get(name) != rows[fault].get(name):
                    yield differ(
                        FAULTS, FAULT_JOURNAL, f"{name} of {fault}",
                        rows[fault].get(name), line.get(name),
                    )  # fmt: skip
    stages = [(line["fault_id"], line["stage"]) for line in folder.lines(FAULT_JOURNAL)]
    if len({*stages}) < len(stages) and not failed:
        yield doubt("twice", what=f"one stage of {FAULT_JOURNAL}")
    for fault in dict.fromkeys(fault for fault, _ in lines_of):
        if fault not in rows:
            yield doubt("not_in_log", fault=fault, one=FAULT_JOURNAL, other=FAULTS)
    for fault, row in rows.items():
        yield from _check_row(fault, row, lines_of)
        if (fault in failed) != (row.get("state") in ("failed", "unknown")):
            yield differ(
                FAULTS, FAULT_JOURNAL, f"state of {fault}", row.get("state"),
                "failed" if fault in failed else "not failed",
            )  # fmt: skip
        yield from _check_evidence(folder, row, lines_of, failed.get(fault))
        for column in ("absorbed_msgs", "absorbed_bytes"):
            found, least = row.get(column), absorbed.get(fault, {}).get(column)
            is_more = found is not None and least is not None and found > least
            if found != least and not (is_more and not folder.is_witnessed):
                yield differ(FAULTS, FAULT_JOURNAL, f"{column} of {fault}", found, least)


def _check_row(fault: str, row: Line, lines_of: Mapping[tuple[str, str], Line]) -> Iterator[str]:
    """Yield differences between a row of the fault log and the journal."""
    for stage in STAGES:
        line = lines_of.get((fault, stage), {})
        if row.get(f"t_{stage}_ns") != line.get("t_ns"):
            yield differ(
                FAULTS, FAULT_JOURNAL, f"{stage} of {fault}",
                row.get(f"t_{stage}_ns"), line.get("t_ns"),
            )  # fmt: skip
        stamps = (row.get("host_stamps") or {}).get(stage) or {}
        if stamps != (line.get("host_stamps") or {}):
            yield differ(
                FAULTS, FAULT_JOURNAL, f"host stamps of {stage} of {fault}",
                dict(stamps), dict(line.get("host_stamps") or {}),
            )  # fmt: skip
        for name in _NAMED:
            if line and name in row and line.get(name) != row[name]:
                yield differ(FAULTS, FAULT_JOURNAL, f"{name} of {fault}", row[name], line.get(name))
    healed = [line.get("healed_by") for (of, _), line in lines_of.items() if of == fault]
    wanted = next((value for value in reversed(healed) if value is not None), None)
    if row.get("healed_by") != wanted:
        yield differ(FAULTS, FAULT_JOURNAL, f"healed_by of {fault}", row.get("healed_by"), wanted)


def _check_evidence(
    folder: RunFolder, row: Line, lines_of: Mapping[tuple[str, str], Line], failed: Line | None
) -> Iterator[str]:
    line = failed or lines_of.get((str(row["fault_id"]), "observed"))
    if line is None or (not row.get("evidence") and not folder.is_witnessed):
        return
    try:
        evidence = json.loads(row.get("evidence") or "null")
    except ValueError:
        evidence = row["evidence"]
    if evidence != line.get("evidence"):
        yield differ(
            FAULTS, FAULT_JOURNAL, f"evidence of {row['fault_id']}", evidence, line.get("evidence")
        )


def _check_journals(folder: RunFolder) -> Iterator[str]:
    """The controller's journal repeats the fault journal, line by line."""
    lines = [line for line in folder.journal if line.get("what") == "fault"]
    is_real = any(line.get("what") == "phase" for line in folder.journal)
    if not lines and not (is_real and folder.has(FAULT_JOURNAL)):
        return
    ours = [_content(line) for line in folder.lines(FAULT_JOURNAL) if not _is_late(line)]
    theirs = [_content(line) for line in lines if not _is_late(line)]
    if sorted(ours) == sorted(theirs):
        return
    for one, other, of, there in (
        (FAULT_JOURNAL, JOURNAL, ours, theirs), (JOURNAL, FAULT_JOURNAL, theirs, ours),
    ):  # fmt: skip
        lost = [line for line in of if line not in there]
        if lost:
            yield doubt("not_in_log", fault=lost[0][:120], one=one, other=other)
    if len(ours) != len(theirs):
        yield differ(FAULT_JOURNAL, JOURNAL, "number of lines", len(ours), len(theirs))


def _is_late(line: Line) -> bool:
    return line.get("stage") == "learned"


def _content(line: Line) -> str:
    named = {key: value for key, value in line.items() if key not in ("utc", "what")}
    return json.dumps(named, sort_keys=True)


def faults_at(folder: RunFolder, broker: str) -> list[Line]:
    """Return the faults of a broker or machine."""
    placed = {
        str(row["broker"]): str(row["host"])
        for row in folder.document("spec/placement.json").get("brokers", ())
    }
    targets = {broker, placed.get(broker, broker)}
    return [row for row in folder.fault_rows if str(row["target"]) in targets]
