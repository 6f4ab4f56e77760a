"""ds03.latency: the latency of a publication, and the share of logging.

Paper: [DS03] §5, result 1.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from results.checker.latency import quantile_of
from results.figures.drawing import Drawing, Metric, house_style
from results.papers.ds03.churn_figures import COLOURS, scale_of
from results.repetitions.series_runs import SeriesRuns, load_series

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PERCENT = tuple(range(1, 100))


def latency(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Distribution of latency and of logging time. Paper: [DS03] §5, result 1."""
    from pyspark.sql import functions as F

    series = load_series(spark, Path(run_dir), ("VALID",))
    (point,) = series.points
    until_ns = point.modal.run.phase("measure").to_ns
    within = (F.col("t_sent_ns") >= 0) & (F.col("t_sent_ns") < until_ns)
    logged = (
        point.modal.table(spark, "publications")
        .where(within & ~F.col("is_fence") & F.col("t_acked_ns").isNotNull())
        .select((F.col("t_acked_ns") - F.col("t_sent_ns")).alias("wait_ns"))
    )
    delivered = (
        point.modal.table(spark, "deliveries")
        .where(within & (F.col("layer") == "application") & (F.col("kind") == "data"))
        .select((F.col("t_recv_ns") - F.col("t_sent_ns")).alias("wait_ns"))
    )
    return draw_latency(series, *(percentiles_ms(waits) for waits in (logged, delivered)))


def percentiles_ms(waits: "DataFrame") -> list[float]:
    """Return the percentiles 1 to 99 of `wait_ns`, each one of the values, in ms."""
    shares = [quantile_of("wait_ns", percent / 100) for percent in PERCENT]
    return [ns / 1e6 for ns in waits.agg(*shares).collect()[0]]


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ds03.latency": latency}


@house_style()
def draw_latency(
    series: SeriesRuns, logged_ms: Sequence[float], delivered_ms: Sequence[float]
) -> Drawing:
    """Return the figure from the percentiles of both, 1 to 99, in ms."""
    from matplotlib.figure import Figure

    run = series.points[0].modal.run
    picture = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = picture.subplots()
    shown = {"logged": logged_ms, "delivered": delivered_ms}
    for (name, values), colour in zip(shown.items(), COLOURS, strict=False):
        axes.plot(values, PERCENT, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("after it was sent (ms)")
    axes.set_ylabel("publications (%)")
    axes.set_ylim(0, 100)
    axes.legend(loc="lower right")
    logging, total = median(logged_ms), median(delivered_ms)
    scale = {**scale_of(run), "brokers": len(run.topology["brokers"])}
    return Drawing(
        figure=picture,
        columns=("percent", "logged_ms", "delivered_ms"),
        rows=[
            (percent, round(at, 4), round(later, 4))
            for percent, at, later in zip(PERCENT, logged_ms, delivered_ms, strict=True)
        ],
        caption=(
            f"Latency of a publication through {scale['brokers']} brokers in a row to a "
            "subscriber at the last one, and time until its publisher receives the acknowledgement "
            "that the first one has it on disk. The paper reports 50 ms, 44 of them for logging. "
            f"Here the medians are {total:.1f} ms and {logging:.1f} ms. "
            f"{scale['input_per_s']} publications of "
            f"{run.workload['publishers'][0]['size']} a second; brokers and clients on one machine "
            f"({run.manifest['cpu']}, {run.manifest['cores']} cores)."
        ),
        scale=scale,
        metrics={
            "end_to_end_ms.median": Metric(total),
            "logging_ms.median": Metric(logging),
            "logging_share": Metric(logging / total),
        },
        run_ids=series.run_ids,
    )
