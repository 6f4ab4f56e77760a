"""Incarnations of brokers, in the logs of their peers and in the evidence of their restarts.

A broker has one incarnation in the life of a process, and a higher one in the next. Each peer logs
the incarnation with which a session began, and the controller the one that it found after a
restart. A process that finds its state lost, and restores it from other brokers, begins again with
a higher incarnation before its first session.
"""

from collections.abc import Iterator
from itertools import pairwise

from brokerd.model.fault_verbs import KILLING_VERBS
from brokerd.protocols.interface import STATE_RESTORING
from results.rules.terms import NEVER_NS
from results.witnesses.faults import faults_at
from results.witnesses.folder import FAULT_JOURNAL, Line, RunFolder, differ, stamp_of

_JITTER_NS = 20_000_000


def doubts_about_incarnations(folder: RunFolder) -> Iterator[str]:
    """Yield sessions with an incarnation that another file contradicts."""
    if folder.is_foreign or not (folder.is_of_processes and folder.is_closed):
        return
    seen = _find_sessions(folder)
    for broker in folder.brokers:
        found = sorted(seen.get(broker, ()))
        yield from _check_order(folder, broker, found)
        if folder.rolling_ns is None:
            yield from _check_lives(folder, broker, found)
            yield from _check_processes(folder, broker)


Session = tuple[int, int, str, str]
"""Start, incarnation of the peer, and host and file of the broker that logged the session."""


def _find_sessions(folder: RunFolder) -> dict[str, list[Session]]:
    found: dict[str, list[Session]] = {}
    for process in folder.processes:
        for line in process.lines("events.jsonl"):
            if line.get("event") == "session_established":
                at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
                name = f"{process.place}/events.jsonl"
                session = at_ns, line["incarnation"], process.host, name
                found.setdefault(str(line["peer"]), []).append(session)
    return found


def _error_ns(folder: RunFolder, one: str, other: str) -> int:
    error_ns = folder.timeline.error_ns(one, other)
    return NEVER_NS if error_ns is None else error_ns + _JITTER_NS


def _check_order(folder: RunFolder, broker: str, found: list[Session]) -> Iterator[str]:
    """Yield a session with a lower incarnation than an earlier session of the same broker."""
    for before, after in pairwise(found):
        apart_ns = _error_ns(folder, before[2], after[2])
        if after[1] < before[1] and after[0] - before[0] > apart_ns:
            yield differ(after[3], before[3], f"incarnation of {broker}", after[1], before[1])
            return


def _check_lives(folder: RunFolder, broker: str, found: list[Session]) -> Iterator[str]:
    """Yield sessions of one life with several incarnations, or another one than was observed."""
    restarts = _find_restarts(folder, broker)
    starts = [at_ns for at_ns, _, _ in restarts]
    restored = _find_restored(folder, broker)
    for (from_ns, wanted, _), (to_ns, _, _) in pairwise(
        [(-NEVER_NS, None, ""), *restarts, (NEVER_NS, None, "")]
    ):
        own = [each for each in found if from_ns <= each[0] < to_ns]
        for session in own:
            host, name = session[2], session[3]
            slack_ns = _error_ns(folder, host, _host_of(folder, broker))
            if any(abs(session[0] - at_ns) <= slack_ns for at_ns in starts):
                continue
            is_restored = any(from_ns <= at_ns < to_ns for at_ns in restored)
            if wanted is not None and session[1] != wanted and not is_restored:
                yield differ(name, FAULT_JOURNAL, f"incarnation of {broker}", session[1], wanted)
                return
            if session[1] != own[0][1]:
                yield differ(name, own[0][3], f"incarnation of {broker}", session[1], own[0][1])
                return


def _check_processes(folder: RunFolder, broker: str) -> Iterator[str]:
    """Yield restarts that were observed as a process that no restart had started."""
    pids: dict[str, dict[str, object]] = {"applied": {}, "observed": {}}
    for line in folder.lines(FAULT_JOURNAL):
        if (line.get("verb"), line.get("target")) == ("restart", broker):
            evidence = line.get("evidence") or {}
            pids.setdefault(str(line.get("stage")), {})[line["fault_id"]] = evidence.get("pid")
    started = pids["applied"]
    for fault, pid in pids["observed"].items():
        if pid not in started.values() and started.get(fault) is not None:
            yield differ(FAULT_JOURNAL, FAULT_JOURNAL, f"pid of {fault}", pid, started[fault])


def _find_restored(folder: RunFolder, broker: str) -> list[int]:
    """Return the times of records of a broker that began again to restore lost state."""
    return [
        folder.timeline.to_timeline(line["t_ns"], process.host)
        for process in folder.processes
        if process.name == broker
        for line in process.lines("events.jsonl")
        if line.get("event") == STATE_RESTORING
    ]


def _find_restarts(folder: RunFolder, broker: str) -> list[tuple[int, int | None, str]]:
    """Return the starts of a broker after faults, with the incarnation that was observed."""
    seen: dict[tuple[str, str], Line] = {
        (str(line["fault_id"]), str(line.get("stage"))): line.get("evidence") or {}
        for line in folder.lines(FAULT_JOURNAL)
    }
    # A broker that is killed again soon is observed as the process of a later restart.
    observed = {
        fault: evidence.get("incarnation")
        for (fault, stage), evidence in seen.items()
        if stage == "observed"
        and evidence.get("pid") == seen.get((fault, "applied"), {}).get("pid", evidence.get("pid"))
    }
    found = []
    for row in faults_at(folder, broker):
        at_ns = row.get("t_requested_ns")
        if row["verb"] == "restart" and at_ns is not None:
            incarnation = observed.get(str(row["fault_id"]))
            found.append((at_ns - folder.origin_ns, incarnation, str(row["fault_id"])))
        elif row["verb"] in KILLING_VERBS and (
            healed_ns := stamp_of(folder, row, "heal_requested", last=False)
        ):
            found.append((healed_ns, None, str(row["fault_id"])))
    return sorted(found, key=lambda restart: restart[0])


def _host_of(folder: RunFolder, broker: str) -> str:
    return next((p.host for p in folder.processes if p.name == broker), "")
