"""Publications that brokers counted, against the records of load generators.

Brokers count received and delivered publications in statistics. Clients log every publication.
The counts of a killed process end with the last statistics.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from brokerd.model.fault_verbs import KILLING_VERBS, STANDING_VERBS
from brokerd.protocols.registry import DEFINITIONS
from results.rules.terms import NEVER_NS, STATE_LOST, doubt
from results.witnesses.broker_events import LAST_NS, SLACK_NS
from results.witnesses.brokers import replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import TOPOLOGY, Line, ProcessFolder, RunFolder, stamp_of
from results.witnesses.rows import Rows

_COUNT_EACH_HOP = ("hierarchy", "tree")
"""Kinds of overlays with counts of publications from other brokers."""
_REPEATS = "bipartite"
"""The kind of overlay in which puts are repeated, and counted again, if a server is slow.

So are publications for a storage with a slow disk."""
_SLOW_US = 100_000
"""The slowest acknowledgement of a run without repetitions; by default, brokers wait 250 ms."""
_COUNTS_CLIENTS = "cells"
"""The kind of overlay with counts of publications from clients only."""
_OF_STORAGES = "messages_carried"
"""A counter of protocols with storages."""
_ONE_SESSION = 2
"""Lines of a client with one session."""


def check_received(
    folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield acknowledged publications that no broker received.

    The counts of a killed process end with the last statistics. Publications from then to the kill
    may have been received and not counted.
    """
    if folder.manifest.get("state") != "complete":
        return
    lives = {process.name: [*_lives(folder, process)] for process in brokers}
    if not all(lives.values()):
        return
    counted = {
        name: sum(max(_count_received(line) for line in lines) for lines, _, _ in of)
        for name, of in lives.items()
    }
    removed = {
        name: sum(_count_published(rows, from_ns, to_ns) for _, from_ns, to_ns in of)
        for name, of in lives.items()
    }
    wanted = sum(rows.acknowledged.values()) - sum(removed.values())
    if sum(counted.values()) < wanted:
        yield doubt(
            "disagree", one="raw/*/*/stats.jsonl", other="acks.rec", what="publications received",
            found=sum(counted.values()), wanted=wanted,
        )  # fmt: skip
    stores = _stores(folder)
    homes = _highest_of_homes(folder, rows)
    unanswered = sum(rows.published.values()) - sum(rows.acknowledged.values())
    for process in brokers:
        found, least = (
            counted[process.name],
            homes[process.name] - unanswered - removed[process.name],
        )
        if stores is not None:
            if found and process.name not in stores:
                yield doubt(
                    "disagree", one=f"{process.place}/stats.jsonl", other=TOPOLOGY,
                    what=f"publications received by {process.name}", found=found, wanted=0,
                )  # fmt: skip
            continue
        most = _most_at_home(folder, rows, process, homes[process.name])
        if found < least or (most is not None and found > most):
            yield doubt(
                "disagree", one=f"{process.place}/stats.jsonl", other="acks.rec",
                what=f"publications received by {process.name}", found=found,
                wanted=least if found < least else most,
            )  # fmt: skip


def _stores(folder: RunFolder) -> frozenset[str] | None:
    """Return the brokers with counts of publications, if homes have none; None otherwise.

    In a bipartite overlay servers count publications, in a hierarchy with storages the storages.
    With changes of roles during the run, all brokers may count.
    """
    definition = DEFINITIONS.get(str(folder.workload.get("protocol")))
    topology = folder.topology
    if definition is None or folder.joined:
        return frozenset(folder.brokers)
    if definition.kind == "bipartite":
        return frozenset(map(str, (topology.get("bipartite") or {}).get("servers", ())))
    if _is_storing(folder):
        section = topology.get("hierarchy") or {}
        overrides = folder.document("spec/cli.json").get("overrides") or {}
        is_fixed = not section.get("changes") and not overrides.get("roles")
        return frozenset(map(str, section.get("storages", ()) if is_fixed else folder.brokers))
    return None


def _is_storing(folder: RunFolder) -> bool:
    """Return True if storages count publications, by the counters of brokers."""
    return folder.overlay_kind == "hierarchy" and any(
        _OF_STORAGES in line
        for process in folder.processes
        if process.name in folder.brokers
        for line in process.lines("stats.jsonl")[-1:]
    )


def _most_at_home(
    folder: RunFolder, rows: Rows, process: ProcessFolder, published: int
) -> int | None:
    """Return the largest possible count of a broker; None if clients or brokers sent again."""
    is_disturbed = faults_at(folder, process.name) or replacements(folder, process)
    if folder.overlay_kind != _COUNTS_CLIENTS or is_disturbed:
        return None
    if rows.published != rows.acknowledged or folder.joined:
        return None
    if any(len(lines) != _ONE_SESSION for lines in _publishing(folder)):
        return None
    return published if is_from_zero(folder, rows, [process]) else None


def _publishing(folder: RunFolder) -> Iterator[Sequence[tuple[int, str, str]]]:
    for client, lines in folder.session_lines.items():
        if folder.clients.get(client, ("", ""))[0] == "publisher":
            yield lines


def is_from_zero(folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]) -> bool:
    """Return True if the first counts of brokers have no publications of an earlier run.

    Brokers of a kept deployment continue to count. Clients of an earlier run ended sessions.
    """
    for process in brokers:
        first = process.lines("stats.jsonl")[:1]
        if not first:
            return False
        if first[0].get("sessions_lost") == 0:
            continue
        at_ns = folder.timeline.to_timeline(first[0]["t_ns"], process.host) + folder.origin_ns
        sent = [rows.until(place, "publications", at_ns) for place in rows.published]
        if None in sent or _count_received(first[0]) > sum(n for n in sent if n is not None):
            return False
    return True


def check_totals(folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]) -> Iterator[str]:
    """Yield counts of received publications that differ from counts of sent publications.

    In a run without faults a publication is received from the publisher once. Some protocols also
    count receipts from forwarding brokers, or repeated ones.
    """
    if folder.fault_rows or folder.rolling_ns is not None or rows.published != rows.acknowledged:
        return
    if any(len(lines) != _ONE_SESSION for lines in folder.session_lines.values()):
        return
    last = [process.lines("stats.jsonl")[-1:] for process in brokers]
    if not all(last) or not is_from_zero(folder, rows, brokers):
        return
    received, forwarded = (
        sum(int(line.get(name) or 0) for lines in last for line in lines)
        for name in ("publications_received", "publications_forwarded")
    )
    is_each_hop = folder.overlay_kind in _COUNT_EACH_HOP and not _is_storing(folder)
    wanted = sum(rows.published.values()) + (forwarded if is_each_hop else 0)
    # A publication that was forwarded on a session that ended may never have arrived there.
    is_cut = is_each_hop and any(
        line.get("broker_sessions_lost") for lines in last for line in lines
    )
    least = sum(rows.published.values())
    if not is_cut:
        least = wanted
    # A protocol that promises each delivery has sent it again.
    elif DEFINITIONS[str(folder.workload.get("protocol"))].promises.exactly_once:
        again = sum(int(line.get("resent_publications") or 0) for lines in last for line in lines)
        least = max(least, wanted - again)
    is_repeating = folder.overlay_kind == _REPEATS or (_is_storing(folder) and _is_slow(rows))
    if received < least or (received > wanted and not is_repeating):
        yield doubt(
            "disagree", one="raw/*/*/stats.jsonl", other="publications.rec",
            what="publications received by all brokers", found=received, wanted=wanted,
        )  # fmt: skip


def check_deliverers(
    folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield brokers with fewer receipts than deliveries to a client and publications together.

    A broker receives a publication from the publisher, or from a broker before the delivery.
    """
    if folder.manifest.get("state") != "complete" or folder.rolling_ns is not None:
        return
    if folder.overlay_kind not in _COUNT_EACH_HOP or _is_storing(folder):
        return
    home_of = {
        client: homes.pop()
        for client, lines in folder.session_lines.items()
        if len(homes := {broker for _, _, broker in lines}) == 1
    }
    least = _highest_of_homes(folder, rows)
    most: dict[tuple[str, str, int], int] = {}
    for (subscription, source, incarnation), lane in rows.lanes.items():
        home = home_of.get(subscription.partition("/")[0])
        origin = home_of.get(rows.client_of.get(source, ""))
        if home is not None and origin not in (None, home):
            of = home, source, incarnation
            most[of] = max(lane.data + lane.fences - lane.repeated, most.get(of, 0))
    for (home, _, _), n in most.items():
        least[home] += n
    unanswered = sum(rows.published.values()) - sum(rows.acknowledged.values())
    for process in brokers:
        restarts = any(
            row["verb"] in ("restart", *KILLING_VERBS) for row in faults_at(folder, process.name)
        )
        for line in process.lines("stats.jsonl")[-1:] if not restarts else ():
            found = _count_received(line) - int(line.get("duplicates_received") or 0)
            if found < least[process.name] - unanswered:
                yield doubt(
                    "disagree", one=f"{process.place}/stats.jsonl", other="deliveries.rec",
                    what=f"publications received once by {process.name}", found=found,
                    wanted=least[process.name] - unanswered,
                )  # fmt: skip
                return


def _is_slow(rows: Rows) -> bool:
    """Return True if an acknowledgement took long, or has no measured time."""
    figures = None if rows.headline is None else rows.headline.acknowledged_us
    return not figures or figures.get("max", _SLOW_US) >= _SLOW_US


def _count_received(line: Line) -> int:
    n = line.get("publications_received")
    return n if isinstance(n, int) else 0


def _count_published(rows: Rows, from_ns: int, to_ns: int) -> int:
    """Return how many publications were sent in a time, by clocks of load generators."""
    found = 0
    for place in rows.published:
        ends = [rows.until(place, "publications", ns) for ns in (from_ns, to_ns)]
        found += max(0, (ends[1] or 0) - (ends[0] or 0))
    return found


def _highest_of_homes(folder: RunFolder, rows: Rows) -> Counter[str]:
    """Return, by broker, the sum of the highest sequence numbers of sources without a move."""
    found: Counter[str] = Counter()
    for (source, _), of in rows.sources.items():
        lines = folder.session_lines.get(rows.client_of.get(source, ""), ())
        brokers = {broker for _, _, broker in lines}
        if len(brokers) == 1:
            found[brokers.pop()] += of.highest
    return found


def _lives(folder: RunFolder, process: ProcessFolder) -> Iterator[tuple[Sequence[Line], int, int]]:
    """Yield the statistics of the processes of a broker, with the times without statistics.

    The time ends when the broker was killed, or else with the start of the next process. There is
    none after the last process. Times are stamps of the reference clock.
    """

    def stamp(line: Line) -> int:
        return folder.timeline.to_timeline(line["t_ns"], process.host) + folder.origin_ns

    lines = process.lines("stats.jsonl")
    events = process.lines("events.jsonl")
    begun = [stamp(line) for line in events if line.get("event") == "run_begun"]
    is_over = any(line.get("event") == "run_ended" for line in events)
    killed = sorted(
        at_ns + folder.origin_ns
        for row in faults_at(folder, process.name)
        if row["verb"] in KILLING_VERBS and (at_ns := stamp_of(folder, row, "observed")) is not None
    )
    from_ns = 0
    for end_ns in [*begun[1:], NEVER_NS]:
        own = [line for line in lines if from_ns <= stamp(line) < end_ns]
        last_ns = stamp(own[-1]) if own else from_ns
        if own or end_ns < NEVER_NS:
            over = [last_ns if end_ns == NEVER_NS else end_ns]
            over += [at_ns for at_ns in killed if last_ns - SLACK_NS <= at_ns <= end_ns]
            until_ns = min(over) + SLACK_NS * (end_ns < NEVER_NS)
            early_ns = 0 if end_ns == NEVER_NS and is_over else SLACK_NS
            yield own or [{}], last_ns - early_ns, max(until_ns, last_ns - early_ns)
        from_ns = end_ns


def check_deliveries(folder: RunFolder, rows: Rows, process: ProcessFolder) -> Iterator[str]:
    """Yield brokers that delivered less than their clients logged, or more without a reason."""
    is_complete = folder.manifest.get("state") == "complete"
    if not is_complete or any(
        row["verb"] not in STANDING_VERBS for row in faults_at(folder, process.name)
    ):
        return
    if any(
        line.get("reason") == STATE_LOST
        for other in folder.processes
        for line in other.lines("gaps.jsonl")
    ):
        return  # a broker does not count what it delivers around a loss
    if replacements(folder, process):
        return  # counters of a new process begin anew
    last = process.lines("stats.jsonl")[-1:]
    received: dict[str, int] = {}
    for (subscription, _, _), lane in rows.lanes.items():
        received[subscription] = received.get(subscription, 0) + lane.data + lane.fences
    most: dict[str, int] = {}
    for subscription, n in received.items():
        client = subscription.partition("/")[0]
        brokers = {broker for _, _, broker in folder.session_lines.get(client, ())}
        if brokers == {process.name}:
            most[client] = max(n, most.get(client, 0))
    wanted = sum(most.values())
    exact = not faults_at(folder, process.name) and _is_exact(folder, rows, process, [*most])
    found = [line["publications_delivered"] for line in last if "publications_delivered" in line]
    if found and (found[0] < wanted or (exact and found[0] > wanted)):
        yield doubt(
            "disagree", one=f"{process.place}/stats.jsonl", other="deliveries.rec",
            what=f"publications delivered by {process.name}", found=found[0], wanted=wanted,
        )  # fmt: skip


def _is_exact(
    folder: RunFolder, rows: Rows, process: ProcessFolder, clients: Sequence[str]
) -> bool:
    """Return True if every delivery of a broker arrived once and was logged.

    All clients of the broker have one session and one subscription.
    """
    if any(rows.kept_back.values()) or folder.rolling_ns is not None:
        return False
    subscriptions = Counter(
        subscription.partition("/")[0]
        for subscription in {subscription for subscription, _, _ in rows.lanes}
    )
    sessions = [
        [event for _, event, broker in folder.session_lines.get(client, ())] for client in clients
    ]
    at_home = {name for name, (role, home) in folder.clients.items()
               if role == "subscriber" and home == process.name}  # fmt: skip
    visitors = {
        client
        for client, lines in folder.session_lines.items()
        if client not in at_home
        and folder.clients.get(client, ("", ""))[0] != "publisher"
        and any(broker == process.name for _, _, broker in lines)
    }
    return (
        at_home == {*clients}
        and not visitors
        and all(subscriptions[client] == 1 for client in clients)
        and all(events == ["up", "down"] for events in sessions)
        and all(lane.again == 0 for lane in rows.lanes.values())
        and has_delivered_from_zero(rows, process)
    )


def has_delivered_from_zero(rows: Rows, process: ProcessFolder) -> bool:
    """Return True if a broker's first count has no deliveries of an earlier run."""
    first = process.lines("stats.jsonl")[:1]
    if first and first[0].get("sessions_lost") == 0:
        return True
    until = [
        rows.until(place, "deliveries", line["t_ns"] + LAST_NS)
        for line in first
        for place in rows.delivered
    ]
    delivered = [int(line.get("publications_delivered") or 0) for line in first]
    return bool(first) and None not in until and sum(delivered) <= sum(filter(None, until))
