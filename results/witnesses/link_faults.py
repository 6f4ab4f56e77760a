"""Faults of brokers' links in the events of brokers, against the fault log.

A broker logs the start and the end of every fault of its links, with the absorbed messages. The
controller logs the same faults.
"""

from collections.abc import Iterator, Sequence

from brokerd.model.fault_verbs import KILLING_VERBS, STANDING_VERBS
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.broker_events import JITTER_NS, SLACK_NS, clock_error_ns, list_events
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULTS,
    MANIFEST,
    PLAN,
    Line,
    ProcessFolder,
    RunFolder,
    stamp_of,
)

_ANSWERED_WITHIN_NS = 900_000_000
"""The controller waits for a second for the last counts of a fault, and then heals it."""


def check_own_fault(
    folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield faults of a broker's own links that are not in the broker's events."""
    fault = str(row["fault_id"])
    for stage, event in (("applied", "fault_applied"), ("healed", "fault_healed")):
        if stage == "healed" and (
            row.get("healed_by") != "schedule" or _is_killed_before_heal(folder, row)
        ):
            continue
        first_ns, last_ns = stamp_of(folder, row, stage, last=False), stamp_of(folder, row, stage)
        if first_ns is None or last_ns is None:
            continue
        times = [
            (at_ns, process)
            for process in brokers
            for at_ns, line in list_events(folder, process, event)
            if str(line.get("fault_id")).partition("@")[0] == fault
        ]
        if not times:
            yield doubt("not_in_log", fault=fault, one=FAULTS, other="raw/*/*/events.jsonl")
            return
        ends = _ends_of(folder, str(row["target"]))
        if ends and (strange := sorted({process.name for _, process in times} - ends)):
            yield doubt(
                "disagree", one=f"raw/*/{strange[0]}/events.jsonl", other=FAULTS,
                what=f"target of {fault}", found=strange[0], wanted=row["target"],
            )  # fmt: skip
        error_ns = max(clock_error_ns(folder, process.host) for _, process in times)
        requested_ns = stamp_of(folder, row, "requested", last=False)
        for at_ns, process in times:
            off_ns = max(first_ns - at_ns, at_ns - last_ns) - SLACK_NS
            if stage == "applied" and requested_ns is not None:
                # Agents stamp a stage when their broker has logged it.
                off_ns = max(off_ns, requested_ns - at_ns - JITTER_NS, at_ns - last_ns - JITTER_NS)
            if off_ns > error_ns:
                yield doubt(
                    "sessions_apart", one=f"{process.place}/events.jsonl", other=FAULTS,
                    who=fault, event=stage, s=abs(at_ns - first_ns) / 1e9,
                )  # fmt: skip


def _is_killed_before_heal(folder: RunFolder, row: Line) -> bool:
    """Return True if the broker of a fault was killed before the fault was healed."""
    applied_ns = stamp_of(folder, row, "applied", last=False)
    return any(
        other["verb"] in KILLING_VERBS
        and (killed_ns := stamp_of(folder, other, "applied")) is not None
        and applied_ns is not None
        and killed_ns >= applied_ns
        for end in _ends_of(folder, str(row["target"]))
        for other in faults_at(folder, end)
    )


def check_absorbed(folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder]) -> Iterator[str]:
    """Yield counts of the fault log that differ from the counts of the brokers.

    A broker logs counts before an answer to the controller, which learns nothing from a fault that
    has failed. Counts at the end of a lease have no answer. An absorbing link forwards nothing.
    """
    fault, exercised = str(row["fault_id"]), (folder.schedule.get("exercised") or {})
    is_absorbing = row["verb"] == "absorb" and row.get("state") not in ("failed", "unknown")
    counts = {
        process.name: [
            line
            for _, line in list_events(folder, process, "fault_counted", "fault_healed")
            if str(line.get("fault_id")).partition("@")[0] == fault
        ]
        for process in brokers
    }
    for column, key in (
        ("absorbed_msgs", "absorbed_publications"), ("absorbed_bytes", "absorbed_bytes"),
    ):  # fmt: skip
        found = row.get(column) or 0
        if not any(counts.values()):
            if not found:
                continue
            name = "raw/*/*/events.jsonl"
            if folder.is_counted:
                yield doubt("missing_line", file=name, what=f"{column} of {fault}", other=FAULTS)
            elif exercised.get("absorbed_msgs_min"):
                yield doubt(
                    "older_schema", file=MANIFEST, schema=folder.manifest.get("schema"),
                    what=f"what {fault} absorbed", other=name,
                )  # fmt: skip
            return
        wanted = sum(max((line.get(key, 0) for line in of), default=0) for of in counts.values())
        least = _least_absorbed(folder, row, brokers, key) if is_absorbing else 0
        if found > wanted or found < least:
            yield doubt(
                "disagree", one=FAULTS, other="raw/*/*/events.jsonl", what=f"{column} of {fault}",
                found=found, wanted=max(min(found, wanted), least),
            )  # fmt: skip
    for process in brokers if is_absorbing else ():
        n = max(
            (line.get("forwarded_since_applied", 0) for line in counts[process.name]), default=0
        )
        if n:
            yield doubt(
                "disagree", one=f"{process.place}/events.jsonl", other=FAULTS,
                what=f"messages forwarded during {fault}", found=n, wanted=0,
            )  # fmt: skip


def _least_absorbed(
    folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder], key: str
) -> int:
    """Return what brokers answered that a fault had absorbed; 0 if an answer may have been lost.

    The controller adds the answers of all ends. It learns nothing if another fault stops one end
    meanwhile, or if the last answer takes longer than the controller waits.
    """
    ends = _ends_of(folder, str(row["target"]))
    stops = [
        (stamp_of(folder, other, "requested", last=False) or -NEVER_NS)
        + clock_error_ns(folder, process.host)
        for process in brokers
        if process.name in ends
        for other in faults_at(folder, process.name)
        if other["verb"] in (*KILLING_VERBS, *STANDING_VERBS)
    ]
    until_ns = min(stops, default=NEVER_NS)
    if _took_long(folder, row):
        return 0
    least = 0
    for process in brokers:
        counted = [
            (at_ns, line.get(key, 0))
            for at_ns, line in list_events(folder, process, "fault_counted")
            if str(line.get("fault_id")).partition("@")[0] == row["fault_id"]
        ]
        if any(at_ns > until_ns for at_ns, _ in counted):
            return 0
        least += max((n for _, n in counted), default=0)
    return least


def _took_long(folder: RunFolder, row: Line) -> bool:
    """Return True if a fault lasted so long that its last answer may have come too late."""
    durations = [
        line.get("duration_ns") or 0
        for line in folder.lines(PLAN)
        if line.get("step") == row.get("step")
    ]
    stages = [row.get(f"t_{stage}_ns") for stage in ("heal_requested", "healed")]
    ended_ns, applied_ns = next((ns for ns in stages if ns), None), row.get("t_applied_ns")
    if ended_ns is None or applied_ns is None:
        return True
    return int(ended_ns) - int(applied_ns) - max(durations, default=0) >= _ANSWERED_WITHIN_NS


def _ends_of(folder: RunFolder, target: str) -> set[str]:
    """Return the brokers of a target: both ends of a link, a broker, or none."""
    if target in folder.brokers:
        return {target}
    for a in folder.brokers:
        for b in folder.brokers:
            if target in (f"{a}-{b}", f"{a}->{b}"):
                return {a, b}
    return set()
