"""Every violation as a row of its own, by a search only among pairs with a violation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from results.rules.announcements import Announcements
from results.rules.pairs import BadPair, Names
from results.rules.promises import LANE, PromisedDeliveries
from results.tables.frames import EVIDENCE, PAIR, make_owed_column, small_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def objections(judged: "DataFrame") -> "DataFrame":
    """Return deliveries with a violation that is independent of other deliveries."""
    from pyspark.sql import functions as F

    return judged.where(F.col("objection").isNotNull()).select(
        F.col("objection").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
        F.lit(False).alias("owed"),
    )  # fmt: skip


def find_reused_numbers(reused: "DataFrame") -> "DataFrame":
    """Return sequence numbers that were used for two publications."""
    from pyspark.sql import functions as F

    return reused.select(
        F.lit("sequence_reuse").alias("kind"), "run_id", F.lit("").alias("sub_id"),
        "pubend", "incarnation", "seq", F.lit(None).cast("BIGINT").alias("order_idx"),
        F.col("t_sent_ns").alias("t_ns"), F.lit(False).alias("owed"),
    )  # fmt: skip


class BadWalks:
    """The pairs that did not walk the required keys, publication by publication.

    Args:
        wanted: publications that happened, with the predicates that match.
        topics: the lane of each attribute set, for runs with order by topic.
    """

    def __init__(
        self,
        spark: "SparkSession",
        judged: "DataFrame",
        wanted: "DataFrame",
        announced: Announcements,
        promised: PromisedDeliveries,
        bad: Sequence[BadPair],
        topics: "DataFrame | None" = None,
    ) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        self._wanted = wanted
        self._topics = topics
        self._announced = announced
        self._promised = promised
        self._bad = bad
        self._table = small_frame(
            spark,
            [
                (*b.pair.names, *b.span[1:2], *b.span[3:], *b.pair.compute_owed_span()[3:])
                for b in bad
            ],
            "run_id STRING, sub_id STRING, pubend STRING, predicate_id INT, first BIGINT, "
            "last BIGINT, after_opening BIGINT, before_closing BIGINT",
        )
        of_publication = Window.partitionBy(*PAIR, "key").orderBy("order_idx")
        self._walked = (
            judged.where("is_wanted")
            .join(F.broadcast(self._table.drop("predicate_id")), [*PAIR])
            .withColumn("time", F.row_number().over(of_publication))
        )
        self._firsts = self._walked.where("time = 1")
        self._repeated, self._redelivered = promised.again(self._walked.where("time > 1"))

    @property
    def _owed(self) -> "Column":
        from pyspark.sql import functions as F

        return ~F.col("matches_fence") & make_owed_column()

    def rows(self) -> list["DataFrame"]:
        """Return rows for repeated, reordered, absent and wrongly announced deliveries."""
        contradicted = [item.pair.names for item in self._bad if item.in_spite]
        in_spite = [
            *self._announced.deliveries_in_spite(self._firsts, contradicted),
            *self._promised.deliveries_in_gaps(self._firsts, contradicted),
        ]
        return [self._find_repeated(), self._back(), self._find_absent(), *in_spite]

    def redelivered(self) -> dict[Names, tuple[int, int]]:
        """Return the numbers of permitted redeliveries and owed redeliveries, by pair."""
        from pyspark.sql import functions as F

        if self._redelivered is None:
            return {}
        rows = (
            self._redelivered.groupBy(*PAIR)
            .agg(F.count("*").alias("n"), F.count_if(self._owed).alias("owed"))
            .toArrow()
            .to_pylist()
        )
        return {
            (row["run_id"], row["sub_id"], row["pubend"]): (row["n"], row["owed"]) for row in rows
        }

    def count_arrived_announced(self) -> dict[tuple[Names, str, str], int]:
        """Count owed deliveries that arrived although announced, by pair and announcement."""
        if not any(item.in_spite for item in self._bad):
            return {}
        return self._announced.count_arrived(self._firsts, self._owed)

    def _find_repeated(self) -> "DataFrame":
        from pyspark.sql import functions as F

        return self._repeated.select(
            F.lit("duplicate").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
            self._owed.alias("owed"),
        )  # fmt: skip

    def _back(self) -> "DataFrame":
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        in_order = Window.partitionBy(*PAIR, LANE).orderBy("order_idx")
        return (
            self._promised.select_ordered(self._firsts)
            .withColumn("before", F.lag("key").over(in_order))
            .where("before > key")
            .select(
                F.lit("reordered").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
                self._owed.alias("owed"),
            )
        )  # fmt: skip

    def outstanding(self) -> dict[str, int]:
        """Return the number of missing deliveries behind the last arrival of a lane, by run."""
        from pyspark.sql import functions as F

        rows = self._find_missing().withColumn("owed", ~F.col("is_fence") & make_owed_column())
        if self._topics is None:
            rows = rows.withColumn(LANE, F.lit(0))
        else:
            rows = rows.join(F.broadcast(self._topics), ["run_id", "attrs_expected"], "left")
            rows = rows.withColumn(LANE, F.coalesce(LANE, F.lit(0)))
        reached = self._firsts.groupBy(*PAIR, LANE).agg(F.max("key").alias("reached"))
        return {
            row["run_id"]: row["count"]
            for row in rows.join(reached, [*PAIR, LANE], "left")
            .where(F.col("owed") | F.col("is_fence"))
            .where(F.col("reached").isNull() | (F.col("key") > F.col("reached")))
            .groupBy("run_id")
            .count()
            .collect()
        }

    def _find_missing(self) -> "DataFrame":
        from pyspark.sql import functions as F

        return self._announced.select_unannounced(
            self._wanted.join(F.broadcast(self._table), ["run_id", "pubend", "predicate_id"])
            .where(F.col("key").between(F.col("first"), F.col("last")))
            .join(self._firsts.select(*PAIR, "key"), [*PAIR, "key"], "left_anti")
        )

    def _find_absent(self) -> "DataFrame":
        from pyspark.sql import functions as F

        owed = ~F.col("is_fence") & make_owed_column()
        kind = (
            F.when(owed, F.lit("missing"))
            .when(F.col("is_fence"), F.lit("fence_missing"))
            .otherwise(F.lit("left_out"))
        )
        return self._find_missing().select(
            kind.alias("kind"), "run_id", "sub_id", "pubend", "incarnation", "seq",
            F.lit(None).cast("BIGINT").alias("order_idx"), F.col("t_sent_ns").alias("t_ns"),
            owed.alias("owed"),
        )  # fmt: skip
