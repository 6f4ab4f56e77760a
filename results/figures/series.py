"""Latency by send time of a series: the typical run of each point, in rows.

Each row has the numbers of all instances: deliveries, recovery time after the last fault, resent
bytes, and processor time per delivery.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.checker.latency import first_deliveries, quantile_of
from results.figures.drawing import Drawing, Metric, house_style
from results.figures.style import literal
from results.repetitions.comparison import spreads_of
from results.repetitions.numbers import NUMBERS
from results.repetitions.series_runs import Point, SeriesRuns, load_series
from results.repetitions.spread import Spread
from results.rules.fault_log import FaultSpan, fault_spans
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

BIN_NS = 200_000_000
SECOND_NS = 1e9
VERDICTS = ("VALID", "INVALID")
"""The verdicts of drawn runs: losses are shown as losses."""
SHOWN = ("delivered_fraction", "recovery_s", "resent_bytes", "cpu_us_per_delivered")
_LATENCY, _BAND, _LOST = "#0072b2", "#9fc5e0", "#c4321f"
_COLOURS = {"held": "#f4c463", "down": "#aab0b9"}
_KINDS = {"held": "yellow: held", "down": "grey: down"}


@dataclass(frozen=True)
class Timeline:
    """Deliveries by send time, over all subscriptions.

    Attributes:
        typical, most: median and largest latency in ms, by stretch of send time.
        lost: the number of lost deliveries, by stretch of send time.
    """

    typical: Mapping[int, float]
    most: Mapping[int, float]
    lost: Mapping[int, int]


def series_latency(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Latency by send time of each point's typical run in a series, with the numbers."""
    series = load_series(spark, Path(run_dir), VERDICTS)
    timelines = [timeline_of(spark, point.modal) for point in series.points]
    numbers = [spreads_of([loaded.run.folder for loaded in point.runs]) for point in series.points]
    return draw(series, timelines, numbers)


def timeline_of(spark: "SparkSession", loaded: LoadedRun) -> Timeline:
    from pyspark.sql import functions as F

    place = F.floor(F.col("t_ns") / BIN_NS).cast("INT").alias("bin")
    arrived = (
        first_deliveries(spark, loaded)
        .groupBy(place)
        .agg(quantile_of("latency_us", 0.5).alias("p50"), F.max("latency_us").alias("most"))
        .orderBy("bin")
        .collect()
    )
    missing = loaded.table(spark, "violations").where(F.col("kind") == "missing")
    lost = missing.groupBy(place).agg(F.count("*").alias("n")).orderBy("bin").collect()
    return Timeline(
        {row.bin: row.p50 / 1e3 for row in arrived},
        {row.bin: row.most / 1e3 for row in arrived},
        {row.bin: row.n for row in lost},
    )


@house_style()
def draw(
    series: SeriesRuns,
    timelines: Sequence[Timeline],
    numbers: Sequence[Mapping[str, Spread]],
) -> Drawing:
    """Return the figure of the collected timelines, point by point."""
    from matplotlib.figure import Figure

    count = len(series.points)
    picture = Figure(figsize=(9.6, 0.7 + 1.7 * count), layout="constrained")
    rows = picture.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    highest = max(ms for timeline in timelines for ms in timeline.most.values())
    for axes, point, timeline, of_point in zip(
        rows, series.points, timelines, numbers, strict=True
    ):
        _draw_point(axes, point, timeline, 2.5 * highest)
        axes.set_title(literal(point.name), loc="left", fontweight="bold")
        axes.set_title(_describe(of_point), loc="right", fontsize=7.5)
    lowest = min(ms for timeline in timelines for ms in timeline.typical.values())
    rows[0].set_ylim(bottom=0.7 * lowest)
    picture.supylabel("latency (ms): median, largest", fontsize=10)
    rows[-1].set_xlabel("sent, seconds after measuring began (× never arrived)")
    return Drawing(
        figure=picture,
        columns=("point", "t_s", "p50_ms", "most_ms", "lost"),
        rows=[
            (point.name, *row)
            for point, timeline in zip(series.points, timelines, strict=True)
            for row in _rows(timeline)
        ],
        caption=_caption(series),
        scale={
            "brokers": len(series.points[0].modal.run.topology["brokers"]),
            "points": count,
            "instances": min(len(point.runs) for point in series.points),
        },
        metrics={
            f"{name}.{point.name}": Metric(spread.mean, spread.low, spread.high)
            for point, of_point in zip(series.points, numbers, strict=True)
            for name, spread in of_point.items()
        },
        run_ids=series.run_ids,
        about={"modal": {point.name: point.modal.run.run_id for point in series.points}},
    )


def _draw_point(axes: "Axes", point: Point, timeline: Timeline, top: float) -> None:
    for span in _spans(point.modal):
        if span.kind in _COLOURS:
            axes.axvspan(
                span.from_ns / SECOND_NS, span.to_ns / SECOND_NS,
                color=_COLOURS[span.kind], alpha=0.35, linewidth=0, zorder=0,
            )  # fmt: skip
    times = [_seconds(place) for place in timeline.typical]
    axes.vlines(
        times, [*timeline.typical.values()], [*timeline.most.values()], color=_BAND, linewidth=1.2
    )
    axes.plot(
        times, [*timeline.typical.values()], color=_LATENCY, marker=".", markersize=2.5,
        linestyle="none",
    )  # fmt: skip
    lost = [_seconds(place) for place in timeline.lost]
    axes.plot(lost, [top / 1.6] * len(lost), color=_LOST, marker="x", linestyle="none")
    axes.set_yscale("log")
    axes.set_ylim(top=top)


def _spans(loaded: LoadedRun) -> Sequence[FaultSpan]:
    return fault_spans(loaded.run.fault_rows, loaded.run.phase("drain").to_ns)


def _rows(timeline: Timeline) -> Iterator[tuple[Any, ...]]:
    for place in sorted({*timeline.typical, *timeline.lost}):
        middle, most = timeline.typical.get(place, ""), timeline.most.get(place, "")
        yield _seconds(place), middle, most, timeline.lost.get(place, 0)


def _seconds(place: int) -> float:
    return round((place + 0.5) * BIN_NS / SECOND_NS, 3)


def _describe(numbers: Mapping[str, Spread]) -> str:
    """Return the numbers of a point in a line, each with its extremes."""
    units = {number.name: number.unit for number in NUMBERS}
    words = {
        "delivered_fraction": "delivered", "recovery_s": "recovered in",
        "resent_bytes": "sent again", "cpu_us_per_delivered": "per delivery",
    }  # fmt: skip
    parts = []
    for name in SHOWN:
        if name in numbers:
            spread = numbers[name]
            value = f"{100 * spread.mean:.2f} %" if name == SHOWN[0] else _value(spread)
            unit = "" if name == SHOWN[0] else f" {units[name]}"
            parts.append(f"{words[name]} {value}{unit}")
    return " · ".join(parts)


def _value(spread: Spread) -> str:
    if spread.smallest == spread.largest:
        return _short(spread.mean)
    return f"{_short(spread.mean)} ({_short(spread.smallest)}–{_short(spread.largest)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _caption(series: SeriesRuns) -> str:
    run = series.points[0].modal.run
    machine = f"{run.manifest['cpu']}, {run.manifest['cores']} cores"
    instances = min(len(point.runs) for point in series.points)
    schedule = run.manifest.get("schedule")
    faults = f"faults of {schedule}" if schedule else "no faults"
    spans = {span.kind for point in series.points for span in _spans(point.modal)}
    colours = [text for kind, text in _KINDS.items() if kind in spans]
    typical = "the only run of each point"
    if instances > 1:
        typical = (
            f"the typical run of {instances} of each point (the medoid of latency by send time)"
        )
    sentences = [
        "Latency by send time in stretches of 0.2 s over all subscriptions: median and largest",
        f"Workload {run.manifest.get('workload')}, {faults}, {typical}",
        *([f"Background {', '.join(colours)}"] if colours else []),
        *(
            ["Numbers are means over all instances, in brackets the least and the most"]
            if instances > 1
            else []
        ),
        "Bytes sent again are payload between brokers; time per delivery is processor time of all "
        "brokers",
        f"{len(run.topology['brokers'])} brokers on one machine ({machine})",
    ]
    return ". ".join(sentences) + "."


FIGURES = {"series.latency": series_latency}
