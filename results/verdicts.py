"""The words of a verdict, and what it follows from: the same for whoever did the counting."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from results.risks import Fault, RiskWindow
from results.withheld import in_words

VerdictName = Literal["VALID", "INVALID", "UNKNOWN"]
EXIT_STATUS: Mapping[str, int] = {"VALID": 0, "INVALID": 1, "UNKNOWN": 3}

VIOLATIONS: Mapping[str, str] = {
    "missing": "owed and never delivered",
    "duplicate": "delivered more than once",
    "reordered": "delivered after a later one of its source",
    "phantom": "delivered though its publisher never sent it",
    "rejected": "delivered though its publication was refused",
    "wrong_match": "delivered though the predicate does not match it",
    "corrupted": "delivered with other content than was published",
    "sequence_reuse": "a sequence number was used for two publications",
    "gap_not_permitted": "declared lost where nothing may be lost",
    "withheld_unjustified": "announced as withheld by a partition that no fault explains",
    "withheld_late": "announced as withheld after its source had been heard",
    "withheld_delivered": "delivered though it, or a later one, had been announced as withheld",
}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a run is judged against: the workload's own words.

    Attributes:
        delivery: "exactly-once", "at-least-once" or "at-most-once".
        order: "publisher" or "none".
        gapless: whether nothing may be left out between what was delivered.
    """

    delivery: str = "exactly-once"
    order: str = "publisher"
    gapless: bool = True

    def forbids(self, violation: str) -> bool:
        """Whether a run with this kind of violation breaks the guarantee."""
        if violation in _LOSSES:
            return self.delivery != "at-most-once" or self.gapless
        if violation == "duplicate":
            return self.delivery != "at-least-once"
        return violation != "reordered" or self.order == "publisher"

    def __str__(self) -> str:
        return self.delivery + (", publisher order" if self.order == "publisher" else "")


_LOSSES = ("missing", "gap_not_permitted", "withheld_unjustified", "withheld_late")

EXACTLY_ONCE = Guarantee()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of the deliveries that one window put at risk.

    Attributes:
        recovered_after_ns: from the window's end to the last of them that arrived; None when
            none did or the window never ended.
    """

    window: RiskWindow
    at_risk: int
    recovered: int
    recovered_after_ns: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """What all three checkers count, and what they must agree on.

    Attributes:
        pairs: of subscription and source.
        owed: data publications between the fences that match, summed over pairs, without
            those withheld.
        delivered: of those, how many arrived at least once.
        at_risk, recovered: of those owed, and of those at risk.
        violations: by kind; kinds without any are absent.
        withheld: by partition, how many data publications between the fences that match were
            announced and never arrived.
    """

    pairs: int
    owed: int
    delivered: int
    at_risk: int
    recovered: int
    violations: Mapping[str, int] = field(default_factory=dict)
    withheld: Mapping[str, int] = field(default_factory=dict)


def decide(
    counts: Counts,
    doubts: Sequence[str],
    guarantee: Guarantee,
    calm: bool,
    deliveries_per_pair_min: int,
) -> tuple[VerdictName, list[str], list[str]]:
    """Verdict, reasons and all doubts: a proven violation counts, whatever else is unknown."""
    doubts = [*doubts, *_doubts_about_counts(counts, calm, deliveries_per_pair_min)]
    broken = {kind: n for kind, n in counts.violations.items() if guarantee.forbids(kind)}
    if broken:
        named = [
            f"{broken[kind]:,} {kind}: {VIOLATIONS[kind]}" for kind in VIOLATIONS if kind in broken
        ]
        return "INVALID", named, doubts
    if doubts:
        return "UNKNOWN", doubts, doubts
    arrived = f"{guarantee}: each of {counts.owed:,} owed deliveries arrived"
    told = in_words(counts.withheld)
    return (
        "VALID",
        [arrived, f"{told}, each announced, with a reason"] if told else [arrived],
        doubts,
    )


def doubts_about_faults(faults: Iterable[Fault]) -> list[str]:
    """Faults that may not have happened as planned."""
    found = []
    for fault in faults:
        what = f"fault {fault.fault_id} ({fault.verb} {fault.target})"
        if fault.applied_ns is None or fault.observed_ns is None:
            found.append(f"{what} was not {'applied' if fault.applied_ns is None else 'observed'}")
        if fault.err_ns is None:
            found.append(f"nobody compared the clocks: {what} put nothing surely at risk")
    return found


def _doubts_about_counts(counts: Counts, calm: bool, minimum: int) -> list[str]:
    found = []
    if counts.owed < minimum * max(counts.pairs, 1):
        average = counts.owed / counts.pairs if counts.pairs else 0
        found.append(
            f"{average:.1f} deliveries owed per subscription and source on average; "
            f"the workload asks for {minimum}"
        )
    if not calm and not counts.at_risk:
        found.append("nothing was at risk: no publication was sent through a fault")
    return found
