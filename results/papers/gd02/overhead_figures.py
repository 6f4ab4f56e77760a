"""gd02.fig4, gd02.fig5: costs of guaranteed delivery without failures, beside best effort.

Paper: [GD02] §4.1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.checker.latency import first_deliveries, quantile_of
from results.figures.drawing import Drawing, Metric, house_style
from results.figures.style import line_with_band
from results.repetitions.series_runs import Point, SeriesRuns, load_series, metric_of
from results.repetitions.spread import Spread, spread_of
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUARANTEED, BEST_EFFORT = "gryphon", "best_effort"
NAMES = {GUARANTEED: "guaranteed", BEST_EFFORT: "best effort"}
SIDES = {"publisher_side": "p1", "subscriber_side": "s1"}
PLACES = {"local": "p1", "remote": "s1"}
COLOURS = {"p1": "#d55e00", "s1": "#0072b2"}
DASHES = {GUARANTEED: "-", BEST_EFFORT: "--"}


@dataclass(frozen=True)
class Cost:
    """A number of a protocol at a broker, by the number of subscribers."""

    protocol: str
    broker: str
    by_subscribers: Mapping[int, Spread]


def fig4(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Processor time of both brokers against subscribers. Paper: [GD02] Fig. 4."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    costs = [*_costs(series, lambda loaded: _processor_percent(spark, loaded), SIDES.values())]
    return draw_fig4(series, costs)


def fig5(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Median latency at both brokers against subscribers. Paper: [GD02] Fig. 5."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    costs = [*_costs(series, lambda loaded: _median_ms(spark, loaded), PLACES.values())]
    return draw_fig5(series, costs)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "gd02.fig4": fig4,
    "gd02.fig5": fig5,
}


@house_style()
def draw_fig4(series: SeriesRuns, costs: Sequence[Cost]) -> Drawing:
    """Return figure 4 from the share of a core that each broker uses."""
    caption = (
        "Processor time of the publishers' broker p1 and of the subscribers' broker s1, in percent "
        "of one core, against the number of subscribers at s1. The paper reports less than 4 "
        "points more for guaranteed delivery at the subscribers' side, whatever their number, and "
        "about 8 at the publishers', for logging; there a broker has six processors."
    )
    metrics: dict[str, Metric] = {}
    for side, broker in SIDES.items():
        extra = _compute_extra(costs, broker)
        metrics[f"overhead_points.{side}.largest"] = max(
            extra.values(), key=lambda metric: metric.value
        )
        metrics[f"overhead_points.{side}.mean"] = Metric(
            sum(metric.value for metric in extra.values()) / len(extra)
        )
        metrics[f"overhead_growth_points.{side}"] = _growth(extra)
    return _drawing(series, costs, "processor time (% of one core)", caption, metrics, "percent")


@house_style()
def draw_fig5(series: SeriesRuns, costs: Sequence[Cost]) -> Drawing:
    """Return figure 5 from the median latency at each broker."""
    caption = (
        "Median latency of subscribers at the publishers' broker p1 (local) and one link away at "
        "s1 (remote) against the number of subscribers at s1. The paper reports that guaranteed "
        "delivery adds about 100 ms to both, its time to log, for any number of subscribers."
    )
    metrics: dict[str, Metric] = {}
    for place, broker in PLACES.items():
        extra = _compute_extra(costs, broker)
        mean = sum(metric.value for metric in extra.values()) / len(extra)
        metrics[f"added_ms.{place}"] = Metric(mean)
        metrics[f"added_growth_ms.{place}"] = _growth(extra)
    return _drawing(series, costs, "median latency (ms)", caption, metrics, "ms")


def _drawing(
    series: SeriesRuns,
    costs: Sequence[Cost],
    label: str,
    caption: str,
    metrics: Mapping[str, Metric],
    unit: str,
) -> Drawing:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = picture.subplots()
    for cost in costs:
        sizes = sorted(cost.by_subscribers)
        spreads = [cost.by_subscribers[size] for size in sizes]
        band = [each.smallest for each in spreads], [each.largest for each in spreads]
        line_with_band(
            axes, sizes, [each.mean for each in spreads], band, COLOURS[cost.broker],
            linestyle=DASHES[cost.protocol], marker="o" if cost.protocol == GUARANTEED else "s",
            label=f"{cost.broker}, {NAMES[cost.protocol]}",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("subscribers at s1")
    axes.set_ylabel(label)
    axes.legend(loc="best")
    return Drawing(
        figure=picture,
        columns=("protocol", "broker", "subscribers", unit, "smallest", "largest", "runs"),
        rows=[
            (cost.protocol, cost.broker, size, each.mean, each.smallest, each.largest,
             len(each.values))
            for cost in costs
            for size, each in sorted(cost.by_subscribers.items())
        ],
        caption=f"{caption} {_describe_setting(series)}",
        scale=_scale(series),
        metrics=metrics,
        run_ids=series.run_ids,
    )  # fmt: skip


def _costs(
    series: SeriesRuns,
    number: Callable[[LoadedRun], Mapping[str, float]],
    brokers: Any,
) -> Iterator[Cost]:
    found: dict[tuple[str, str], dict[int, Spread]] = {}
    for point in series.points:
        values = [number(loaded) for loaded in point.runs]
        for broker in brokers:
            spread = spread_of([each[broker] for each in values])
            found.setdefault((broker, point.protocol), {})[_subscribers(point)] = spread
    for (broker, protocol), by_subscribers in sorted(found.items()):
        yield Cost(protocol, broker, by_subscribers)


def _processor_percent(spark: "SparkSession", loaded: LoadedRun) -> dict[str, float]:
    """Return the share of a core that each broker used during the measurement."""
    from pyspark.sql import functions as F

    phase = loaded.run.phase("measure")
    rows = (
        loaded.table(spark, "broker_stats")
        .where((F.col("t_ns") > phase.from_ns + 1_000_000_000) & (F.col("t_ns") <= phase.to_ns))
        .where(F.col("cpu_ratio").isNotNull())
        .groupBy("broker")
        .agg(F.avg("cpu_ratio").alias("ratio"))
        .collect()
    )
    return {row.broker: 100 * row.ratio for row in rows}


def _median_ms(spark: "SparkSession", loaded: LoadedRun) -> dict[str, float]:
    from pyspark.sql import functions as F

    homes = loaded.table(spark, "subscriptions").select("sub_id", "broker")
    rows = (
        first_deliveries(spark, loaded)
        .where((F.col("t_ns") >= 0) & (F.col("t_ns") < loaded.run.phase("measure").to_ns))
        .join(F.broadcast(homes), "sub_id")
        .groupBy("broker")
        .agg(quantile_of("latency_us", 0.5).alias("us"))
        .collect()
    )
    return {row.broker: row.us / 1e3 for row in rows}


def _compute_extra(costs: Sequence[Cost], broker: str) -> dict[int, Metric]:
    """Return the additional cost of guaranteed delivery, by the number of subscribers."""
    by_protocol = {cost.protocol: cost.by_subscribers for cost in costs if cost.broker == broker}
    found = {}
    for size, dear in sorted(by_protocol[GUARANTEED].items()):
        cheap = by_protocol[BEST_EFFORT][size]
        pairs = zip(dear.values, cheap.values, strict=False)  # run one after the other
        found[size] = metric_of([one - other for one, other in pairs])
    return found


def _growth(extra: Mapping[int, Metric]) -> Metric:
    """Return the difference between the most and the fewest subscribers."""
    return Metric(extra[max(extra)].value - extra[min(extra)].value)


def _subscribers(point: Point) -> int:
    entries = point.modal.run.workload["subscribers"]
    return sum(entry.get("count", 1) for entry in entries if "s1" in entry["at"])


def _scale(series: SeriesRuns) -> dict[str, Any]:
    publishers = series.points[0].modal.run.workload["publishers"]
    rate = sum(
        len(entry["at"]) * entry.get("count", 1) * int(str(entry["rate"]).partition("/")[0])
        for entry in publishers
    )
    return {
        "input_per_s": rate,
        "subscribers": max(map(_subscribers, series.points)),
        "instances": min(len(point.runs) for point in series.points),
    }


def _describe_setting(series: SeriesRuns) -> str:
    run = series.points[0].modal.run
    scale = _scale(series)
    machine = f"{run.manifest['cpu']}, {run.manifest['cores']} cores"
    return (
        f"Here {scale['input_per_s']} publications of {run.workload['publishers'][0]['size']} a "
        f"second (paper: 2,000) and up to {scale['subscribers']:,} subscribers (16,000), each of 1 "
        f"of 100 classes, 2 a second as in the paper; brokers and clients on one machine "
        f"({machine}). Means of {scale['instances']} instances; shaded: least to most."
    )
