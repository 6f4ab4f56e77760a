"""Deliveries and acknowledgements that passed a broker while the broker was down.

A killed, frozen or cut-off broker does nothing. No publication that was both sent and received in
that time can have reached the broker's clients, or have left them, or have been acknowledged.
Between other brokers, the protocol's own definition says which publications surely arrive in an
outage (`reaches`), and the routes of the overlay say which may; only those of neither cannot, so a
protocol that goes around a broker is not accused of it. Publications that were sent before are not
looked at: they may have waited in a socket."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from brokerd.model.fault_verbs import (
    KILLING_VERBS,
    MACHINE_VERBS,
    ROAM,
    SEVERING_VERBS,
    STANDING_VERBS,
)
from brokerd.overlay.outage import Outage
from brokerd.protocols.definition import find_reached_over_routes
from brokerd.protocols.registry import RunningProtocol
from results.rules.terms import NEVER_NS, doubt
from results.witnesses.brokers import replacements
from results.witnesses.folder import FAULTS, Line, RunFolder, span_of, stamp_of
from results.witnesses.promises import read_running_protocol
from results.witnesses.rows import Blockage, Rows

_STOPS = (*KILLING_VERBS, *STANDING_VERBS)
_SLACK_NS = 20_000_000
"""Effects of a fault are seen a moment after the agent has stamped it."""
_MOST_SEPARATE = 400
_LONGEST_PAUSE_NS = 2_500_000_000
"""Brokers write statistics once a second; on a busy machine, all processes write them later."""
_PERIOD_NS = 1_000_000_000
_LATE_NS = 200_000_000
"""The delay of a line of statistics by a broker that works."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A fault, with the time at which the fault certainly held.

    Attributes:
        down: brokers that did nothing.
        cut: pairs of brokers without a session.
    """

    fault_id: str
    from_ns: int
    to_ns: int
    down: frozenset[str]
    cut: frozenset[tuple[str, str]]


def doubts_about_passage(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield deliveries and acknowledgements that passed a broker that was down."""
    blockages = [*_blockages(folder, rows)]
    guarantee = folder.workload.get("guarantee") or {}
    # A client of a foreign server acknowledges by itself what the server may lose.
    is_answered = not folder.is_foreign or guarantee.get("delivery") != "at-most-once"
    for blockage, (passed, answered) in zip(blockages, rows.breaches(blockages), strict=True):
        if passed:
            yield doubt("passed_outage", n=passed, file=FAULTS, why=blockage.why)
        if answered and is_answered:
            yield doubt("answered_outage", n=answered, file=FAULTS, why=blockage.why)


def doubts_about_pauses(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield brokers without statistics in a time in which publications passed them.

    Only where all other processes wrote statistics meanwhile.
    """
    if not folder.is_of_processes or folder.is_foreign:
        return
    spans = [span for row in folder.fault_rows if (span := span_of(folder, row)) is not None]
    stamps = {
        process.place: [
            folder.timeline.to_timeline(line["t_ns"], process.host)
            for line in process.lines("stats.jsonl")
        ]
        for process in folder.processes
    }
    pauses = [
        (from_ns, to_ns, process)
        for process in folder.processes
        if process.name in folder.brokers and not replacements(folder, process)
        for from_ns, to_ns in pairwise(stamps[process.place])
        if to_ns - from_ns > _LONGEST_PAUSE_NS
        and not any(begun_ns <= to_ns and ended_ns >= from_ns for begun_ns, ended_ns in spans)
        and all(
            _longest_ns(of, from_ns, to_ns) < _LONGEST_PAUSE_NS / 2
            for place, of in stamps.items()
            if place != process.place
        )
    ]
    hosts = sorted({process.host for process in folder.processes})
    errors = [folder.timeline.error_ns(hosts[0], host) for host in hosts]
    if not pauses or None in errors:
        return
    error_ns = 2 * max(error for error in errors if error is not None) + _LATE_NS
    broker_of, running = _homes(folder, rows), read_running_protocol(folder)
    pauses = [each for each in pauses if each[1] - each[0] > _PERIOD_NS + 2 * error_ns]
    blockages = [
        Blockage(
            from_ns + _PERIOD_NS + error_ns,
            to_ns - error_ns,
            process.name,
            frozenset(name for name, broker in broker_of.items() if broker == process.name),
            is_separating(running, frozenset((process.name,)), frozenset(), broker_of),
        )
        for from_ns, to_ns, process in pauses
    ]
    for (from_ns, to_ns, process), counts in zip(pauses, rows.breaches(blockages), strict=True):
        if any(counts):
            yield doubt(
                "stats_stop", file=f"{process.place}/stats.jsonl", s=(to_ns - from_ns) / 1e9,
                at_s=from_ns / 1e9, other="deliveries.rec and acks.rec",
            )  # fmt: skip


def _longest_ns(stamps: Sequence[int], from_ns: int, to_ns: int) -> int:
    """Return the longest time without a stamp within a time."""
    within = [ns for ns in stamps if from_ns < ns < to_ns]
    return max(after - before for before, after in pairwise([from_ns, *within, to_ns]))


def _blockages(folder: RunFolder, rows: Rows) -> Iterator[Blockage]:
    spans = [*_spans(folder)]
    broker_of = _homes(folder, rows)
    running = read_running_protocol(folder)
    edges = sorted({ns for span in spans for ns in (span.from_ns, span.to_ns)})
    for from_ns, to_ns in pairwise(edges):
        held = [span for span in spans if span.from_ns <= from_ns and span.to_ns >= to_ns]
        if not held or to_ns - from_ns <= 2 * _SLACK_NS:
            continue
        down = frozenset[str]().union(*(span.down for span in held))
        cut = frozenset[tuple[str, str]]().union(*(span.cut for span in held))
        why = ", ".join(sorted(span.fault_id for span in held))
        yield Blockage(
            from_ns + _SLACK_NS,
            to_ns - _SLACK_NS,
            why,
            frozenset(name for name, broker in broker_of.items() if broker in down),
            is_separating(running, down, cut, broker_of),
        )
    yield from _absences(folder)


def _absences(folder: RunFolder) -> Iterator[Blockage]:
    """Subscribers that the workload or a fault kept without a session."""
    for row in folder.fault_rows:
        span = span_of(folder, row) if row["verb"] == "client-disconnect" else None
        if span is not None:
            yield _find_absent(str(row["target"]), *span, str(row["fault_id"]))
    for process in folder.processes:
        for line in process.lines("absences.jsonl"):
            left_ns, back_ns = (
                folder.timeline.to_timeline(line[name], process.host)
                for name in ("t_left_ns", "t_back_ns")
            )
            client = str(line["subscriber"])
            yield _find_absent(client, left_ns, back_ns, f"absence of {client} in absences.jsonl")


def _find_absent(client: str, from_ns: int, to_ns: int, why: str) -> Blockage:
    return Blockage(
        from_ns + _SLACK_NS, to_ns - _SLACK_NS, why, frozenset(),
        lambda source, subscription: subscription.partition("/")[0] == client,
    )  # fmt: skip


def _homes(folder: RunFolder, rows: Rows) -> Mapping[str, str]:
    """Return the broker of each source and subscription that never had another broker."""
    brokers: dict[str, set[str]] = {name: {broker} for name, (_, broker) in folder.clients.items()}
    for client, lines in folder.session_lines.items():
        brokers.setdefault(client, set()).update(broker for _, _, broker in lines)
    for row in folder.fault_rows:
        if row["verb"] == ROAM:
            brokers.setdefault(str(row["target"]), set()).add("elsewhere")
    for key in ("publishers", "subscribers"):
        for entry in folder.workload.get(key, ()):
            if entry.get("failover") and not folder.session_lines:
                return {}
    named = dict(rows.client_of.items())
    named |= {lane[0]: lane[0].partition("/")[0] for lane in rows.lanes}
    return {
        name: next(iter(brokers[client]))
        for name, client in named.items()
        if len(brokers.get(client, ())) == 1
    }


def is_separating(
    running: RunningProtocol | None,
    down: frozenset[str],
    cut: frozenset[tuple[str, str]],
    broker_of: Mapping[str, str],
) -> Callable[[str, str], bool]:
    """Return True if no publication of a source reaches a subscription in an outage.

    Args:
        broker_of: the broker of every source and subscription.
    """
    reached: Mapping[str, frozenset[str]] | None = None
    if running is not None and len(running.topology.brokers) <= _MOST_SEPARATE:
        number = running.topology.number_of
        names = running.topology.brokers
        outage = Outage(
            down=frozenset(number(name) for name in down if name in names),
            cut=frozenset(
                (min(pair), max(pair))
                for pair in ((number(a), number(b)) for a, b in cut if {a, b} <= {*names})
            ),
        )
        surely = running.find_reached(outage)
        perhaps = find_reached_over_routes(running.topology, None, outage)
        reached = {
            names[home]: frozenset(
                names[origin] for origin in {*surely.get(home, ()), *perhaps.get(home, ())}
            )
            for home in {*surely, *perhaps}
        }

    def separates(source: str, subscription: str) -> bool:
        origin, home = broker_of.get(source), broker_of.get(subscription)
        if origin is None or home is None:
            return False
        if {origin, home} & down:
            return True
        return reached is not None and origin not in reached.get(home, ())

    return separates


def _spans(folder: RunFolder) -> Iterator[_Span]:
    rows = folder.fault_rows
    host_of = {
        str(row["broker"]): str(row["host"])
        for row in folder.document("spec/placement.json").get("brokers", ())
    }
    brokers = folder.brokers
    for row in rows:
        verb, target = str(row["verb"]), str(row["target"])
        span = span_of(folder, row)
        error_ns = _error_ns(folder, row)
        if span is None or error_ns is None or verb not in (*_STOPS, *SEVERING_VERBS):
            continue
        from_ns, to_ns = span
        down: frozenset[str] = frozenset()
        cut: frozenset[tuple[str, str]] = frozenset()
        if verb in MACHINE_VERBS:
            down = frozenset(broker for broker in brokers if host_of.get(broker) == target)
        elif verb in _STOPS:
            down = frozenset((target,))
        elif folder.is_foreign:
            down = frozenset((target,)) if verb != "blackhole" else frozenset()
        else:
            cut = frozenset(_pairs(verb, target, brokers, folder))
        if verb in KILLING_VERBS:
            to_ns = min([to_ns, *_restarts(folder, down, from_ns)])
        if verb in STANDING_VERBS:
            # A kill takes over a frozen broker, and ends what a thaw would have.
            to_ns = min([to_ns, *_restarts(folder, down, from_ns)])
        to_ns = min(to_ns, _end_ns(folder))
        if (down or cut) and from_ns + error_ns < to_ns - error_ns:
            yield _Span(str(row["fault_id"]), from_ns + error_ns, to_ns - error_ns, down, cut)


def _restarts(folder: RunFolder, down: frozenset[str], after_ns: int) -> Iterator[int]:
    for row in folder.fault_rows:
        if row["verb"] == "restart" and row["target"] in down:
            at = [stamp_of(folder, row, stage, last=False) for stage in ("requested", "applied")]
            yield from (ns for ns in at if ns is not None and ns >= after_ns)


def _end_ns(folder: RunFolder) -> int:
    drain = folder.phase_ns("drain")
    return NEVER_NS if drain is None else drain[1] - folder.origin_ns


def _pairs(
    verb: str, target: str, brokers: list[str], folder: RunFolder
) -> Iterator[tuple[str, str]]:
    if verb == "partition":
        sets = [part.split(",") for part in target.split("|")]
        if len(sets) == 1:
            sets.append([broker for broker in brokers if broker not in sets[0]])
        for place, one in enumerate(sets):
            for other in sets[place + 1 :]:
                yield from ((a, b) for a in one for b in other)
    elif target in brokers:
        return  # its clients and sessions that are made anew are not all known
    else:
        for a, b in folder.topology.get("links", ()):
            if target in (f"{a}-{b}", f"{b}-{a}"):
                yield a, b


def _error_ns(folder: RunFolder, row: Line) -> int | None:
    hosts = {host for stamps in (row.get("host_stamps") or {}).values() for host in stamps}
    loads = {process.host for process in folder.processes if process.is_load}
    errors = [folder.timeline.error_ns(a, b) for a in hosts for b in loads]
    errors += [folder.timeline.error_ns(a, b) for a in loads for b in loads]
    if any(error is None for error in errors):
        return None
    return max((error for error in errors if error is not None), default=0)
