"""What a check finds out about a run, before anything is decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from results.rules.terms import Counts, Recovery


@dataclass(frozen=True)
class SourceSummary:
    """What the publications of one source come to.

    Attributes:
        opening, closing: keys of the fences, and when they were sent; None where one is not there.
        measured: data publications of the measure phase.
        other_content: publications whose log and seed disagree.
        undone: by incarnation, data publications between the fences that a subscription matches,
            that were neither acknowledged nor received though later ones were, and their first.
    """

    opening: int | None
    closing: int | None
    measured: int
    other_content: int
    opened_ns: int | None = None
    closed_ns: int | None = None
    undone: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PairSummary:
    """What one subscription received of one source.

    Attributes:
        received: deliveries of every kind.
        duplicates, reordered: of them.
        owed, delivered, missing: data publications between the fences, without those withheld.
        withheld: data publications between the fences that were announced, as withheld or as a
            gap, and never came.
        first_ns, last_ns: of the receipts; None without any.
        xor_hash: equal for equal sets of deliveries.
    """

    sub_id: str
    pubend: str
    first_seq: int | None
    last_seq: int | None
    received: int
    duplicates: int
    reordered: int
    owed: int
    delivered: int
    missing: int
    first_ns: int | None
    last_ns: int | None
    xor_hash: int
    withheld: int = 0
    started: bool = True

    @property
    def undecided(self) -> int:
        """What is owed and did not come where the log is not whole, so that it may have."""
        return self.owed - self.delivered - self.missing


@dataclass
class Findings:
    """What the check found out about one run.

    Attributes:
        at_risk_of: by subscription, how many deliveries were at risk and how many recovered.
        withheld: by partition, how many deliveries it withheld.
        announced: by reason, how many deliveries lay in announced gaps.
        redelivered: deliveries that were rightly given again.
        other_kind: deliveries that are logged as fences and are none, or the other way round.
        too_soon: deliveries that were received before they were sent.
        violations_of: by subscription and source, violations by kind.
        outstanding: missing deliveries behind all that came.
        unplaced: by subscription, deliveries that have no place in a stream and need one.
    """

    sources: dict[str, SourceSummary] = field(default_factory=dict)
    pairs: list[PairSummary] = field(default_factory=list)
    violations: dict[str, int] = field(default_factory=dict)
    at_risk: int = 0
    recovered: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    at_risk_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    redelivered: int = 0
    other_kind: int = 0
    too_soon: int = 0
    unplaced: dict[str, int] = field(default_factory=dict)
    outstanding: int = 0
    violations_of: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    @property
    def counts(self) -> Counts:
        """What all checkers count."""
        started = [pair for pair in self.pairs if pair.started]
        least = min(started, key=lambda pair: (pair.owed, pair.sub_id, pair.pubend), default=None)
        return Counts(
            pairs=len(started),
            owed=sum(pair.owed for pair in started),
            delivered=sum(pair.delivered for pair in started),
            at_risk=self.at_risk,
            recovered=self.recovered,
            violations=self.violations,
            withheld={partition: n for partition, n in self.withheld.items() if n},
            undecided=sum(pair.undecided for pair in started),
            least_owed=None if least is None else (least.sub_id, least.pubend, least.owed),
            announced={reason: n for reason, n in self.announced.items() if n},
            redelivered=self.redelivered,
            outstanding=self.outstanding,
        )

    @property
    def measured(self) -> int:
        """Data publications of the measure phase."""
        return sum(source.measured for source in self.sources.values())
