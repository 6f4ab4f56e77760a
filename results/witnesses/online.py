"""The online checker of load processes: its findings against the records of deliveries."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from results.rules.terms import doubt
from results.witnesses.folder import MANIFEST, Line, ProcessFolder, RunFolder, differ
from results.witnesses.rows import FENCES, LaneRows, Rows

_FINDINGS: Final = (
    *("reordered", "wrong_match", "corrupted", "order_differs", "phantom"),
    *("withheld_late", "withheld_delivered"),
)
"""Findings of an online checker, by the names of the judges."""
_SUPERFLUOUS: Final = ("duplicate", "wrong_match", "corrupted", "withheld_delivered", "phantom")
"""Deliveries that an online checker counts, and that were not owed or not for the first time."""
_HOLES: Final = ("missing", "fence_missing", "unsure", "reordered", "announced")
"""Counts of the gaps that an online checker has seen, and may have forgotten."""
_ABSENT: Final = ("missing", "fence_missing")
_ORDERS: Final = {"reordered": ("publisher", "total"), "order_differs": ("total",)}
"""The orders in which a finding is one for a judge; those that are not named: all."""


def check_online(folder: RunFolder, process: ProcessFolder, rows: Rows) -> Iterator[str]:
    """Yield contradictions between `online.json` of a process and the records."""
    name, online = f"{process.place}/online.json", process.document("online.json")
    records = f"{process.place}/deliveries.rec"
    run_id = folder.manifest.get("run_id")
    if online.get("run_id", None if folder.is_witnessed else run_id) != run_id:
        yield differ(name, MANIFEST, "run_id", online.get("run_id"), run_id)
    lanes = {
        (lane["subscription"], lane["publisher"], lane["incarnation"]): lane
        for lane in online["lanes"]
    }
    if len(lanes) < len(online["lanes"]):
        yield doubt("twice", what=f"one lane of {name}")
    for total, value in online["totals"].items():
        is_of_lanes = folder.is_witnessed and total != "order_differs"
        if is_of_lanes and not all(total in lane for lane in online["lanes"]):
            yield differ(name, name, f"lanes of {total}", None, value)
        summed = sum(lane.get(total, 0) for lane in online["lanes"])
        is_more = total == "phantom" and summed < value
        if total != "order_differs" and summed != value and not is_more:
            yield differ(name, name, f"total of {total}", value, summed)
    yield from _about_sums_of_positions(folder, process, rows)
    if process.place not in rows.whole:
        return
    own = {str(line["sub_id"]) for line in process.lines("subscriptions.jsonl")} | {
        lane[0] for lane in lanes
    }
    counted = {lane: of for lane, of in rows.lanes.items() if lane[0] in own}
    for lane in sorted({*lanes} | {*counted}):
        yield from _check_lane(
            name, records, " of ".join((lane[0], f"{lane[1]}, {lane[2]}")),
            lanes.get(lane), counted.get(lane, LaneRows()),
        )  # fmt: skip


def _check_lane(
    name: str, records: str, lane: str, stated: Line | None, counted: LaneRows
) -> Iterator[str]:
    if stated is None:
        yield differ(name, records, f"deliveries to {lane}", None, counted.data + counted.fences)
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("deliveries", stated["deliveries"] + stated["fences"],
         counted.data + counted.fences + counted.again),
        ("high", stated["high"], counted.high),
    ]  # fmt: skip
    if not counted.again:
        pairs += [
            ("data", stated["deliveries"], counted.data),
            ("fences", stated["fences"], counted.fences),
        ]
    if counted.exact:
        pairs.append(("low", stated["low"], counted.low))
        if stated.get("exact") is True and not counted.again:
            pairs.append(("duplicate", stated["duplicate"], counted.repeated))
    if stated.get("exact") is not True and not counted.again:
        pairs.append(("exact", stated.get("exact"), not any(stated.get(kind) for kind in _HOLES)))
    if stated.get("exact") is True:
        pairs.append(("unsure", stated.get("unsure", 0), 0))
        first = stated["deliveries"] - sum(stated.get(kind, 0) for kind in _SUPERFLUOUS)
        if stated["incarnation"] == 1 and counted.fences == FENCES and not counted.again:
            pairs.append(("delivered", max(stated["delivered"], first), stated["delivered"]))
    if not stated.get("announced"):
        pairs.append(("withheld", stated.get("withheld", 0), 0))
    if stated["owed"] != stated["delivered"] + stated["missing"]:
        pairs.append(("owed", stated["owed"], stated["delivered"] + stated["missing"]))
    for subject, found, wanted in pairs:
        if found != wanted or type(found) is not type(wanted):
            yield differ(name, records, f"{subject} of {lane}", found, wanted)


def findings_online(
    folder: RunFolder, rows: Rows | None, *, has_sent_again: bool = False
) -> dict[str, int]:
    """Return the findings of all online checkers of a run, by kind.

    Missing publications count only if every publication of a source was acknowledged, in one
    incarnation, because an online checker expects every number.

    Args:
        rows: the counts of record files; None where only a part of them was read.
        has_sent_again: publications were sent again after an accepted loss of state, so that an
            online checker, which is not notified of losses, finds other orders.
    """
    totals = dict.fromkeys((*_FINDINGS, *_ABSENT), 0)
    is_answered = rows is not None and rows.published == rows.acknowledged
    lanes = rows.lanes if rows is not None else {}
    sources = rows.sources if rows is not None else {}
    times = Counter(source for source, _ in sources)
    for process in folder.processes:
        found = process.document("online.json").get("totals")
        for kind in _FINDINGS:
            n = found.get(kind) if isinstance(found, dict) else None
            totals[kind] += n if isinstance(n, int) else 0
        for lane in process.document("online.json").get("lanes", ()) if is_answered else ():
            counted = lanes.get(
                (lane.get("subscription"), lane.get("publisher"), lane.get("incarnation"))
            )
            is_again = counted is not None and counted.again
            source = sources.get((lane.get("publisher"), lane.get("incarnation")))
            # Without both fences of a source, no judge decides that a publication is missing.
            is_enclosed = source is not None and len(source.fences) >= FENCES
            if times[lane.get("publisher")] == 1 and is_enclosed and not is_again:
                for kind in _ABSENT:
                    totals[kind] += lane.get(kind, 0)
    if has_sent_again:
        del totals["order_differs"]
    return {kind: n for kind, n in totals.items() if n}


def doubts_about_findings(
    online: Mapping[str, int], violations: Mapping[str, int], order: str
) -> Iterator[str]:
    """Yield findings of the online checkers that a judge did not find in the records.

    Args:
        online: see `findings_online`.
        violations: by kind, as the judge has counted them.
        order: of the guarantee.
    """
    for kind, n in online.items():
        if not violations.get(kind) and order in _ORDERS.get(kind, (order,)):
            yield differ("online.json", "deliveries.rec", kind, n, 0)


def _about_sums_of_positions(
    folder: RunFolder, process: ProcessFolder, rows: Rows
) -> Iterator[str]:
    """Yield streams with other positions than the subscribers' process counted."""
    if not folder.is_closed or process.place not in rows.whole:
        return
    found = {stream: [*of] for stream, of in rows.streams.get(process.place, {}).items()}
    stated = process.document("online.json").get("streams")
    if found != stated:
        name = f"{process.place}/online.json"
        yield differ(name, f"{process.place}/positions.rec", "streams", stated, found)
