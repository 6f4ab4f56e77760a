"""From deliveries on simulated brokers to the few rows that a figure shows.

Paper: [DFT11] §IX-B, Fig. 10.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.papers.dft11.connectivity import mean_interval
from results.papers.experiment_runs import has_verdict, load_experiment_run
from results.tables.json_files import IntegrityError, ResultsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRAW = ("fanout", "delta", "failed", "run")


def delivered_percent(
    points: "DataFrame", brokers: "DataFrame", connectivity: "DataFrame"
) -> "DataFrame":
    """Return a row per point with the share of expected deliveries that arrived.

    Expected is every publication at every live broker, including its publisher's broker. The bound
    is the largest possible share for any protocol that bypasses δ failed brokers in a row, with the
    same brokers failed.

    Args:
        points, brokers, connectivity: the tables `simulated_points`, `simulated_brokers` and
            `connectivity` of one run.

    Returns:
        fanout, delta, failed, runs, published, expected, deliveries (means over the draws),
        delivered_percent (mean), low_percent, high_percent (of its 95 % bootstrap interval; null
        for a single draw), bound_percent (mean), over_bound_percent (largest amount by which a
        draw exceeds its bound), violations, withheld, suppressed, unexplained, duplicates, resent
        (sums over the draws).
    """
    from pyspark.sql import functions as F

    counted = brokers.groupBy(*DRAW).agg(
        F.count("*").alias("live"),
        F.sum("published").alias("published"),
        F.sum("deliveries").alias("deliveries"),
    )
    pairs = connectivity.select(
        *DRAW,
        (2 * F.col("live_pairs")).alias("pairs"),
        (2 * (F.col("live_pairs") - F.col("disconnected_pairs"))).alias("connected"),
    )
    sums = ("violations", "withheld", "suppressed", "unexplained", "duplicates", "resent")
    judged = points.select(*DRAW, *sums)
    expected = F.col("published") * F.col("live")
    bound = 100.0 * (F.col("connected") + F.col("live")) / (F.col("pairs") + F.col("live"))
    draws = (
        counted.join(pairs, [*DRAW])
        .join(judged, [*DRAW])
        .withColumn("expected", expected)
        .withColumn("percent", 100.0 * F.col("deliveries") / F.col("expected"))
        .withColumn("bound", bound)
    )
    interval = F.udf(_interval, "struct<low: double, high: double>", useArrow=False)
    return (
        draws.groupBy("fanout", "delta", "failed")
        .agg(
            F.count("*").cast("int").alias("runs"),
            F.avg("published").alias("published"),
            F.avg("expected").alias("expected"),
            F.avg("deliveries").alias("deliveries"),
            F.sort_array(F.collect_list("percent")).alias("percents"),
            F.avg("bound").alias("bound_percent"),
            F.max(F.col("percent") - F.col("bound")).alias("over_bound_percent"),
            *(F.sum(name).alias(name) for name in sums),
        )
        .withColumn("interval", interval("percents"))
        .select(
            "fanout",
            "delta",
            "failed",
            "runs",
            "published",
            "expected",
            "deliveries",
            (
                F.aggregate("percents", F.lit(0.0), lambda total, value: total + value)
                / F.size("percents")
            ).alias("delivered_percent"),
            F.col("interval.low").alias("low_percent"),
            F.col("interval.high").alias("high_percent"),
            "bound_percent",
            "over_bound_percent",
            *sums,
        )
        .orderBy("fanout", "delta", "failed")
    )


def deliveries_per_second(seconds: "DataFrame") -> "DataFrame":
    """Return a row per second of a point's window with publications and deliveries, as means."""
    from pyspark.sql import functions as F

    return (
        seconds.groupBy("fanout", "delta", "failed", "second")
        .agg(F.avg("published").alias("published"), F.avg("deliveries").alias("deliveries"))
        .orderBy("fanout", "delta", "failed", "second")
    )


def check_tables_agree(points: "DataFrame", brokers: "DataFrame", seconds: "DataFrame") -> None:
    """Check that three separate counts of the same deliveries agree.

    If brokers failed during the window, the seconds also contain deliveries to brokers that failed
    later.

    Raises:
        IntegrityError: the counts differ; names the point.
    """
    from pyspark.sql import functions as F

    by_broker = brokers.groupBy(*DRAW).agg(F.sum("deliveries").alias("by_broker"))
    by_second = seconds.groupBy(*DRAW).agg(F.sum("deliveries").alias("by_second"))
    joined = points.join(by_broker, [*DRAW], "full").join(by_second, [*DRAW], "full")
    agrees = (F.col("deliveries") == F.col("by_broker")) & (
        F.col("by_second") >= F.col("by_broker")
    )
    for row in joined.where(~F.coalesce(agrees, F.lit(False))).limit(1).collect():
        raise IntegrityError(
            f"fan-out {row.fanout}, δ = {row.delta}, {row.failed} failed, draw {row.run}: "
            f"{row.deliveries} deliveries, {row.by_broker} by broker, {row.by_second} by second"
        )


def check_simulated_run(spark: "SparkSession", run_dir: Path) -> dict[str, Any]:
    """Judge a run on simulated brokers by the oracle's verdict on each delivery.

    A figure shows the number of deliveries prevented by failures: here only a delivery that is not
    exactly once, in order and without a gap is a violation.

    Returns:
        verdict (valid, invalid, or unknown if nothing was delivered past a failure), exit_code,
        because, lines, points, deliveries, past_failures.

    Raises:
        ResultsError: the experiment records no deliveries: it concerns shapes, times or storage.
        IntegrityError: its counts contradict each other.
    """
    from pyspark.sql import functions as F

    if not has_verdict(run_dir):
        raise ResultsError(f"{run_dir}: no deliveries are recorded, so none can be judged; plot it")
    run = load_experiment_run(spark, run_dir)
    if run.manifest["kind"] == "behaviour":
        return _judge_draws(run.table(spark, "judged_draws"))
    points = run.table(spark, "simulated_points")
    check_tables_agree(
        points, run.table(spark, "simulated_brokers"), run.table(spark, "simulated_seconds")
    )
    past_failures = F.when(F.col("failed") > 0, F.col("deliveries")).otherwise(0)
    rules = F.flatten(F.collect_list("violated"))
    total = points.agg(
        F.count("*").alias("points"),
        F.sum("deliveries").alias("deliveries"),
        F.sum(past_failures).alias("past_failures"),
        F.sum("violations").alias("violations"),
        F.sum("withheld").alias("withheld"),
        F.array_sort(F.array_distinct(rules)).alias("rules"),
    ).collect()[0]
    verdict, exit_code, because = "valid", 0, []
    if total.violations:
        broken = f"{total.violations:,} violations: {', '.join(total.rules)}"
        verdict, exit_code, because = "invalid", 1, [broken]
    elif not total.past_failures:
        verdict, exit_code, because = "unknown", 3, ["nothing was delivered past a failure"]
    line = (
        f"{verdict.upper()} {total.deliveries:,} deliveries on simulated brokers, "
        f"{total.past_failures:,} of them past failures; {total.violations:,} violations, "
        f"{total.withheld:,} withheld"
    )
    return {
        "schema": "pubsubctl/verdict/1",
        "verdict": verdict,
        "exit_code": exit_code,
        "because": because,
        "lines": [line],
        "points": total.points,
        "deliveries": total.deliveries,
        "past_failures": total.past_failures,
    }


def _judge_draws(draws: "DataFrame") -> dict[str, Any]:
    """Return the verdict on stories around failures, all of which include a fault."""
    from pyspark.sql import functions as F

    total = draws.agg(
        F.count("*").alias("draws"),
        F.sum("deliveries").alias("deliveries"),
        F.sum("violations").alias("violations"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("violated")))).alias("rules"),
    ).collect()[0]
    verdict, exit_code, because = "valid", 0, []
    if total.violations:
        broken = f"{total.violations:,} violations: {', '.join(total.rules)}"
        verdict, exit_code, because = "invalid", 1, [broken]
    elif not total.deliveries:
        verdict, exit_code, because = "unknown", 3, ["nothing was delivered"]
    line = (
        f"{verdict.upper()} {total.deliveries:,} deliveries on simulated brokers in "
        f"{total.draws:,} draws; {total.violations:,} violations"
    )
    return {
        "schema": "pubsubctl/verdict/1",
        "verdict": verdict,
        "exit_code": exit_code,
        "because": because,
        "lines": [line],
        "points": total.draws,
        "deliveries": total.deliveries,
        "past_failures": total.deliveries,
    }


def _interval(percents: list[float]) -> tuple[float, float] | None:
    return mean_interval(percents) if len(percents) > 1 else None
