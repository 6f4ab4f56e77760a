"""ges.table2: latency of publications to a subscriber, by the number of other receivers.

Paper: [GES] §5, Table 2, whose numbers are lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any

from results.checker.latency import first_deliveries
from results.figures.drawing import Drawing, Metric, house_style
from results.repetitions.series_runs import SeriesRuns, load_series, metric_of
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

MEASURING = "n10"
COLOUR = "#0072b2"


@dataclass(frozen=True)
class Latencies:
    """The latencies at the measured subscriber in a run.

    Attributes:
        match_percent: the share of other clients that receive a publication.
        publications: the number of received publications that were sent during the measurement.
        mean_ms, variance_ms2: of their latency.
    """

    run_id: str
    match_percent: int
    publications: int
    mean_ms: float
    variance_ms2: float


@dataclass(frozen=True)
class TableRow:
    """A match rate, over its runs.

    Attributes:
        reduction_percent: of the mean, relative to the row with the most matches.
    """

    match_percent: int
    runs: Sequence[Latencies]
    reduction_percent: float

    @property
    def mean_ms(self) -> float:
        """Return the mean over the runs of each run's mean."""
        return fmean(run.mean_ms for run in self.runs)

    @property
    def variance_ms2(self) -> float:
        """Return the mean over the runs of each run's variance."""
        return fmean(run.variance_ms2 for run in self.runs)

    @property
    def deviation_ms(self) -> float:
        """The root of that variance."""
        return float(self.variance_ms2**0.5)


def table2(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Mean and variance of the latency by match rate. Paper: [GES] Table 2."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    found = [_latencies(spark, loaded) for point in series.points for loaded in point.runs]
    return draw_table2(series, found)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ges.table2": table2}


def _latencies(spark: "SparkSession", loaded: LoadedRun) -> Latencies:
    from pyspark.sql import functions as F

    run = loaded.run
    homes = loaded.table(spark, "subscriptions").where(F.col("broker") == MEASURING)
    rows = (
        first_deliveries(spark, loaded)
        .where((F.col("t_ns") >= 0) & (F.col("t_ns") < run.phase("measure").to_ns))
        .join(F.broadcast(homes.select("sub_id")), "sub_id")
        .select("latency_us")
        .collect()
    )
    ms = [row.latency_us / 1e3 for row in rows]
    return Latencies(run.run_id, match_percent(run.workload), len(ms), fmean(ms), pvariance(ms))


def match_percent(workload: Mapping[str, Any]) -> int:
    """Return the percentage of clients that match a publication, which has one share of a cycle."""
    return 100 // int(workload["attributes"]["share"]["cycle"])


def rows_of(found: Sequence[Latencies]) -> list[TableRow]:
    """Return the table, the most matches first."""
    by_match: dict[int, list[Latencies]] = {}
    for each in sorted(found, key=lambda one: -one.match_percent):
        by_match.setdefault(each.match_percent, []).append(each)
    most = fmean(run.mean_ms for run in by_match[max(by_match)])
    return [
        TableRow(match, runs, 100 * (1 - fmean(run.mean_ms for run in runs) / most))
        for match, runs in by_match.items()
    ]


@house_style()
def draw_table2(series: SeriesRuns, found: Sequence[Latencies]) -> Drawing:
    """Return the table below a panel for the mean and a panel for the variance."""
    from matplotlib.figure import Figure

    rows = rows_of(found)
    figure = Figure(figsize=(8.6, 4.9), layout="constrained")
    panels = figure.subplot_mosaic([["mean", "variance"], ["table", "table"]], height_ratios=(3, 1))
    _draw_panel(panels["mean"], rows, "mean latency (ms)", lambda run: run.mean_ms)
    _draw_panel(panels["variance"], rows, "variance of latency (ms²)", lambda run: run.variance_ms2)
    _draw_table(panels["table"], rows)
    return Drawing(
        figure=figure,
        columns=(
            "match_percent", "mean_ms", "variance_ms2", "deviation_ms", "reduction_percent",
            "publications", "runs",
        ),
        rows=[
            (row.match_percent, round(row.mean_ms, 3), round(row.variance_ms2, 3),
             round(row.deviation_ms, 3), round(row.reduction_percent, 1),
             sum(run.publications for run in row.runs), len(row.runs))
            for row in rows
        ],
        caption=_caption(series),
        scale=_scale(series),
        metrics=_metrics(rows),
        run_ids=series.run_ids,
    )  # fmt: skip


def _draw_panel(
    axes: "Axes", rows: Sequence[TableRow], label: str, number: Callable[[Latencies], float]
) -> None:
    """Draw a bar for each match rate, and a dot for each run."""
    for place, row in enumerate(rows):
        values = [number(run) for run in row.runs]
        axes.bar(place, fmean(values), 0.6, color=COLOUR, alpha=0.75)
        axes.plot([place] * len(values), values, "o", color="#1a1a1a", markersize=3.5)
    axes.set_xticks(range(len(rows)), [f"{row.match_percent} %" for row in rows])
    axes.set_xlabel("clients that want it")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")


def _draw_table(axes: "Axes", rows: Sequence[TableRow]) -> None:
    axes.set_axis_off()
    table = axes.table(
        [
            [f"{row.match_percent} %", f"{row.mean_ms:.2f}", f"{row.variance_ms2:.2f}",
             f"{row.deviation_ms:.2f}", f"{row.reduction_percent:.1f} %"]
            for row in rows
        ],
        colLabels=["match rate", "mean (ms)", "variance (ms²)", "std. deviation (ms)", "reduction"],
        loc="center", cellLoc="right", edges="horizontal",
    )  # fmt: skip
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.25)


def _metrics(rows: Sequence[TableRow]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for row in rows:
        found[f"mean_ms.{row.match_percent}"] = metric_of([run.mean_ms for run in row.runs])
        variances = metric_of([run.variance_ms2 for run in row.runs])
        found[f"variance_ms2.{row.match_percent}"] = variances
        found[f"reduction_percent.{row.match_percent}"] = Metric(row.reduction_percent)
    pairs = [*pairwise(rows)]
    most, least = rows[0], rows[-1]
    found["steps_down.mean"] = Metric(sum(a.mean_ms > b.mean_ms for a, b in pairs))
    found["steps_down.variance"] = Metric(sum(a.variance_ms2 > b.variance_ms2 for a, b in pairs))
    found["variance_ratio"] = Metric(least.variance_ms2 / most.variance_ms2)
    return found


def _scale(series: SeriesRuns) -> dict[str, Any]:
    run = series.points[0].modal.run
    return {
        "brokers": len(run.topology["brokers"]),
        "clients": len(run.subscribers()) - 1,
        "input_per_s": _rate(series),
        "instances": min(len(point.runs) for point in series.points),
    }


def _rate(series: SeriesRuns) -> int:
    (publishers,) = series.points[0].modal.run.workload["publishers"]
    return int(str(publishers["rate"]).partition("/")[0])


def _caption(series: SeriesRuns) -> str:
    run, scale = series.points[0].modal.run, _scale(series)
    (publishers,) = run.workload["publishers"]
    return (
        f"Latency of publications from a client at {publishers['at'][0]} to one at {MEASURING}, "
        f"which matches all of them, by the number of {scale['clients']} clients at the other "
        "brokers that match each; interests were drawn for each client. Reduction is that of the "
        "mean, against 100 %. The paper reports that mean and variance fall with the match rate, "
        f"at rates of up to 1,000 a second with a machine for each of {scale['brokers']} brokers; "
        f"its numbers are lost. Here all {scale['brokers']} brokers and all clients share one "
        f"machine ({run.manifest['cpu']}, {run.manifest['cores']} cores), which carries "
        f"{scale['input_per_s']} publications of {publishers['size']} a second, and milliseconds "
        f"depend on its other load. Bars: means of {scale['instances']} runs; dots: "
        "each run."
    )
