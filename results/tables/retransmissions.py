"""Retransmission requests between brokers: single requests, and sums.

Paper: [GD02] §4.2 (nack ranges, cumulated; consolidation).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.tables.logs import Logs
from results.tables.manifest import Run

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
