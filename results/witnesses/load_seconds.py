"""The statistics of load processes: each second, and the whole life, against the records."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from brokerd.quantiles import quantile
from brokerd.units import parse_duration_ns
from results.rules.terms import doubt
from results.witnesses.folder import MANIFEST, Line, ProcessFolder, RunFolder, differ
from results.witnesses.rows import FENCES, Rows

_SLACK_NS = 50_000_000
_EARLY_NS = 1_000_000_000
_EDGE_NS = 2_000_000_000
"""Records so close to an end of a pause are no sign that statistics are missing."""
_LONGEST_PAUSE_NS = 4_500_000_000
"""A process that writes records writes statistics more often, once a second."""
_HUNDRED = 100
_P99 = 0.99
_STEPS = 16
"""Load generators count latenesses in so many buckets per doubling, and state the upper ends."""
_LATER_NS = 1 << 62
_ROUGHLY, _TICK_S = 1.05, 0.05
"""The kernel counts memory and processor time roughly."""


def check_seconds(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
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
        yield from _check_quantiles(process, name, lines, rows)
    yield from _check_offers(process, name, lines, rows)
    yield from _check_pauses(folder, process, name, lines, rows)
    measured, is_saturated = folder.phase_ns("measure"), folder.manifest.get("loadgen_saturated")
    if (
        measured is not None
        and is_saturated is False
        and least_quantile(lines, measured[0], "saturated")
    ):
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


def least_quantile(lines: Sequence[Line], from_ns: int, column: str) -> int:
    """Return the least possible 99th percentile of what was due from a time on.

    A line has the percentile of the publications that were offered since the line above. Lines
    about an earlier time may be about a pause of the process in the warm-up.

    Args:
        column: `late_p99_us`, or `saturated` for 1 if the percentile must be above the limit.
    """
    offers: list[tuple[int, int, int]] = []
    begun_ns = offered = 0
    for line in lines:
        if line["t_ns"] > from_ns:
            late_ns = 1000 * (line.get("late_max_us") or 0)
            n_due = line.get("offered", 0) - offered
            offers.append((int(line.get(column) or 0), n_due, begun_ns - late_ns))
        begun_ns, offered = line["t_ns"], line.get("offered", 0)
    total, n_late = sum(n_due for _, n_due, _ in offers), 0
    for value, n_due, earliest_ns in sorted(offers, reverse=True):
        n_late += n_due // _HUNDRED + 1 if n_due and earliest_ns >= from_ns else 0
        if _HUNDRED * n_late > total:
            return value
    return 0


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
    most_fences = FENCES * len(tables.get("publishers") or ())
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

    While a publisher has no credit, one publication at least is late by all of that time. Due
    publications that still wait have no record.
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
    is_complete = not blocked[-1] and not lines[-1].get("backlog")
    if is_complete and abs(max(largest) - most_ns // 1000) > 1:
        yield differ(name, records, "late_max_us", max(largest), most_ns // 1000)


def _check_quantiles(
    process: ProcessFolder, name: str, lines: Sequence[Line], rows: Rows
) -> Iterator[str]:
    """Yield a second with another lateness than the records.

    Without a wait for credit, a publisher sends a publication when offered.
    """
    before: Line = {"t_ns": 0, "blocked_us": 0, "backlog": 0}
    for line in lines if process.is_publisher else ():
        columns = ("late_p99_us", "late_max_us", "blocked_us", "backlog")
        if not all(isinstance(line.get(column), int) for column in columns):
            return
        has_waited = before["blocked_us"] != line["blocked_us"]
        has_waited |= bool(before["backlog"] or line["backlog"])
        from_ns, to_ns = before["t_ns"], line["t_ns"]
        before = line
        if has_waited:
            continue
        # A row with the stamp of a line may be counted in either second.
        bounds = [
            _stated_us(_select_late(rows, process.place, "sent_ns", first_ns, last_ns))
            for first_ns in (from_ns - 1, from_ns)
            for last_ns in (to_ns - 1, to_ns)
        ]
        for column, place in (("late_p99_us", 0), ("late_max_us", 1)):
            if not any(of[place][0] <= line[column] <= of[place][1] for of in bounds):
                yield differ(
                    name, f"{process.place}/publications.rec", f"{column} at {to_ns}",
                    line[column], bounds[-1][place],
                )  # fmt: skip
                return


def _select_late(rows: Rows, place: str, column: str, after_ns: int, to_ns: int) -> list[int]:
    """Return the ascending lateness of publications with a stamp in a time."""
    stamps, late_ns = rows.lateness_ns.get((place, column), ((), ()))
    first, end = bisect_right(stamps, after_ns), bisect_right(stamps, to_ns)
    return sorted(map(int, late_ns[first:end]))


def _stated_us(late_ns: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bounds of the 99th percentile and of the maximum that statistics may state."""
    if not late_ns:
        return (0, 0), (0, 0)
    usual_ns, most_us = quantile(late_ns, _P99), late_ns[-1] // 1000
    highest_us = min((usual_ns + usual_ns // _STEPS + 1) // 1000, most_us)
    return (usual_ns // 1000, highest_us), (most_us, most_us)


def lateness_bounds_us(
    process: ProcessFolder, lines: Sequence[Line], rows: Rows, from_ns: int
) -> tuple[float, float] | None:
    """Return the bounds of the 99th percentile of lateness from a time on, by the records.

    A publication without credit is offered before the sending, so the lateness of sending is an
    upper bound. Returns None if due publications were never sent.
    """
    late_ns = _select_late(rows, process.place, "intended_ns", from_ns - 1, _LATER_NS)
    if process.place not in rows.whole or not late_ns or not lines or lines[-1].get("backlog"):
        return None
    usual_ns = quantile(late_ns, _P99)
    has_waited = lines[-1].get("blocked_us") != 0
    return 0.0 if has_waited else usual_ns / 1000, (usual_ns + usual_ns // _STEPS + 1) / 1000


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


def check_life(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
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
