"""The places of deliveries in streams, as tables of the delivery check on Spark.

A protocol that orders topics gives a publication a place in a stream. A subscriber receives
publications of a stream by rising places. A publication has a single place, a place a single
publication, and publications of a source have places in the order published.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from results.rules.facts import RunFacts
from results.rules.promises import REDELIVERED
from results.rules.terms import STREAMS
from results.tables.frames import EVIDENCE, PAIR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSITION_COLUMNS = ("run_id", "sub_id", "stream", "position", "order_idx")
_PLACE = ("run_id", "stream", "position")
_PUBLICATION = ("run_id", "pubend", "key")


class Places:
    """First arrivals with their places, of runs that are judged by order in streams.

    Args:
        positions: with POSITION_COLUMNS; None: no delivery has a place.
        judged: deliveries with `is_wanted` and `key`.
    """

    def __init__(
        self,
        spark: "SparkSession",
        facts: Mapping[str, RunFacts],
        judged: "DataFrame",
        positions: "DataFrame | None",
    ) -> None:
        self._spark = spark
        self._runs = [run_id for run_id, of in facts.items() if of.order in STREAMS]
        self._placed = [run_id for run_id in self._runs if facts[run_id].placed]
        self._judged = judged
        self._positions = positions

    def find_unplaced(self) -> Iterator[tuple[str, str, int]]:
        """Yield run, subscription and number of deliveries without a required place."""
        from pyspark.sql import functions as F

        if not self._placed:
            return
        rows = self._wanted(self._placed)
        if self._positions is not None:
            places = self._positions.select("run_id", "sub_id", "order_idx")
            rows = rows.join(places, ["run_id", "sub_id", "order_idx"], "left_anti")
        for row in rows.groupBy("run_id", "sub_id").agg(F.count("*").alias("n")).collect():
            yield row["run_id"], row["sub_id"], row["n"]

    def violations(self) -> Sequence["DataFrame"]:
        """Return a row for every wrong place."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if not self._runs or self._positions is None:
            return ()
        of_publication = Window.partitionBy(*PAIR, "key").orderBy("order_idx")
        rows = (
            self._wanted(self._runs)
            .withColumn("time", F.row_number().over(of_publication))
            .where("time = 1")
            .join(self._positions.select(*POSITION_COLUMNS), ["run_id", "sub_id", "order_idx"])
        )
        in_log = Window.partitionBy("run_id", "sub_id", "stream").orderBy("order_idx")
        back = rows.withColumn("before", F.lag("position").over(in_log)).where(
            F.col("position") <= F.col("before")
        )
        once = rows.dropDuplicates(["run_id", "stream", "position", "pubend", "key"])
        in_stream = Window.partitionBy("run_id", "stream", "pubend").orderBy("position", "key")
        early = once.withColumn("before", F.lag("key").over(in_stream)).where(
            F.col("key") < F.col("before")
        )
        return [
            _found("place_back", back),
            _found("place_taken", _find_repeated(once, _PLACE, ("pubend", "key"))),
            _found("place_taken", _find_repeated(once, _PUBLICATION, ("stream", "position"))),
            _found("place_order", early),
        ]

    def _wanted(self, runs: Sequence[str]) -> "DataFrame":
        from pyspark.sql import functions as F

        of_runs = F.col("run_id").isin([*runs])
        return self._judged.where(of_runs & F.col("is_wanted") & (F.col("kind") != REDELIVERED))


def _find_repeated(rows: "DataFrame", of: Sequence[str], several: Sequence[str]) -> "DataFrame":
    """Return a row for every `of` with two or more of `several`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*of).orderBy(*several)
    return rows.withColumn("nth", F.row_number().over(window)).where("nth = 2")


def _found(kind: str, rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return rows.select(
        F.lit(kind).alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
        F.lit(False).alias("owed"),
    )  # fmt: skip
