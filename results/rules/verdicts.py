"""Decisions from counts and doubts, for checkers on Spark: verdict, reasons, words."""

from collections.abc import Iterable, Mapping, Sequence

from brokerd.model.fault_verbs import HOLDING_VERBS
from results.rules.terms import (
    VIOLATIONS,
    Counts,
    Fault,
    Guarantee,
    Recovery,
    VerdictName,
    doubt,
)
from results.rules.verdict_text import describe_announced, describe_withheld

_WITHHELD = "withheld_unjustified"

_LOSSES = (
    *("missing", "fence_missing", "left_out", "gap_not_permitted"),
    *("withheld_unjustified", "withheld_late", "gap_unpromised"),
)
_DISORDERS = ("reordered", "order_differs", "place_back", "place_taken", "place_order")


def forbids(guarantee: Guarantee, violation: str) -> bool:
    """Return True if a violation of this kind breaks the guarantee."""
    if violation in _LOSSES:
        return guarantee.delivery != "at-most-once" or guarantee.gapless
    if violation == "duplicate":
        return guarantee.delivery != "at-least-once"
    return violation not in _DISORDERS or guarantee.order != "none"


def decide(
    counts: Counts,
    doubts: Sequence[str],
    guarantee: Guarantee,
    calm: bool,
    deliveries_per_pair_min: int,
    busy: Sequence[str] = (),
    in_silence: bool = False,
    may_lose: bool = False,
) -> tuple[VerdictName, list[str], list[str]]:
    """Return verdict, reasons and all doubts: a proven violation counts under any doubts.

    Args:
        busy: the signs of a machine that was short of time. With any sign, publications that were
            withheld without a fault are no proof of a wrong broker, if nothing else is wrong.
        in_silence: the drain ended in silence. With any sign, deliveries that were outstanding then
            are no proof of a loss.
        may_lose: the protocol may lose publications around a failure. With any sign, a broker or a
            client may have been taken for a failed one, and no loss is proof of a wrong broker.
    """
    doubts = [*doubts, *_doubts_about_counts(counts, calm, deliveries_per_pair_min)]
    broken = {kind: n for kind, n in counts.violations.items() if forbids(guarantee, kind)}
    if broken and busy and not _has_unexplained(counts, broken, in_silence, may_lose):
        if absent := sum(broken.get(kind, 0) for kind in ("missing", "fence_missing")):
            is_late = in_silence and absent == counts.outstanding
            doubts.append(doubt("outstanding" if is_late else "lost_busy", n=absent))
        if n := broken.get(_WITHHELD):
            doubts.append(doubt("withheld_busy", n=n))
        doubts += busy
        broken = {}
    if broken:
        named = [
            f"{broken[kind]:,} {kind}: {VIOLATIONS[kind]}" for kind in VIOLATIONS if kind in broken
        ]
        return "INVALID", named, doubts
    if doubts:
        return "UNKNOWN", doubts, doubts
    arrived = f"each of {counts.owed:,} owed deliveries arrived"
    if counts.delivered < counts.owed:
        arrived = f"{counts.delivered:,} of {counts.owed:,} owed deliveries arrived"
    text = describe_withheld(counts.withheld)
    gaps = describe_announced(counts.announced)
    return (
        "VALID",
        [
            f"{guarantee}: {arrived}",
            *([f"{text}, each announced, with a reason"] if text else []),
            *([gaps] if gaps else []),
        ],
        doubts,
    )


def _has_unexplained(
    counts: Counts, broken: Mapping[str, int], in_silence: bool, may_lose: bool
) -> bool:
    """Return True if a machine without time explains not all violations.

    Such a machine explains missing deliveries that may still have been in flight, and brokers and
    clients that were taken for failed ones.
    """
    absent = sum(broken.get(kind, 0) for kind in ("missing", "fence_missing"))
    if absent and not may_lose and not (in_silence and absent == counts.outstanding):
        return True
    return not {*broken} <= {"missing", "fence_missing", _WITHHELD}


def doubts_about_faults(faults: Iterable[Fault]) -> list[str]:
    """Return doubts about faults that may not have happened as planned."""
    found = []
    for fault in faults:
        names = {"fault": fault.fault_id, "verb": fault.verb, "target": fault.target}
        if fault.applied_ns is None or fault.observed_ns is None:
            kind = "not_applied" if fault.applied_ns is None else "not_observed"
            found.append(doubt(kind, **names))
        if fault.err_ns is None:
            found.append(doubt("no_clock", **names))
        elif fault.applied_ns is not None:
            earliest_ns = fault.applied_ns - fault.err_ns
            reached = [ns for ns in (fault.observed_ns, fault.healed_ns) if ns is not None]
            if reached and min(reached) < earliest_ns:
                found.append(doubt("stages", **names))
    return found


def doubts_about_recoveries(faults: Iterable[Fault], recoveries: Iterable[Recovery]) -> list[str]:
    """Return doubts about absorbs that put deliveries at risk, but report none absorbed."""
    idle = {
        fault.fault_id: fault
        for fault in faults
        if fault.verb in HOLDING_VERBS and fault.absorbed == 0
    }
    return [
        doubt(
            "absorbed_nothing", fault=fault.fault_id, verb=fault.verb, target=fault.target,
            n=recovery.at_risk,
        )
        for recovery in recoveries
        if recovery.at_risk and (fault := idle.get(recovery.window.fault_ids[0])) is not None
    ]  # fmt: skip


def _doubts_about_counts(counts: Counts, calm: bool, minimum: int) -> list[str]:
    found = []
    if counts.least_owed is None:
        found.append(doubt("no_pair"))
    else:
        subscriber, source, n = counts.least_owed
        if n < minimum:
            found.append(doubt("too_few", who=subscriber, source=source, n=n, minimum=minimum))
        elif not counts.owed:
            found.append(doubt("none_owed"))
    if not calm and not counts.at_risk:
        found.append(doubt("no_risk"))
    return found
