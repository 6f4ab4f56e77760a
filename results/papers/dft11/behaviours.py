"""Aggregation of stories around failures, on simulated brokers, to the rows of figures.

Paper: [DFT11] gives none of these figures; the rules they show are those of its §IV to §VIII.
"""

from typing import TYPE_CHECKING

from results.checker.latency import quantile_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

US_PER_MS = 1_000


def bypass_distribution(bypasses: "DataFrame") -> "DataFrame":
    """Return a row per instant at which a subscriber was reached again.

    Args:
        bypasses: the table of this name. A row per subscriber behind the failed broker.

    Returns:
        delta, suspicion_ms, latency_ms, subscribers (reached exactly then), share (of those
        behind failed brokers in all draws, reached by then), cut_off (of them never reached).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    point = ["delta", "suspicion_ms"]
    latency = F.round(F.col("latency_us") / US_PER_MS, 1)
    counts = bypasses.groupBy(*point, latency.alias("latency_ms")).agg(
        F.count("*").alias("subscribers")
    )
    of_point = Window.partitionBy(*point)
    up_to_here = of_point.orderBy("latency_ms").rowsBetween(Window.unboundedPreceding, 0)
    reached = F.when(F.col("latency_ms").isNotNull(), F.col("subscribers")).otherwise(0)
    return (
        counts.withColumn(
            "share", F.sum(reached).over(up_to_here) / F.sum("subscribers").over(of_point)
        )
        .withColumn("cut_off", F.sum(F.col("subscribers") - reached).over(of_point).cast("bigint"))
        .where(F.col("latency_ms").isNotNull())
        .orderBy(*point, "latency_ms")
    )


def start_latency(starts: "DataFrame") -> "DataFrame":
    """Return a row per point with the start latency of subscriptions.

    Args:
        starts: the table of this name. A row per subscription.

    Returns:
        brokers, delta, failed_percent, subscriptions, started, p10_ms, p50_ms, p90_ms, longest_ms
        (of started subscriptions).
    """
    from pyspark.sql import functions as F

    return (
        starts.groupBy("brokers", "delta", "failed_percent")
        .agg(
            F.count("*").alias("subscriptions"),
            F.count("latency_us").alias("started"),
            *(_quantile("latency_us", share).alias(f"p{share}_ms") for share in (10, 50, 90)),
            (F.max("latency_us") / US_PER_MS).alias("longest_ms"),
        )
        .orderBy("brokers", "delta", "failed_percent")
    )


def overhead_per_delivery(overheads: "DataFrame") -> "DataFrame":
    """Return a row per point with the costs of its draws together, per delivery.

    Args:
        overheads: the table of this name. A row per draw.

    Returns:
        variant, delta, failed, runs, deliveries, duplicates, resent, bytes_between_brokers (sums),
        duplicates_per_1000 (deliveries), resent_per_1000, bytes_per_delivery.
    """
    from pyspark.sql import functions as F

    sums = ("deliveries", "duplicates", "resent", "bytes_between_brokers")
    per = F.col("deliveries")
    return (
        overheads.groupBy("variant", "delta", "failed")
        .agg(F.count("*").cast("int").alias("runs"), *(F.sum(name).alias(name) for name in sums))
        .withColumn("duplicates_per_1000", F.try_divide(1000.0 * F.col("duplicates"), per))
        .withColumn("resent_per_1000", F.try_divide(1000.0 * F.col("resent"), per))
        .withColumn("bytes_per_delivery", F.try_divide(F.col("bytes_between_brokers"), per))
        .orderBy("variant", "delta", "failed")
    )


def exclusions_by_partition(exclusions: "DataFrame") -> "DataFrame":
    """Return a row per partition and source with publications withheld from a new subscription.

    Args:
        exclusions: the table of this name. A row per draw and source.

    Returns:
        length, partitioned_s, source, runs, published, deliveries, withheld (means over the
        draws), neither (sum: neither delivered nor announced as withheld), never_opened (draws),
        open_longest_ms (from heal to the first delivery).
    """
    from pyspark.sql import functions as F

    return (
        exclusions.groupBy("length", "partitioned_s", "source")
        .agg(
            F.count("*").cast("int").alias("runs"),
            *(F.avg(name).alias(name) for name in ("published", "deliveries", "withheld")),
            F.sum("neither").alias("neither"),
            (F.count("*") - F.count("open_us")).alias("never_opened"),
            (F.max("open_us") / US_PER_MS).alias("open_longest_ms"),
        )
        .orderBy("length", "partitioned_s", "source")
    )


def gate_openings(exclusions: "DataFrame") -> "DataFrame":
    """Return a row per source and number of failed brokers: the time from heal to first delivery.

    Draws without withheld publications are left out: a bypassed source delivers all the time.

    Returns:
        length, source, draws, p10_ms, p50_ms, p90_ms.
    """
    from pyspark.sql import functions as F

    return (
        exclusions.where((F.col("withheld") > 0) & F.col("open_us").isNotNull())
        .groupBy("length", "source")
        .agg(
            F.count("*").cast("int").alias("draws"),
            *(_quantile("open_us", share).alias(f"p{share}_ms") for share in (10, 50, 90)),
        )
        .orderBy("length", "source")
    )


def queue_over_time(queues: "DataFrame") -> "DataFrame":
    """Return a row per partition and sample, means over the draws.

    Args:
        queues: the table of this name. A row per draw and sample.

    Returns:
        length, t_s (0: the brokers fail), queue_publications, undelivered.
    """
    from pyspark.sql import functions as F

    undelivered = F.col("published") - F.col("deliveries")
    return (
        queues.groupBy("length", (F.col("t_ms") / 1000.0).alias("t_s"))
        .agg(
            F.avg("queue_publications").alias("queue_publications"),
            F.avg(undelivered).alias("undelivered"),
        )
        .orderBy("length", "t_s")
    )


def _quantile(column: str, percent: int) -> "Column":
    """Return a quantile of a column of microseconds, in milliseconds."""
    return quantile_of(column, percent / 100) / US_PER_MS
