"""Summaries by processes and the manifest, against the records.

`online.json`, `stats.jsonl`, `sessions.jsonl` and `exit.json` were written by the processes that
wrote the records, and the manifest's headline was counted from the records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from brokerd.model.fault_verbs import ROAM
from brokerd.units import parse_duration_ns
from results.rules.terms import doubt
from results.witnesses.folder import (
    MANIFEST,
    TOPOLOGY,
    WORKLOAD,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
)
from results.witnesses.promises import promises_of
from results.witnesses.rows import LaneRows, Rows

_SLACK_NS = 50_000_000
_EARLY_NS = 1_000_000_000
_BLOCK: Final = 16
"""So many publications in a row are written row by row, or none of them."""
_EDGE_NS = 2_000_000_000
"""Records so close to an end of a pause are no sign that statistics are missing."""
_LONGEST_PAUSE_NS = 4_500_000_000
"""A process that writes records writes statistics more often, once a second."""
_ROUGHLY, _TICK_S = 1.05, 0.05
"""The kernel counts memory and processor time roughly."""
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
_FINDINGS: Final = (
    *("reordered", "wrong_match", "corrupted", "order_differs", "phantom"),
    *("withheld_late", "withheld_delivered"),
)
"""What an online checker finds by itself, by the names that a judge has for it."""
_SUPERFLUOUS: Final = ("duplicate", "wrong_match", "corrupted", "withheld_delivered", "phantom")
"""Deliveries that an online checker counts, and that were not owed or not for the first time."""
_HOLES: Final = ("missing", "fence_missing", "unsure", "reordered", "announced")
"""What an online checker counts of the holes that it saw, and that it may have forgotten."""
_FENCES: Final = 2
"""Fences of a source with one incarnation."""
_ABSENT: Final = ("missing", "fence_missing")
_ORDERS: Final = {"reordered": ("publisher", "total"), "order_differs": ("total",)}
"""The orders in which a finding is one for a judge; those that are not named: all."""


def doubts_about_processes(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between the files of load generators."""
    for process in folder.processes:
        if process.is_load:
            yield from _check_sidecars(folder, process)
            yield from _check_answers(process, rows)
        if process.has("positions.rec") and folder.is_of_processes and not folder.is_foreign:
            yield from _check_streams(folder, process)
            yield from _check_positions(process, rows)
        if process.is_load and not folder.is_simulated:
            yield from _check_files(folder, process)
            yield from _check_clients(process)
            yield from _check_totals(process, rows, folder.manifest.get("state") == "complete")
            yield from _check_seconds(folder, process, rows)
            yield from _check_life(folder, process, rows)
        if process.has("online.json"):
            yield from _check_online(folder, process, rows)
    yield from _check_redeliveries(folder, rows)
    yield from _check_sessions(folder, rows)


def _check_answers(process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield files with acknowledgements before their publications, or with two of one number."""
    for subject, counts in (
        ("answers before their publication", rows.early_answers),
        ("numbers with two answers", rows.repeated_answers),
    ):
        if n := counts.get(process.place):
            yield differ(
                f"{process.place}/acks.rec", f"{process.place}/publications.rec", subject, n, 0
            )


def _check_redeliveries(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield deliveries that are marked as given again by a protocol that never does."""
    if folder.is_foreign or promises_of(folder.workload, folder.topology).redelivers:
        return
    for (subscription, source, _), lane in sorted(rows.lanes.items()):
        if lane.again:
            subject = f"deliveries given again to {subscription} of {source}"
            yield differ("deliveries.rec", TOPOLOGY, subject, lane.again, "no redelivery")
            return


def _check_sidecars(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield sidecars with other columns, or with other sources of one publisher."""
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


def _check_positions(process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield files of positions that do not follow the deliveries one by one."""
    records = f"{process.place}/deliveries.rec"
    if n := rows.misplaced.get(process.place):
        yield differ(f"{process.place}/positions.rec", records, "deliveries of positions", n, 0)
    found = process.document("positions.rec.json").get("rows")
    wanted = rows.delivered.get(process.place)
    own = {str(line["sub_id"]) for line in process.lines("subscriptions.jsonl")}
    is_again = any(of.again for lane, of in rows.lanes.items() if lane[0] in own)
    if process.place in rows.whole and not is_again and found != wanted:
        yield differ(
            f"{process.place}/positions.rec", records, "positions", found, wanted
        )  # fmt: skip


def _about_sums_of_positions(
    folder: RunFolder, process: ProcessFolder, rows: Rows
) -> Iterator[str]:
    """Yield streams with other positions than the subscribers' process counted."""
    if not folder.is_closed or process.place not in rows.whole:
        return
    found = {stream: [*of] for stream, of in rows.streams.get(process.place, {}).items()}
    stated = process.document("online.json").get("streams")
    if found != stated:
        name = f"{process.place}/online.json"
        yield differ(name, f"{process.place}/positions.rec", "streams", stated, found)


def _check_files(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield load generators without a file that others of the role have."""
    wanted = ["exit.json", "sessions.jsonl", "stats.jsonl"]
    if process.is_subscriber:
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
    online = (folder.manifest.get("headline") or {}).get("online")
    if online and process.is_subscriber and not process.has("online.json"):
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


def _check_seconds(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield lines of statistics that differ from the records up to that time."""
    name = f"{process.place}/stats.jsonl"
    lines = process.lines("stats.jsonl")
    if n := rows.late_intents.get(process.place):
        yield differ(
            f"{process.place}/intents.rec", f"{process.place}/publications.rec",
            "reservations behind their first publication", n, 0,
        )  # fmt: skip
    if process.place not in rows.whole or not lines or "proc_id" not in lines[-1]:
        return
    yield from _check_sums(folder, process, name, lines)
    if folder.has_due_times:
        yield from _check_lateness(process, name, lines, rows)
    yield from _check_offers(process, name, lines, rows)
    yield from _check_pauses(folder, process, name, lines, rows)
    sending = [line for before, line in pairwise(lines) if line["sent"] > before["sent"]]
    is_late = bool(sending) and all(line.get("saturated") for line in sending)
    if is_late and folder.manifest.get("loadgen_saturated") is False:
        yield differ(name, MANIFEST, "loadgen_saturated", True, False)
    if any(process.path.glob("*.sqlite")):
        return  # deliveries wait in a subscriber's database before they are counted
    for column, layout in (
        ("sent", "publications"), ("acknowledged", "acks"), ("delivered", "deliveries"),
    ):  # fmt: skip
        if column != "delivered" and not process.is_publisher:
            continue
        for line in lines:
            # A row is stamped and counted in one step, in the thread that writes the line.
            least = rows.until(process.place, layout, line["t_ns"] - 1)
            most = rows.until(process.place, layout, line["t_ns"])
            if least is not None and most is not None and not least <= line[column] <= most:
                yield differ(
                    name, f"{process.place}/{layout}.rec", f"{column} up to {line['t_ns']}",
                    line[column], (least, most),
                )  # fmt: skip
                break


def _check_sums(
    folder: RunFolder, process: ProcessFolder, name: str, lines: Sequence[Line]
) -> Iterator[str]:
    """Yield lines with counts that do not add up, or with a lateness of another verdict."""
    bound = (folder.workload.get("thresholds") or {}).get("loadgen.lateness_p99")
    try:
        limit_ns = None if bound is None else parse_duration_ns(str(bound).lstrip("< "))
    except ValueError:
        limit_ns = None
    tables = process.document("publications.rec.json").get("tables") or {}
    most_fences = _FENCES * len(tables.get("publishers") or ())
    for line in lines if process.is_publisher else ():
        unanswered = line["sent"] - line["acknowledged"] - line["rejected"]
        pairs: list[tuple[str, Any, Any]] = []
        if "open" in line and "backlog" in line:
            due = unanswered + line["backlog"]
            if not due <= line["open"] <= due + most_fences:
                pairs.append(("open", line["open"], due))
        if unanswered < 0:
            pairs.append(("acknowledged", line["acknowledged"], line["sent"]))
        if "late_p99_us" in line and "late_max_us" in line:
            usual_us, largest_us = line["late_p99_us"], line["late_max_us"]
            pairs.append(("late_p99_us", max(usual_us, largest_us), largest_us))
            if limit_ns is not None and "saturated" in line:
                late_ns = 1000 * usual_us
                is_late = late_ns > limit_ns or (line["saturated"] and late_ns + 1000 > limit_ns)
                pairs.append(("saturated", line["saturated"], is_late))
        for subject, found, wanted in pairs:
            if found != wanted:
                yield differ(name, name, f"{subject} at {line['t_ns']}", found, wanted)
                return


def _check_lateness(
    process: ProcessFolder, name: str, lines: Sequence[Line], rows: Rows
) -> Iterator[str]:
    """Yield statistics with another lateness than the records, or with more time without credit.

    While a publisher has no credit, one publication at least is late by all of that time.
    """
    total_ns, most_ns = rows.late_ns.get(process.place, (0, 0))
    records = f"{process.place}/publications.rec"
    blocked = [line["blocked_us"] for line in lines if "blocked_us" in line]
    largest = [line["late_max_us"] for line in lines if "late_max_us" in line]
    if not process.is_publisher or not blocked or not largest:
        return
    if any(after < before for before, after in pairwise(blocked)):
        yield differ(name, name, "blocked_us", blocked[-1], max(blocked))
    elif 1000 * blocked[-1] > total_ns + _SLACK_NS:
        yield differ(name, records, "blocked_us", blocked[-1], total_ns // 1000)
    if not blocked[-1] and abs(max(largest) - most_ns // 1000) > 1:
        yield differ(name, records, "late_max_us", max(largest), most_ns // 1000)


def _check_offers(
    process: ProcessFolder, name: str, lines: Sequence[Line], rows: Rows
) -> Iterator[str]:
    """Yield lines with other due publications than were sent or wait.

    A fence is sent and is not due.
    """
    sent = rows.published.get(process.place, 0)
    if not process.is_publisher or sent != lines[-1].get("sent"):
        return
    others = sum(n for place, n in rows.published.items() if place != process.place)
    fences = sum(len(of.fences) for of in rows.sources.values())
    for line in lines:
        if "offered" not in line or "backlog" not in line:
            return
        delivered = line["offered"] - line["backlog"]
        is_last = line is lines[-1] and not others
        least = line["sent"] - fences
        if not least <= delivered <= (least if is_last else line["sent"]) or line.get("skipped"):
            yield differ(
                name, f"{process.place}/publications.rec", f"offered up to {line['t_ns']}",
                line["offered"], (least + line["backlog"], line["sent"] + line["backlog"]),
            )  # fmt: skip
            return


def _check_pauses(
    folder: RunFolder, process: ProcessFolder, name: str, lines: Sequence[Line], rows: Rows
) -> Iterator[str]:
    """Yield pauses of statistics within which the process wrote records."""
    layout = "publications" if process.is_publisher else "deliveries"
    begun_ns = process.document("exit.json").get("t_start_ns")
    first: list[Line] = [{"t_ns": begun_ns}] if isinstance(begun_ns, int) else []
    for before, after in pairwise([*first, *lines]):
        if after["t_ns"] - before["t_ns"] <= _LONGEST_PAUSE_NS:
            continue
        from_ns, to_ns = before["t_ns"] + _EDGE_NS, after["t_ns"] - _EDGE_NS
        counts = [rows.until(process.place, layout, ns) for ns in (from_ns, to_ns)]
        if None not in counts and counts[0] != counts[1]:
            yield doubt(
                "stats_stop", file=name, s=(after["t_ns"] - before["t_ns"]) / 1e9,
                at_s=folder.timeline.to_timeline(before["t_ns"], process.host) / 1e9,
                other=f"{process.place}/{layout}.rec",
            )  # fmt: skip
            return


def _check_life(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield processes with records outside of their life, or with an unplanned end."""
    if not process.has("exit.json"):
        return
    name, stated = f"{process.place}/exit.json", process.document("exit.json")
    if stated.get("process") != process.name:
        yield differ(name, process.place, "process", stated.get("process"), process.name)
    if folder.manifest.get("state") == "complete":
        ended = stated.get("state"), stated.get("exit_code"), stated.get("exit_signal")
        # A new agent is not the parent of the processes that it adopted: it has no exit code.
        codes = (0,) if folder.rolling_ns is None else (0, None)
        if (
            ended not in [("stopped", code, None) for code in codes]
            or stated.get("exit_cause") != "planned"
        ):
            yield differ(name, MANIFEST, "end", stated.get("exit_cause"), "complete")
    ends = rows.ends_ns.get(process.place)
    if ends is not None and (stated["t_start_ns"] > ends[0] or stated["t_exit_ns"] < ends[1]):
        yield differ(
            name,
            f"{process.place}/*.rec",
            "times",
            (stated["t_start_ns"], stated["t_exit_ns"]),
            ends,
        )
    began = folder.phase_ns("deploy")
    if began is not None and folder.is_of_processes and stated["t_start_ns"] < began[0] - _EARLY_NS:
        yield differ(name, MANIFEST, "t_start_ns", stated["t_start_ns"], began[0])
    stamps = [line["t_ns"] for line in process.lines("stats.jsonl")]
    if stamps and not stated["t_start_ns"] <= min(stamps) <= max(stamps) <= stated["t_exit_ns"]:
        yield differ(
            name, f"{process.place}/stats.jsonl", "times",
            (stated["t_start_ns"], stated["t_exit_ns"]), (min(stamps), max(stamps)),
        )  # fmt: skip
    drain = folder.phase_ns("drain")
    if drain is not None and stated["t_exit_ns"] < drain[0]:
        yield differ(name, MANIFEST, "t_exit_ns", stated["t_exit_ns"], drain[0])
    yield from _check_usage(process, name, stated.get("usage") or {})


def _check_usage(process: ProcessFolder, name: str, usage: Line) -> Iterator[str]:
    """Yield statistics with more processor time or memory than the agent found at the end."""
    lines, statistics = process.lines("stats.jsonl"), f"{process.place}/stats.jsonl"
    used_s, peak = [usage.get(key) for key in ("user_s", "system_s")], usage.get("peak_rss_bytes")
    if None not in used_s and all("cpu_ratio" in line for line in lines):
        counted_s = sum(
            after["cpu_ratio"] * (after["t_ns"] - before["t_ns"]) / 1e9
            for before, after in pairwise(lines)
        )
        wanted_s = sum(each for each in used_s if each is not None)
        if counted_s > wanted_s * _ROUGHLY + _TICK_S:
            yield differ(statistics, name, "processor time", counted_s, wanted_s)
    largest = max((line.get("rss_bytes") or 0 for line in lines), default=0)
    if peak is not None and largest > peak * _ROUGHLY:
        yield differ(statistics, name, "memory", largest, peak)


# --- The online checker ---------------------------------------------------------------------


def _check_online(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
    name, online = f"{process.place}/online.json", process.document("online.json")
    records = f"{process.place}/deliveries.rec"
    run_id = folder.manifest.get("run_id")
    if online.get("run_id", None if folder.is_witnessed else run_id) != run_id:
        yield differ(name, MANIFEST, "run_id", online.get("run_id"), run_id)
    lanes = {
        (lane["subscription"], lane["publisher"], lane["incarnation"]): lane
        for lane in online["lanes"]
    }
    if len(lanes) < len(online["lanes"]):
        yield doubt("twice", what=f"one lane of {name}")
    for total, value in online["totals"].items():
        is_of_lanes = folder.is_witnessed and total != "order_differs"
        if is_of_lanes and not all(total in lane for lane in online["lanes"]):
            yield differ(name, name, f"lanes of {total}", None, value)
        summed = sum(lane.get(total, 0) for lane in online["lanes"])
        is_more = total == "phantom" and summed < value
        if total != "order_differs" and summed != value and not is_more:
            yield differ(name, name, f"total of {total}", value, summed)
    yield from _about_sums_of_positions(folder, process, rows)
    if process.place not in rows.whole:
        return
    own = {str(line["sub_id"]) for line in process.lines("subscriptions.jsonl")} | {
        lane[0] for lane in lanes
    }
    counted = {lane: of for lane, of in rows.lanes.items() if lane[0] in own}
    for lane in sorted({*lanes} | {*counted}):
        yield from _check_lane(
            name, records, " of ".join((lane[0], f"{lane[1]}, {lane[2]}")),
            lanes.get(lane), counted.get(lane, LaneRows()),
        )  # fmt: skip


def _check_lane(
    name: str, records: str, lane: str, stated: Line | None, counted: LaneRows
) -> Iterator[str]:
    if stated is None:
        yield differ(name, records, f"deliveries to {lane}", None, counted.data + counted.fences)
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("deliveries", stated["deliveries"] + stated["fences"],
         counted.data + counted.fences + counted.again),
        ("high", stated["high"], counted.high),
    ]  # fmt: skip
    if not counted.again:
        pairs += [
            ("data", stated["deliveries"], counted.data),
            ("fences", stated["fences"], counted.fences),
        ]
    if counted.exact:
        pairs.append(("low", stated["low"], counted.low))
        if stated.get("exact") is True and not counted.again:
            pairs.append(("duplicate", stated["duplicate"], counted.repeated))
    if stated.get("exact") is not True and not counted.again:
        pairs.append(("exact", stated.get("exact"), not any(stated.get(kind) for kind in _HOLES)))
    if stated.get("exact") is True:
        pairs.append(("unsure", stated.get("unsure", 0), 0))
        first = stated["deliveries"] - sum(stated.get(kind, 0) for kind in _SUPERFLUOUS)
        if stated["incarnation"] == 1 and counted.fences == _FENCES and not counted.again:
            pairs.append(("delivered", max(stated["delivered"], first), stated["delivered"]))
    if not stated.get("announced"):
        pairs.append(("withheld", stated.get("withheld", 0), 0))
    if stated["owed"] != stated["delivered"] + stated["missing"]:
        pairs.append(("owed", stated["owed"], stated["delivered"] + stated["missing"]))
    for subject, found, wanted in pairs:
        if found != wanted or type(found) is not type(wanted):
            yield differ(name, records, f"{subject} of {lane}", found, wanted)


def findings_online(folder: RunFolder, rows: Rows | None) -> dict[str, int]:
    """Return the findings of all online checkers of a run, by kind.

    Missing publications count only if every publication of a source was acknowledged, in one
    incarnation, because an online checker expects every number.

    Args:
        rows: the counts of record files; None where only a part of them was read.
    """
    totals = dict.fromkeys((*_FINDINGS, *_ABSENT), 0)
    is_answered = rows is not None and rows.published == rows.acknowledged
    lanes = rows.lanes if rows is not None else {}
    times = Counter(source for source, _ in (rows.sources if rows is not None else ()))
    for process in folder.processes:
        found = process.document("online.json").get("totals")
        for kind in _FINDINGS:
            n = found.get(kind) if isinstance(found, dict) else None
            totals[kind] += n if isinstance(n, int) else 0
        for lane in process.document("online.json").get("lanes", ()) if is_answered else ():
            counted = lanes.get(
                (lane.get("subscription"), lane.get("publisher"), lane.get("incarnation"))
            )
            is_again = counted is not None and counted.again
            if times[lane.get("publisher")] == 1 and not is_again:
                for kind in _ABSENT:
                    totals[kind] += lane.get(kind, 0)
    return {kind: n for kind, n in totals.items() if n}


def doubts_about_findings(
    online: Mapping[str, int], violations: Mapping[str, int], order: str
) -> Iterator[str]:
    """Yield findings of the online checkers that a judge did not find in the records.

    Args:
        online: see `findings_online`.
        violations: by kind, as the judge has counted them.
        order: of the guarantee.
    """
    for kind, n in online.items():
        if not violations.get(kind) and order in _ORDERS.get(kind, (order,)):
            yield differ("online.json", "deliveries.rec", kind, n, 0)


# --- Sessions -------------------------------------------------------------------------------


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
    named = dict(rows.client_of.items())
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
    for client, lines in folder.session_lines.items():
        if client not in folder.clients:
            yield doubt("not_asked", who=f"client {client} of sessions.jsonl")
        events = [event for _, event, _ in lines]
        is_over = folder.is_of_processes and folder.manifest.get("state") == "complete"
        if is_over and events[-1] != "down" and not folder.is_foreign:
            yield differ("sessions.jsonl", MANIFEST, f"last event of {client}", "up", "down")
        if events and events[0] != "up":
            yield differ("sessions.jsonl", WORKLOAD, f"first event of {client}", events[0], "up")
    for process in folder.processes if folder.is_of_processes else ():
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
        yield from _check_numbers(process)
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
