"""The decision from counts and doubts: VALID, INVALID or UNKNOWN, with the reasons.

A proven violation counts under any doubts. Otherwise any doubt leaves the verdict open: an
incomplete log, a fault that did not happen as planned, an unreliable clock, or a run that proves
nothing, because nothing was owed to a subscription or nothing was at risk.
"""

from collections.abc import Iterable, Sequence

from results.reference.fault_log import HOLDING_VERBS
from results.rules.terms import (
    VIOLATIONS,
    Counts,
    Fault,
    Guarantee,
    Recovery,
    VerdictName,
    doubt,
)

_SHORTFALLS = {"missing", "fence_missing", "left_out", "gap_not_permitted"}
_SHORTFALLS |= {"withheld_unjustified", "withheld_late", "gap_unpromised"}


def broken(guarantee: Guarantee, kind: str) -> bool:
    """Return True if a violation of this kind breaks the guarantee."""
    if kind in _SHORTFALLS:
        return guarantee.gapless or guarantee.delivery != "at-most-once"
    if kind == "duplicate":
        return guarantee.delivery != "at-least-once"
    if kind in {"reordered", "order_differs"} or kind.startswith("place_"):
        return guarantee.order != "none"
    return True


def doubts_about_faults(faults: Iterable[Fault]) -> Iterable[str]:
    """Yield doubts about faults with uncertain times, or without certain effect."""
    for fault in faults:
        names = {"fault": fault.fault_id, "verb": fault.verb, "target": fault.target}
        if fault.applied_ns is None:
            yield doubt("not_applied", **names)
        elif fault.observed_ns is None:
            yield doubt("not_observed", **names)
        if fault.err_ns is None:
            yield doubt("no_clock", **names)
        elif fault.applied_ns is not None:
            ends = [ns for ns in (fault.observed_ns, fault.healed_ns) if ns is not None]
            if any(ns < fault.applied_ns - fault.err_ns for ns in ends):
                yield doubt("stages", **names)


def doubts_about_risks(faults: Iterable[Fault], recoveries: Sequence[Recovery]) -> Iterable[str]:
    """Yield doubts about faults with deliveries at risk that report no held publication."""
    for fault in faults:
        if fault.verb in HOLDING_VERBS and fault.absorbed == 0:
            n = sum(r.at_risk for r in recoveries if r.window.fault_ids[0] == fault.fault_id)
            if n:
                yield doubt(
                    "absorbed_nothing",
                    fault=fault.fault_id, verb=fault.verb, target=fault.target, n=n,
                )  # fmt: skip


def decide(
    counts: Counts,
    doubts: Sequence[str],
    guarantee: Guarantee,
    calm: bool,
    minimum: int,
    busy: Sequence[str] = (),
) -> tuple[VerdictName, tuple[str, ...], tuple[str, ...]]:
    """Return verdict, reasons and all doubts.

    Deliveries that were outstanding at the end are a doubt on a busy machine.
    """
    doubts = (*doubts, *_doubts_about_counts(counts, calm, minimum))
    proven = tuple(
        f"{counts.violations[kind]:,} {kind}: {meaning}"
        for kind, meaning in VIOLATIONS.items()
        if counts.violations.get(kind, 0) and broken(guarantee, kind)
    )
    if proven and busy and _may_be_late(counts, guarantee):
        proven, doubts = (), (*doubts, doubt("outstanding", n=counts.outstanding), *busy)
    if proven:
        return "INVALID", proven, doubts
    if doubts:
        return "UNKNOWN", doubts, doubts
    return "VALID", (f"{counts.owed:,} owed, each arrived",), ()


def _may_be_late(counts: Counts, guarantee: Guarantee) -> bool:
    wrong = {kind for kind, n in counts.violations.items() if n and broken(guarantee, kind)}
    absent = sum(counts.violations.get(kind, 0) for kind in ("missing", "fence_missing"))
    return not wrong - {"missing", "fence_missing"} and absent == counts.outstanding


def _doubts_about_counts(counts: Counts, calm: bool, minimum: int) -> Iterable[str]:
    if counts.least_owed is None:
        yield doubt("no_pair")
    elif counts.least_owed[2] < minimum:
        who, source, n = counts.least_owed
        yield doubt("too_few", who=who, source=source, n=n, minimum=minimum)
    elif counts.owed == 0:
        yield doubt("none_owed")
    if not calm and counts.at_risk == 0:
        yield doubt("no_risk")
