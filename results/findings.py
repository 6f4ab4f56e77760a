"""What a check finds out about a run, before anything is decided."""

from dataclasses import dataclass, field

from results.verdicts import Counts, Recovery


@dataclass(frozen=True)
class SourceSummary:
    """What the publications of one source come to; keys are `None` where there is no fence."""

    opening: int | None
    closing: int | None
    measured: int
    other_content: int


@dataclass(frozen=True)
class PairSummary:
    """What one subscription received of one source.

    Attributes:
        received, duplicates, reordered, missing: deliveries.
        owed, delivered: data publications between the fences, without those withheld.
        withheld: data publications between the fences that were announced, and never came.
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


@dataclass
class Findings:
    """What the check found out about one run.

    Attributes:
        at_risk_of: by subscription, how many deliveries were at risk and how many recovered.
        withheld: by partition, how many deliveries it withheld.
    """

    sources: dict[str, SourceSummary] = field(default_factory=dict)
    pairs: list[PairSummary] = field(default_factory=list)
    violations: dict[str, int] = field(default_factory=dict)
    at_risk: int = 0
    recovered: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    at_risk_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> Counts:
        """What all checkers count."""
        return Counts(
            pairs=len(self.pairs),
            owed=sum(pair.owed for pair in self.pairs),
            delivered=sum(pair.delivered for pair in self.pairs),
            at_risk=self.at_risk,
            recovered=self.recovered,
            violations=self.violations,
            withheld={partition: n for partition, n in self.withheld.items() if n},
        )

    @property
    def measured(self) -> int:
        """Data publications of the measure phase."""
        return sum(source.measured for source in self.sources.values())
