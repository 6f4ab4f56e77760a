"""Latency by send time, as numbers that distinguish repetitions."""

from pathlib import Path
from typing import TYPE_CHECKING

from results.checker.latency import quantile_of
from results.tables.load import LoadedRun, load_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BIN_NS = 250_000_000

Place = tuple[str, int]
"""A subscription and a stretch of send time."""


def latencies_by_send_time(spark: "SparkSession", run_dir: Path) -> dict[Place, float]:
    """Return the median latency of each subscription in each stretch of send time, in µs."""
    from pyspark.sql import functions as F

    rows = (
        first_deliveries(spark, load_run(spark, run_dir))
        .groupBy("sub_id", F.floor(F.col("t_ns") / BIN_NS).cast("INT").alias("bin"))
        .agg(quantile_of("latency_us", 0.5).alias("us"))
        .collect()
    )
    return {(row.sub_id, row.bin): max(float(row.us), 1.0) for row in rows}


def first_deliveries(spark: "SparkSession", loaded: LoadedRun) -> "DataFrame":
    """Return every delivery once: subscription, stream, send time, latency."""
    from pyspark.sql import functions as F

    return (
        loaded.table(spark, "deliveries")
        .where(
            (F.col("layer") == "application")
            & (F.col("kind") == "data")
            & F.col("same_clock")
            & F.col("lat_response_us").isNotNull()
        )
        .groupBy("sub_id", "pubend", "incarnation", "seq")
        .agg(F.min("t_sent_ns").alias("t_ns"), F.min("lat_response_us").alias("latency_us"))
    )
