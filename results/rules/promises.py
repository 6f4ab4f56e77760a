"""Promises of protocols beyond publisher order, as tables of the delivery check on Spark.

Gaps and commits are few and kept by the driver. Deliveries are joined with them as small tables. A
run of a protocol without further promises has no cost.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from results.rules.facts import RunFacts
from results.rules.losses import find_permitted
from results.rules.terms import STATE_LOST, Gap
from results.tables.frames import EVIDENCE, PAIR, key_of, small_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Names = tuple[str, str, str]
"""Run, subscription and source."""

REDELIVERED = "redelivered"
LANE = "lane"
"""The column that separates the publications of a source into ordered groups."""


class PromisedDeliveries:
    """Orders, gaps and redeliveries of some runs."""

    def __init__(self, spark: "SparkSession", facts: Mapping[str, RunFacts]) -> None:
        self._spark = spark
        self._facts = facts
        self._redelivering = [run for run, of in facts.items() if of.promises.redelivers]
        self._unordered = [run for run, of in facts.items() if not of.lane]
        self._in_total_order = [run for run, of in facts.items() if of.order == "total"]
        self._commits = [
            (run_id, *pair, key_of(c.incarnation, c.first), key_of(c.incarnation, c.last), c.place)
            for run_id, of in facts.items()
            if of.promises.redelivers
            for pair, commits in of.commits.items()
            for c in commits
        ]

    # --- Order ------------------------------------------------------------------------------

    def select_ordered(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows of runs with an order of deliveries."""
        from pyspark.sql import functions as F

        return rows.where(~F.col("run_id").isin(self._unordered)) if self._unordered else rows

    def differences(self, judged: "DataFrame") -> Iterator["DataFrame"]:
        """Yield a row for any two subscriptions with different orders of publications.

        Every two subscriptions of a run are compared, so many subscriptions take long.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if not self._in_total_order:
            return
        of_publication = Window.partitionBy(*PAIR, "key").orderBy("order_idx")
        firsts = (
            judged.where(F.col("is_wanted") & F.col("run_id").isin(self._in_total_order))
            .withColumn("time", F.row_number().over(of_publication))
            .where("time = 1")
        )
        firsts = self._without_sent_again(firsts)
        there = firsts.select(
            F.col("run_id").alias("there_run_id"),
            F.col("pubend").alias("there_pubend"),
            F.col("key").alias("there_key"),
            F.col("sub_id").alias("there_sub_id"),
            F.col("order_idx").alias("there_place"),
        )
        both = firsts.join(
            there,
            [
                *(F.col(name) == F.col(f"there_{name}") for name in ("run_id", "pubend", "key")),
                F.col("there_sub_id") < F.col("sub_id"),
            ],
        )
        of_two = Window.partitionBy("run_id", "there_sub_id", "sub_id").orderBy("order_idx")
        steps_back = both.withColumn("before", F.lag("there_place").over(of_two)).where(
            F.col("there_place") < F.col("before")
        )
        yield (
            steps_back.withColumn("nth", F.row_number().over(of_two))
            .where("nth = 1")
            .select(F.lit("order_differs").alias("kind"), *EVIDENCE, *_receive_time())
        )

    def _without_sent_again(self, firsts: "DataFrame") -> "DataFrame":
        """Return the rows without publications that were sent again after a loss of state."""
        rows = [
            (run_id, source, key_of(*key))
            for run_id in self._in_total_order
            for source, keys in self._facts[run_id].sent_again.items()
            for key in sorted(keys)
        ]
        if not rows:
            return firsts
        ddl = "run_id STRING, pubend STRING, key BIGINT"
        return firsts.join(
            small_frame(self._spark, rows, ddl), ["run_id", "pubend", "key"], "left_anti"
        )

    # --- Redelivery -------------------------------------------------------------------------

    def again(self, repeated: "DataFrame") -> tuple["DataFrame", "DataFrame | None"]:
        """Return repeated deliveries: duplicates, and permitted redeliveries (None without any)."""
        from pyspark.sql import functions as F

        if not self._redelivering:
            return repeated, None
        is_marked = self._is_marked()
        marked = repeated.where(is_marked)
        committed = self._find_committed(marked, F.col("order_idx"))
        duplicates = repeated.where(~is_marked).unionByName(committed)
        return duplicates, self._find_uncommitted(marked, F.col("order_idx"))

    def _is_marked(self) -> "Column":
        from pyspark.sql import functions as F

        return (F.col("kind") == REDELIVERED) & F.col("run_id").isin(self._redelivering)

    def _find_committed(self, rows: "DataFrame", at: "Column") -> "DataFrame":
        """Return the rows that the application had committed before a place of the log."""
        return self._join_commits(rows, at, "left_semi")

    def _find_uncommitted(self, rows: "DataFrame", at: "Column") -> "DataFrame":
        return self._join_commits(rows, at, "left_anti")

    def _join_commits(self, rows: "DataFrame", at: "Column", how: str) -> "DataFrame":
        from pyspark.sql import functions as F

        ddl = (
            "by_run_id STRING, by_sub_id STRING, by_pubend STRING, by_first BIGINT, "
            "by_last BIGINT, by_place BIGINT"
        )
        table = F.broadcast(small_frame(self._spark, self._commits, ddl))
        condition = [F.col(name) == F.col(f"by_{name}") for name in PAIR]
        condition.append(F.col("key").between(F.col("by_first"), F.col("by_last")))
        condition.append(F.col("by_place") <= at)
        return rows.join(table, condition, how)

    # --- Gaps -------------------------------------------------------------------------------

    def find_unpromised_gaps(self) -> Iterator["DataFrame"]:
        """Yield a row per gap that was announced for no promised reason."""
        from pyspark.sql import functions as F

        rows = [
            (*names, gap.incarnation, gap.first, gap.place, None)
            for names, gap in self._gaps(None)
            if not any(self._find_permitted(names, gap))
        ]
        if rows:
            ddl = (
                "run_id STRING, sub_id STRING, pubend STRING, incarnation BIGINT, seq BIGINT, "
                "order_idx BIGINT, t_ns BIGINT"
            )
            yield small_frame(self._spark, rows, ddl).select(
                F.lit("gap_unpromised").alias("kind"), *EVIDENCE, "t_ns",
                F.lit(False).alias("owed"),
            )  # fmt: skip

    def _find_permitted(self, names: Names, gap: Gap) -> Iterator[Gap]:
        facts = self._facts[names[0]]
        return find_permitted([gap], facts.promises, facts.clock_errors.get(names[1:], 0))

    def deliveries_in_gaps(
        self, firsts: "DataFrame", pairs: Iterable[Names]
    ) -> Iterator["DataFrame"]:
        """Yield a row per first arrival of a gap's publication, before or after the notice.

        Args:
            firsts: the first arrival of each publication.
        """
        from pyspark.sql import functions as F

        rows = [
            (*names, key_of(gap.incarnation, gap.first), key_of(gap.incarnation, gap.last),
             gap.place)
            for names, gap in self._gaps({*pairs})
        ]  # fmt: skip
        if not rows:
            return
        ddl = (
            "gap_run_id STRING, gap_sub_id STRING, gap_pubend STRING, gap_first BIGINT, "
            "gap_last BIGINT, gap_place BIGINT"
        )
        condition = [F.col(name) == F.col(f"gap_{name}") for name in PAIR]
        condition.append(F.col("key").between(F.col("gap_first"), F.col("gap_last")))
        hits = firsts.join(F.broadcast(small_frame(self._spark, rows, ddl)), condition)
        after_restart = F.col("run_id").isin(self._redelivering) & (
            (F.col("gap_place") > F.col("order_idx")) | (F.col("kind") == REDELIVERED)
        )
        wrong = hits.where(~after_restart)
        if self._commits:
            at = F.greatest("gap_place", "order_idx")
            wrong = wrong.unionByName(self._find_committed(hits.where(after_restart), at))
        keys = wrong.select(*(F.col(name).alias(f"wrong_{name}") for name in (*PAIR, "key")))
        yield firsts.join(
            keys, [F.col(name) == F.col(f"wrong_{name}") for name in (*PAIR, "key")], "left_semi"
        ).select(F.lit("gap_delivered").alias("kind"), *EVIDENCE, *_receive_time())

    def _gaps(self, pairs: "set[Names] | None") -> Iterator[tuple[Names, Any]]:
        for run_id, of_run in self._facts.items():
            known = {s.sub_id for s in of_run.subscriptions}, {s.pubend for s in of_run.sources}
            for (sub_id, pubend), gaps in of_run.gaps.items():
                names = run_id, sub_id, pubend
                if sub_id not in known[0] or (pairs is not None and names not in pairs):
                    continue
                yield from (
                    (names, gap) for gap in gaps if pubend in known[1] or gap.reason == STATE_LOST
                )


def _receive_time() -> list["Column"]:
    from pyspark.sql import functions as F

    return [F.col("t_recv_ns").alias("t_ns"), F.lit(False).alias("owed")]
