"""Gaps for durable state that a broker lost, with an operator's signed act that accepts the loss.

No protocol promises such gaps. They are permitted only in a run with the act in a broker's event
log, and only after the broker served again.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from results.rules.retentions import find_last_sent_ns
from results.rules.terms import STATE_LOST, Gap, Promises
from results.tables.logs import Logs
from results.tables.manifest import Run
from results.tables.row_counts import list_unanswered

_ACCEPTED = "loss_accepted"
_SIGNATURE = re.compile("[0-9a-f]{128}")


def promises_with_losses(run: Run, logs: Logs) -> Promises:
    """Return the promises of a run's protocol, with the time since which losses are accepted."""
    times = [lost_ns for _, _, lost_ns in _list_losses(run, logs)]
    return replace(run.promises, losses_from_ns=min(times, default=None))


def find_sent_again(run: Run, logs: Logs) -> dict[str, frozenset[tuple[int, int]]]:
    """Return the publications without an acknowledgement at an accepted loss of their broker.

    Their publishers send them again, and the broker gives them another place in a total order.

    Returns:
        Incarnations and numbers by source, without sources that have none.
    """
    found: dict[str, frozenset[tuple[int, int]]] = {}
    hosts = logs.hosts_of("publishers")
    for broker, place, lost_ns in _list_losses(run, logs):
        for source in (each.pubend for each in logs.sources if each.broker == broker):
            error_ns = run.clock_error_ns(hosts[source], place) or 0
            unanswered = list_unanswered(run, logs, source, lost_ns, error_ns)
            if unanswered:
                found[source] = found.get(source, frozenset()) | {*unanswered}
    return found


def _list_losses(run: Run, logs: Logs) -> list[tuple[str, str, int]]:
    """Return the accepted losses: broker, host and time."""
    return [
        (process.name, process.host, run.to_timeline(line["t_ns"], process.host))
        for process in logs.processes
        if process.role == "broker"
        for line in process.lines("events.jsonl")
        if line.get("event") == _ACCEPTED
        and type(line.get("t_ns")) is int
        and type(line.get("loss")) is int
        and _SIGNATURE.fullmatch(str(line.get("signature")))
    ]


def is_accepted(gap: Gap, promises: Promises) -> bool:
    """Return True if a gap is of a loss that an operator had accepted by then."""
    since_ns = promises.losses_from_ns
    return gap.reason == STATE_LOST and since_ns is not None and gap.received_ns >= since_ns


def is_of_absence(gap: Gap, promises: Promises) -> bool:
    """Return True if the protocol promises a gap because of an absence before it."""
    return gap.reason in promises.absence_gaps and gap.absent_until_ns is not None


def find_permitted(gaps: Iterable[Gap], promises: Promises, error_ns: int | None) -> Iterator[Gap]:
    """Yield the gaps with a promised reason, after an absence, or of an accepted loss.

    Args:
        error_ns: maximum difference between the clocks of a subscription and a source; None:
            unknown.
    """
    for gap in gaps:
        since_ns = promises.losses_from_ns
        is_explained = (
            gap.reason == STATE_LOST
            and since_ns is not None
            and (error_ns is None or gap.received_ns + error_ns >= since_ns)
        )
        is_released = find_last_sent_ns(gap, promises, error_ns) is not None
        if is_explained or is_released or is_of_absence(gap, promises):
            yield gap
