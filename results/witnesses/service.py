"""Broker events about clients and faults, against the logs of clients and the fault log.

A broker logs starts, faults of own links, and sessions of clients, and counts deliveries.
Clients and the controller log the same events.
"""

from collections.abc import Iterator

from brokerd.model.fault_verbs import (
    BROKER_VERBS,
    KILLING_VERBS,
    MACHINE_VERBS,
    SESSION_ENDING_VERBS,
)
from results.rules.terms import doubt
from results.witnesses.broker_events import LAST_NS, SLACK_NS, clock_error_ns, list_events
from results.witnesses.brokers import replacements
from results.witnesses.client_sessions import (
    check_client_absences,
    check_client_fault,
    check_clients,
)
from results.witnesses.faults import faults_at
from results.witnesses.folder import FAULTS, ProcessFolder, RunFolder, stamp_of
from results.witnesses.link_faults import check_absorbed, check_own_fault
from results.witnesses.publication_counts import (
    check_deliverers,
    check_deliveries,
    check_received,
    check_totals,
)
from results.witnesses.rows import Rows

_BEGINS_NS = 20_000_000_000
"""A restarted broker receives the identity of the run within that time."""


def doubts_about_service(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between brokers, clients and the controller."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    for row in folder.fault_rows:
        if row["verb"] in BROKER_VERBS and (row.get("params") or {}).get("backend") != "nft":
            yield from check_own_fault(folder, row, brokers)
            yield from check_absorbed(folder, row, brokers)
        if row["verb"] in SESSION_ENDING_VERBS:
            yield from check_client_fault(folder, row)
    yield from check_received(folder, rows, brokers)
    yield from check_totals(folder, rows, brokers)
    yield from check_deliverers(folder, rows, brokers)
    yield from check_client_absences(folder)
    for process in brokers:
        yield from _check_starts(folder, process)
        yield from check_clients(folder, process)
        yield from check_deliveries(folder, rows, process)


def _check_starts(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield brokers that began the run more often than they were started."""
    name = f"{process.place}/events.jsonl"
    begun = [at_ns for at_ns, _ in list_events(folder, process, "run_begun")]
    at_broker = faults_at(folder, process.name)
    restarts = [row for row in at_broker if row["verb"] in ("restart", *KILLING_VERBS)]
    again = [row for row in restarts if row["verb"] == "restart"]
    wanted = 1 + len(replacements(folder, process)) + len(again)
    if len(begun) > wanted and not any(row["verb"] in MACHINE_VERBS for row in restarts):
        yield doubt(
            "disagree", one=name, other=FAULTS, what=f"starts of {process.name}",
            found=len(begun), wanted=wanted,
        )  # fmt: skip
    over = [at_ns for at_ns, _ in list_events(folder, process, "run_ended")]
    last = process.lines("stats.jsonl")[-1:]
    counted_ns = [folder.timeline.to_timeline(line["t_ns"], process.host) for line in last]
    if over and counted_ns and counted_ns[0] < over[-1] - LAST_NS:
        yield doubt(
            "stats_stop", file=f"{process.place}/stats.jsonl", s=(over[-1] - counted_ns[0]) / 1e9,
            at_s=counted_ns[0] / 1e9, other=name,
        )  # fmt: skip
    for row in restarts:
        requested_ns = stamp_of(folder, row, "requested", last=False)
        is_over = row["verb"] == "restart" and row.get("t_recovered_ns") is not None
        if not is_over or requested_ns is None:
            continue
        error_ns = clock_error_ns(folder, process.host) + SLACK_NS
        if not any(
            requested_ns - error_ns <= at <= requested_ns + error_ns + _BEGINS_NS for at in begun
        ):
            yield doubt(
                "disagree", one=name, other=FAULTS, what=f"start of {process.name}",
                found=begun, wanted=row["fault_id"],
            )  # fmt: skip
