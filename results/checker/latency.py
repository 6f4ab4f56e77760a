"""Latencies of deliveries: exact percentiles, by send time, and buckets that add up over runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd.quantiles import PERCENTILES
from results.checker.clocks import OneWay, judge_one_way
from results.tables.load import LoadedRun, load_run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BIN_NS = 250_000_000

Place = tuple[str, int]
"""A subscription and a stretch of send time."""


def quantile_of(column: str, share: float) -> "Column":
    """Return a quantile of a column by the nearest-rank method, as `brokerd.quantiles` does."""
    from pyspark.sql import functions as F

    assert column.isidentifier(), f"{column!r} would be part of a query"
    return F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {column})")


def select_measured(deliveries: "DataFrame") -> "DataFrame":
    """Return the deliveries with a latency of record: data to applications in the measure phase.

    Both stamps are from one clock; `across_clocks` has the other deliveries.
    """
    from pyspark.sql import functions as F

    return deliveries.where(
        (F.col("layer") == "application")
        & (F.col("kind") == "data")
        & (F.col("phase") == "measure")
        & F.col("same_clock")
        & F.col("lat_response_us").isNotNull()
    )


@dataclass(frozen=True)
class AcrossClocks:
    """Deliveries with stamps from different clocks, all with the same uncertainty.

    Attributes:
        error_us: maximum error of each latency; None if unknown.
        judgement: the permission to report the median.
    """

    n: int
    median_us: float
    error_us: int | None
    judgement: OneWay


def judge_across_clocks(deliveries: "DataFrame") -> list[AcrossClocks]:
    """Judge the deliveries with stamps from different clocks, which `measured` excludes."""
    from pyspark.sql import functions as F

    rows = (
        deliveries.where(
            (F.col("layer") == "application")
            & (F.col("kind") == "data")
            & (F.col("phase") == "measure")
            & ~F.col("same_clock")
            & F.col("lat_response_us").isNotNull()
        )
        .groupBy("lat_err_us")
        .agg(F.count("*").alias("n"), quantile_of("lat_response_us", 0.5).alias("median_us"))
        .orderBy("lat_err_us")
        .toArrow()
        .to_pylist()
    )
    return [
        AcrossClocks(
            row["n"],
            row["median_us"],
            row["lat_err_us"],
            judge_one_way(row["median_us"], row["lat_err_us"]),
        )
        for row in rows
    ]


def latency_percentiles(deliveries: "DataFrame") -> "DataFrame":
    """Return one row per subscription with percentiles of response and service latency.

    Args:
        deliveries: the table; repeated deliveries count each time, as the application received
            them.

    Returns:
        run_id, sub_id, n, and for `response` (since the intended time) and `service` (since the
        time sent) p50_us, p90_us, p99_us, p999_us and max_us.
    """
    from pyspark.sql import functions as F

    columns = [F.count("*").alias("n")]
    for metric in ("response", "service"):
        columns += [
            quantile_of(f"lat_{metric}_us", share).alias(f"{metric}_{name}_us")
            for name, share in PERCENTILES.items()
        ]
    return select_measured(deliveries).groupBy("run_id", "sub_id").agg(*columns)


def latency_buckets(deliveries: "DataFrame") -> "DataFrame":
    """Return the number of deliveries by subscription and latency: the table `hist`.

    A bucket is less than 1 % wide. Latencies below 0, which only clocks can cause, are in a bucket
    of their own that begins at -1.
    """
    from pyspark.sql import functions as F

    parts = [
        select_measured(deliveries)
        .withColumn("lo_us", _bucket(F.col(f"lat_{metric}_us")))
        .groupBy("run_id", F.col("sub_id").alias("proc_id"), "phase", "lo_us")
        .agg(F.count("*").alias("n"))
        .withColumn("metric", F.lit(f"lat_{metric}"))
        for metric in ("response", "service")
    ]
    both = parts[0].unionByName(parts[1])
    return both.withColumn("hi_us", F.col("lo_us") + _width(F.col("lo_us")))


def _bucket(value: "Column") -> "Column":
    """Return the lowest value of the bucket of a value."""
    from pyspark.sql import functions as F

    return F.when(value < 0, F.lit(-1).cast("BIGINT")).otherwise(value - value % _width(value))


def _width(value: "Column") -> "Column":
    """Return the width of the bucket of a value: 1 up to 256, then doubled with each doubling."""
    from pyspark.sql import functions as F

    bits = F.length(F.bin(F.greatest(value, F.lit(1)))) - 8
    return F.call_function("shiftleft", F.lit(1).cast("BIGINT"), F.greatest(bits, F.lit(0)))


def spectrum(buckets: Iterable[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """Return (share, latency) steps: this share of deliveries had at most this latency.

    Args:
        buckets: rows of `hist` of one subscription and metric, in any order.
    """
    ordered = sorted(buckets, key=lambda row: row["lo_us"])
    total = sum(row["n"] for row in ordered)
    steps: list[tuple[float, int]] = []
    so_far = 0
    for row in ordered:
        so_far += row["n"]
        steps.append((so_far / total, row["hi_us"]))
    return steps


def latency_at_share(steps: Sequence[tuple[float, int]], share: float) -> int:
    """Return the latency that this share of deliveries did not exceed."""
    return next(latency for up_to, latency in steps if up_to >= share)


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
