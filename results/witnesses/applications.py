"""The databases of subscribers with own processes, and the log of crashes.

A subscriber with an own process commits every delivery to an SQLite file. The load generator reads
the commits and writes the records, so the file is a second witness of every delivery, of its place
among the others, and of the commits that a broker has confirmed. The load generator logs every kill
of a process, beside the end of the session and the fault.
"""

import shutil
import sqlite3
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from brokerd.model.fault_verbs import CRASH
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.folder import (
    FAULTS,
    WORKLOAD,
    Line,
    ProcessFolder,
    RunFolder,
    differ,
    span_of,
    stamp_of,
)
from results.witnesses.rows import LaneRows, LoggedDelivery, Rows

_LARGEST_BYTES = 1 << 28
_MOST_STEPS = 200_000
"""Limit of callbacks by SQLite for a file, one callback per thousand steps."""
_SLACK_NS = 1_000_000_000
_KILLED = "its process ended with -"
_ROWS = (
    "SELECT broker, publisher, incarnation, count(*), min(sequence), max(sequence),"
    " count(DISTINCT sequence) FROM received WHERE gap_reason IS NULL"
    " GROUP BY broker, publisher, incarnation"
)
_GAPS = (
    "SELECT broker, publisher, incarnation, sequence, gap_last, gap_reason"
    " FROM received WHERE gap_reason IS NOT NULL"
)
_LOG = (
    "SELECT place, broker, publisher, incarnation, sequence, {marked} FROM received"
    " WHERE gap_reason IS NULL ORDER BY place"
)
_TIMES = "SELECT received_ns FROM received WHERE gap_reason IS NULL ORDER BY place"
_COMMITS = "SELECT first_place, last_place FROM committed ORDER BY number"
_COLUMNS = "SELECT name FROM pragma_table_info('received')"
_STREAMS = "SELECT DISTINCT stream FROM received WHERE stream IS NOT NULL"
_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"

_Source = tuple[str, int]
_Gap = tuple[str, int, int, int, str]
_Commit = tuple[str, int, int, int, int]


@dataclass
class _DatabaseContent:
    """The content of one database.

    Attributes:
        lanes: number of rows, lowest and highest number, and number of distinct numbers, by source
            and incarnation.
        gaps: source, incarnation, first and last number and reason of the gaps.
        log: source, incarnation, number and mark of all deliveries, in order.
        received_ns: the times of these deliveries, by the clock of the load generator.
        commits: source, incarnation, first and last number of each commit, and the number of
            earlier deliveries.
    """

    lanes: dict[_Source, tuple[int, int, int, int]] = field(default_factory=dict)
    gaps: Counter[_Gap] = field(default_factory=Counter)
    streams: set[str] = field(default_factory=set)
    log: list[tuple[str, int, int, bool]] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)
    commits: list[_Commit] = field(default_factory=list)


def doubts_about_applications(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between databases or crashes, and the files of load generators."""
    if folder.is_simulated:
        return
    own = {*_list_own_processes(folder)}
    for process in folder.processes:
        if process.is_subscriber:
            yield from _check_crashes(folder, process, own)
            yield from _check_databases(folder, process, rows, own)


def _list_own_processes(folder: RunFolder) -> Iterator[str]:
    """Yield the subscribers of the workload with own processes."""
    counts: Counter[str] = Counter()
    for entry in folder.workload.get("subscribers", ()):
        places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
        for broker in (b for b in places for _ in range(entry.get("count", 1))):
            counts[broker] += 1
            if entry.get("own_process"):
                yield f"{broker}-sub-{counts[broker]}"


# --- Databases ------------------------------------------------------------------------------


def _check_databases(
    folder: RunFolder, process: ProcessFolder, rows: Rows, own: set[str]
) -> Iterator[str]:
    lines = process.lines("subscriptions.jsonl")
    streams: set[str] = set()
    for line in lines:
        client, subscription = str(line["subscriber"]), str(line["sub_id"])
        if client not in own:
            continue
        name = f"{process.place}/{client}.sqlite"
        if not process.has(f"{client}.sqlite"):
            yield doubt("missing_file", file=name, other=WORKLOAD)
            continue
        committed = _read_database(folder, name)
        if committed is None or process.place not in rows.whole:
            continue
        streams |= committed.streams
        lanes = {lane[1:]: of for lane, of in rows.lanes.items() if lane[0] == subscription}
        yield from _check_lanes(process, name, committed, lanes)
        yield from _check_log(process, name, subscription, committed, rows)
        gaps = Counter(
            (str(gap["source"]), gap["incarnation"], gap["first"], gap["last"], str(gap["reason"]))
            for gap in process.lines("gaps.jsonl")
            if gap["sub_id"] == subscription
        )
        if gaps != committed.gaps:
            yield differ(
                name, f"{process.place}/gaps.jsonl", f"gaps of {subscription}",
                sum(committed.gaps.values()), sum(gaps.values()),
            )  # fmt: skip
    tables = process.document("positions.rec.json").get("tables") or {}
    logged = {*map(str, tables.get("streams") or ())}
    if streams and process.has("positions.rec") and not streams <= logged:
        strange = sorted(streams - logged)[0]
        yield differ(
            f"{process.place}/*.sqlite", f"{process.place}/positions.rec.json", "streams", strange,
            sorted(logged)[:3],
        )  # fmt: skip


def _check_lanes(
    process: ProcessFolder,
    name: str,
    committed: _DatabaseContent,
    lanes: Mapping[_Source, LaneRows],
) -> Iterator[str]:
    records = f"{process.place}/deliveries.rec"
    for source in sorted({*committed.lanes} | {*lanes}):
        n, low, high, distinct = committed.lanes.get(source, (0, 0, 0, 0))
        of = lanes.get(source, LaneRows())
        found, wanted = [n, high], [of.data + of.fences + of.again, of.high]
        if of.exact and not of.again:
            found += [low, n - distinct]
            wanted += [of.low, of.repeated]
        if found != wanted:
            subject = f"deliveries of {source[0]}, {source[1]}"
            yield differ(name, records, subject, found, wanted)
            return


def _check_log(
    process: ProcessFolder,
    name: str,
    subscription: str,
    committed: _DatabaseContent,
    rows: Rows,
) -> Iterator[str]:
    """Yield the first delivery or commit at another place than in the database."""
    log = rows.applications.get((process.place, subscription), ())
    pairs = zip(committed.log, log, strict=False)
    for place, (wanted, logged) in enumerate(pairs):
        if wanted != (found := (logged.source, logged.incarnation, logged.sequence, logged.marked)):
            subject = f"delivery {place + 1} to {subscription}"
            yield differ(name, f"{process.place}/deliveries.rec", subject, wanted, found)
            break
    # The application stamps a delivery before the load generator reads the database.
    for place, (at_ns, logged) in enumerate(zip(committed.received_ns, log, strict=False)):
        if at_ns > logged.received_ns:
            subject = f"time of delivery {place + 1} to {subscription}"
            records = f"{process.place}/deliveries.rec"
            yield differ(name, records, subject, at_ns, logged.received_ns)
            break
    yield from _check_commits(process, subscription, log)
    places = [logged.row for logged in log]
    commits = [
        (
            str(line["source"]), line["incarnation"], line["first"], line["last"],
            bisect_left(places, line["place"]),
        )
        for line in process.lines("commits.jsonl")
        if line["sub_id"] == subscription
    ]  # fmt: skip
    if commits != committed.commits:
        differing = (
            (one, other) for one, other in zip_longest(committed.commits, commits) if one != other
        )
        yield differ(
            name, f"{process.place}/commits.jsonl", f"commits of {subscription}", *next(differing)
        )


def _check_commits(
    process: ProcessFolder, subscription: str, log: Sequence[LoggedDelivery]
) -> Iterator[str]:
    """Yield the first commit before its last delivery, or behind the next delivery.

    Load generators record deliveries and commits in the order of the database.
    """
    places = [logged.row for logged in log]
    for line in process.lines("commits.jsonl"):
        if line["sub_id"] != subscription:
            continue
        at = bisect_left(places, line["place"])
        least_ns = log[at - 1].received_ns if at else 0
        most_ns = log[at].received_ns if at < len(log) else NEVER_NS
        if not least_ns <= line["t_ns"] <= most_ns:
            yield differ(
                f"{process.place}/commits.jsonl", f"{process.place}/deliveries.rec",
                f"time of a commit of {subscription}", line["t_ns"], (least_ns, most_ns),
            )  # fmt: skip
            return


def _read_database(folder: RunFolder, name: str) -> _DatabaseContent | None:
    """Return the content of a database; None for an unreadable file, after a note."""
    path = folder.path / name
    parts = [path.with_name(path.name + end) for end in ("", "-wal")]
    if sum(part.stat().st_size for part in parts if part.is_file()) > _LARGEST_BYTES:
        folder.unreadable[name] = "it is too large"
        return None
    try:
        with tempfile.TemporaryDirectory() as place:
            # A reader of a log of writes changes the files beside a database.
            for part in parts:
                if part.is_file():
                    shutil.copyfile(part, Path(place) / part.name)
            return _read(Path(place) / path.name, folder.brokers)
    except (sqlite3.Error, OSError, ValueError, TypeError, IndexError, OverflowError) as error:
        folder.unreadable[name] = f"{type(error).__name__}: {error}"
        return None


def _read(path: Path, brokers: list[str]) -> _DatabaseContent:
    steps = iter(range(_MOST_STEPS))
    found = _DatabaseContent()
    with closing(sqlite3.connect(path)) as database:
        database.set_progress_handler(lambda: next(steps, None) is None, 1_000)
        database.execute("PRAGMA trusted_schema = OFF")
        if database.execute(_TABLE, ("received",)).fetchone() != (1,):
            return found
        for broker, publisher, incarnation, *of in database.execute(_ROWS):
            n, low, high, distinct = map(int, of)
            key = f"{brokers[broker]}/{publisher}", int(incarnation)
            found.lanes[key] = n, low, high, distinct
        for broker, publisher, incarnation, first, last, reason in database.execute(_GAPS):
            found.gaps[f"{brokers[broker]}/{publisher}", incarnation, first, last, reason] += 1
        found.streams = {str(stream) for (stream,) in database.execute(_STREAMS)}
        has_marks = ("redelivered",) in database.execute(_COLUMNS).fetchall()
        log = database.execute(_LOG.format(marked="redelivered" if has_marks else 0)).fetchall()
        found.log = [
            (f"{brokers[broker]}/{publisher}", incarnation, sequence, bool(marked))
            for _, broker, publisher, incarnation, sequence, marked in log
        ]
        found.received_ns = [int(ns) for (ns,) in database.execute(_TIMES)]
        if database.execute(_TABLE, ("committed",)).fetchone() == (1,):
            places = [row[0] for row in log]
            for first, last in database.execute(_COMMITS):
                low, high = bisect_left(places, first), bisect_right(places, last)
                found.commits += _ranges(found.log[low:high], high)
    return found


def _ranges(log: Sequence[tuple[str, int, int, bool]], earlier: int) -> Iterator[_Commit]:
    """Yield the first and the last number of each source in a part of a log."""
    ranges: dict[_Source, tuple[int, int]] = {}
    for source, incarnation, sequence, _ in log:
        of = source, incarnation
        ranges[of] = ranges.get(of, (sequence, 0))[0], sequence
    for (source, incarnation), (first, last) in ranges.items():
        yield source, incarnation, first, last, earlier


# --- Crashes --------------------------------------------------------------------------------


def _check_crashes(folder: RunFolder, process: ProcessFolder, own: set[str]) -> Iterator[str]:
    """Yield kills that are not in all three files: crashes, sessions and faults."""
    name = f"{process.place}/crashes.jsonl"
    kills = [
        (str(line["client"]), folder.timeline.to_timeline(line["t_ns"], process.host))
        for line in process.lines("crashes.jsonl")
    ]
    ended = [
        (str(line["client"]), folder.timeline.to_timeline(line["t_ns"], process.host))
        for line in process.lines("sessions.jsonl")
        if line["event"] == "down" and str(line.get("reason")).startswith(_KILLED)
    ]
    for client, at_ns in ended:
        if not any(one == client and abs(ns - at_ns) <= _SLACK_NS for one, ns in kills):
            yield differ(f"{process.place}/sessions.jsonl", name, f"kill of {client}", at_ns, None)
            return
    faults = [row for row in folder.fault_rows if row["verb"] == CRASH]
    for client, at_ns in kills:
        if client not in own or not any(_find_struck(folder, row, client, at_ns) for row in faults):
            yield differ(name, FAULTS, f"kill of {client}", at_ns, f"no {CRASH}")
            return
    for row in faults:
        clients = {client for client, _ in kills}
        is_here = any(
            line.get("client") == row["target"] for line in process.lines("sessions.jsonl")
        )
        if is_here and row.get("t_observed_ns") is not None and row["target"] not in clients:
            yield differ(FAULTS, name, f"kill of {row['target']}", row["fault_id"], None)


def _find_struck(folder: RunFolder, row: Line, client: str, at_ns: int) -> bool:
    requested_ns = stamp_of(folder, row, "requested", last=False)
    span = span_of(folder, row)
    if row["target"] != client or requested_ns is None or span is None:
        return False
    healed_ns = stamp_of(folder, row, "healed")
    until_ns = span[1] if healed_ns is None else healed_ns
    return requested_ns - _SLACK_NS <= at_ns <= until_ns + _SLACK_NS
