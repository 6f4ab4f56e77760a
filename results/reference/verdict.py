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


def is_broken(guarantee: Guarantee, kind: str) -> bool:
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
    was_silent: bool = False,
    may_lose: bool = False,
) -> tuple[VerdictName, tuple[str, ...], tuple[str, ...]]:
    """Return verdict, reasons and all doubts.

    On a busy machine, deliveries that were outstanding when a drain ended in silence are a doubt,
    and so are publications that were withheld without a fault, and losses of a protocol that loses
    publications around a failure.
    """
    doubts = (*doubts, *_doubts_about_counts(counts, calm, minimum))
    proven = tuple(
        f"{counts.violations[kind]:,} {kind}: {meaning}"
        for kind, meaning in VIOLATIONS.items()
        if counts.violations.get(kind, 0) and is_broken(guarantee, kind)
    )
    excused = [*_find_excused(counts, guarantee, was_silent, may_lose)] if busy else [None]
    if proven and None not in excused:
        proven, doubts = (), (*doubts, *(each for each in excused if each), *busy)
    if proven:
        return "INVALID", proven, doubts
    if doubts:
        return "UNKNOWN", doubts, doubts
    return "VALID", (f"{counts.owed:,} owed, each arrived",), ()


def _find_excused(
    counts: Counts, guarantee: Guarantee, was_silent: bool, may_lose: bool
) -> Iterable[str | None]:
    """Yield a doubt for each kind that a busy machine explains; None for any other kind."""
    wrong = {kind: n for kind, n in counts.violations.items() if n and is_broken(guarantee, kind)}
    absent = wrong.pop("missing", 0) + wrong.pop("fence_missing", 0)
    if absent:
        if was_silent and absent == counts.outstanding:
            yield doubt("outstanding", n=absent)
        else:
            yield doubt("lost_busy", n=absent) if may_lose else None
    withheld = wrong.pop("withheld_unjustified", 0)
    if withheld:
        yield doubt("withheld_busy", n=withheld)
    if wrong:
        yield None


def _doubts_about_counts(counts: Counts, calm: bool, minimum: int) -> Iterable[str]:
    if counts.least_owed is None:
        yield doubt("no_pair")
    elif counts.least_owed[2] < minimum:
        subscriber, source, n = counts.least_owed
        yield doubt("too_few", who=subscriber, source=source, n=n, minimum=minimum)
    elif counts.owed == 0:
        yield doubt("none_owed")
    if not calm and counts.at_risk == 0:
        yield doubt("no_risk")
