"""Summaries by processes and the manifest, against the records.

`online.json`, `stats.jsonl`, `sessions.jsonl` and `exit.json` were written by the processes that
wrote the records, and the manifest's headline was counted from the records.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from brokerd.model.fault_verbs import ROAM
from brokerd.text import describe_exit
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.folder import MANIFEST, TOPOLOGY, WORKLOAD, ProcessFolder, RunFolder, differ
from results.witnesses.load_seconds import check_life, check_seconds
from results.witnesses.online import check_online
from results.witnesses.promises import protocol_promises
from results.witnesses.rows import Rows

_SLACK_NS = 50_000_000
_BLOCK: Final = 16
"""So many publications in a row are written row by row, or none of them."""
_RISING: Final = ("t_ns", "offered", "sent", "acknowledged", "rejected", "delivered", "withheld")
_COLUMNS: Final = {
    "publications": ("sequence", "intended_ns", "sent_ns", "publisher", "incarnation",
                     "attribute_set"),
    "acks": ("first", "last", "acked_ns", "publisher", "incarnation", "outcome"),
    "intents": ("last", "at_ns", "publisher", "incarnation"),
    "deliveries": ("sequence", "received_ns", "digest", "subscription", "publisher",
                   "incarnation", "kind", "layer", "partition"),
    "positions": ("row", "position", "received_ns", "stream"),
}  # fmt: skip


def doubts_about_processes(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between the files of load generators."""
    for process in folder.processes:
        if process.is_load:
            yield from _check_sidecars(folder, process)
            yield from _check_answers(process, rows)
        if process.has("positions.rec") and folder.is_of_processes and not folder.is_foreign:
            yield from _check_streams(folder, process)
            yield from _check_positions(folder, process, rows)
        if process.is_load and not folder.is_simulated:
            yield from _check_files(folder, process)
            yield from _check_clients(process)
            yield from _check_totals(process, rows, folder.manifest.get("state") == "complete")
            yield from check_seconds(folder, process, rows)
            yield from check_life(folder, process, rows)
        if process.has("online.json"):
            yield from check_online(folder, process, rows)
    yield from _check_redeliveries(folder, rows)
    yield from _check_sessions(folder, rows)


def _check_answers(process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield files with acknowledgements before publications, or with two per number."""
    for subject, counts in (
        ("answers before their publication", rows.early_answers),
        ("numbers with two answers", rows.repeated_answers),
    ):
        if n := counts.get(process.place):
            yield differ(
                f"{process.place}/acks.rec", f"{process.place}/publications.rec", subject, n, 0
            )


def _check_redeliveries(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield deliveries with a mark of a redelivery, and without a reason.

    A client receives publications again in a later session, by the promise of the protocol, or as
    a consumer that commits at a broker.
    """
    if folder.is_foreign:
        return
    is_promised = protocol_promises(folder.workload, folder.topology).redelivers
    for (subscription, source, _), lane in sorted(rows.lanes.items()):
        client = subscription.partition("/")[0]
        may_repeat = is_promised or client in folder.consumers
        if lane.again and not (may_repeat and _list_returns(folder, client)):
            subject = f"deliveries given again to {subscription} of {source}"
            other = "sessions.jsonl" if may_repeat else TOPOLOGY
            yield differ("deliveries.rec", other, subject, lane.again, "no redelivery")
            return
    for (place, subscription), log in sorted(rows.applications.items()):
        returns = _list_returns(folder, subscription.partition("/")[0])
        marked = [logged.received_ns for logged in log if logged.marked]
        if not marked or not returns:
            continue
        first_ns = folder.timeline.to_timeline(min(marked), place.split("/")[1])
        if first_ns < returns[0] - _SLACK_NS:
            subject = f"the first delivery given again to {subscription}"
            yield differ(f"{place}/deliveries.rec", "sessions.jsonl", subject, first_ns, returns[0])
            return


def _list_returns(folder: RunFolder, client: str) -> list[int]:
    """Return the beginnings of later sessions of a client; any time for an unknown client."""
    lines = folder.session_lines.get(client, ())
    return [at_ns for at_ns, event, _ in lines if event == "up"][1:] if lines else [-NEVER_NS]


def _check_sidecars(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield sidecars with other columns, or with other sources of a publisher."""
    first: tuple[str, Any] | None = None
    for layout, columns in _COLUMNS.items():
        name = f"{process.place}/{layout}.rec.json"
        if not process.has(f"{layout}.rec.json"):
            continue
        sidecar = process.document(f"{layout}.rec.json")
        if "columns" in sidecar or folder.is_witnessed:
            found = [*sidecar.get("columns", ())]
            if found != [*columns]:
                yield differ(name, f"{process.place}/{layout}.rec", "columns", found, columns)
        if sidecar.get("schema") != "pubsubctl/rec/1":
            yield differ(name, MANIFEST, "schema", sidecar.get("schema"), "pubsubctl/rec/1")
        sample = (sidecar.get("tables") or {}).get("sample") or {}
        if sample.get("block", _BLOCK) != _BLOCK:
            yield differ(name, MANIFEST, "sample.block", sample["block"], _BLOCK)
        if layout in ("deliveries", "positions") or not sidecar.get("tables"):
            continue
        if first is None:
            first = name, sidecar["tables"]
        elif sidecar["tables"] != first[1]:
            yield differ(name, first[0], "tables", sorted(sidecar["tables"]), sorted(first[1]))


def _check_streams(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield names of streams that no broker of the topology has.

    A stream has the number of a broker, a number of the broker, and 0.
    """
    name = f"{process.place}/positions.rec.json"
    tables = process.document("positions.rec.json").get("tables") or {}
    brokers = len(folder.brokers)
    for stream in tables.get("streams") or ():
        parts = str(stream).split("/")
        is_number = len(parts) == 3 and all(part.isdecimal() for part in parts)
        plain = "/".join(str(int(part)) for part in parts) if is_number else ""
        if plain != stream or parts[2] != "0" or int(parts[0]) >= brokers:
            yield differ(name, TOPOLOGY, "streams", stream, f"streams of {brokers} brokers")
            return


def _check_positions(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield files of positions that do not follow the deliveries one by one.

    Deliveries to consumers have no positions.
    """
    records = f"{process.place}/deliveries.rec"
    if n := rows.misplaced.get(process.place):
        yield differ(f"{process.place}/positions.rec", records, "deliveries of positions", n, 0)
    found = process.document("positions.rec.json").get("rows")
    wanted = rows.delivered.get(process.place)
    own = {
        str(line["sub_id"]): str(line["subscriber"]) in folder.consumers
        for line in process.lines("subscriptions.jsonl")
    }
    lanes = [(own[lane[0]], of) for lane, of in rows.lanes.items() if lane[0] in own]
    if wanted is not None:
        wanted -= sum(of.data + of.fences + of.again for is_consumer, of in lanes if is_consumer)
    is_again = any(of.again for is_consumer, of in lanes if not is_consumer)
    if process.place in rows.whole and not is_again and found != wanted:
        yield differ(
            f"{process.place}/positions.rec", records, "positions", found, wanted
        )  # fmt: skip


def _check_files(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield load generators without a file that others of the role have."""
    wanted = ["exit.json", "sessions.jsonl", "stats.jsonl"]
    if process.has_ended_early:
        end = process.document("exit.json")
        why = describe_exit(end.get("exit_code"), end.get("exit_signal")) or "without a status"
        file = f"{process.place}/exit.json"
        yield doubt("load_ended", file=file, who=process.name, why=why)
    elif process.is_subscriber:
        wanted += ["online.json", "subscriptions.jsonl"]
    loads = [other for other in folder.processes if other.is_load]
    for name in wanted:
        if process.has(name):
            continue
        elsewhere = next((other.place for other in loads if other.has(name)), "")
        if folder.is_witnessed or (elsewhere and folder.has("spec/cli.json")):
            other = f"{elsewhere}/{name}" if elsewhere else MANIFEST
            yield doubt("missing_file", file=f"{process.place}/{name}", other=other)
    if process.is_publisher:
        for name in ("acks.rec", "intents.rec"):
            if not process.has(name) and folder.is_witnessed:
                yield doubt(
                    "missing_file",
                    file=f"{process.place}/{name}",
                    other=f"{process.place}/publications.rec",
                )
    online = (folder.manifest.get("headline") or {}).get("online") or {}
    if any(online.values()) and process.is_subscriber and not process.has("online.json"):
        yield doubt("missing_file", file=f"{process.place}/online.json", other=MANIFEST)


def _check_clients(process: ProcessFolder) -> Iterator[str]:
    """Yield sessions of clients that another process has."""
    tables = process.document("publications.rec.json").get("tables") or {}
    own = {str(line["subscriber"]) for line in process.lines("subscriptions.jsonl")}
    own |= {str(name) for name in (tables.get("publisher_names") or {}).values()}
    found = {str(line["client"]) for line in process.lines("sessions.jsonl")}
    if own and found - own:
        yield differ(
            f"{process.place}/sessions.jsonl", process.place, "clients", sorted(found - own)[:4],
            sorted(own)[:4],
        )  # fmt: skip


def _check_totals(process: ProcessFolder, rows: Rows, is_complete: bool) -> Iterator[str]:
    """Yield last lines of statistics that differ from the records.

    A publisher whose closing fence has an answer has no publication left to send.
    """
    lines = process.lines("stats.jsonl")
    name = f"{process.place}/stats.jsonl"
    if not lines and process.has("stats.jsonl") and process.place in rows.ends_ns:
        yield doubt("missing_line", file=name, what="any count", other=f"{process.place}/*.rec")
    if not lines or "proc_id" not in lines[-1]:
        return
    for before, after in pairwise(lines):
        back = [key for key in _RISING if after.get(key, 0) < before.get(key, 0)]
        back += ["t_ns"] * (after.get("t_ns") == before.get("t_ns"))
        if back:
            yield differ(name, name, back[0], after[back[0]], before[back[0]])
    if any(line["proc_id"] != process.name for line in lines):
        yield differ(name, process.place, "proc_id", lines[-1]["proc_id"], process.name)
    answered = rows.acknowledged.get(process.place, 0) + rows.rejected.get(process.place, 0)
    if answered > rows.published.get(process.place, answered):
        yield differ(
            f"{process.place}/acks.rec", f"{process.place}/publications.rec", "answers", answered,
            rows.published[process.place],
        )  # fmt: skip
    if process.place not in rows.whole:
        return
    for column, layout, counted in (
        ("sent", "publications", rows.published),
        ("acknowledged", "acks", rows.acknowledged),
        ("rejected", "acks", rows.rejected),
        ("delivered", "deliveries", rows.delivered),
        ("withheld", "deliveries", rows.kept_back),
    ):
        wanted = counted.get(process.place)
        if wanted is not None and lines[-1].get(column, wanted) != wanted:
            yield differ(name, f"{process.place}/{layout}.rec", column, lines[-1][column], wanted)
    is_over = is_complete and answered and answered == rows.published.get(process.place)
    if is_over and lines[-1].get("backlog"):
        yield differ(name, f"{process.place}/acks.rec", "backlog", lines[-1]["backlog"], 0)


def _check_sessions(folder: RunFolder, rows: Rows) -> Iterator[str]:
    if not folder.session_lines:
        return
    roams = {str(row["target"]) for row in folder.fault_rows if row["verb"] == ROAM}
    failover = {
        broker
        for key in ("publishers", "subscribers")
        for entry in folder.workload.get(key, ())
        if entry.get("failover")
        for broker in entry["at"]
    }
    for client, (_, home) in folder.clients.items():
        lines = folder.session_lines.get(client, ())
        if not lines and not folder.is_of_processes:
            continue
        if not lines:
            yield doubt("no_session", who=client, other=WORKLOAD)
            continue
        elsewhere = {broker for _, _, broker in lines} - {home}
        if elsewhere and client not in roams and home not in failover:
            yield differ("sessions.jsonl", WORKLOAD, f"broker of {client}", sorted(elsewhere), home)
    yield from _check_events(folder)
    for process in folder.processes if folder.is_of_processes else ():
        yield from _check_requests(folder, process)
        yield from _check_numbers(process)
    yield from _check_publishers(folder, rows)


def _check_events(folder: RunFolder) -> Iterator[str]:
    """Yield clients that the workload does not have, and sessions without a start or an end."""
    for client, lines in folder.session_lines.items():
        if client not in folder.clients:
            yield doubt("not_in_workload", who=f"client {client} of sessions.jsonl")
        events = [event for _, event, _ in lines]
        is_over = folder.is_of_processes and folder.manifest.get("state") == "complete"
        if is_over and events[-1] != "down" and not folder.is_foreign:
            yield differ("sessions.jsonl", MANIFEST, f"last event of {client}", "up", "down")
        if events and events[0] != "up":
            yield differ("sessions.jsonl", WORKLOAD, f"first event of {client}", events[0], "up")


def _check_requests(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield subscriptions that were requested without a session, or accepted before."""
    for line in process.lines("subscriptions.jsonl"):
        requested_ns, accepted_ns = line.get("t_issued_ns"), line.get("t_accepted_ns")
        ups = folder.session_lines.get(str(line["subscriber"]), ())
        issued_ns = folder.timeline.to_timeline(requested_ns or 0, process.host)
        if (
            not requested_ns
            or (accepted_ns and accepted_ns < requested_ns)
            or (ups and issued_ns < ups[0][0] - _SLACK_NS)
        ):
            yield differ(
                f"{process.place}/subscriptions.jsonl", "sessions.jsonl",
                f"times of {line['sub_id']}", (requested_ns, accepted_ns), ups[:1],
            )  # fmt: skip


def _check_publishers(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield sources that published before or after the sessions of their clients."""
    named = dict(rows.client_of.items())
    for (source, incarnation), of in rows.sources.items():
        lines = folder.session_lines.get(named.get(source, ""), ())
        if lines and of.first_ns + _SLACK_NS < lines[0][0]:
            yield differ(
                "publications.rec", "sessions.jsonl", f"first of {source}, {incarnation}",
                of.first_ns, lines[0][0],
            )  # fmt: skip
        if lines and lines[-1][1] == "down" and of.last_ns - _SLACK_NS > lines[-1][0]:
            yield differ(
                "publications.rec", "sessions.jsonl", f"last of {source}, {incarnation}",
                of.last_ns, lines[-1][0],
            )  # fmt: skip


def _check_numbers(process: ProcessFolder) -> Iterator[str]:
    """A client's sessions are counted from 1, and end before the next begins."""
    name = f"{process.place}/sessions.jsonl"
    expected: dict[str, tuple[int, str]] = {}
    for line in process.lines("sessions.jsonl"):
        client = str(line["client"])
        session, event = expected.get(client, (1, "up"))
        if line["event"] == "up" and line.get("reason"):
            yield differ(name, name, f"reason of a start of {client}", line["reason"], "")
            return
        if line["session"] != session or line["event"] != event:
            yield differ(
                name, name, f"sessions of {client}", (line["session"], line["event"]),
                (session, event),
            )  # fmt: skip
            return
        expected[client] = (session, "down") if event == "up" else (session + 1, "up")
