"""From draws on trees to the few rows that a figure shows.

Paper: [DFT11] §IX.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESAMPLES = 10_000
CONFIDENCE_PERCENT = 95


def compute_disconnected_percent(connectivity: "DataFrame") -> "DataFrame":
    """Return a row per point: the share of pairs of live brokers that failures disconnect.

    Args:
        connectivity: the table of this name. A row per draw.

    Returns:
        fanout, delta, failed, runs, losing_runs (draws that cut off any pair), mean_percent,
        low_percent, high_percent (bounds of a 95 % bootstrap interval of the mean), worst_percent
        (of a single draw). Most draws cut off nothing if δ is large, so the distribution is
        anything but normal; if none did, the draws give no information about the mean, and both
        bounds are null.

    Paper: [DFT11] §IX-A, Fig. 9.
    """
    from pyspark.sql import functions as F

    percent = F.coalesce(
        F.try_divide(100.0 * F.col("disconnected_pairs"), F.col("live_pairs")), F.lit(0.0)
    )
    # Sorted, so that equal draws result in an equal interval, regardless of the order of reading.
    draws = connectivity.groupBy("fanout", "delta", "failed").agg(
        F.sort_array(F.collect_list(percent)).alias("percents")
    )
    interval = F.udf(mean_interval, "struct<low: double, high: double>", useArrow=False)
    return (
        draws.withColumn("interval", interval("percents"))
        .select(
            "fanout",
            "delta",
            "failed",
            F.size("percents").alias("runs"),
            F.size(F.filter("percents", lambda value: value > 0)).alias("losing_runs"),
            (_sum("percents") / F.size("percents")).alias("mean_percent"),
            F.col("interval.low").alias("low_percent"),
            F.col("interval.high").alias("high_percent"),
            F.array_max("percents").alias("worst_percent"),
        )
        .orderBy("fanout", "delta", "failed")
    )


def neighbourhood_distribution(neighbourhoods: "DataFrame") -> "DataFrame":
    """Return a row per size: the number of brokers with a neighbourhood of this size.

    Returns:
        fanout, delta, neighbours, brokers, share (of brokers with at most so many).

    Paper: [DFT11] §IX-C, Fig. 11.
    """
    from pyspark.sql import functions as F

    counts = neighbourhoods.groupBy("fanout", "delta", "neighbours").agg(
        F.count("*").alias("brokers")
    )
    return _with_share(counts, ["fanout", "delta"], "neighbours")


def session_distribution(active_sessions: "DataFrame") -> "DataFrame":
    """Return a row per number of sessions: the number of live brokers with it, in all draws.

    Returns:
        fanout, delta, failed, sessions, brokers, share (of brokers with at most so many).

    Paper: [DFT11] §IX-D, Fig. 12.
    """
    from pyspark.sql import functions as F

    point = ["fanout", "delta", "failed"]
    counts = (
        active_sessions.where(F.col("by") == "formula")
        .groupBy(*point, "sessions")
        .agg(F.sum("brokers").alias("brokers"))
    )
    return _with_share(counts, point, "sessions")


def protocol_agreement(active_sessions: "DataFrame") -> "DataFrame":
    """Return a row per draw in which the protocol ran, too.

    Returns:
        fanout, delta, failed, run, equal (True if the protocol and the formula agree on the
        number of brokers with each number of sessions).
    """
    from pyspark.sql import functions as F

    draw = ["fanout", "delta", "failed", "run"]
    counts = F.sort_array(F.collect_list(F.struct("sessions", "brokers")))
    answers = active_sessions.groupBy(*draw, "by").agg(counts.alias("counts"))
    formula = answers.where(F.col("by") == "formula").drop("by")
    protocol = answers.where(F.col("by") == "protocol").drop("by")
    both = protocol.withColumnRenamed("counts", "found").join(formula, draw, "left")
    equal = F.coalesce(F.col("found") == F.col("counts"), F.lit(False))
    return both.select(*draw, equal.alias("equal")).orderBy(*draw)


def mean_interval(values: list[float]) -> tuple[float, float] | None:
    """Return a 95 % percentile bootstrap interval of the mean, equal for equal values.

    None if all values are 0: resampling zeros would feign certainty.
    """
    if not any(values):
        return None
    draws = np.random.default_rng(len(values)).choice(values, (RESAMPLES, len(values)))
    tail = (100 - CONFIDENCE_PERCENT) / 2
    low, high = np.percentile(draws.mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)


def _sum(column: str) -> "Column":
    from pyspark.sql import functions as F

    return F.aggregate(column, F.lit(0.0), lambda total, value: total + value)


def _with_share(counts: "DataFrame", point: list[str], value: str) -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_point: Any = Window.partitionBy(*point)
    up_to_here = of_point.orderBy(value).rowsBetween(Window.unboundedPreceding, 0)
    share = F.sum("brokers").over(up_to_here) / F.sum("brokers").over(of_point)
    return counts.withColumn("share", share).orderBy(*point, value)
