"""Exit records, statistics and events of brokers, against the fault log.

A killed or frozen broker writes no statistics. A broker without statistics was killed, frozen or
stalled. An agent records how each process of a broker ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from brokerd.model.fault_verbs import KILLING_VERBS, STANDING_VERBS
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.exits import check_exit, check_output
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULTS,
    JOURNAL,
    MANIFEST,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
    span_of,
    stamp_of,
)

_STOPS = (*KILLING_VERBS, *STANDING_VERBS)
_SLACK_NS = 300_000_000
_APART_NS = 2_000_000_000
_USUAL_NS = 1_100_000_000
"""Statistics are written once a second."""
_SHORTEST_STOP_NS = 2 * _SLACK_NS
_RISING = (
    *("publications_received", "publications_forwarded", "publications_delivered", "cpu_s"),
    *("resent_publications", "duplicates_received", "sessions_established", "sessions_lost"),
    *("broker_sessions_lost", "confirmations_sent"),
)
"""Counters that never go back while a process lives."""
_POSITIONS = "delivered_us."
"""The beginning of the names of positions in streams, which never go back.

`released_us.` does: a subscriber from another broker brings an earlier position.
"""
_WRONG = ("state_lost", "protocol_error")
"""Events of a broker that found a mistake in the own state or in a peer."""
_LONGEST_SILENCE_NS = 4_000_000_000
_TIMES_AS_LONG = 3
"""A silence is one broker's own if it is so much longer than any of the others'."""


def doubts_about_brokers(folder: RunFolder) -> Iterator[str]:
    """Yield differences between the files of brokers and the fault log."""
    if folder.is_simulated:
        return
    brokers = {*folder.brokers}
    running = [process for process in folder.processes if process.name in brokers]
    longest = {process.name: _silences(folder, process) for process in running}
    if folder.rolling_ns is not None and folder.manifest.get("state") == "complete":
        for process in running:
            if not replacements(folder, process) and process.has("events.jsonl"):
                name = f"{process.place}/events.jsonl"
                yield doubt("missing_line", file=name, what="a replacement", other=JOURNAL)
    for process in running:
        yield from check_exit(folder, process)
        yield from _check_statistics(folder, process)
        yield from _check_events(folder, process)
        others = [own for name, own in longest.items() if name != process.name]
        yield from _check_silences(folder, process, longest[process.name], others)
    if not folder.is_foreign:
        for process in folder.processes:
            if process.is_load or process in running:
                yield from check_output(folder, process)
    if folder.is_witnessed:
        found = {process.name for process in running}
        roles = folder.manifest.get("roles") or {}
        for name in sorted(brokers - found):
            if name in roles:
                yield doubt("missing_file", file=f"raw/*/{name}", other=MANIFEST)


def _check_statistics(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield statistics from a time at which, by the fault log, the broker was stopped."""
    name = f"{process.place}/stats.jsonl"
    lines = process.lines("stats.jsonl")
    times = [folder.timeline.to_timeline(line["t_ns"], process.host) for line in lines]
    if any(after < before for before, after in pairwise(times)):
        yield doubt("clock_back", who=name, s=_back_s(times))
    for row in faults_at(folder, process.name):
        if row["verb"] not in _STOPS:
            continue
        span = _find_stops(folder, row, process.name)
        if span is None or span[1] - span[0] <= _SHORTEST_STOP_NS:
            continue
        n = sum(span[0] + _SLACK_NS < at_ns < span[1] - _SLACK_NS for at_ns in times)
        if n:
            yield doubt("stats_go_on", file=name, n=n, fault=row["fault_id"], other=FAULTS)
    yield from _check_counters(name, lines, folder, process)


def _check_counters(
    name: str, lines: Sequence[Line], folder: RunFolder, process: ProcessFolder
) -> Iterator[str]:
    """Counters go back only where the broker began again."""
    restarts = [
        row for row in faults_at(folder, process.name) if row["verb"] in ("restart", *KILLING_VERBS)
    ]
    if restarts:
        return
    replaced = replacements(folder, process)
    for before, after in pairwise(lines):
        from_ns = folder.timeline.to_timeline(before["t_ns"], process.host)
        to_ns = folder.timeline.to_timeline(after["t_ns"], process.host)
        if _holds_replacement(from_ns, to_ns, replaced):
            continue
        positions = [key for key in before if key.startswith(_POSITIONS) and key in after]
        for counter in (*_RISING, *positions):
            if after.get(counter, 0) < before.get(counter, 0):
                yield differ(name, FAULTS, f"restart by {counter}", after.get(counter), "none")
                return


def replacements(folder: RunFolder, process: ProcessFolder) -> list[tuple[int, int]]:
    """Return the times at which a broker stopped for a replacement and the next process began.

    The broker logs both times. The controller logs the time of all replacements.
    """
    if folder.rolling_ns is None:
        return []
    events = [
        (folder.timeline.to_timeline(line["t_ns"], process.host), line["event"])
        for line in process.lines("events.jsonl")
        if line.get("event") in ("stopped", "run_begun")
    ]
    reference = (folder.manifest.get("clock") or {}).get("host_id", process.host)
    error_ns = folder.timeline.error_ns(process.host, reference)
    slack_ns = _SLACK_NS + (NEVER_NS if error_ns is None else error_ns)
    from_ns, to_ns = folder.rolling_ns
    return [
        (stopped_ns, begun_ns)
        for (stopped_ns, one), (begun_ns, other) in pairwise(events)
        if (one, other) == ("stopped", "run_begun")
        and from_ns - slack_ns <= stopped_ns <= to_ns + slack_ns
    ]


def _holds_replacement(from_ns: int, to_ns: int, replaced: Sequence[tuple[int, int]]) -> bool:
    return any(from_ns <= begun_ns and stopped_ns <= to_ns for stopped_ns, begun_ns in replaced)


def _find_stops(folder: RunFolder, row: Line, broker: str) -> tuple[int, int] | None:
    span = span_of(folder, row)
    if span is None:
        return None
    to_ns = span[1]
    for other in faults_at(folder, broker):
        at_ns = stamp_of(folder, other, "applied", last=False)
        if other["verb"] == "restart" and at_ns is not None and at_ns >= span[0]:
            requested_ns = other.get("t_requested_ns")
            to_ns = min(to_ns, at_ns if requested_ns is None else requested_ns - folder.origin_ns)
    drain = folder.phase_ns("drain")
    end_ns = NEVER_NS if drain is None else drain[1] - folder.origin_ns
    return span[0], min(to_ns, end_ns)


def _silences(folder: RunFolder, process: ProcessFolder) -> list[tuple[int, int]]:
    """The stretches between a broker's statistics, and behind the last to the run's end."""
    times = sorted(
        folder.timeline.to_timeline(line["t_ns"], process.host)
        for line in process.lines("stats.jsonl")
    )
    found = list(pairwise(times))
    measure = folder.phase_ns("measure")
    if times and measure is not None:
        first_ns, last_ns = (ns - folder.origin_ns for ns in measure)
        if times[-1] < last_ns:
            found.append((times[-1], last_ns))
        if times[0] > first_ns:
            found.append((first_ns, times[0]))
    return found


def find_pause(folder: RunFolder, process: ProcessFolder, at_ns: int) -> tuple[int, int]:
    """Return the ends of the pause of a process at a time; twice that time without a pause.

    A process that was stopped wrote no statistics meanwhile, and logged events afterwards.
    """
    found = [
        (from_ns, to_ns)
        for from_ns, to_ns in _silences(folder, process)
        if from_ns <= at_ns <= to_ns and to_ns - from_ns > _USUAL_NS
    ]
    return (
        min((from_ns for from_ns, _ in found), default=at_ns),
        max((to_ns for _, to_ns in found), default=at_ns),
    )


def _check_silences(
    folder: RunFolder,
    process: ProcessFolder,
    own: Sequence[tuple[int, int]],
    others: Sequence[Sequence[tuple[int, int]]],
) -> Iterator[str]:
    """Statistics that stop although no fault stopped the broker."""
    name = f"{process.place}/stats.jsonl"
    if not own:
        is_wanted = not folder.is_foreign and not process.is_uncollected
        if is_wanted and (folder.is_witnessed or any(others)):
            yield doubt("missing_file", file=name, other=MANIFEST)
        return
    longest = sorted(max(b - a for a, b in each) for each in others if each)
    # Some of the others were stopped by faults; a quarter of them surely was not.
    usual_ns = longest[len(longest) // 4] if longest else 0
    limit_ns = max(_LONGEST_SILENCE_NS, _TIMES_AS_LONG * usual_ns)
    replaced = replacements(folder, process)
    for from_ns, to_ns in own:
        if to_ns - from_ns <= limit_ns or _holds_replacement(from_ns, to_ns, replaced):
            continue
        if not any(_touches(folder, row, from_ns, to_ns) for row in _all_at(folder, process)):
            yield doubt(
                "stats_stop", file=name, s=(to_ns - from_ns) / 1e9, at_s=from_ns / 1e9,
                other=FAULTS,
            )  # fmt: skip


def _all_at(folder: RunFolder, process: ProcessFolder) -> list[Line]:
    return [
        row
        for row in folder.fault_rows
        if row in faults_at(folder, process.name) or process.name in str(row["target"])
    ]


def _touches(folder: RunFolder, row: Line, from_ns: int, to_ns: int) -> bool:
    span = span_of(folder, row)
    if span is None:
        return False
    end_ns = span[1] + _LONGEST_SILENCE_NS if span[1] < NEVER_NS else NEVER_NS
    return span[0] - _SLACK_NS <= to_ns and end_ns >= from_ns


def _check_events(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield doubts about broker events of runs, faults and sessions."""
    name = f"{process.place}/events.jsonl"
    if folder.is_foreign:
        return
    if folder.is_witnessed and not process.has("events.jsonl"):
        if process.is_uncollected:
            return
        yield doubt("missing_file", file=name, other=MANIFEST)
        return
    if folder.is_of_processes:
        yield from _check_sessions(folder, process, name)
    run_id = folder.manifest.get("run_id")
    faults = {str(row["fault_id"]): row for row in folder.fault_rows}
    for line in process.lines("events.jsonl"):
        event = line.get("event")
        if event in ("run_begun", "run_ended") and line.get("run_id") != run_id:
            yield differ(name, MANIFEST, "run_id", line.get("run_id"), run_id)
        if event == "run_begun":
            yield from _check_beginning(folder, process, name, line)
        if event in _WRONG:
            at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
            why = str(line.get("cause") or line.get("reason"))
            yield doubt("broker_logged", file=name, event=event, why=why[:100], s=at_ns / 1e9)
        if event == "fault_applied":
            # Each broker names itself behind an "@" if several brokers apply a fault.
            row = faults.get(str(line.get("fault_id")).partition("@")[0])
            yield from _check_applied(name, line, row)


def _check_beginning(
    folder: RunFolder, process: ProcessFolder, name: str, line: Line
) -> Iterator[str]:
    """Yield differences of the broker and its parameters at the start of a run."""
    if line.get("broker") != process.name:
        yield differ(name, MANIFEST, "broker", line.get("broker"), process.name)
    if "parameters" in line:
        yield from _check_parameters(folder, name, line["parameters"])
    elif folder.rolling_ns is None and (other := _find_parameters(folder)):
        yield doubt("missing_line", file=name, what="parameters", other=other)


def _check_applied(name: str, line: Line, row: Line | None) -> Iterator[str]:
    """Yield differences between an applied fault and its row of the fault log."""
    if row is None:
        yield doubt("not_in_log", fault=line.get("fault_id"), one=name, other=FAULTS)
    elif row["verb"] != line.get("verb"):
        yield differ(name, FAULTS, f"verb of {row['fault_id']}", line.get("verb"), row["verb"])
    # An end of a link stops its output, and a broker both input and output.
    direction = "out" if line.get("peer") else "both"
    if line.get("direction", direction) != direction:
        subject = f"direction of {line.get('fault_id')}"
        yield differ(name, name, subject, line["direction"], direction)


def _find_parameters(folder: RunFolder) -> str | None:
    """Return a file of a broker that repeats the parameters; None if brokers are older."""
    return next(
        (
            f"{process.place}/events.jsonl"
            for process in folder.processes
            for line in process.lines("events.jsonl")
            if line.get("event") == "run_begun" and "parameters" in line
        ),
        None,
    )


def _check_lives(folder: RunFolder, process: ProcessFolder, name: str) -> Iterator[str]:
    """Yield lives of a broker that was killed with statistics before the start of the run.

    The last life has an end of the run.
    """
    events, statistics = process.lines("events.jsonl"), process.lines("stats.jsonl")
    begun, ended, counted = (
        [folder.timeline.to_timeline(line["t_ns"], process.host) for line in lines]
        for lines in (
            [line for line in events if line.get("event") == "run_begun"],
            [line for line in events if line.get("event") == "run_ended"],
            statistics,
        )
    )
    killed = sorted(
        at_ns
        for row in faults_at(folder, process.name)
        if row["verb"] in KILLING_VERBS and (at_ns := stamp_of(folder, row, "observed")) is not None
    )
    for from_ns, to_ns in pairwise([-NEVER_NS, *killed, NEVER_NS]):
        own = [at_ns for at_ns in counted if from_ns + _SLACK_NS < at_ns <= to_ns]
        starts = [at_ns for at_ns in begun if from_ns - _SLACK_NS <= at_ns <= to_ns]
        if own and min(starts, default=NEVER_NS) > min(own) + _SLACK_NS:
            yield doubt(
                "missing_line", file=name, what=f"run_begun before {min(own) / 1e9:.3f} s",
                other=f"{process.place}/stats.jsonl",
            )  # fmt: skip
            return
    last_ns = killed[-1] if killed else -NEVER_NS
    is_alive = folder.is_closed and max(begun) > last_ns
    if (
        folder.manifest.get("state") == "complete"
        and is_alive
        and max(begun) > max(ended, default=-NEVER_NS)
    ):
        yield doubt("missing_line", file=name, what="run_ended", other=MANIFEST)


def _check_parameters(folder: RunFolder, name: str, found: Any) -> Iterator[str]:
    """Yield each parameter with which a broker ran, and that the manifest contradicts."""
    wanted = folder.manifest.get("parameters")
    if not isinstance(found, Mapping) or not isinstance(wanted, Mapping):
        yield differ(name, MANIFEST, "parameters", found, wanted)
        return
    for key in sorted({*found} | {*wanted}):
        if key not in found or key not in wanted or found[key] != wanted[key]:
            yield differ(name, MANIFEST, f"parameter {key}", found.get(key), wanted.get(key))


def _check_sessions(folder: RunFolder, process: ProcessFolder, name: str) -> Iterator[str]:
    """Yield differences between a broker's sessions, the clients' logs and the counters."""
    stops = {str(row["verb"]) for row in faults_at(folder, process.name)}
    events = process.lines("events.jsonl")
    begun = [line for line in events if line.get("event") == "run_begun"]
    if stops & {*KILLING_VERBS, "restart"} or len(begun) != 1:
        if not begun:
            yield doubt("missing_line", file=name, what="run_begun", other=MANIFEST)
        elif folder.rolling_ns is None:
            yield from _check_lives(folder, process, name)
        return
    is_stopped = any(line.get("event") == "stopped" for line in events)
    if is_stopped and folder.rolling_ns and folder.manifest.get("state") != "complete":
        return  # the new process did not receive a run that ended meanwhile
    is_over = any(line.get("event") == "run_ended" for line in events)
    if folder.manifest.get("state") == "complete" and not is_over:
        yield doubt("missing_line", file=name, what="run_ended", other=MANIFEST)
    seen: dict[tuple[str, str], list[int]] = {}
    for line in events:
        at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
        seen.setdefault((line["event"], str(line.get("peer"))), []).append(at_ns)
    yield from _check_session_lines(folder, process, name, seen, bool(stops))
    yield from _check_accepted(folder, process, name)


def _check_session_lines(
    folder: RunFolder,
    process: ProcessFolder,
    name: str,
    seen: Mapping[tuple[str, str], Sequence[int]],
    is_disturbed: bool,
) -> Iterator[str]:
    """Yield sessions of clients that their broker logged at another time, or did not log."""
    run = str(folder.manifest.get("run_id")).rpartition("-")[2]
    limit_ns = allowed_distance_ns(folder, process)
    for client, lines in folder.session_lines.items():
        for event, here in (("up", "session_established"), ("down", "session_lost")):
            theirs = [
                at for at, change, broker in lines if (change, broker) == (event, process.name)
            ]
            ours = seen.get((here, f"{client}.{run}"), [])
            # A broker also sees sessions that their client gave up before it could use them.
            if len(theirs) > len(ours):
                yield differ("sessions.jsonl", name, f"{event} of {client}", len(theirs), len(ours))
                continue
            far_ns = max((min(abs(a - b) for b in ours) for a in theirs), default=0)
            if far_ns > limit_ns and not is_disturbed:
                yield doubt(
                    "sessions_apart", one="sessions.jsonl", other=name, who=client, event=event,
                    s=far_ns / 1e9,
                )  # fmt: skip


def _check_accepted(folder: RunFolder, process: ProcessFolder, name: str) -> Iterator[str]:
    """Yield subscriptions that a client had accepted before its broker started them."""
    run = str(folder.manifest.get("run_id")).rpartition("-")[2]
    limit_ns = allowed_distance_ns(folder, process)
    events = process.lines("events.jsonl")
    for other in folder.processes:
        for line in other.lines("subscriptions.jsonl"):
            if line["broker"] != process.name or not line.get("t_accepted_ns"):
                continue
            accepted_ns = folder.timeline.to_timeline(line["t_accepted_ns"], other.host)
            started = [
                folder.timeline.to_timeline(event["t_ns"], process.host)
                for event in events
                if event["event"] == "subscription_started"
                and event.get("client") == f"{line['subscriber']}.{run}"
            ]
            if started and accepted_ns < min(started) - limit_ns:
                yield doubt(
                    "sessions_apart", one=f"{other.place}/subscriptions.jsonl", other=name,
                    who=line["sub_id"], event="accepted", s=(min(started) - accepted_ns) / 1e9,
                )  # fmt: skip


def excused_silence_ns(folder: RunFolder, *names: str) -> int:
    """Return how much longer than usual a load generator or a named process wrote nothing.

    A load generator that waited for a processor at its start wrote its first line late.
    """
    longest = [
        to_ns - from_ns
        for other in folder.processes
        if other.is_load or other.name in names
        for from_ns, to_ns in _silences(folder, other)
    ]
    for other in folder.processes:
        started_ns = other.document("exit.json").get("t_start_ns") if other.is_load else None
        first = other.lines("stats.jsonl")[:1]
        if isinstance(started_ns, int) and first:
            longest.append(first[0]["t_ns"] - started_ns)
    return 2 * max((ns - _USUAL_NS for ns in longest), default=0)


def allowed_distance_ns(folder: RunFolder, process: ProcessFolder) -> int:
    """Return the allowed distance of two processes' stamps on a machine as busy as this run's."""
    hosts = {other.host for other in folder.processes if other.is_load}
    errors = [folder.timeline.error_ns(process.host, host) for host in hosts]
    if any(error is None for error in errors):
        return NEVER_NS
    error_ns = max((error for error in errors if error is not None), default=0)
    return _APART_NS + excused_silence_ns(folder, process.name) + error_ns


def _back_s(times: Sequence[int]) -> float:
    return max(a - b for a, b in pairwise(times)) / 1e9
