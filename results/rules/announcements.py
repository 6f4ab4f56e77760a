"""Announced absences of publications, as tables of the delivery check on Spark.

A publication is announced as withheld by a partition, or as part of a gap that the protocol
promises to announce. Notices and gaps are few and kept by the driver. Publications and deliveries
are joined with them as small tables. A run without notices and gaps has no cost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from results.rules.facts import RunFacts
from results.rules.losses import find_permitted, is_accepted, is_of_absence
from results.rules.retentions import find_last_sent_ns
from results.rules.risks import Tree
from results.rules.terms import NEVER_NS, STATE_LOST, Gap, Notice
from results.rules.withholding import (
    Barriers,
    RequestTimes,
    Stretch,
    stretches_in_gaps,
    stretches_of,
)
from results.tables.frames import (
    EVIDENCE,
    FIRST_KEY,
    LAST_KEY,
    PAIR,
    SEQUENCE_BITS,
    key_of,
    small_frame,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Names = tuple[str, str, str]
"""Run, subscription and source."""


@dataclass(frozen=True)
class AnnouncedRange:
    """Publications of a source that a notice announced first to a subscription.

    Attributes:
        first, last: keys.
        partition: the partition that withholds the publications; "" for a gap.
        reason: reason of the gap; "" for a partition.
        late: matching publications were announced after deliveries of the source.
        until_ns: publications sent later have no excuse.
    """

    first: int
    last: int
    partition: str
    place: int
    announced_ns: int
    late: bool
    until_ns: int
    reason: str = ""

    def within(self, span: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the part of a span (run, predicate, source, first, last) in this range."""
        first, last = max(self.first, span[3]), min(self.last, span[4])
        return (*span[:3], first, last) if first <= last else (*span[:3], LAST_KEY, FIRST_KEY)


class StreamLosses:
    """Accepted losses in streams of brokers, which no publisher has.

    Such a gap names no publications. It excuses those that were sent before its announcement, of
    all sources, and that never arrive.
    """

    def __init__(self, facts: Mapping[str, RunFacts]) -> None:
        self._gaps: list[tuple[Names, Gap, int]] = []
        for run_id, of_run in facts.items():
            known = {source.pubend for source in of_run.sources}
            for (sub_id, stream), gaps in of_run.gaps.items():
                for gap in gaps if stream not in known else ():
                    if not is_accepted(gap, of_run.promises):
                        continue
                    for pubend in sorted(known):
                        error_ns = of_run.clock_errors.get((sub_id, pubend), 0)
                        until_ns = NEVER_NS if error_ns is None else gap.received_ns + error_ns
                        self._gaps.append(((run_id, sub_id, pubend), gap, until_ns))

    def list_by_pair(
        self, spark: "SparkSession", publications: "DataFrame"
    ) -> dict[Names, list[Gap]]:
        """Return the losses of each pair as gaps of its source."""
        from pyspark.sql import functions as F

        if not self._gaps:
            return {}
        times = dict.fromkeys((run_id, pubend, at) for (run_id, _, pubend), _, at in self._gaps)
        ddl = "run_id STRING, pubend STRING, until_ns BIGINT"
        rows = (
            publications.join(F.broadcast(small_frame(spark, [*times], ddl)), ["run_id", "pubend"])
            .where(F.col("t_sent_ns") <= F.col("until_ns"))
            .groupBy("run_id", "pubend", "until_ns")
            .agg(F.max("key").alias("key"))
            .toArrow()
            .to_pylist()
        )
        last = {(row["run_id"], row["pubend"], row["until_ns"]): row["key"] for row in rows}
        found: dict[Names, list[Gap]] = {}
        for names, gap, until_ns in self._gaps:
            key = last.get((names[0], names[2], until_ns))
            if key is not None:
                found.setdefault(names, []).extend(_gaps_through(key, names[2], gap))
        return found


def _gaps_through(key: int, pubend: str, gap: Gap) -> Iterator[Gap]:
    """Yield gaps with all publications of a source up to a key, one per incarnation."""
    most = (1 << SEQUENCE_BITS) - 1
    for incarnation in range((key >> SEQUENCE_BITS) + 1):
        last = key & most if incarnation == key >> SEQUENCE_BITS else most
        yield replace(gap, source=pubend, incarnation=incarnation, first=1, last=last)


class Announcements:
    """All publications of some runs that were announced as withheld, or as a gap.

    Args:
        first_places: place in the log of the first delivery of the source, by pair.
        lost: per pair, the publications that losses of streams excuse; see `StreamLosses`.
    """

    def __init__(
        self,
        spark: "SparkSession",
        facts: Mapping[str, RunFacts],
        first_places: Mapping[Names, int | None],
        lost: Mapping[Names, Sequence[Gap]],
    ) -> None:
        self._spark = spark
        self._lost = lost
        self._notices: dict[Names, Sequence[Notice]] = {}
        self._gaps: dict[Names, Sequence[Gap]] = {}
        self._announced: dict[Names, list[AnnouncedRange]] = {}
        self._predicate_ids: dict[Names, int] = {}
        for run_id, of_run in facts.items():
            if of_run.notices or of_run.gaps:
                self._take(run_id, of_run, first_places)

    def _take(self, run_id: str, facts: RunFacts, first_places: Mapping[Names, int | None]) -> None:
        # Only a tree has partitions that withhold publications.
        tree = Tree(facts.links if facts.routes is None else ())
        barriers = Barriers(tree, facts.delta or 0, facts.faults, facts.newcomers)
        subscriptions = {s.sub_id: s for s in facts.subscriptions}
        sources = {s.pubend: s for s in facts.sources}
        predicate_ids = {text: number for number, text in enumerate(facts.predicates)}
        lost = [(sub_id, pubend) for name, sub_id, pubend in self._lost if name == run_id]
        for sub_id, pubend in dict.fromkeys([*facts.notices, *facts.gaps, *lost]):
            if sub_id not in subscriptions or pubend not in sources:
                continue
            names = run_id, sub_id, pubend
            subscription = subscriptions[sub_id]
            notices = facts.notices.get((sub_id, pubend), ())
            gaps = facts.gaps.get((sub_id, pubend), ())
            self._notices[names], self._gaps[names] = notices, gaps
            self._predicate_ids[names] = predicate_ids[subscription.predicate]
            stretches = stretches_of(
                notices,
                first_places.get(names),
                barriers,
                subscription.broker,
                sources[pubend].broker,
                RequestTimes(subscription.issued_ns, subscription.accepted_ns),
            )
            self._announced[names] = [
                *map(_announced_of, stretches),
                *_announced_in_gaps(
                    [*gaps, *self._lost.get(names, ())], facts, names[1:], stretches
                ),
            ]

    def of(self, names: Names) -> Sequence[AnnouncedRange]:
        """Return the announcements to a subscription about a source."""
        return self._announced.get(names, ())

    def is_contradicted(self, names: Names, lowest: int | None) -> bool:
        """Return True if a delivery may have arrived in spite of a notice."""
        last = [part.last for part in self.of(names)]
        last += [key_of(gap.incarnation, gap.last) for gap in self._gaps.get(names, ())]
        return bool(last) and lowest is not None and lowest <= max(last)

    def select_unannounced(self, rows: "DataFrame", unless: "Column | None" = None) -> "DataFrame":
        """Return the rows (by pair and `key`) without an announcement, or with `unless` true."""
        from pyspark.sql import functions as F

        if not self._announced:
            return rows
        table = self._table(self._announced)
        condition = [F.col(name) == F.col(f"announced_{name}") for name in PAIR]
        condition.append(F.col("key").between(F.col("announced_first"), F.col("announced_last")))
        if unless is not None:
            condition.append(~unless)
        return rows.join(F.broadcast(table), condition, "left_anti")

    def violations(self, happened: "DataFrame") -> Iterator["DataFrame"]:
        """Yield a row per matching publication that was announced without reason or too late.

        Args:
            happened: publications with the predicates that match.
        """
        from pyspark.sql import functions as F

        rows = [
            (*names, self._predicate_ids[names], item.first, item.last, kind, sent_after_ns,
             item.place, item.announced_ns)
            for names, of_pair in self._announced.items()
            for item in of_pair
            for kind, sent_after_ns in _objections(item)
        ]  # fmt: skip
        if not rows:
            return
        ddl = (
            "run_id STRING, sub_id STRING, pubend STRING, predicate_id INT, first BIGINT, "
            "last BIGINT, kind STRING, sent_after_ns BIGINT, order_idx BIGINT, t_ns BIGINT"
        )
        table = F.broadcast(small_frame(self._spark, rows, ddl))
        yield (
            happened.join(table, ["run_id", "pubend", "predicate_id"])
            .where(F.col("key").between(F.col("first"), F.col("last")))
            .where(F.col("t_sent_ns") > F.col("sent_after_ns"))
            .select("kind", *EVIDENCE, "t_ns", F.lit(False).alias("owed"))
        )

    def deliveries_in_spite(
        self, firsts: "DataFrame", pairs: Iterable[Names]
    ) -> Iterator["DataFrame"]:
        """Yield a row per first arrival of an announced publication, or of an earlier one.

        Args:
            firsts: the first arrival of each publication.
        """
        from pyspark.sql import functions as F

        rows = [
            (*names, notice.place, key_of(notice.incarnation, notice.last))
            for names in pairs
            for notice in self._notices.get(names, ())
        ]
        if not rows:
            return
        ddl = (
            "announced_run_id STRING, announced_sub_id STRING, announced_pubend STRING, "
            "announced_place BIGINT, announced_last BIGINT"
        )
        table = F.broadcast(small_frame(self._spark, rows, ddl))
        condition = [F.col(name) == F.col(f"announced_{name}") for name in PAIR]
        condition += [
            F.col("announced_place") <= F.col("order_idx"),
            F.col("key") <= F.col("announced_last"),
        ]
        yield firsts.join(table, condition, "left_semi").select(
            F.lit("withheld_delivered").alias("kind"),
            *EVIDENCE,
            F.col("t_recv_ns").alias("t_ns"),
            F.lit(False).alias("owed"),
        )

    def count_arrived(
        self, firsts: "DataFrame", owed: "Column"
    ) -> dict[tuple[Names, str, str], int]:
        """Count owed deliveries that arrived although announced, by pair, partition and reason."""
        from pyspark.sql import functions as F

        if not self._announced:
            return {}
        condition = [F.col(name) == F.col(f"announced_{name}") for name in PAIR]
        condition.append(F.col("key").between(F.col("announced_first"), F.col("announced_last")))
        rows = (
            firsts.where(owed)
            .join(F.broadcast(self._table(self._announced)), condition)
            .groupBy(*PAIR, "announced_partition", "announced_reason")
            .count()
            .toArrow()
            .to_pylist()
        )
        return {
            (
                (row["run_id"], row["sub_id"], row["pubend"]),
                row["announced_partition"],
                row["announced_reason"],
            ): row["count"]
            for row in rows
        }

    def _table(self, ranges: Mapping[Names, Sequence[AnnouncedRange]]) -> "DataFrame":
        rows = [
            (*names, part.first, part.last, part.partition, part.reason)
            for names, of_pair in ranges.items()
            for part in of_pair
        ]
        return small_frame(
            self._spark,
            rows,
            "announced_run_id STRING, announced_sub_id STRING, announced_pubend STRING, "
            "announced_first BIGINT, announced_last BIGINT, announced_partition STRING, "
            "announced_reason STRING",
        )


def _announced_of(stretch: Stretch) -> AnnouncedRange:
    return AnnouncedRange(
        key_of(*stretch.first),
        key_of(*stretch.last),
        str(stretch.partition),
        stretch.place,
        stretch.announced_ns,
        stretch.begun,
        -NEVER_NS if stretch.until_ns is None else stretch.until_ns,
    )


def _announced_in_gaps(
    gaps: Sequence[Gap], facts: RunFacts, pair: tuple[str, str], stretches: Sequence[Stretch]
) -> Iterator[AnnouncedRange]:
    promises, error_ns = facts.promises, facts.clock_errors.get(pair, 0)
    named = [*find_permitted(gaps, promises, error_ns)]
    reasons = (*promises.gaps, *promises.absence_gaps, STATE_LOST)
    reasons += tuple(each.reason for each in promises.retentions)
    for gap, first, last in stretches_in_gaps(named, reasons, stretches):
        released_ns = find_last_sent_ns(gap, promises, error_ns)
        until_ns = NEVER_NS if released_ns is None else released_ns
        if error_ns is not None and is_of_absence(gap, promises):
            absent_ns = (gap.absent_until_ns or 0) + error_ns
            until_ns = absent_ns if released_ns is None else max(released_ns, absent_ns)
        yield AnnouncedRange(
            key_of(*first), key_of(*last), "", gap.place, gap.received_ns, late=False,
            until_ns=until_ns, reason=gap.reason,
        )  # fmt: skip


def _objections(item: AnnouncedRange) -> Iterator[tuple[str, int]]:
    """Yield the violations of a range, each with the time after which publications count."""
    if item.until_ns < NEVER_NS:
        yield "gap_early" if item.reason else "withheld_unjustified", item.until_ns
    if item.late:
        yield "withheld_late", -NEVER_NS
