"""Broker events about clients and faults, against the logs of clients and the fault log.

A broker logs starts, faults of its own links, and sessions of clients, and counts deliveries.
Clients and the controller log the same events."""

from collections.abc import Iterator, Sequence

from brokerd.model.fault_verbs import (
    BROKER_VERBS,
    CRASH,
    KILLING_VERBS,
    ROAM,
    SESSION_ENDING_VERBS,
    STANDING_VERBS,
)
from results.rules.terms import NEVER_NS, STATE_LOST, doubt
from results.witnesses.brokers import apart_ns, replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULTS,
    WORKLOAD,
    Line,
    ProcessFolder,
    RunFolder,
    stamp_of,
)
from results.witnesses.rows import Rows

_SLACK_NS = 500_000_000
_LONG_SESSION_NS = 3_000_000_000
_KILLED = "its process ended with -"
"""How the end of a session of a client with a process of its own begins if a signal ended it."""
_CLOSED = "closed_by_us"
"""How a session ends that its client ends."""
_LAST_NS = 1_500_000_000
"""A broker's last statistics are written when the run ends."""
_BEGINS_NS = 20_000_000_000
"""A broker that was started again is told of the run within that time."""


def doubts_about_service(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between brokers, clients and the controller."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    for row in folder.fault_rows:
        if row["verb"] in BROKER_VERBS and (row.get("params") or {}).get("backend") != "nft":
            yield from _about_own_fault(folder, row, brokers)
        if row["verb"] in SESSION_ENDING_VERBS:
            yield from _about_client_fault(folder, row)
    yield from _about_received(folder, rows, brokers)
    yield from _about_absences(folder)
    for process in brokers:
        yield from _about_starts(folder, process)
        yield from _about_clients(folder, process)
        yield from _about_deliveries(folder, rows, process)


def _events(folder: RunFolder, process: ProcessFolder, *names: str) -> list[tuple[int, Line]]:
    return [
        (folder.timeline.moved(line["t_ns"], process.host), line)
        for line in process.lines("events.jsonl")
        if line.get("event") in names
    ]


def _about_own_fault(
    folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield faults of a broker's own links that are not in the broker's events."""
    fault = str(row["fault_id"])
    for stage, event in (("applied", "fault_applied"), ("healed", "fault_healed")):
        if stage == "healed" and row.get("healed_by") != "schedule":
            continue
        first_ns, last_ns = stamp_of(folder, row, stage, last=False), stamp_of(folder, row, stage)
        if first_ns is None or last_ns is None:
            continue
        times = [
            (at_ns, process)
            for process in brokers
            for at_ns, line in _events(folder, process, event)
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
        error_ns = max(_error_ns(folder, process.host) for _, process in times)
        for at_ns, process in times:
            off_ns = max(first_ns - at_ns, at_ns - last_ns)
            if off_ns > _SLACK_NS + error_ns:
                yield doubt(
                    "sessions_apart", one=f"{process.place}/events.jsonl", other=FAULTS,
                    who=fault, event=stage, s=off_ns / 1e9,
                )  # fmt: skip


def _ends_of(folder: RunFolder, target: str) -> set[str]:
    """Return the brokers of a target: both ends of a link, a broker, or none."""
    if target in folder.brokers:
        return {target}
    for a in folder.brokers:
        for b in folder.brokers:
            if target in (f"{a}-{b}", f"{a}->{b}"):
                return {a, b}
    return set()


def _error_ns(folder: RunFolder, host: str) -> int:
    reference = str((folder.manifest.get("clock") or {}).get("host_id", host))
    error_ns = folder.timeline.error_ns(host, reference)
    return NEVER_NS if error_ns is None else error_ns


def _about_client_fault(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield faults that disconnect a client without the end of a session."""
    client, lines = str(row["target"]), folder.session_lines.get(str(row["target"]), ())
    asked_ns = stamp_of(folder, row, "requested", last=False)
    seen_ns = stamp_of(folder, row, "observed")
    if asked_ns is None or seen_ns is None or not lines:
        return
    ended = [at_ns for at_ns, event, _ in lines if event == "down"]
    if not any(asked_ns - _SLACK_NS <= at_ns <= seen_ns + _SLACK_NS for at_ns in ended):
        yield doubt(
            "disagree", one=FAULTS, other="sessions.jsonl", what=f"end of a session of {client}",
            found=row["fault_id"], wanted="none then",
        )  # fmt: skip


def _about_absences(folder: RunFolder) -> Iterator[str]:
    """Yield absences without the end of a session, and kills without a fault."""
    for process in folder.processes:
        for line in process.lines("absences.jsonl"):
            client = str(line["subscriber"])
            left_ns = folder.timeline.moved(line["t_left_ns"], process.host)
            back_ns = folder.timeline.moved(line["t_back_ns"], process.host)
            lines = folder.session_lines.get(client, ())
            ended = [at_ns for at_ns, event, _ in lines if event == "down"]
            is_ended = any(left_ns - _SLACK_NS <= at <= back_ns + _SLACK_NS for at in ended)
            if (lines and not is_ended) or "churn" not in folder.workload:
                yield doubt(
                    "disagree", one=f"{process.place}/absences.jsonl",
                    other="sessions.jsonl" if "churn" in folder.workload else WORKLOAD,
                    what=f"an absence of {client}", found=left_ns, wanted=None,
                )  # fmt: skip
        yield from _about_ends(folder, process)


def _about_ends(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield clients that were killed or moved without a fault."""
    drain = folder.phase_ns("drain")
    until_ns = NEVER_NS if drain is None else drain[0] - folder.origin_ns
    for line in process.lines("sessions.jsonl"):
        reason = str(line.get("reason"))
        verbs = (CRASH,) if reason.startswith(_KILLED) else (ROAM,)
        at_ns = folder.timeline.moved(line["t_ns"], process.host)
        is_own = reason.startswith(_KILLED) or (reason == _CLOSED and at_ns < until_ns)
        if line["event"] != "down" or not is_own:
            continue
        asked = [
            stamp_of(folder, row, "requested", last=False)
            for row in folder.fault_rows
            if row["verb"] in verbs and row["target"] == line["client"]
        ]
        if not any(ns is not None and ns - _SLACK_NS <= at_ns for ns in asked):
            yield doubt(
                "disagree", one=f"{process.place}/sessions.jsonl", other=FAULTS,
                what=f"end of {line['client']}", found=reason, wanted=f"no {verbs[0]}",
            )  # fmt: skip
            return


def _about_starts(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield brokers that began the run more often than they were started."""
    name = f"{process.place}/events.jsonl"
    begun = [at_ns for at_ns, _ in _events(folder, process, "run_begun")]
    at_broker = faults_at(folder, process.name)
    restarts = [row for row in at_broker if row["verb"] in ("restart", *KILLING_VERBS)]
    wanted = 1 + len(replacements(folder, process))
    if len(begun) > wanted and not restarts:
        yield doubt(
            "disagree", one=name, other=FAULTS, what=f"starts of {process.name}",
            found=len(begun), wanted=wanted,
        )  # fmt: skip
    over = [at_ns for at_ns, _ in _events(folder, process, "run_ended")]
    last = process.lines("stats.jsonl")[-1:]
    counted_ns = [folder.timeline.moved(line["t_ns"], process.host) for line in last]
    if over and counted_ns and counted_ns[0] < over[-1] - _LAST_NS:
        yield doubt(
            "stats_stop", file=f"{process.place}/stats.jsonl", s=(over[-1] - counted_ns[0]) / 1e9,
            at_s=counted_ns[0] / 1e9, other=name,
        )  # fmt: skip
    for row in restarts:
        asked_ns = stamp_of(folder, row, "requested", last=False)
        is_over = row["verb"] == "restart" and row.get("t_recovered_ns") is not None
        if not is_over or asked_ns is None:
            continue
        error_ns = _error_ns(folder, process.host) + _SLACK_NS
        if not any(asked_ns - error_ns <= at <= asked_ns + error_ns + _BEGINS_NS for at in begun):
            yield doubt(
                "disagree", one=name, other=FAULTS, what=f"start of {process.name}",
                found=begun, wanted=row["fault_id"],
            )  # fmt: skip


def _about_clients(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """A broker serves clients of the workload, in sessions that the clients logged."""
    name = f"{process.place}/events.jsonl"
    suffix = "." + str(folder.manifest.get("run_id")).rpartition("-")[2]
    stops = faults_at(folder, process.name)
    limit_ns = apart_ns(folder, process)
    opened: dict[tuple[str, object], int] = {}
    for at_ns, line in _events(folder, process, "session_established", "session_lost"):
        peer = str(line.get("peer"))
        if not peer.endswith(suffix):
            continue
        client = peer.removesuffix(suffix)
        if client not in folder.clients:
            yield doubt(
                "disagree", one=name, other=WORKLOAD, what="clients", found=client, wanted=None
            )
            return
        if line["event"] == "session_established":
            opened[client, line.get("session")] = at_ns
            continue
        began_ns = opened.pop((client, line.get("session")), None)
        if stops or began_ns is None or at_ns - began_ns < max(_LONG_SESSION_NS, limit_ns):
            continue
        for event, when_ns in (("up", began_ns), ("down", at_ns)):
            theirs = [
                abs(when_ns - at)
                for at, what, broker in folder.session_lines.get(client, ())
                if (what, broker) == (event, process.name)
            ]
            if not theirs or min(theirs) > limit_ns:
                yield doubt(
                    "sessions_apart", one=name, other="sessions.jsonl", who=client, event=event,
                    s=min(theirs, default=when_ns) / 1e9,
                )  # fmt: skip


def _about_received(
    folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield acknowledged publications that no broker received."""
    stopped = any(row["verb"] in ("restart", *KILLING_VERBS) for row in folder.fault_rows)
    stopped |= any(replacements(folder, process) for process in brokers)
    if stopped or folder.manifest.get("state") != "complete":
        return
    last = [process.lines("stats.jsonl")[-1:] for process in brokers]
    found = [line[0].get("publications_received") for line in last if line]
    counted = sum(n for n in found if isinstance(n, int))
    wanted = sum(rows.acknowledged.values())
    if len(found) == len(brokers) and None not in found and counted < wanted:
        yield doubt(
            "disagree", one="raw/*/*/stats.jsonl", other="acks.rec", what="publications received",
            found=counted, wanted=wanted,
        )  # fmt: skip


def _about_deliveries(folder: RunFolder, rows: Rows, process: ProcessFolder) -> Iterator[str]:
    """Yield brokers that delivered less than their clients logged."""
    is_complete = folder.manifest.get("state") == "complete"
    if not is_complete or any(
        row["verb"] not in STANDING_VERBS for row in faults_at(folder, process.name)
    ):
        return
    if any(
        line.get("reason") == STATE_LOST
        for other in folder.processes
        for line in other.lines("gaps.jsonl")
    ):
        return  # a broker does not count what it delivers around a loss
    if replacements(folder, process):
        return  # counters of a new process begin anew
    last = process.lines("stats.jsonl")[-1:]
    received: dict[str, int] = {}
    for (subscription, _, _), lane in rows.lanes.items():
        received[subscription] = received.get(subscription, 0) + lane.data + lane.fences
    most: dict[str, int] = {}
    for subscription, n in received.items():
        client = subscription.partition("/")[0]
        brokers = {broker for _, _, broker in folder.session_lines.get(client, ())}
        if brokers == {process.name}:
            most[client] = max(n, most.get(client, 0))
    wanted = sum(most.values())
    found = [line["publications_delivered"] for line in last if "publications_delivered" in line]
    if found and found[0] < wanted:
        yield doubt(
            "disagree", one=f"{process.place}/stats.jsonl", other="deliveries.rec",
            what=f"publications delivered by {process.name}", found=found[0], wanted=wanted,
        )  # fmt: skip
