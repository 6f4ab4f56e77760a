"""Sessions at brokers, against the counters of brokers and the logs of clients.

A broker logs the start and the end of every session and counts both. A client logs sessions too. A
session that neither end closed was closed by a fault of the client.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from brokerd.model.fault_verbs import CLIENT_VERBS, KILLING_VERBS, STANDING_VERBS
from brokerd.units import parse_duration_ns
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.brokers import (
    allowed_distance_ns,
    excused_silence_ns,
    find_pause,
    replacements,
)
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULT_JOURNAL,
    FAULTS,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
    span_of,
    stamp_of,
)

_COUNTED = (
    ("sessions_established", "session_established", False, ""),
    ("sessions_lost", "session_lost", False, ""),
    ("broker_sessions_lost", "session_lost", True, ""),
    ("sessions_silent", "session_lost", False, "silent"),
)
"""Counters, with the events that they count, whether only those of brokers, and the reason."""
_STOPS = ("restart", *KILLING_VERBS, *STANDING_VERBS)
_AROUND_NS = 5_000_000_000
"""Faults of links and machines end sessions for some time after the heal."""
_BEFORE_NS = 100_000_000
"""Tolerance of the rule that a fault has no effect before the request."""
_EDGE_NS = 250_000_000
"""Limit of the time between the establishments of a session at both ends, without a stall."""
_LASTING_NS = 500_000_000
"""Length of a session beyond any session that one end never established."""
_CONNECT_NS = 2_000_000_000
"""Time in which an attempt has failed, if the topology has no other `connect_timeout`."""
_LOST_LINES = "lines_left_out"


def doubts_about_sessions(folder: RunFolder) -> Iterator[str]:
    """Yield differences between sessions in the files of brokers and of clients."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    brokers = {*folder.brokers}
    at_brokers = {process.name: process for process in folder.processes if process.name in brokers}
    for process in at_brokers.values():
        events = process.lines("events.jsonl")
        if not any(line.get("event") == _LOST_LINES for line in events):
            yield from _check_counters(process, events, brokers)
            yield from _check_beginnings(folder, process, events)
    for process in folder.processes:
        if process.is_load:
            yield from _check_ends(folder, process, at_brokers)
            yield from _check_absences(process)
    logged = {
        name: process
        for name, process in at_brokers.items()
        if not any(line.get("event") == _LOST_LINES for line in process.lines("events.jsonl"))
    }
    if folder.rolling_ns is None and not folder.joined and len(logged) == len(brokers):
        yield from _check_recoveries(folder, logged)
        for one in logged.values():
            for other in logged.values():
                if one is not other:
                    yield from _check_between(folder, one, other)


def _check_counters(
    process: ProcessFolder, events: Sequence[Line], brokers: set[str]
) -> Iterator[str]:
    """Yield statistics that count other sessions than the broker logged meanwhile.

    The counters of a broker begin with the process, and the events with the run.
    """
    begun = [line["t_ns"] for line in events if line.get("event") == "run_begun"]
    lines = process.lines("stats.jsonl")
    for counter, event, is_of_brokers, reason in _COUNTED:
        times = [
            line["t_ns"]
            for line in events
            if line.get("event") == event
            and (not is_of_brokers or line.get("peer") in brokers)
            and (not reason or line.get("reason") == reason)
        ]
        earlier: list[Line] = [{"t_ns": 0, counter: 0}]
        for before, after in pairwise([*earlier, *lines]):
            if counter not in after:
                continue
            from_ns, to_ns = before["t_ns"], after["t_ns"]
            step = after[counter] - before.get(counter, 0)
            n = sum(from_ns < at_ns <= to_ns for at_ns in times)
            if before is earlier[0]:
                if step >= n:
                    continue
            elif step < 0 or any(from_ns <= at_ns <= to_ns for at_ns in begun):
                continue  # a new process counts from 0
            if n != step:
                yield doubt(
                    "disagree", one=f"{process.place}/stats.jsonl",
                    other=f"{process.place}/events.jsonl", what=f"{counter} up to {to_ns}",
                    found=step, wanted=n,
                )  # fmt: skip
                return


def _check_beginnings(
    folder: RunFolder, process: ProcessFolder, events: Sequence[Line]
) -> Iterator[str]:
    """Yield a start of the run at a broker without statistics soon after."""
    stops = any(row["verb"] in _STOPS for row in faults_at(folder, process.name))
    begun = [line["t_ns"] for line in events if line.get("event") == "run_begun"]
    lines = process.lines("stats.jsonl")
    if stops or len(begun) != 1 or not lines or replacements(folder, process):
        return
    after_ns = lines[0]["t_ns"] - begun[0]
    is_paused = after_ns >= 0 and _was_silent(folder, process, begun[0], lines[0]["t_ns"])
    if not is_paused and not 0 <= after_ns <= allowed_distance_ns(folder, process):
        yield doubt(
            "sessions_apart", one=f"{process.place}/stats.jsonl",
            other=f"{process.place}/events.jsonl", who=process.name, event="start of the run",
            s=after_ns / 1e9,
        )  # fmt: skip


def _was_silent(folder: RunFolder, process: ProcessFolder, from_ns: int, to_ns: int) -> bool:
    """Return True if another broker lost its session with a broker in silence, in a time."""
    ends = [folder.timeline.to_timeline(at_ns, process.host) for at_ns in (from_ns, to_ns)]
    return any(
        line.get("event") == "session_lost"
        and (line.get("peer"), line.get("reason")) == (process.name, "silent")
        and ends[0] <= at_ns <= ends[1]
        for other in folder.processes
        for at_ns, line in _events(folder, other)
    )


def _check_ends(
    folder: RunFolder, process: ProcessFolder, brokers: dict[str, ProcessFolder]
) -> Iterator[str]:
    """Yield sessions that neither end closed, without a fault."""
    suffix = "." + str(folder.manifest.get("run_id")).rpartition("-")[2]
    for line in process.lines("sessions.jsonl"):
        there = brokers.get(str(line.get("broker")))
        is_closed = (line["event"], line.get("reason")) == ("down", "closed_by_peer")
        if not is_closed or there is None:
            continue
        client = str(line["client"])
        at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
        limit_ns = allowed_distance_ns(folder, there)
        reasons = [
            event.get("reason")
            for event in there.lines("events.jsonl")
            if event.get("event") == "session_lost" and event.get("peer") == f"{client}{suffix}"
            and abs(folder.timeline.to_timeline(event["t_ns"], there.host) - at_ns) <= limit_ns
        ]  # fmt: skip
        if {*reasons} != {"closed_by_peer"} or _is_explained(
            folder, there, client, at_ns, limit_ns
        ):
            continue
        yield doubt(
            "disagree", one=f"{process.place}/sessions.jsonl", other=FAULTS,
            what=f"end of a session of {client}", found=at_ns, wanted="no fault of this client",
        )  # fmt: skip
        return


def _check_absences(process: ProcessFolder) -> Iterator[str]:
    """Yield absences of a subscriber that begin during another absence."""
    name = f"{process.place}/absences.jsonl"
    back: dict[str, int] = {}
    for line in sorted(process.lines("absences.jsonl"), key=lambda line: int(line["t_left_ns"])):
        client = str(line["subscriber"])
        if line["t_left_ns"] < back.get(client, 0):
            yield differ(
                name, f"{process.place}/sessions.jsonl", f"absences of {client}",
                line["t_left_ns"], back[client],
            )  # fmt: skip
            return
        back[client] = line["t_back_ns"]


def _is_explained(
    folder: RunFolder, broker: ProcessFolder, client: str, at_ns: int, limit_ns: int
) -> bool:
    for row in folder.fault_rows:
        if row["verb"] in CLIENT_VERBS and row["target"] != client:
            continue
        span, requested_ns = span_of(folder, row), stamp_of(folder, row, "requested", last=False)
        if span is None or requested_ns is None:
            continue
        reference = str((folder.manifest.get("clock") or {}).get("host_id", broker.host))
        error_ns = folder.timeline.error_ns(broker.host, reference)
        early_ns = limit_ns if error_ns is None else _BEFORE_NS + error_ns
        if requested_ns - early_ns <= at_ns <= span[1] + _AROUND_NS + limit_ns:
            return True
    for other in folder.processes:
        for line in other.lines("absences.jsonl"):
            left_ns, back_ns = (
                folder.timeline.to_timeline(line[name], other.host)
                for name in ("t_left_ns", "t_back_ns")
            )
            is_here = left_ns - limit_ns <= at_ns <= back_ns + limit_ns
            if line["subscriber"] == client and is_here:
                return True
    return any(
        stopped_ns - limit_ns <= at_ns <= begun_ns + limit_ns
        for stopped_ns, begun_ns in replacements(folder, broker)
    )


# --- Sessions between brokers ---------------------------------------------------------------


def _check_recoveries(folder: RunFolder, brokers: Mapping[str, ProcessFolder]) -> Iterator[str]:
    """Yield restarted brokers with more sessions than other brokers logged.

    The controller logs the number of sessions with brokers at the recovery. Sessions of a new
    process begin after the start, at both ends.
    """
    for line in folder.lines(FAULT_JOURNAL):
        seen = (line.get("evidence") or {}).get(str(line.get("target")))
        is_ready = line.get("verb") == "restart" and line.get("stage") == "recovered"
        row = next((row for row in folder.fault_rows if row["fault_id"] == line["fault_id"]), None)
        if not is_ready or row is None or not isinstance(seen, dict):
            continue
        started_ns, ready_ns = (
            stamp_of(folder, row, "requested", last=False), stamp_of(folder, row, "recovered"),
        )  # fmt: skip
        if started_ns is None or ready_ns is None:
            continue
        found = 0
        for process in brokers.values():
            reach_ns = allowed_distance_ns(folder, process)
            found += any(
                event.get("event") == "session_established"
                and event.get("peer") == line["target"]
                and started_ns - reach_ns <= at_ns <= ready_ns + reach_ns
                for at_ns, event in _events(folder, process)
            )
        if found < int(seen.get("sessions", 0)):
            yield doubt(
                "disagree", one=FAULT_JOURNAL, other="raw/*/*/events.jsonl",
                what=f"brokers with sessions with {line['target']}", found=seen["sessions"],
                wanted=found,
            )  # fmt: skip


def _check_between(folder: RunFolder, one: ProcessFolder, other: ProcessFolder) -> Iterator[str]:
    """Yield lasting sessions between two brokers in the log of one broker only.

    A lasting session was established at both ends. A broker logs sessions from the start of the
    run up to a kill or to the end of the run, and a broker that was stopped logs them late.
    """
    lasting = _lasting(folder, one, other.name)
    reach_ns = _EDGE_NS + (folder.timeline.error_ns(one.host, other.host) or 0)
    theirs = _covered(folder, other)
    for begun_ns, over_ns in _covered(folder, one):
        needed = [
            at_ns for at_ns in lasting
            if begun_ns <= at_ns <= over_ns
            and any(
                from_ns + _EDGE_NS < find_pause(folder, one, at_ns)[0]
                and find_pause(folder, other, at_ns)[1] + _EDGE_NS < to_ns
                for from_ns, to_ns in theirs
            )
        ]  # fmt: skip
        there = [
            at_ns
            for at_ns, event in _events(folder, other)
            if event.get("event") == "session_established" and event.get("peer") == one.name
            and begun_ns - reach_ns <= at_ns <= over_ns
        ]  # fmt: skip
        if len(needed) > len(there):
            yield doubt(
                "disagree", one=f"{one.place}/events.jsonl", other=f"{other.place}/events.jsonl",
                what=f"sessions of {one.name} with {other.name}", found=len(needed),
                wanted=len(there),
            )  # fmt: skip
            return


def _attempt_ns(folder: RunFolder) -> int:
    """Return the most time for which an acceptor has a session that its opener abandoned."""
    stated = (folder.topology.get("session") or {}).get("connect_timeout")
    return _EDGE_NS + (_CONNECT_NS if stated is None else parse_duration_ns(stated))


def _kills(folder: RunFolder, broker: str) -> list[tuple[int, int]]:
    """Return the times at which a broker's process ended by a fault."""
    found = []
    for row in faults_at(folder, broker):
        from_ns = stamp_of(folder, row, "requested", last=False)
        to_ns = stamp_of(folder, row, "observed")
        if row["verb"] in KILLING_VERBS and from_ns is not None and to_ns is not None:
            found.append((from_ns, to_ns + _BEFORE_NS))
    return found


def _undisturbed(folder: RunFolder) -> list[str]:
    """Return the brokers that no fault kept from writing statistics."""
    return [
        name
        for name in folder.brokers
        if not any(row["verb"] in _STOPS for row in faults_at(folder, name))
    ]


def _events(folder: RunFolder, process: ProcessFolder) -> list[tuple[int, Line]]:
    return [
        (folder.timeline.to_timeline(line["t_ns"], process.host), line)
        for line in process.lines("events.jsonl")
    ]


def _covered(folder: RunFolder, process: ProcessFolder) -> list[tuple[int, int]]:
    """Return the times with logged sessions of a broker, up to a kill or the end of the run."""
    events = _events(folder, process)
    begun = [at for at, line in events if line.get("event") == "run_begun"]
    over = [at for at, line in events if line.get("event") == "run_ended"]
    killed = [
        at_ns
        for row in faults_at(folder, process.name)
        if row["verb"] in KILLING_VERBS
        and (at_ns := stamp_of(folder, row, "requested", last=False)) is not None
    ]
    found = []
    for from_ns, next_ns in pairwise([*begun, NEVER_NS]):
        to_ns = min([next_ns, *(at for at in (*killed, *over) if at >= from_ns)])
        found.append((from_ns, to_ns))
    return found


def _lasting(folder: RunFolder, process: ProcessFolder, peer: str) -> list[int]:
    """Return the starts of a broker's lasting sessions with a peer, undisturbed by faults.

    A fault of the peer or of the link may keep a session from the other end. So may an opener that
    received no answer in time, and closed the connection.
    """
    touching = [
        (from_ns, span_of(folder, row))
        for row in folder.fault_rows
        if row["verb"] not in CLIENT_VERBS
        and (
            row in faults_at(folder, peer)
            or ({peer, process.name} & {*str(row["target"]).replace("->", "-").split("-")})
            or not ({*folder.brokers} & {str(row["target"])})
        )
        and (from_ns := stamp_of(folder, row, "requested", last=False)) is not None
        and not (row["target"] == process.name and row["verb"] in STANDING_VERBS)
    ]
    attempt_ns, ends = _attempt_ns(folder), _kills(folder, peer)
    # A peer that was killed gave no attempt up. On an idle machine it had answered long before.
    killed_ns = _LASTING_NS + excused_silence_ns(folder, *_undisturbed(folder))
    opened: dict[object, tuple[int, int]] = {}
    lasted: list[tuple[int, int]] = []
    for at_ns, line in _events(folder, process):
        if line.get("peer") != peer:
            continue
        if line.get("event") == "session_established":
            opened[line.get("session")] = at_ns, _LASTING_NS if line.get("opened") else attempt_ns
        elif line.get("event") == "session_lost" and line.get("session") in opened:
            begun_ns, least_ns = opened.pop(line.get("session"))
            if line.get("reason") != "closed_by_peer":
                least_ns = _LASTING_NS
            elif any(from_ns <= at_ns <= to_ns for from_ns, to_ns in ends):
                least_ns = min(least_ns, killed_ns)
            if at_ns - begun_ns >= least_ns:
                lasted.append((begun_ns, at_ns))
    for from_ns, to_ns in _covered(folder, process):
        lasted += [(at, to_ns) for at, _ in opened.values() if from_ns <= at <= to_ns]
    return sorted(
        at_ns
        for at_ns, over_ns in lasted
        if over_ns - at_ns >= _LASTING_NS
        and not any(
            from_ns <= at_ns <= (NEVER_NS if span is None else span[1])
            for from_ns, span in touching
        )
    )
