"""Counters of brokers: their names against the protocol, and each second against the records.

The counters of a core have names that tell protocols apart. A broker counts a publication before
its client can receive or acknowledge it, so no log of clients is ahead of the brokers' counts at
any second. The counts of a broker come from another process than the records.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from brokerd.errors import ConfigError
from brokerd.model.fault_verbs import KILLING_VERBS
from brokerd.protocols.registry import DEFINITIONS, core_counters, read_topology
from results.rules.terms import doubt
from results.witnesses.faults import faults_at
from results.witnesses.folder import TOPOLOGY, WORKLOAD, ProcessFolder, RunFolder
from results.witnesses.publication_counts import has_delivered_from_zero, is_from_zero
from results.witnesses.rows import Rows

_JITTER_NS = 1_000_000
"""A line of statistics is stamped within that time of its counts."""
_MALFORMED = (ConfigError, AttributeError, KeyError, TypeError, ValueError)


def doubts_about_counters(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield counters of another protocol, and records that are ahead of the brokers' counts."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    yield from _check_names(folder, brokers)
    if folder.rolling_ns is None and folder.manifest.get("state") == "complete":
        of_subscribers = _list_homes(folder, brokers, "subscriber")
        if all(has_delivered_from_zero(rows, process) for process in of_subscribers):
            yield from _check_seconds(
                folder, rows, of_subscribers, "publications_delivered", "deliveries", rows.delivered
            )
        at_home = _list_homes(folder, brokers, "publisher")
        if not is_from_zero(folder, rows, at_home):
            return
        yield from _check_seconds(
            folder, rows, at_home, "publications_received", "acks", rows.published
        )


def _list_homes(
    folder: RunFolder, brokers: Sequence[ProcessFolder], role: str
) -> list[ProcessFolder]:
    """Return all brokers of clients with a role; none if counters of a broker began anew."""
    clients = [client for client, (own, _) in folder.clients.items() if own == role]
    homes = {folder.clients[client][1] for client in clients}
    for client in clients:
        homes |= {broker for _, _, broker in folder.session_lines.get(client, ())}
    found = [process for process in brokers if process.name in homes]
    renewed = [
        row
        for process in found
        for row in faults_at(folder, process.name)
        if row["verb"] in ("restart", *KILLING_VERBS)
    ]
    return [] if renewed else found


def _check_names(folder: RunFolder, brokers: Sequence[ProcessFolder]) -> Iterator[str]:
    own = str(folder.workload.get("protocol"))
    names = _names(folder)
    known = frozenset[str]().union(*names.values())
    for process in brokers:
        lines = process.lines("stats.jsonl")[-1:]
        found = known.intersection(*lines) if lines and own in names else None
        if found is None:
            continue
        # A run of an earlier program lacks counters that were added since.
        nearest = min(
            names,
            key=lambda name: (len(found - names[name]), len(names[name] - found), name != own),
        )
        if nearest != own:
            name = f"{process.place}/stats.jsonl"
            yield doubt(
                "disagree", one=name, other=WORKLOAD, what="protocol", found=nearest, wanted=own
            )
            return


def _names(folder: RunFolder) -> Mapping[str, frozenset[str]]:
    """Return the names of the core's counters, for each protocol on the topology of a run."""
    found: dict[str, frozenset[str]] = {}
    try:
        topology = read_topology(folder.topology, TOPOLOGY)
    except _MALFORMED:
        return found
    for protocol in DEFINITIONS:
        try:
            found[protocol] = core_counters(topology, protocol)
        except _MALFORMED:
            continue
    return found


def _check_seconds(
    folder: RunFolder,
    rows: Rows,
    brokers: Sequence[ProcessFolder],
    counter: str,
    layout: str,
    totals: Mapping[str, int],
) -> Iterator[str]:
    """Yield a second at which more was logged than brokers had counted.

    Only where brokers counted all that the records have in the end.
    """
    counts = [
        [(int(line["t_ns"]), int(line.get(counter, -1))) for line in process.lines("stats.jsonl")]
        for process in brokers
    ]
    if not counts or not all(counts) or not set(totals) <= rows.whole:
        return
    if sum(of[-1][1] for of in counts) < sum(totals.values()):
        return
    hosts = {process.host for process in brokers} | {place.split("/")[1] for place in totals}
    errors = [folder.timeline.error_ns(one, other) for one in hosts for other in hosts]
    if any(error_ns != 0 for error_ns in errors):
        return
    for at_ns in sorted({at_ns for of in counts for at_ns, _ in of}):
        places = [bisect_left(of, (at_ns, -1)) for of in counts]
        most = sum(of[min(place, len(of) - 1)][1] for of, place in zip(counts, places, strict=True))
        logged = [rows.until(place, layout, at_ns - _JITTER_NS) for place in totals]
        if None in logged:
            return
        found = sum(n for n in logged if n is not None)
        if found > most:
            yield doubt(
                "disagree", one=f"{layout}.rec", other="raw/*/*/stats.jsonl",
                what=f"{counter} up to {at_ns}", found=found, wanted=most,
            )  # fmt: skip
            return
