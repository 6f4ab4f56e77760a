"""Broker events about clients and faults, against the logs of clients and the fault log.

A broker logs starts, faults of its own links, and sessions of clients, and counts deliveries.
Clients and the controller log the same events."""

from collections import Counter
from collections.abc import Iterator, Sequence

from brokerd.model.fault_verbs import (
    BROKER_VERBS,
    CRASH,
    KILLING_VERBS,
    MACHINE_VERBS,
    ROAM,
    SESSION_ENDING_VERBS,
    STANDING_VERBS,
)
from brokerd.protocols.registry import DEFINITIONS
from results.rules.terms import NEVER_NS, STATE_LOST, doubt
from results.witnesses.brokers import allowed_distance_ns, replacements
from results.witnesses.faults import faults_at
from results.witnesses.folder import (
    FAULTS,
    MANIFEST,
    TOPOLOGY,
    WORKLOAD,
    Line,
    ProcessFolder,
    RunFolder,
    stamp_of,
)
from results.witnesses.rows import Rows

_SLACK_NS = 500_000_000
_JITTER_NS = 20_000_000
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
_LONG_SESSION_NS = 3_000_000_000
_KILLED = "its process ended with -"
"""How the end of a session of a client with a process of its own begins if a signal ended it."""
_CLOSED = "closed_by_us"
"""How a session ends that its client ends."""
_LAST_NS = 1_500_000_000
"""A broker's last statistics are written when the run ends."""
_BEGINS_NS = 20_000_000_000
"""A restarted broker receives the identity of the run within that time."""


def doubts_about_service(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between brokers, clients and the controller."""
    if not folder.is_of_processes or folder.is_foreign:
        return
    brokers = [process for process in folder.processes if process.name in {*folder.brokers}]
    for row in folder.fault_rows:
        if row["verb"] in BROKER_VERBS and (row.get("params") or {}).get("backend") != "nft":
            yield from _check_own_fault(folder, row, brokers)
            yield from _check_absorbed(folder, row, brokers)
        if row["verb"] in SESSION_ENDING_VERBS:
            yield from _check_client_fault(folder, row)
    yield from _check_received(folder, rows, brokers)
    yield from _check_totals(folder, rows, brokers)
    yield from _check_deliverers(folder, rows, brokers)
    yield from _check_client_absences(folder)
    for process in brokers:
        yield from _check_starts(folder, process)
        yield from _check_clients(folder, process)
        yield from _check_deliveries(folder, rows, process)


def _events(folder: RunFolder, process: ProcessFolder, *names: str) -> list[tuple[int, Line]]:
    return [
        (folder.timeline.to_timeline(line["t_ns"], process.host), line)
        for line in process.lines("events.jsonl")
        if line.get("event") in names
    ]


def _check_own_fault(
    folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield faults of a broker's own links that are not in the broker's events."""
    fault = str(row["fault_id"])
    for stage, event in (("applied", "fault_applied"), ("healed", "fault_healed")):
        if stage == "healed" and (
            row.get("healed_by") != "schedule" or _is_killed_before_heal(folder, row)
        ):
            continue
        first_ns, last_ns = stamp_of(folder, row, stage, last=False), stamp_of(folder, row, stage)
        if first_ns is None or last_ns is None:
            continue
        times = [
            (at_ns, process)
            for process in brokers
            for at_ns, line in _events(folder, process, event)
            if str(line.get("fault_id")).partition("@")[0] == fault
        ]
        if not times:
            yield doubt("not_in_log", fault=fault, one=FAULTS, other="raw/*/*/events.jsonl")
            return
        ends = _ends_of(folder, str(row["target"]))
        if ends and (strange := sorted({process.name for _, process in times} - ends)):
            yield doubt(
                "disagree", one=f"raw/*/{strange[0]}/events.jsonl", other=FAULTS,
                what=f"target of {fault}", found=strange[0], wanted=row["target"],
            )  # fmt: skip
        error_ns = max(_error_ns(folder, process.host) for _, process in times)
        requested_ns = stamp_of(folder, row, "requested", last=False)
        for at_ns, process in times:
            off_ns = max(first_ns - at_ns, at_ns - last_ns) - _SLACK_NS
            if stage == "applied" and requested_ns is not None:
                # Agents stamp a stage when their broker has logged it.
                off_ns = max(
                    off_ns, requested_ns - at_ns - _JITTER_NS, at_ns - last_ns - _JITTER_NS
                )
            if off_ns > error_ns:
                yield doubt(
                    "sessions_apart", one=f"{process.place}/events.jsonl", other=FAULTS,
                    who=fault, event=stage, s=abs(at_ns - first_ns) / 1e9,
                )  # fmt: skip


def _is_killed_before_heal(folder: RunFolder, row: Line) -> bool:
    """Return True if the broker of a fault was killed before the fault was healed."""
    applied_ns = stamp_of(folder, row, "applied", last=False)
    return any(
        other["verb"] in KILLING_VERBS
        and (killed_ns := stamp_of(folder, other, "applied")) is not None
        and applied_ns is not None
        and killed_ns >= applied_ns
        for end in _ends_of(folder, str(row["target"]))
        for other in faults_at(folder, end)
    )


def _check_absorbed(
    folder: RunFolder, row: Line, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield counts of the fault log that are higher than the counts of the brokers."""
    fault, exercised = str(row["fault_id"]), (folder.schedule.get("exercised") or {})
    counts = {
        process.name: [
            line
            for _, line in _events(folder, process, "fault_counted", "fault_healed")
            if str(line.get("fault_id")).partition("@")[0] == fault
        ]
        for process in brokers
    }
    for column, key in (
        ("absorbed_msgs", "absorbed_publications"), ("absorbed_bytes", "absorbed_bytes"),
    ):  # fmt: skip
        found = row.get(column)
        if not found:
            continue
        if not any(counts.values()):
            name = "raw/*/*/events.jsonl"
            if folder.is_counted:
                yield doubt("missing_line", file=name, what=f"{column} of {fault}", other=FAULTS)
            elif exercised.get("absorbed_msgs_min"):
                yield doubt(
                    "older_schema", file=MANIFEST, schema=folder.manifest.get("schema"),
                    what=f"what {fault} absorbed", other=name,
                )  # fmt: skip
            return
        wanted = sum(max((line.get(key, 0) for line in of), default=0) for of in counts.values())
        if found > wanted:
            yield doubt(
                "disagree", one=FAULTS, other="raw/*/*/events.jsonl", what=f"{column} of {fault}",
                found=found, wanted=wanted,
            )  # fmt: skip


def _ends_of(folder: RunFolder, target: str) -> set[str]:
    """Return the brokers of a target: both ends of a link, a broker, or none."""
    if target in folder.brokers:
        return {target}
    for a in folder.brokers:
        for b in folder.brokers:
            if target in (f"{a}-{b}", f"{a}->{b}"):
                return {a, b}
    return set()


def _error_ns(folder: RunFolder, host: str) -> int:
    reference = str((folder.manifest.get("clock") or {}).get("host_id", host))
    error_ns = folder.timeline.error_ns(host, reference)
    return NEVER_NS if error_ns is None else error_ns


def _check_client_fault(folder: RunFolder, row: Line) -> Iterator[str]:
    """Yield faults that disconnect a client without the end of a session."""
    client, lines = str(row["target"]), folder.session_lines.get(str(row["target"]), ())
    requested_ns = stamp_of(folder, row, "requested", last=False)
    seen_ns = stamp_of(folder, row, "observed")
    if requested_ns is None or seen_ns is None or not lines:
        return
    recovered_ns = stamp_of(folder, row, "recovered")
    begun = [at_ns for at_ns, event, _ in lines if event == "up"]
    is_up = any(recovered_ns is not None and abs(recovered_ns - at) <= _JITTER_NS for at in begun)
    if row["verb"] == CRASH and recovered_ns is not None:
        # The client may be back before the last of its kills was due.
        before = [event for at_ns, event, _ in lines if at_ns <= recovered_ns + _JITTER_NS]
        is_healed = recovered_ns == stamp_of(folder, row, "healed")
        is_up = is_up or (is_healed and before[-1:] == ["up"])
    if recovered_ns is not None and not is_up:
        yield doubt(
            "disagree", one=FAULTS, other="sessions.jsonl",
            what=f"recovery of {client} from {row['fault_id']}", found=recovered_ns,
            wanted=min(begun, key=lambda at: abs(recovered_ns - at), default=None),
        )  # fmt: skip
    ended = [at_ns for at_ns, event, _ in lines if event == "down"]
    if not any(requested_ns - _SLACK_NS <= at_ns <= seen_ns + _SLACK_NS for at_ns in ended):
        yield doubt(
            "disagree", one=FAULTS, other="sessions.jsonl", what=f"end of a session of {client}",
            found=row["fault_id"], wanted="none then",
        )  # fmt: skip


def _check_client_absences(folder: RunFolder) -> Iterator[str]:
    """Yield absences without the end of a session, and kills without a fault.

    A client that had lost its session already has none to end.
    """
    for process in folder.processes:
        for line in process.lines("absences.jsonl"):
            client = str(line["subscriber"])
            left_ns = folder.timeline.to_timeline(line["t_left_ns"], process.host)
            back_ns = folder.timeline.to_timeline(line["t_back_ns"], process.host)
            lines = folder.session_lines.get(client, ())
            ended = [at_ns for at_ns, event, _ in lines if event == "down"]
            is_ended = any(left_ns - _SLACK_NS <= at <= back_ns + _SLACK_NS for at in ended)
            before = [event for at_ns, event, _ in lines if at_ns <= left_ns]
            is_ended = is_ended or before[-1:] == ["down"]
            if (lines and not is_ended) or "churn" not in folder.workload:
                yield doubt(
                    "disagree", one=f"{process.place}/absences.jsonl",
                    other="sessions.jsonl" if "churn" in folder.workload else WORKLOAD,
                    what=f"an absence of {client}", found=left_ns, wanted=None,
                )  # fmt: skip
        yield from _check_ends(folder, process)


def _check_ends(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield clients that were killed or moved without a fault.

    A run that was interrupted ends its clients' sessions before any drain.
    """
    drain = folder.phase_ns("drain")
    is_interrupted = drain is None and folder.manifest.get("state") != "complete"
    ended_ns = -NEVER_NS if is_interrupted else NEVER_NS
    until_ns = ended_ns if drain is None else drain[0] - folder.origin_ns
    for line in process.lines("sessions.jsonl"):
        reason = str(line.get("reason"))
        verbs = (CRASH,) if reason.startswith(_KILLED) else (ROAM,)
        at_ns = folder.timeline.to_timeline(line["t_ns"], process.host)
        is_own = reason.startswith(_KILLED) or (reason == _CLOSED and at_ns < until_ns)
        if line["event"] != "down" or not is_own:
            continue
        requested = [
            stamp_of(folder, row, "requested", last=False)
            for row in folder.fault_rows
            if row["verb"] in verbs and row["target"] == line["client"]
        ]
        if not any(ns is not None and ns - _SLACK_NS <= at_ns for ns in requested):
            yield doubt(
                "disagree", one=f"{process.place}/sessions.jsonl", other=FAULTS,
                what=f"end of {line['client']}", found=reason, wanted=f"no {verbs[0]}",
            )  # fmt: skip
            return


def _check_starts(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """Yield brokers that began the run more often than they were started."""
    name = f"{process.place}/events.jsonl"
    begun = [at_ns for at_ns, _ in _events(folder, process, "run_begun")]
    at_broker = faults_at(folder, process.name)
    restarts = [row for row in at_broker if row["verb"] in ("restart", *KILLING_VERBS)]
    again = [row for row in restarts if row["verb"] == "restart"]
    wanted = 1 + len(replacements(folder, process)) + len(again)
    if len(begun) > wanted and not any(row["verb"] in MACHINE_VERBS for row in restarts):
        yield doubt(
            "disagree", one=name, other=FAULTS, what=f"starts of {process.name}",
            found=len(begun), wanted=wanted,
        )  # fmt: skip
    over = [at_ns for at_ns, _ in _events(folder, process, "run_ended")]
    last = process.lines("stats.jsonl")[-1:]
    counted_ns = [folder.timeline.to_timeline(line["t_ns"], process.host) for line in last]
    if over and counted_ns and counted_ns[0] < over[-1] - _LAST_NS:
        yield doubt(
            "stats_stop", file=f"{process.place}/stats.jsonl", s=(over[-1] - counted_ns[0]) / 1e9,
            at_s=counted_ns[0] / 1e9, other=name,
        )  # fmt: skip
    for row in restarts:
        requested_ns = stamp_of(folder, row, "requested", last=False)
        is_over = row["verb"] == "restart" and row.get("t_recovered_ns") is not None
        if not is_over or requested_ns is None:
            continue
        error_ns = _error_ns(folder, process.host) + _SLACK_NS
        if not any(
            requested_ns - error_ns <= at <= requested_ns + error_ns + _BEGINS_NS for at in begun
        ):
            yield doubt(
                "disagree", one=name, other=FAULTS, what=f"start of {process.name}",
                found=begun, wanted=row["fault_id"],
            )  # fmt: skip


def _check_clients(folder: RunFolder, process: ProcessFolder) -> Iterator[str]:
    """A broker serves clients of the workload, in sessions that the clients logged."""
    name = f"{process.place}/events.jsonl"
    suffix = "." + str(folder.manifest.get("run_id")).rpartition("-")[2]
    stops = faults_at(folder, process.name)
    limit_ns = allowed_distance_ns(folder, process)
    is_renewed = bool(replacements(folder, process))
    cut_off = _list_cut_off(folder)
    opened: dict[tuple[str, object], int] = {}
    for at_ns, line in _events(folder, process, "session_established", "session_lost"):
        peer = str(line.get("peer"))
        if not peer.endswith(suffix):
            continue
        client = peer.removesuffix(suffix)
        if client not in folder.clients:
            yield doubt(
                "disagree", one=name, other=WORKLOAD, what="clients", found=client, wanted=None
            )
            return
        if line["event"] == "session_established":
            opened[client, line.get("session")] = at_ns
            continue
        began_ns = opened.pop((client, line.get("session")), None)
        if began_ns is None and not stops and not is_renewed:
            yield doubt(
                "disagree", one=name, other=name, what=f"start of a session of {client}",
                found=None, wanted=line.get("session"),
            )  # fmt: skip
            return
        if stops or began_ns is None or at_ns - began_ns < max(_LONG_SESSION_NS, limit_ns):
            continue
        for event, when_ns in (("up", began_ns), ("down", at_ns)):
            if client in cut_off and (event == "down" or client not in folder.session_lines):
                continue
            theirs = [
                abs(when_ns - at)
                for at, change, broker in folder.session_lines.get(client, ())
                if (change, broker) == (event, process.name)
            ]
            if not theirs or min(theirs) > limit_ns:
                yield doubt(
                    "sessions_apart", one=name, other="sessions.jsonl", who=client, event=event,
                    s=min(theirs, default=when_ns) / 1e9,
                )  # fmt: skip


def _list_cut_off(folder: RunFolder) -> set[str]:
    """Return the clients of load generators that ended early, or whose files were not fetched."""
    ended = {
        str(line["client"])
        for process in folder.processes
        if process.is_load and process.has_ended_early
        for line in process.lines("sessions.jsonl")
    }
    if any(process.is_uncollected for process in folder.processes):
        ended |= {*folder.clients} - {*folder.session_lines}
    return ended


def _check_received(
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


def _kind(folder: RunFolder) -> str:
    """Return the kind of overlay of the run's protocol; "" for another system."""
    definition = DEFINITIONS.get(str(folder.workload.get("protocol")))
    return "" if definition is None else str(definition.kind)


def _is_storing(folder: RunFolder) -> bool:
    """Return True if storages count publications, by the counters of brokers."""
    return _kind(folder) == "hierarchy" and any(
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
    if _kind(folder) != _COUNTS_CLIENTS or is_disturbed:
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


def _check_totals(folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]) -> Iterator[str]:
    """Yield counts of received publications that differ from the counts of sent ones.

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
    is_each_hop = _kind(folder) in _COUNT_EACH_HOP and not _is_storing(folder)
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
    is_repeating = _kind(folder) == _REPEATS or (_is_storing(folder) and _is_slow(rows))
    if received < least or (received > wanted and not is_repeating):
        yield doubt(
            "disagree", one="raw/*/*/stats.jsonl", other="publications.rec",
            what="publications received by all brokers", found=received, wanted=wanted,
        )  # fmt: skip


def _check_deliverers(
    folder: RunFolder, rows: Rows, brokers: Sequence[ProcessFolder]
) -> Iterator[str]:
    """Yield brokers with fewer receipts than deliveries to a client and publications together.

    A broker receives a publication from the publisher, or from a broker before the delivery.
    """
    if folder.manifest.get("state") != "complete" or folder.rolling_ns is not None:
        return
    if _kind(folder) not in _COUNT_EACH_HOP or _is_storing(folder):
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
    """Return True if an acknowledgement took long, or if it is unknown how long."""
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
    """Return the number of sources with sessions at one broker, by broker."""
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
            over += [at_ns for at_ns in killed if last_ns - _SLACK_NS <= at_ns <= end_ns]
            until_ns = min(over) + _SLACK_NS * (end_ns < NEVER_NS)
            early_ns = 0 if end_ns == NEVER_NS and is_over else _SLACK_NS
            yield own or [{}], last_ns - early_ns, max(until_ns, last_ns - early_ns)
        from_ns = end_ns


def _check_deliveries(folder: RunFolder, rows: Rows, process: ProcessFolder) -> Iterator[str]:
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
        if client not in at_home and any(broker == process.name for _, _, broker in lines)
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
        rows.until(place, "deliveries", line["t_ns"] + _LAST_NS)
        for line in first
        for place in rows.delivered
    ]
    delivered = [int(line.get("publications_delivered") or 0) for line in first]
    return bool(first) and None not in until and sum(delivered) <= sum(filter(None, until))
