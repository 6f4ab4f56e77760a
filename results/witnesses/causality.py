"""Causes before their effects, in files of two processes.

A broker begins a run after the controller asked for it, and ends after the drain. A client has a
session after its broker established it. A subscription is accepted after its broker started it. A
stage of a fault is logged after it was reached. Both stamps of such a pair are compared as closely
as the clocks allow, without regard to how busy the machine was: a busy machine delays effects, and
never causes.
"""

from collections.abc import Iterator
from datetime import datetime

from brokerd.model.fault_verbs import MACHINE_VERBS
from results.rules.terms import doubt
from results.witnesses.brokers import excused_silence_ns, replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULT_JOURNAL,
    JOURNAL,
    MANIFEST,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
)

_JITTER_NS = 20_000_000
"""Stamps are taken a moment before or after the act that they are of."""
_STARTS = ("restart", *MACHINE_VERBS)
"""Verbs with which an agent starts a broker again."""
_WRITTEN_NS = 5_000_000_000
"""The controller logs its own acts at once, unless its machine is busy with other work."""


def doubts_about_causality(folder: RunFolder) -> Iterator[str]:
    """Yield effects with stamps before their causes."""
    if not folder.is_of_processes or folder.manifest.get("state") != "complete":
        return
    yield from _check_stages(folder)
    end_ns = next((line["t_ns"] for line in folder.journal if line.get("what") == "end"), None)
    drain = folder.phase_ns("drain")
    if drain is not None and end_ns is not None and end_ns < drain[1]:
        yield differ(JOURNAL, MANIFEST, "the end", end_ns, drain[1])
    for process in folder.processes:
        error_ns = _error_ns(folder, process)
        if error_ns is None:
            continue
        if process.is_load:
            yield from _check_life(folder, process, end_ns, error_ns)
        elif process.name in folder.brokers and not folder.is_foreign:
            yield from _check_broker(folder, process, end_ns, error_ns)
    if not folder.is_foreign:
        yield from _check_sessions(folder)
        yield from _check_subscriptions(folder)


def _error_ns(folder: RunFolder, process: ProcessFolder) -> int | None:
    reference = str((folder.manifest.get("clock") or {}).get("host_id", process.host))
    error_ns = folder.timeline.error_ns(process.host, reference)
    return None if error_ns is None else error_ns + _JITTER_NS


def _stamp(folder: RunFolder, process: ProcessFolder, stamp_ns: int) -> int:
    """Return a stamp of a process as a stamp of the controller's clock."""
    return folder.timeline.to_timeline(stamp_ns, process.host) + folder.origin_ns


# --- The controller and processes -----------------------------------------------------------


def _check_life(
    folder: RunFolder, process: ProcessFolder, end_ns: int | None, error_ns: int
) -> Iterator[str]:
    """Yield load generators that started before the run, or ended after the journal."""
    stated, deploy = process.document("exit.json"), folder.phase_ns("deploy")
    name = f"{process.place}/exit.json"
    started_ns, ended_ns = stated.get("t_start_ns"), stated.get("t_exit_ns")
    if isinstance(started_ns, int) and deploy is not None:
        at_ns = _stamp(folder, process, started_ns)
        if at_ns < deploy[0] - error_ns:
            yield differ(name, MANIFEST, "t_start_ns", at_ns, deploy[0])
    lines = process.lines("sessions.jsonl")
    if isinstance(started_ns, int) and lines and lines[0]["t_ns"] < started_ns:
        yield differ(
            name, f"{process.place}/sessions.jsonl", "t_start_ns", started_ns, lines[0]["t_ns"]
        )
    if isinstance(ended_ns, int) and end_ns is not None:
        at_ns = _stamp(folder, process, ended_ns)
        if at_ns > end_ns + error_ns:
            yield differ(name, JOURNAL, "t_exit_ns", at_ns, end_ns)


def _check_broker(
    folder: RunFolder, process: ProcessFolder, end_ns: int | None, error_ns: int
) -> Iterator[str]:
    """Yield brokers that began a run before it, ended before its end, or wrote after it."""
    name = f"{process.place}/events.jsonl"
    deploy, drain = folder.phase_ns("deploy"), folder.phase_ns("drain")
    events = process.lines("events.jsonl")
    begun = [line["t_ns"] for line in events if line.get("event") == "run_begun"]
    over = [line["t_ns"] for line in events if line.get("event") == "run_ended"]
    if begun and deploy is not None:
        at_ns = _stamp(folder, process, min(begun))
        if at_ns < deploy[0] - error_ns:
            yield differ(name, MANIFEST, "run_begun", at_ns, deploy[0])
    if over and drain is not None:
        at_ns = _stamp(folder, process, max(over))
        if at_ns < drain[1] - error_ns:
            yield differ(name, MANIFEST, "run_ended", at_ns, drain[1])
    for file in ("events.jsonl", "stats.jsonl"):
        stamps = [line["t_ns"] for line in process.lines(file)]
        if stamps and end_ns is not None:
            at_ns = _stamp(folder, process, max(stamps))
            if at_ns > end_ns + error_ns:
                yield differ(f"{process.place}/{file}", JOURNAL, "the last line", at_ns, end_ns)
    stated = process.document("exit.json")
    ended_ns = stated.get("t_exit_ns")
    stops = [row for row in faults_at(folder, process.name) if row["verb"] in _STARTS]
    last = [line["t_ns"] for line in events]
    if isinstance(ended_ns, int) and last and not stops and not replacements(folder, process):
        at_ns, ended_ns = (_stamp(folder, process, ns) for ns in (max(last), ended_ns))
        if at_ns > ended_ns:
            yield differ(name, f"{process.place}/exit.json", "the last line", at_ns, ended_ns)


# --- Stages of faults -----------------------------------------------------------------------


def _check_stages(folder: RunFolder) -> Iterator[str]:
    """Yield stages that the journal had before they were reached, or requests long after.

    The journal has the time of day at which each line was written. Lines about the run itself have
    both clocks, and tell how far apart these are.
    """
    apart = [
        _day_ns(line) - line["t_ns"]
        for line in folder.journal
        if line.get("what") != "fault" and "utc" in line and "t_ns" in line
    ]
    if not apart:
        return
    spare_ns = excused_silence_ns(folder)
    reference = (folder.manifest.get("clock") or {}).get("host_id", "")
    for line in folder.journal:
        if line.get("what") != "fault" or line.get("stage") in ("planned", "learned"):
            continue
        at_ns = line.get("t_ns")
        hosts = {*(line.get("host_stamps") or {})}
        errors = [folder.timeline.error_ns(host, reference) for host in hosts]
        if at_ns is None or "utc" not in line or None in errors:
            continue
        error_ns = max((error for error in errors if error is not None), default=0)
        latest_ns, earliest_ns = _day_ns(line) - min(apart), _day_ns(line) - max(apart)
        is_late = line["stage"] == "requested" and at_ns < earliest_ns - _WRITTEN_NS - spare_ns
        if is_late or at_ns > latest_ns + _JITTER_NS + error_ns:
            subject = f"{line['stage']} of {line['fault_id']}"
            yield differ(FAULT_JOURNAL, JOURNAL, subject, at_ns, latest_ns)


def _day_ns(line: Line) -> int:
    return round(datetime.fromisoformat(str(line["utc"])).timestamp() * 1000) * 1_000_000


# --- Clients and brokers --------------------------------------------------------------------


def _check_sessions(folder: RunFolder) -> Iterator[str]:
    """Yield sessions of clients that their brokers established later, or lost before their end."""
    run = str(folder.manifest.get("run_id")).rpartition("-")[2]
    for process in folder.processes:
        events = process.lines("events.jsonl")
        if process.name not in folder.brokers or any(
            line.get("event") == "lines_left_out" for line in events
        ):
            continue
        name = f"{process.place}/events.jsonl"
        stamps: dict[tuple[str, str], list[int]] = {}
        for line in events:
            at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
            stamps.setdefault((line["event"], str(line.get("peer"))), []).append(at_ns)
        for other in folder.processes:
            error_ns = folder.timeline.error_ns(process.host, other.host)
            lines = other.lines("sessions.jsonl") if other.is_load else ()
            if error_ns is not None and lines:
                yield from _check_clients(
                    folder, process, name, other, run, stamps, error_ns + _JITTER_NS
                )


def _check_clients(
    folder: RunFolder,
    process: ProcessFolder,
    name: str,
    load: ProcessFolder,
    run: str,
    stamps: dict[tuple[str, str], list[int]],
    error_ns: int,
) -> Iterator[str]:
    ups: dict[str, list[int]] = {}
    last: dict[str, tuple[str, int, str]] = {}
    for line in load.lines("sessions.jsonl"):
        at_ns = folder.timeline.to_timeline(line["t_ns"], load.host)
        client = str(line["client"])
        last[client] = str(line.get("reason")), at_ns, str(line["broker"])
        if line["broker"] == process.name and line["event"] == "up":
            ups.setdefault(client, []).append(at_ns)
    theirs = f"{load.place}/sessions.jsonl"
    for client, times in ups.items():
        established = sorted(stamps.get(("session_established", f"{client}.{run}"), ()))
        for up_ns, since_ns in zip(sorted(times), established, strict=False):
            if up_ns < since_ns - error_ns:
                yield differ(theirs, name, f"start of a session of {client}", up_ns, since_ns)
                return
    for client, (reason, at_ns, broker) in last.items():
        lost = stamps.get(("session_lost", f"{client}.{run}"), ())
        is_last = (reason, broker) == ("closed_by_us", process.name)
        if is_last and lost and max(lost) < at_ns - error_ns:
            yield differ(theirs, name, f"end of the sessions of {client}", at_ns, max(lost))
            return
        began_ns = _find_last_start(folder, process, f"{client}.{run}", at_ns - error_ns)
        last_ns = max(ups.get(client, ()), default=None)
        if is_last and began_ns is not None and last_ns and last_ns < began_ns - error_ns:
            subject = f"start of the last session of {client}"
            yield differ(theirs, name, subject, last_ns, began_ns)
            return


def _find_last_start(
    folder: RunFolder, process: ProcessFolder, peer: str, after_ns: int
) -> int | None:
    """Return the start of a broker's last session; None if lost before `after_ns`."""
    opened: dict[object, int] = {}
    found: int | None = None
    for line in process.lines("events.jsonl"):
        if line.get("peer") != peer:
            continue
        at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
        if line["event"] == "session_established":
            opened[line.get("session")] = at_ns
        elif line["event"] == "session_lost":
            began_ns = opened.pop(line.get("session"), None)
            found = began_ns if at_ns >= after_ns else None
    return found


def _check_unknown(folder: RunFolder, run: str) -> Iterator[str]:
    """Yield subscriptions of the run's clients at brokers that no client logged."""
    if folder.manifest.get("state") != "complete" or not folder.is_closed:
        return
    logged = {
        str(line["sub_id"])
        for process in folder.processes
        for line in process.lines("subscriptions.jsonl")
    }
    for process in folder.processes:
        for line in process.lines("events.jsonl"):
            client, of, suffix = str(line.get("client")).rpartition(".")
            subscription = f"{client}/{line.get('number')}"
            if line.get("event") != "subscription_started" or not of or suffix != run:
                continue
            if subscription not in logged:
                yield differ(
                    f"{process.place}/events.jsonl", "raw/*/*/subscriptions.jsonl",
                    "subscriptions", subscription, None,
                )  # fmt: skip
                return


def _check_subscriptions(folder: RunFolder) -> Iterator[str]:
    """Yield subscriptions that their broker started later than the client had them, or never.

    A broker of a complete run starts no subscription that none of its clients logged.
    """
    run = str(folder.manifest.get("run_id")).rpartition("-")[2]
    started: dict[tuple[str, str], list[int]] = {}
    at_brokers = {process.name: process for process in folder.processes}
    for process in folder.processes:
        for line in process.lines("events.jsonl"):
            if line.get("event") == "subscription_started":
                at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
                client = str(line.get("client")).removesuffix(f".{run}")
                key = process.name, f"{client}/{line.get('number')}"
                started.setdefault(key, []).append(at_ns)
    if not started:
        return
    yield from _check_unknown(folder, run)
    for load in folder.processes:
        for line in load.lines("subscriptions.jsonl"):
            broker = at_brokers.get(str(line["broker"]))
            requested_ns, accepted_ns = line.get("t_issued_ns"), line.get("t_accepted_ns")
            if broker is None or not requested_ns or not accepted_ns:
                continue
            error_ns = folder.timeline.error_ns(broker.host, load.host)
            times = started.get((broker.name, str(line["sub_id"])))
            name, theirs = f"{broker.place}/events.jsonl", f"{load.place}/subscriptions.jsonl"
            subject = f"the start of {line['sub_id']}"
            if times is None:
                if not faults_at(folder, broker.name) and not replacements(folder, broker):
                    yield doubt("missing_line", file=name, what=subject, other=theirs)
                continue
            if error_ns is None:
                continue
            first_ns, slack_ns = min(times), error_ns + _JITTER_NS
            requested_ns = folder.timeline.to_timeline(requested_ns, load.host)
            accepted_ns = folder.timeline.to_timeline(accepted_ns, load.host)
            if not requested_ns - slack_ns <= first_ns <= accepted_ns + slack_ns:
                yield differ(theirs, name, subject, (requested_ns, accepted_ns), first_ns)
