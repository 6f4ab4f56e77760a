"""From draws on trees to the few rows that a figure shows.

Paper: [DFT11] §IX.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESAMPLES = 10_000
CONFIDENCE_PERCENT = 95


def disconnected_percent(connectivity: "DataFrame") -> "DataFrame":
    """One row per point: how many pairs of live brokers no longer reach each other.

    Args:
        connectivity: of the table of this name. One row per draw.

    Returns:
        fanout, delta, failed, runs, losing_runs (draws that cut off any pair), mean_percent,
        low_percent, high_percent (bounds of a 95 % bootstrap interval of the mean), worst_percent
        (of a single draw). Most draws cut off nothing where δ is large, so the distribution is
        anything but normal; where none did, draws say nothing of the mean, and both bounds are
        null.

    Paper: [DFT11] §IX-A, Fig. 9.
    """
    from pyspark.sql import functions as F

    percent = F.coalesce(
        F.try_divide(100.0 * F.col("disconnected_pairs"), F.col("live_pairs")), F.lit(0.0)
    )
    # Sorted, so that the same draws give the same interval whatever order they are read in.
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
    """One row per size: how many brokers have a neighbourhood of it.

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
    """One row per number of sessions: how many live brokers have so many, in all draws.

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
    """One row per draw in which the protocol was asked too.

    Returns:
        fanout, delta, failed, run, equal (whether as many brokers ended with each number of
        sessions as the formula says).
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
    """A 95 % percentile bootstrap interval of the mean, the same one for the same values.

    None where all values are 0: drawing again from nothing but zeros would feign certainty.
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
