"""Retentions: how old a publication must be before a protocol may release it, and announce a gap.

The parameters of a protocol state it for each stream of a broker. A broker that changes it while it
runs logs the change. A publication may be in a gap if some retention in force between its sending
and the announcement permits it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from results.rules.terms import NEVER_NS, Gap, Promises, Retention
from results.tables.logs import Logs
from results.tables.manifest import Run

_CHANGED = "retention_changed"


def promises_with_retentions(promises: Promises, run: Run, logs: Logs) -> Promises:
    """Return promises with the changes of retention that brokers logged."""
    found = [
        Retention(
            process.name,
            line["pubend"],
            line["pubends"],
            str(line.get("reason")),
            line["gap_age_ns"],
            run.to_timeline(line["t_ns"], process.host),
            run.clock_error_ns(process.host, run.clocks.reference),
        )
        for process in logs.processes
        if process.role == "broker"
        for line in process.lines("events.jsonl")
        if line.get("event") == _CHANGED and _is_change(line)
    ]
    return replace(promises, retentions=tuple(sorted(found, key=lambda each: each.since_ns)))


def _is_change(line: Mapping[str, Any]) -> bool:
    """Return True unless a value of a logged change is impossible."""
    stream, streams, age_ns = (line.get(key) for key in ("pubend", "pubends", "gap_age_ns"))
    is_stream = type(stream) is type(streams) is int and 0 <= stream < streams
    is_age = age_ns is None or (type(age_ns) is int and age_ns >= 0)
    return is_stream and is_age and type(line.get("t_ns")) is int


def find_last_sent_ns(gap: Gap, promises: Promises, error_ns: int | None) -> int | None:
    """Return the time until which publications in a gap may be sent; None if no gap is permitted.

    Args:
        error_ns: maximum difference between the clocks of a subscription and a source; None:
            unknown.
    """
    latest: int | None = None
    for until_ns, age_ns in _list_periods(gap, promises):
        if age_ns is None:
            continue
        is_present = until_ns >= gap.received_ns
        if error_ns is None or (is_present and not age_ns):
            return NEVER_NS
        sent_ns = min(until_ns, gap.received_ns) - age_ns + error_ns
        latest = sent_ns if latest is None else max(latest, sent_ns)
    return latest


def _list_periods(gap: Gap, promises: Promises) -> Iterator[tuple[int, int | None]]:
    """Yield the end of each period until a gap, and the least age of a publication in it."""
    broker, _, number = gap.source.rpartition("/")
    publisher = int(number) if number.isdecimal() else 0
    age_ns: int | None = None
    if gap.reason in promises.gaps:
        ages_ns = promises.gap_ages_ns or (promises.gap_age_ns,)
        age_ns = ages_ns[publisher % len(ages_ns)]
    for each in promises.retentions:
        is_of_source = each.broker == broker and publisher % each.streams == each.stream
        if not is_of_source or each.reason != gap.reason:
            continue
        error_ns = NEVER_NS if each.err_ns is None else each.err_ns
        if each.since_ns - error_ns > gap.received_ns:
            break
        yield each.since_ns + error_ns, age_ns
        age_ns = each.gap_age_ns
    yield NEVER_NS, age_ns
