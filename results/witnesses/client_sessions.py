"""Sessions of clients in the logs of clients, against broker events and the fault log.

Brokers and clients log the same sessions. A fault, an absence of the workload, or the end of the
run explains the end of a session.
"""

from collections.abc import Iterator, Mapping

from brokerd.model.fault_verbs import CRASH, ROAM
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.broker_events import JITTER_NS, SLACK_NS, list_events
from results.witnesses.brokers import allowed_distance_ns, replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import FAULTS, WORKLOAD, Line, ProcessFolder, RunFolder, stamp_of

_LONG_SESSION_NS = 3_000_000_000
_KILLED = "its process ended with -"
"""Begins the reason for the end of a session whose client, a process, was ended by a signal."""
_CLOSED = "closed_by_us"
"""The reason for the end of a session that the client ended."""


def check_client_fault(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield faults that disconnect a client without the end of a session."""
    client, lines = str(row["target"]), folder.session_lines.get(str(row["target"]), ())
    requested_ns = stamp_of(folder, row, "requested", last=False)
    seen_ns = stamp_of(folder, row, "observed")
    if requested_ns is None or seen_ns is None or not lines:
        return
    recovered_ns = stamp_of(folder, row, "recovered")
    begun = [at_ns for at_ns, event, _ in lines if event == "up"]
    is_up = any(recovered_ns is not None and abs(recovered_ns - at) <= JITTER_NS for at in begun)
    if row["verb"] == CRASH and recovered_ns is not None:
        # The client may be back before the last of its kills was due.
        before = [event for at_ns, event, _ in lines if at_ns <= recovered_ns + JITTER_NS]
        is_healed = recovered_ns == stamp_of(folder, row, "healed")
        is_up = is_up or (is_healed and before[-1:] == ["up"])
    if recovered_ns is not None and not is_up:
        yield doubt(
            "disagree", one=FAULTS, other="sessions.jsonl",
            what=f"recovery of {client} from {row['fault_id']}", found=recovered_ns,
            wanted=min(begun, key=lambda at: abs(recovered_ns - at), default=None),
        )  # fmt: skip
    ended = [at_ns for at_ns, event, _ in lines if event == "down"]
    if not any(requested_ns - SLACK_NS <= at_ns <= seen_ns + SLACK_NS for at_ns in ended):
        yield doubt(
            "disagree", one=FAULTS, other="sessions.jsonl", what=f"end of a session of {client}",
            found=row["fault_id"], wanted="none then",
        )  # fmt: skip


def check_client_absences(folder: RunFolder) -> Iterator[str]:
    """Yield absences without the end of a session, and kills without a fault.

    A client that had lost its session already has none to end.
    """
    for process in folder.processes:
        for line in process.lines("absences.jsonl"):
            client = str(line["subscriber"])
            left_ns = folder.timeline.to_timeline(line["t_left_ns"], process.host)
            back_ns = folder.timeline.to_timeline(line["t_back_ns"], process.host)
            lines = folder.session_lines.get(client, ())
            ended = [at_ns for at_ns, event, _ in lines if event == "down"]
            is_ended = any(left_ns - SLACK_NS <= at <= back_ns + SLACK_NS for at in ended)
            before = [event for at_ns, event, _ in lines if at_ns <= left_ns]
            is_ended = is_ended or before[-1:] == ["down"]
            if (lines and not is_ended) or "churn" not in folder.workload:
                yield doubt(
                    "disagree", one=f"{process.place}/absences.jsonl",
                    other="sessions.jsonl" if "churn" in folder.workload else WORKLOAD,
                    what=f"an absence of {client}", found=left_ns, wanted=None,
                )  # fmt: skip
        yield from _check_ends(folder, process)


def _check_ends(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield clients that were killed or moved without a fault.

    A run that was interrupted ends its clients' sessions before any drain.
    """
    drain = folder.phase_ns("drain")
    is_interrupted = drain is None and folder.manifest.get("state") != "complete"
    ended_ns = -NEVER_NS if is_interrupted else NEVER_NS
    until_ns = ended_ns if drain is None else drain[0] - folder.origin_ns
    for line in process.lines("sessions.jsonl"):
        reason = str(line.get("reason"))
        verbs = (CRASH,) if reason.startswith(_KILLED) else (ROAM,)
        at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
        is_own = reason.startswith(_KILLED) or (reason == _CLOSED and at_ns < until_ns)
        if line["event"] != "down" or not is_own:
            continue
        requested = [
            stamp_of(folder, row, "requested", last=False)
            for row in folder.fault_rows
            if row["verb"] in verbs and row["target"] == line["client"]
        ]
        if not any(ns is not None and ns - SLACK_NS <= at_ns for ns in requested):
            yield doubt(
                "disagree", one=f"{process.place}/sessions.jsonl", other=FAULTS,
                what=f"end of {line['client']}", found=reason, wanted=f"no {verbs[0]}",
            )  # fmt: skip
            return


def check_clients(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield sessions at a broker that the workload or the logs of clients do not have."""
    name = f"{process.place}/events.jsonl"
    suffix = "." + str(folder.manifest.get("run_id")).rpartition("-")[2]
    stops = faults_at(folder, process.name)
    limit_ns = allowed_distance_ns(folder, process)
    is_renewed = bool(replacements(folder, process))
    cut_off = _list_cut_off(folder)
    opened: dict[tuple[str, object], int] = {}
    for at_ns, line in list_events(folder, process, "session_established", "session_lost"):
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
        if began_ns is None and not stops and not is_renewed:
            yield doubt(
                "disagree", one=name, other=name, what=f"start of a session of {client}",
                found=None, wanted=line.get("session"),
            )  # fmt: skip
            return
        if stops or began_ns is None or at_ns - began_ns < max(_LONG_SESSION_NS, limit_ns):
            continue
        times = {"up": began_ns, "down": at_ns}
        if client in cut_off:
            times = {"up": began_ns} if client in folder.session_lines else {}
        yield from _check_session_times(folder, process, client, times, limit_ns)


def _check_session_times(
    folder: RunFolder,
    process: ProcessFolder,
    client: str,
    times: Mapping[str, int],
    limit_ns: int,
) -> Iterator[str]:
    """Yield starts and ends of a session at a broker that are too far from the client's."""
    for event, when_ns in times.items():
        theirs = [
            abs(when_ns - at)
            for at, change, broker in folder.session_lines.get(client, ())
            if (change, broker) == (event, process.name)
        ]
        if not theirs or min(theirs) > limit_ns:
            yield doubt(
                "sessions_apart", one=f"{process.place}/events.jsonl", other="sessions.jsonl",
                who=client, event=event, s=min(theirs, default=when_ns) / 1e9,
            )  # fmt: skip


def _list_cut_off(folder: RunFolder) -> set[str]:
    """Return the clients of load generators that ended early or left uncollected files."""
    ended = {
        str(line["client"])
        for process in folder.processes
        if process.is_load and process.has_ended_early
        for line in process.lines("sessions.jsonl")
    }
    if any(process.is_uncollected for process in folder.processes):
        ended |= {*folder.clients} - {*folder.session_lines}
    return ended
