"""Findings of a check about a run, before any decision."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from results.rules.terms import Counts, Recovery

MOST_SHOWN_PAIRS: Final = 4


@dataclass(frozen=True)
class SourceSummary:
    """The publications of a source, in summary.

    Attributes:
        opening, closing: keys of the fences; None for an absent fence.
        opened_ns, closed_ns: times at which the fences were sent; None for an absent fence.
        measured: number of data publications of the measure phase.
        other_content: number of publications with a log that contradicts the seed.
        undone: number and first of the data publications between the fences that match a
            subscription and were neither acknowledged nor received, in contrast to later
            publications, by incarnation.
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
    """The deliveries of a source to a subscription, in summary.

    Attributes:
        received: number of deliveries of every kind.
        duplicates, reordered: numbers of these deliveries.
        owed, delivered, missing: numbers of data publications between the fences, without withheld
            publications.
        withheld: number of data publications between the fences that were announced, as withheld or
            as a gap, and never arrived.
        first_ns, last_ns: times of the receipts; None without receipts.
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
        """The number of owed publications that may have arrived, because the log is incomplete."""
        return self.owed - self.delivered - self.missing


@dataclass
class Findings:
    """The findings of the check about a run.

    Attributes:
        at_risk_of: numbers of deliveries at risk and recovered, by subscription.
        withheld: number of withheld deliveries, by partition.
        announced: number of deliveries in announced gaps, by reason.
        redelivered: number of permitted redeliveries.
        other_kind: number of deliveries that are logged as fences but are data, or the reverse.
        too_soon: number of deliveries that were received before they were sent.
        violations_of: violations by kind, by subscription and source.
        outstanding: number of missing deliveries behind all arrivals.
        unplaced: number of deliveries without a required place in a stream, by subscription.
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
        """The counts that all checkers share."""
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
        """The number of data publications of the measure phase."""
        return sum(source.measured for source in self.sources.values())


def describe_nothing_owed(pairs: Iterable[PairSummary]) -> Iterator[str]:
    """Yield a line with the pairs that were owed nothing; a verdict does not cover them."""
    none = [f"{pair.sub_id} of {pair.pubend}" for pair in pairs if pair.started and not pair.owed]
    if none:
        none.sort()
        more = [f"{len(none) - MOST_SHOWN_PAIRS:,} more"] if len(none) > MOST_SHOWN_PAIRS else []
        yield f"owed nothing: {', '.join([*none[:MOST_SHOWN_PAIRS], *more])}"
