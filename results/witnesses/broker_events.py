"""Events of brokers, against their order, the fault log and the counters.

A broker leaves lines out when it cannot write, and stops when the controller or a fault ends it. A
session has a number of its own in the life of a process.
"""

from collections.abc import Iterator, Sequence

from brokerd.model.fault_verbs import DISK_VERBS, KILLING_VERBS, MACHINE_VERBS
from brokerd.protocols.registry import DEFINITIONS
from results.rules.terms import NEVER_NS
from results.witnesses.brokers import replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    CLOSED_EVENTS,
    FAULTS,
    LOGGED_EVENTS,
    MANIFEST,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
    stamp_of,
)

SLACK_NS = 500_000_000
JITTER_NS = 20_000_000
LAST_NS = 1_500_000_000
"""A broker's last statistics are written when the run ends."""
_BOTH_ENDS_NS = 200_000_000
"""Both ends of a session log its start in so short a time."""

_SETTLED_NS = 2_000_000_000
"""The time after which two brokers with simultaneous sessions have a single session."""


def doubts_about_events(folder: RunFolder) -> Iterator[str]:
    """Yield events of brokers that other files do not explain."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    for process in folder.processes:
        if process.name in {*folder.brokers}:
            yield from _check_events(folder, process, process.lines("events.jsonl"))
    if folder.is_closed:
        yield from _check_openers(folder)
        yield from _check_partitions(folder)
        yield from _check_withheld(folder)
        yield from _check_requests(folder)
        yield from _check_unanswered(folder)
        yield from _check_last_requests(folder)


def _check_events(
    folder: RunFolder, process: ProcessFolder, events: Sequence[Line]
) -> Iterator[str]:
    name, faults = f"{process.place}/events.jsonl", faults_at(folder, process.name)
    words = [line.get("event") for line in events]
    is_full = any(row["verb"] in DISK_VERBS for row in folder.fault_rows)
    if "lines_left_out" in words and not is_full:
        yield differ(name, FAULTS, "lines left out", words.count("lines_left_out"), 0)
    is_complete = folder.manifest.get("state") == "complete"
    is_renewed = folder.rolling_ns is not None or bool(replacements(folder, process))
    if is_renewed:
        return
    if "stopped" in words and is_complete and not faults:
        yield differ(name, FAULTS, "stops", words.count("stopped"), 0)
    begun, ended = words.count("run_begun"), words.count("run_ended")
    if ended > 1 or (begun and ended > begun):
        yield differ(name, MANIFEST, "run_ended", ended, 1)
    wanted = LOGGED_EVENTS if folder.is_logged else CLOSED_EVENTS
    for line in events if folder.is_closed else ():
        is_begun = line.get("event") == "run_begun" and "schema" in line
        if is_begun and line["schema"] != wanted:
            yield differ(name, MANIFEST, "schema", line["schema"], wanted)
            return
    yield from _check_numbers(name, events)
    if folder.is_closed and "lines_left_out" not in words:
        yield from _check_ends(name, events)
    yield from _check_slowed(process, name, words, is_counted=not faults)


def _check_numbers(name: str, events: Sequence[Line]) -> Iterator[str]:
    """Yield sessions that were established twice in the life of a process."""
    seen: set[object] = set()
    for line in events:
        if line.get("event") == "run_begun":
            seen = set()
        if line.get("event") != "session_established" or "session" not in line:
            continue
        if line["session"] in seen:
            yield differ(name, name, f"starts of session {line['session']}", 2, 1)
            return
        seen.add(line["session"])


def _check_ends(name: str, events: Sequence[Line]) -> Iterator[str]:
    """Yield ends of sessions that ended before, that never began, or of another peer."""
    peers: dict[int, object] = {}
    ended: set[int] = set()
    for line in events:
        event, number = line.get("event"), line.get("session")
        if event == "run_begun":
            peers, ended = {}, set()
        elif event == "session_established" and isinstance(number, int):
            peers[number] = line.get("peer")
        elif event == "session_lost" and isinstance(number, int):
            is_new = bool(peers) and number > max(peers)
            peer = peers.get(number, None if is_new else line.get("peer"))
            if number in ended or peer != line.get("peer"):
                subject = f"the end of session {number}"
                yield differ(
                    name, name, subject, line.get("peer"), "ended" if number in ended else peer
                )
                return
            ended.add(number)


def _check_openers(folder: RunFolder) -> Iterator[str]:
    """Yield sessions with two openers or without an opener; brokers open no session with clients.

    The check ignores simultaneous sessions of two brokers: their logs may name different sessions.
    """
    brokers = {*folder.brokers}
    at: dict[tuple[str, str], list[tuple[int, bool | None, ProcessFolder]]] = {}
    for process in folder.processes:
        for line in process.lines("events.jsonl"):
            if line.get("event") not in ("session_established", "session_lost"):
                continue
            peer, name = str(line.get("peer")), f"{process.place}/events.jsonl"
            is_start = line["event"] == "session_established"
            opened = line.get("opened") if is_start else None
            if peer in brokers:
                at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
                at.setdefault((process.name, peer), []).append((at_ns, opened, process))
            elif is_start and opened is not False:
                yield differ(name, "sessions.jsonl", f"opener of {peer}", opened, False)
                return
    for (one, other), here in at.items():
        there = at.get((other, one), ())
        for at_ns, opened, process in here if one < other else ():
            settling = [row for row in (*here, *there) if abs(row[0] - at_ns) <= _SETTLED_NS]
            near = [
                (each_opened, end)
                for each_ns, each_opened, end in there
                if abs(each_ns - at_ns) <= _BOTH_ENDS_NS
                and folder.timeline.error_ns(process.host, end.host) is not None
            ]
            if len(settling) == 2 and len(near) == 1 and near[0][0] == opened is not None:
                yield differ(
                    f"{process.place}/events.jsonl", f"{near[0][1].place}/events.jsonl",
                    f"opener of a session of {one} and {other}", opened, not opened,
                )  # fmt: skip
                return


def _check_partitions(folder: RunFolder) -> Iterator[str]:
    """Yield partitions of subscribers or neighbours without an event of a detector.

    A detector logs a partition before the announcement. A restarted broker logs elsewhere until
    the run has a new identity there. A kept deployment may begin a run with partitions.
    """
    if folder.rolling_ns is not None:
        return
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    counts = {
        process.name: [
            (folder.timeline.to_timeline(line["t_ns"], process.host), line["partitions"])
            for line in process.lines("stats.jsonl")
            if isinstance(line.get("partitions"), int)
        ]
        for process in brokers
    }
    begun: list[tuple[int, str, object, list[str]]] = []
    for process in brokers:
        for line in process.lines("events.jsonl"):
            if line.get("event") == "lines_left_out":
                return
            if line.get("event") == "partition_new":
                nodes = [folder.brokers[number] for number in line["nodes"]]
                at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
                begun.append((at_ns, process.name, line["number"], nodes))
    if any(of and of[0][1] for of in counts.values()):
        return
    restarts = [
        (process.name, stamp_of(folder, row, "requested", last=False) or -NEVER_NS)
        for process in brokers
        for row in faults_at(folder, process.name)
        if row["verb"] in ("restart", *MACHINE_VERBS)
    ]
    known = [(detector, number, nodes) for _, detector, number, nodes in begun]
    for process in folder.processes:
        tables = process.document("deliveries.rec.json").get("tables") or {}
        for named in tables.get("partitions") or ():
            found = named["detector"], named["number"], [*named["nodes"]]
            if found not in known and found[0] not in dict(restarts):
                yield differ(
                    f"{process.place}/deliveries.rec.json", f"raw/*/{found[0]}/events.jsonl",
                    f"partition {found[1]} of {found[0]}", found[2], None,
                )  # fmt: skip
                return
    for process in brokers:
        error_ns = max(
            (folder.timeline.error_ns(process.host, other.host) or 0 for other in brokers),
            default=0,
        )
        for at_ns, n in counts[process.name]:
            most = sum(began_ns <= at_ns + error_ns + _BOTH_ENDS_NS for began_ns, *_ in begun)
            most += len(brokers) * sum(began_ns <= at_ns + error_ns for _, began_ns in restarts)
            if n > most:
                yield differ(
                    f"{process.place}/stats.jsonl", "raw/*/*/events.jsonl",
                    f"partitions at {at_ns}", n, most,
                )  # fmt: skip
                return


def _check_withheld(folder: RunFolder) -> Iterator[str]:
    """Yield a broker that withheld publications, or notified brokers, without any partition.

    A restarted broker restores partitions, and a kept deployment may begin a run with some.
    """
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    definition = DEFINITIONS.get(str(folder.workload.get("protocol")))
    restarts = ("restart", *MACHINE_VERBS)
    if (
        definition is None
        or folder.rolling_ns is not None
        or any(row["verb"] in restarts for row in folder.fault_rows)
    ):
        return
    if any(list_events(folder, each, "partition_new", "lines_left_out") for each in brokers):
        return
    if any(line.get("partitions") for each in brokers for line in each.lines("stats.jsonl")):
        return
    for process in brokers:
        lines = process.lines("stats.jsonl")
        for key in definition.partition_counters:
            if lines and lines[-1].get(key, 0) > lines[0].get(key, 0):
                yield differ(
                    f"{process.place}/stats.jsonl", "raw/*/*/events.jsonl",
                    f"{key} of {process.name} without a partition",
                    lines[-1][key], lines[0].get(key, 0),
                )  # fmt: skip
                return


def _check_requests(folder: RunFolder) -> Iterator[str]:
    """Yield a broker with more received retransmission requests than events of other brokers.

    After a restart, events may be in another log than the log of the run.
    """
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    requested: dict[str, list[int]] = {process.name: [] for process in brokers}
    begun: dict[str, int] = {}
    for process in brokers:
        for line in process.lines("events.jsonl"):
            if line.get("event") == "lines_left_out":
                return
            at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
            if line.get("event") == "run_begun":
                begun.setdefault(process.name, at_ns)  # once more after each restart
            if line.get("event") == "retransmission_requested":
                requested.setdefault(folder.brokers[line["peer"]], []).append(at_ns)
    restarts = [
        stamp_of(folder, row, "requested", last=False) or -NEVER_NS
        for row in folder.fault_rows
        if row["verb"] in ("restart", *MACHINE_VERBS)
    ]
    until_ns = -NEVER_NS if folder.rolling_ns is not None else min(restarts, default=NEVER_NS)
    for process in brokers:
        hosts = {other.host for other in brokers}
        error_ns = max(folder.timeline.error_ns(process.host, host) or 0 for host in hosts)
        # Before, a broker of a kept deployment logged requests to the log of another run.
        from_ns = max(begun.values(), default=-NEVER_NS) + error_ns
        lines = [
            line for line in process.lines("stats.jsonl")
            if "nacks_received" in line
            and folder.timeline.to_timeline(line["t_ns"], process.host) >= from_ns
        ]  # fmt: skip
        for line in lines:
            at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
            found = line["nacks_received"] - lines[0]["nacks_received"]
            most = sum(ns <= at_ns + error_ns for ns in requested[process.name])
            if at_ns + error_ns < until_ns and found > most:
                yield differ(
                    f"{process.place}/stats.jsonl", "raw/*/*/events.jsonl",
                    f"retransmission requests to {process.name} up to {line['t_ns']}", found, most,
                )  # fmt: skip
                return


def _check_unanswered(folder: RunFolder) -> Iterator[str]:
    """Yield logged retransmission requests that their sender or their receiver did not count.

    A request is lost only with a session. The last requests may be counted after the last line.
    """
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    stats = {process.name: process.lines("stats.jsonl") for process in brokers}
    is_calm = folder.manifest.get("state") == "complete" and not folder.fault_rows
    if not is_calm or folder.rolling_ns is not None:
        return
    if any(list_events(folder, process, "lines_left_out") for process in brokers):
        return
    for lines in stats.values():
        if not lines or "nacks_received" not in lines[-1] or lines[-1].get("broker_sessions_lost"):
            return
    requests = [
        (process.name, folder.brokers[line["peer"]], at_ns)
        for process in brokers
        for at_ns, line in list_events(folder, process, "retransmission_requested")
    ]
    for process in brokers:
        first, last = stats[process.name][0], stats[process.name][-1]
        error_ns = max(clock_error_ns(folder, other.host) for other in brokers)
        from_ns, until_ns = (
            folder.timeline.to_timeline(line["t_ns"], process.host) for line in (first, last)
        )
        from_ns, until_ns = from_ns + error_ns + JITTER_NS, until_ns - error_ns - SLACK_NS
        near = [row for row in requests if from_ns <= row[2] <= until_ns]
        for key, place, subject in (
            ("nacks_received", 1, "retransmission requests to"),
            ("nacks_sent", 0, "retransmission requests of"),
        ):
            found, least = last[key] - first[key], sum(row[place] == process.name for row in near)
            if found < least:
                yield differ(
                    f"{process.place}/stats.jsonl", "raw/*/*/events.jsonl",
                    f"{subject} {process.name}", found, least,
                )  # fmt: skip
                return
        sent = sum(row[0] == process.name for row in requests)
        if last["nacks_sent"] - first["nacks_sent"] > sent:
            yield differ(
                f"{process.place}/stats.jsonl", f"{process.place}/events.jsonl",
                f"retransmission requests of {process.name}", last["nacks_sent"], sent,
            )  # fmt: skip
            return


def _check_last_requests(folder: RunFolder) -> Iterator[str]:
    """Yield a broker that counted other requests than it logged, up to the end of the run.

    A broker logs its last counts with the end of the run, and no event in between.
    """
    restarts = ("restart", *KILLING_VERBS, *MACHINE_VERBS)
    for process in folder.processes:
        lines, events = process.lines("stats.jsonl"), process.lines("events.jsonl")
        words = [line.get("event") for line in events]
        if (
            folder.rolling_ns is not None
            or process.name not in folder.brokers
            or any(row["verb"] in restarts for row in faults_at(folder, process.name))
            or words.count("run_begun") != 1
            or words.count("run_ended") != 1
            or "lines_left_out" in words
            or not lines
            or "nacks_sent" not in lines[-1]
        ):
            continue
        logged = sum(
            line.get("event") == "retransmission_requested" and line["t_ns"] > lines[0]["t_ns"]
            for line in events[: words.index("run_ended")]
        )
        counted = lines[-1]["nacks_sent"] - lines[0]["nacks_sent"]
        if logged != counted:
            yield differ(
                f"{process.place}/stats.jsonl", f"{process.place}/events.jsonl",
                f"retransmission requests of {process.name} in the run", counted, logged,
            )  # fmt: skip
            return


def _check_slowed(
    process: ProcessFolder, name: str, words: Sequence[object], *, is_counted: bool
) -> Iterator[str]:
    """Yield more events of slowed publishers than the broker counted."""
    last = process.lines("stats.jsonl")[-1:]
    found = words.count("publisher_slowed")
    wanted = [line.get("publishers_slowed", found) for line in last]
    if is_counted and wanted and found > wanted[0]:
        yield differ(f"{process.place}/stats.jsonl", name, "publishers_slowed", wanted[0], found)


def list_events(folder: RunFolder, process: ProcessFolder, *names: str) -> list[tuple[int, Line]]:
    """Return the named events of a broker, with times on the timeline."""
    return [
        (folder.timeline.to_timeline(line["t_ns"], process.host), line)
        for line in process.lines("events.jsonl")
        if line.get("event") in names
    ]


def clock_error_ns(folder: RunFolder, host: str) -> int:
    """Return the largest error of a host's stamps on the timeline; NEVER_NS if unknown."""
    reference = str((folder.manifest.get("clock") or {}).get("host_id", host))
    error_ns = folder.timeline.error_ns(host, reference)
    return NEVER_NS if error_ns is None else error_ns
