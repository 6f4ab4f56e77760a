"""The tables with few rows, made from the small files of a run without Spark.

Paper: [GD02] §4.2 (nack ranges, cumulated; consolidation).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow as pa

from brokerd.units import SECOND_NS
from results.rules.risks import Tree
from results.tables.json_files import IntegrityError, read_json
from results.tables.logs import Logs, Process, notices_of
from results.tables.manifest import Run
from results.tables.schema import TABLES, Table

Row = Mapping[str, Any]

_EVENT = "retransmission_requested"


def request_rows(run: Run, logs: Logs) -> list[dict[str, Any]]:
    """Return the requests of all brokers in order of time, cumulated per broker.

    A broker without the start of a stream requests the stream from tick 0 on. A request therefore
    counts at most for the time since the run began.
    """
    names = run.topology["brokers"]
    began_ns = min((phase.from_ns for phase in run.phases), default=0)
    found: list[dict[str, Any]] = [
        {
            "t_ns": run.to_timeline(line["t_ns"], process.host),
            "broker": process.name,
            "peer": names[line["peer"]],
            "pubend": f"{names[line['source']]}/{line['stream']}",
            "ranges": line["ranges"],
            "asked_ns": line["asked_ns"],
        }
        for process in logs.processes
        if process.role == "broker"
        for line in process.lines("events.jsonl")
        if line.get("event") == _EVENT
    ]
    found.sort(key=lambda row: (row["t_ns"], row["broker"]))
    so_far: Counter[str] = Counter()
    for row in found:
        row["asked_ns"] = max(0, min(row["asked_ns"], row["t_ns"] - began_ns))
        so_far[row["broker"]] += row["asked_ns"]
        row["cumulated_ns"] = so_far[row["broker"]]
    return found


def total_rows(requests: Sequence[Row], brokers: Sequence[str]) -> Iterator[Row]:
    """Yield the requests of each broker, and the requests to it from others, in ns of ticks."""
    by_it: Counter[str] = Counter()
    of_it: Counter[str] = Counter()
    for row in requests:
        by_it[row["broker"]] += row["asked_ns"]
        of_it[row["peer"]] += row["asked_ns"]
    counts = Counter(row["broker"] for row in requests)
    for broker in brokers:
        requested_of_it = of_it[broker]
        yield {
            "broker": broker,
            "asked_ns": by_it[broker],
            "requests": counts[broker],
            "asked_of_it_ns": requested_of_it,
            "consolidation_ratio": by_it[broker] / requested_of_it if requested_of_it else None,
        }


# Counters of brokers that have columns of their own; all others stay a map.
_BROKER_COLUMNS = {
    "publications_received": "msgs_in",
    "queue_publications": "queue_msgs",
    "sessions_active": "sessions_active",
    "subscriptions": "subs",
    "rss_bytes": "rss_bytes",
}


_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, pa.ArrowException)
"""The exceptions from values of files that are of another kind, or beyond their column."""


def small_tables(run: Run, logs: Logs) -> dict[str, pa.Table]:
    """Return every table without a row per message, by name.

    Raises:
        IntegrityError: a line of a log does not fit into its table.
    """
    try:
        return _small_tables(run, logs)
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {error}"
        raise IntegrityError(f"{run.folder} does not hold what a run does: {reason}") from error


def _small_tables(run: Run, logs: Logs) -> dict[str, pa.Table]:
    requests = request_rows(run, logs)
    rows: dict[str, list[Any]] = {
        "runs": [_run_row(run)],
        "hosts": [*_host_rows(run, logs)],
        "procs": [*_process_rows(run, logs)],
        "topology_nodes": [*_node_rows(run)],
        "topology_edges": [
            {"a": a, "b": b, "kind": run.overlay.get("kind", "primary")} for a, b in run.links
        ],
        "clock": [{**asdict(row), "t_ns": row.t_ns - run.origin_ns} for row in run.clocks.rows],
        "phases": [
            {"phase": p.name, "t0_ns": p.from_ns, "t1_ns": p.to_ns, "how": "fixed"}
            for p in run.phases
        ],
        "subscriptions": [*_subscription_rows(logs)],
        "notices": [*_notice_rows(run, logs)],
        **({} if [*logs.files("positions")] else {"positions": []}),
        "sessions": [*_session_rows(run, logs)],
        "broker_stats": [*_broker_stat_rows(run, logs)],
        "loadgen_stats": [*_loadgen_stat_rows(run, logs)],
        "links": [*_link_rows(run, logs)],
        "retransmission_requests": requests,
        "retransmission_totals": [*total_rows(requests, run.topology["brokers"])],
        "faults": [{**row, "params": _texts(row.get("params"))} for row in run.fault_rows],
    }
    return {
        name: arrow_table(TABLES[name], run.run_id, of_table) for name, of_table in rows.items()
    }


def arrow_table(table: Table, run_id: str, rows: list[Any]) -> pa.Table:
    """Return rows as a table of ours; a missing column is null."""
    schema = table.arrow_schema()
    columns = {name: [row.get(name) for row in rows] for name in table.names}
    columns["run_id"] = [run_id] * len(rows)
    arrays = [pa.array(columns[field.name], field.type, from_pandas=False) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _texts(values: Any) -> dict[str, str]:
    """Return a map of texts from the values of a JSON object."""
    return {str(name): _text(value) for name, value in (values or {}).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower() if value is True else f"{value}"


def _notice_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for (sub_id, pubend), notices in notices_of(logs, run.to_timeline).items():
        for notice in notices:
            yield {
                "sub_id": sub_id,
                "pubend": pubend,
                "incarnation": notice.incarnation,
                "first_seq": notice.first,
                "last_seq": notice.last,
                "partition": str(notice.partition),
                "order_idx": notice.place,
                "t_ns": notice.received_ns,
            }


def _run_row(run: Run) -> Row:
    manifest = run.manifest
    workload = run.workload
    return {
        "experiment": manifest.get("experiment"),
        "started_utc": _moment(manifest.get("started_utc")),
        "ended_utc": _moment(manifest.get("ended_utc")),
        "state": manifest["state"],
        "protocol": run.protocol,
        "topology": run.topology.get("name"),
        "git_commit": manifest.get("git_commit"),
        "git_dirty": manifest.get("git_dirty"),
        "tool_version": manifest.get("tool_version"),
        "seed": workload.get("seed"),
        "labels": _texts(manifest.get("labels")),
        "params": _texts(_flat(workload)),
    }


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names; entries of lists are counted from 0."""
    if isinstance(values, Mapping):
        items: Any = values.items()
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        items = enumerate(values)
    else:
        return {path: values}
    found: dict[str, Any] = {}
    for name, value in items:
        found |= _flat(value, f"{path}.{name}" if path else str(name))
    return found


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _host_rows(run: Run, logs: Logs) -> Iterator[Row]:
    manifest = run.manifest
    clock = manifest.get("clock") or {}
    boots = {host: found.partition("/")[0] for host, found in clock.get("clock_ids", {}).items()}
    for host in sorted({process.host for process in logs.processes}):
        yield {
            "host_id": host,
            "platform": manifest.get("platform"),
            "cpu_model": manifest.get("cpu"),
            "cores_logical": manifest.get("cores"),
            "python": manifest.get("python"),
            "boot_id": boots.get(host, clock.get("boot_id")),
        }


def _process_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for process in logs.processes:
        path = process.folder / "exit.json"
        document = read_json(path) if path.is_file() else {}
        yield {
            "proc_id": process.name,
            "role": process.role,
            "host_id": process.host,
            "pid": document.get("pid"),
            "t_start_ns": _to_timeline(run, document.get("t_start_ns"), process.host),
            "t_exit_ns": _to_timeline(run, document.get("t_exit_ns"), process.host),
            "exit_code": document.get("exit_code"),
            "exit_signal": document.get("exit_signal"),
            "exit_cause": document.get("exit_cause"),
        }


def _to_timeline(run: Run, stamp: Any, host: str) -> int | None:
    return run.to_timeline(stamp, host) if isinstance(stamp, int) and stamp else None


def _node_rows(run: Run) -> Iterator[Row]:
    brokers = run.topology["brokers"]
    if run.overlay:
        yield from ({"broker": b, "neighbourhood": run.overlay["known"][b]} for b in brokers)
        return
    delta = run.delta or 0
    tree = Tree(run.links)
    for broker in brokers:
        path = tree.path(broker, brokers[0])
        yield {
            "broker": broker,
            "parent": path[1] if len(path) > 1 else None,
            "depth": len(path) - 1,
            "delta": delta,
            "neighbourhood": [
                other for other in brokers if 1 < len(tree.path(broker, other)) <= delta + 2
            ],
        }


def _subscription_rows(logs: Logs) -> Iterator[Row]:
    for subscription in logs.subscriptions:
        yield {
            "sub_id": subscription.sub_id,
            "subscriber": subscription.subscriber,
            "broker": subscription.broker,
            "predicate": subscription.predicate,
            "t_issued_ns": subscription.issued_ns,
            "t_accepted_ns": subscription.accepted_ns,
            "log_closed": subscription.closed,
        }


def _session_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for process in logs.processes:
        open_sessions: dict[Any, dict[str, Any]] = {}
        for line in process.lines("sessions.jsonl"):
            session = line["client"], line["session"]
            if line["event"] == "up":
                open_sessions[session] = {
                    "client": line["client"],
                    "broker": line["broker"],
                    "session": line["session"],
                    "t_connect_ns": _time_of(run, line, process),
                }
            elif session in open_sessions:
                ended = {
                    "t_disconnect_ns": _time_of(run, line, process),
                    "reason": line["reason"],
                }
                yield {**open_sessions.pop(session), **ended}
        yield from open_sessions.values()


def _broker_stat_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for process in _brokers(logs):
        before: tuple[int, float] | None = None
        for line in process.lines("stats.jsonl"):
            numbers = {
                name: value
                for name, value in line.items()
                if isinstance(value, int) and not isinstance(value, bool) and name != "t_ns"
            }
            row = {_BROKER_COLUMNS[n]: numbers.pop(n) for n in _BROKER_COLUMNS if n in numbers}
            forwarded = numbers.pop("publications_forwarded", 0)
            yield {
                **row,
                "t_ns": _time_of(run, line, process),
                "broker": process.name,
                "cpu_ratio": _cpu_ratio(before, line),
                "msgs_out": forwarded + numbers.pop("publications_delivered", 0),
                "counters": numbers,
            }
            if isinstance(line.get("cpu_s"), int | float):
                before = line["t_ns"], line["cpu_s"]


def _cpu_ratio(before: tuple[int, float] | None, line: Row) -> float | None:
    """Return the processor time since the last row, per elapsed time.

    None for a process's first row or after a restart.
    """
    if before is None or not isinstance(line.get("cpu_s"), int | float):
        return None
    elapsed_ns, used_s = line["t_ns"] - before[0], line["cpu_s"] - before[1]
    return used_s * SECOND_NS / elapsed_ns if elapsed_ns > 0 and used_s >= 0 else None


def _loadgen_stat_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for process in logs.processes:
        if process.role == "broker":
            continue
        before: tuple[int, float] | None = None
        for line in process.lines("stats.jsonl"):
            yield {
                "t_ns": _time_of(run, line, process),
                "proc_id": process.name,
                "offered": line.get("offered"),
                "sent": line.get("sent"),
                "late_p99_us": line.get("late_p99_us"),
                "cpu_ratio": line.get("cpu_ratio", _cpu_ratio(before, line)),
                "saturated": bool(line.get("saturated")),
            }
            if isinstance(line.get("cpu_s"), int | float):
                before = line["t_ns"], line["cpu_s"]


_LINK_EVENTS = {"session_established": "up", "session_lost": "down", "link_cut": "cut"}


def _link_rows(run: Run, logs: Logs) -> Iterator[Row]:
    for process in _brokers(logs):
        for line in process.lines("events.jsonl"):
            event = _LINK_EVENTS.get(str(line.get("event")))
            peer = line.get("peer")
            if event is not None and peer in run.topology["brokers"]:
                yield {
                    "t_ns": _time_of(run, line, process),
                    "a": process.name,
                    "b": peer,
                    "event": event,
                    "cause": line.get("reason"),
                }


def _time_of(run: Run, line: Row, process: Process) -> int:
    """Return the time of a line on the run's time line; raise TypeError without a time."""
    at_ns = _to_timeline(run, line["t_ns"], process.host)
    if at_ns is None:
        raise TypeError(f"t_ns = {line['t_ns']!r} in a log of {process.name}")
    return at_ns


def _brokers(logs: Logs) -> list[Process]:
    return [process for process in logs.processes if process.role == "broker"]
