"""Figure 10 of [DFT11]: deliveries past failures, by the protocol on simulated brokers.

Paper: [DFT11] §IX-B, Fig. 10. The ticks of its axes and its curves are lost; its text is not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style, new_figure
from results.figures.style import MARKERS, line_with_band
from results.papers.dft11.connectivity import mean_interval
from results.papers.dft11.figures import tree_words
from results.papers.experiment_runs import (
    ExperimentRun,
    drawing_of_rows,
    has_verdict,
    load_experiment_run,
    load_run_about,
    plan_for_experiment,
)
from results.tables.json_files import IntegrityError, ResultsError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


DRAW = ("fanout", "delta", "failed", "run")
SUMS = ("violations", "withheld", "suppressed", "unexplained", "duplicates", "resent")


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

    interval = F.udf(_interval, "struct<low: double, high: double>", useArrow=False)
    return (
        _draws(points, brokers, connectivity)
        .groupBy("fanout", "delta", "failed")
        .agg(
            F.count("*").cast("int").alias("runs"),
            F.avg("published").alias("published"),
            F.avg("expected").alias("expected"),
            F.avg("deliveries").alias("deliveries"),
            F.sort_array(F.collect_list("percent")).alias("percents"),
            F.avg("bound").alias("bound_percent"),
            F.max(F.col("percent") - F.col("bound")).alias("over_bound_percent"),
            *(F.sum(name).alias(name) for name in SUMS),
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
            *SUMS,
        )
        .orderBy("fanout", "delta", "failed")
    )


def _draws(points: "DataFrame", brokers: "DataFrame", connectivity: "DataFrame") -> "DataFrame":
    """Return a row per draw: delivered and expected publications, the bound, and SUMS."""
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
    bound = 100.0 * (F.col("connected") + F.col("live")) / (F.col("pairs") + F.col("live"))
    return (
        counted.join(pairs, [*DRAW])
        .join(points.select(*DRAW, *SUMS), [*DRAW])
        .withColumn("expected", F.col("published") * F.col("live"))
        .withColumn("percent", 100.0 * F.col("deliveries") / F.col("expected"))
        .withColumn("bound", bound)
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
    if not has_verdict(run_dir):
        raise ResultsError(f"{run_dir}: no deliveries are recorded, so none can be judged; plot it")
    with plan_for_experiment(spark, run_dir):
        return _judge_deliveries(spark, run_dir)


def _judge_deliveries(spark: "SparkSession", run_dir: Path) -> dict[str, Any]:
    from pyspark.sql import functions as F

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
    unknown = "" if total.past_failures else "nothing was delivered past a failure"
    found = (
        f"{total.deliveries:,} deliveries on simulated brokers, "
        f"{total.past_failures:,} of them past failures; {total.violations:,} violations, "
        f"{total.withheld:,} withheld"
    )
    return {
        **_decide(total, unknown, found),
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
    found = (
        f"{total.deliveries:,} deliveries on simulated brokers in "
        f"{total.draws:,} draws; {total.violations:,} violations"
    )
    return {
        **_decide(total, "" if total.deliveries else "nothing was delivered", found),
        "points": total.draws,
        "deliveries": total.deliveries,
        "past_failures": total.deliveries,
    }


def _decide(total: "Row", unknown: str, found: str) -> dict[str, Any]:
    """Return the verdict on sums of draws.

    Args:
        total: the sums, with violations and violated rules.
        unknown: the reason why the draws prove nothing; "" if they do.
        found: the sums in words.
    """
    verdict, exit_code, because = "valid", 0, []
    if total.violations:
        broken = f"{total.violations:,} violations: {', '.join(total.rules)}"
        verdict, exit_code, because = "invalid", 1, [broken]
    elif unknown:
        verdict, exit_code, because = "unknown", 3, [unknown]
    return {
        "schema": "pubsubctl/verdict/1",
        "verdict": verdict,
        "exit_code": exit_code,
        "because": because,
        "lines": [f"{verdict.upper()} {found}"],
    }


def _interval(percents: list[float]) -> tuple[float, float] | None:
    return mean_interval(percents) if len(percents) > 1 else None


Row = Any

DELTA_LINES = ("#d55e00", "#e69f00", "#0072b2", "#1a1a1a")

TOLERANCE_BELOW_BOUND = 5.0
"""Percentage points that may be lost to start-up of bypasses within the window."""


def fig10(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Deliveries past failed brokers, in % of all deliveries expected at live brokers, per δ.

    Paper: [DFT11] §IX-B, Fig. 10.
    """
    run = load_run_about(spark, run_dir, "deliveries")
    points, brokers = run.table(spark, "simulated_points"), run.table(spark, "simulated_brokers")
    check_tables_agree(points, brokers, run.table(spark, "simulated_seconds"))
    rows = delivered_percent(points, brokers, run.table(spark, "connectivity"))
    return draw_fig10(run, rows.collect())


@house_style()
def draw_fig10(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return figure 10 from the rows of `delivered_percent`."""
    figure, panels = new_figure(sorted({row.fanout for row in rows}))
    most = max(row.failed for row in rows)
    for fanout, axes in panels.items():
        for number, delta in enumerate(_deltas(rows)):
            line = _line(rows, fanout, delta)
            colour = DELTA_LINES[number % len(DELTA_LINES)]
            failed = [row.failed for row in line]
            axes.plot(
                failed, [row.bound_percent for row in line],
                color=colour, linestyle=":", linewidth=2.6, alpha=0.55,
            )  # fmt: skip
            band = None
            if any(row.low_percent is not None for row in line):
                band = [row.low_percent for row in line], [row.high_percent for row in line]
            line_with_band(
                axes, failed, [row.delivered_percent for row in line], band, colour,
                marker=MARKERS[number % len(MARKERS)], linewidth=1.1, clip_on=False,
                markersize=9 - 2 * min(number, 3),  # so that equal curves are all seen
                zorder=3, label=f"δ = {delta}:  {line[-1].delivered_percent:.1f} %",
            )  # fmt: skip
        axes.plot([], [], color="#777777", linestyle=":", linewidth=2.6, label="static bound")
        axes.set_title(f"fan-out {fanout}")
        axes.set_xlabel("failed brokers")
        axes.set_xlim(0, most)
        axes.set_ylim(0, 102)
        axes.legend(
            title=f"delivered with {most} failed", loc="center left", bbox_to_anchor=(1.0, 0.5)
        )
    panels[min(panels)].set_ylabel("delivered (% of what live brokers should get)")
    return drawing_of_rows(run, rows, figure, _caption(run, rows), dict(_metrics(rows)))


def fig10_seconds(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Deliveries per second within figure 10's window, with the most failures, per δ."""
    run = load_run_about(spark, run_dir, "deliveries")
    rows = deliveries_per_second(run.table(spark, "simulated_seconds")).collect()
    return draw_fig10_seconds(run, rows)


@house_style()
def draw_fig10_seconds(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the time series from the rows of `deliveries_per_second`."""
    most = max(row.failed for row in rows)
    shown = [row for row in rows if row.failed == most]
    figure, panels = new_figure(sorted({row.fanout for row in shown}))
    for fanout, axes in panels.items():
        for number, delta in enumerate(_deltas(shown)):
            line = _line(shown, fanout, delta)
            total = 0.0
            so_far = [total := total + row.deliveries for row in line]
            axes.plot(
                [row.second + 1 for row in line], so_far,
                color=DELTA_LINES[number % len(DELTA_LINES)], label=f"δ = {delta}",
            )  # fmt: skip
        axes.set_title(f"fan-out {fanout}, {most} failed")
        axes.set_xlabel("seconds of the window")
        axes.set_xlim(0, max(row.second for row in shown) + 1)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    panels[min(panels)].set_ylabel("deliveries so far")
    caption = (
        f"Deliveries within the window of figure 10 over time, {tree_words(run)}, with {most} "
        f"of them failed {_failure_time(run)}. The paper gives no such series."
    )
    return drawing_of_rows(run, rows, figure, caption, {})


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "dft11.fig10": fig10,
    "dft11.fig10.seconds": fig10_seconds,
}


def _metrics(rows: Sequence[Row]) -> Iterator[tuple[str, Metric]]:
    """Yield the numbers for claims; of several fan-outs, the numbers of the narrowest."""
    fanout = min(row.fanout for row in rows)
    by_point = {(row.delta, row.failed): row for row in rows if row.fanout == fanout}
    for (delta, failed), row in by_point.items():
        point = f"delta_{delta}.failed_{failed}"
        interval = (row.low_percent, row.high_percent)
        yield f"delivered_percent.{point}", Metric(row.delivered_percent, *interval)
        yield f"bound_percent.{point}", Metric(row.bound_percent)
        yield f"deliveries.{point}", Metric(row.deliveries)
        less = by_point.get((delta - 1, failed))
        if less is not None:
            yield (
                f"step_percent.delta_{delta}_to_{delta - 1}.failed_{failed}",
                Metric(row.delivered_percent - less.delivered_percent),
            )
    against = sum(
        row.delivered_percent < by_point[less].delivered_percent
        for (delta, failed), row in by_point.items()
        if (less := (delta - 1, failed)) in by_point
    )
    outside = sum(
        row.over_bound_percent > 1e-9
        or row.delivered_percent < row.bound_percent - TOLERANCE_BELOW_BOUND
        for row in rows
    )
    yield "points_where_more_delta_delivers_less", Metric(against)
    yield "points_off_the_static_bound", Metric(outside)
    yield "violations", Metric(sum(row.violations for row in rows))
    yield "withheld", Metric(sum(row.withheld for row in rows))
    yield "suppressed", Metric(sum(row.suppressed for row in rows))
    yield "unexplained", Metric(sum(row.unexplained for row in rows))


def _caption(run: ExperimentRun, rows: Sequence[Row]) -> str:
    most = max(row.failed for row in rows)
    deltas = _deltas(rows)

    def of(name: str) -> str:
        return "; ".join(
            f"fan-out {fanout}: "
            + ", ".join(f"{_line(rows, fanout, delta)[-1][name]:.1f} %" for delta in deltas)
            for fanout in sorted({row.fanout for row in rows})
        )

    experiment = run.experiment
    share = 100 * most / experiment["brokers"]
    violations = sum(row.violations for row in rows)
    withheld = sum(row.withheld for row in rows)
    suppressed = sum(row.suppressed for row in rows)
    explained = suppressed - sum(row.unexplained for row in rows)
    return (
        f"Deliveries within {experiment['measured_s']} s, in % of every publication at every live "
        f"broker, {tree_words(run)}; every subscription matches everything; brokers drawn at "
        f"random fail for good {_failure_time(run)}. The protocol itself ran, on simulated "
        "brokers, in "
        f"{experiment['runs']} {'draw' if experiment['runs'] == 1 else 'draws'} per point, "
        f"publications per live broker: {experiment['publications_per_broker']}; "
        f"{violations} deliveries broke exactly-once, order or gaplessness, {withheld} were "
        f"withheld with a notice, and of the {suppressed:,} that live brokers did not get of live "
        f"ones, {explained:,} had more than δ failed brokers in a row on their path. Dotted: "
        "the static bound, the share of pairs of live brokers with at most "
        f"δ failed ones in a row between them. The paper reports, for 500 brokers, 120 s and a "
        "fan-out it does not name, that with δ = 3 and 17 % failed 97 % are delivered, that each "
        "step of δ from 3 down to 1 costs about 4 %, and vast loss with δ = 0. Here "
        f"{most} failed brokers ({share:.0f} %) leave, for δ = {', '.join(map(str, deltas))}: "
        f"{of('delivered_percent')} (bound: {of('bound_percent')})."
    )


def _failure_time(run: ExperimentRun) -> str:
    during = run.experiment["fail"] == "during"
    return "during the first half of the window" if during else "before the window"


def _deltas(rows: Sequence[Row]) -> list[int]:
    return sorted({row.delta for row in rows})


def _line(rows: Sequence[Row], fanout: int, delta: int) -> list[Row]:
    return [row for row in rows if (row.fanout, row.delta) == (fanout, delta)]
