"""The whole distribution of latencies, with a magnified tail."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.checker.latency import latency_at_share, latency_buckets, spectrum
from results.figures.context import FigureData, describe_run, figure_data, scale_text
from results.figures.style import (
    SERIES,
    Width,
    duration_axis,
    footer,
    label_below_axis,
    new_figure,
    title,
)
from results.figures.timeline import most_affected
from results.rules.facts import RunFacts
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collect(spark: "SparkSession", loaded: LoadedRun, facts: RunFacts) -> FigureData:
    """Return a histogram of latencies per subscription."""
    from pyspark.sql import functions as F

    about = describe_run(loaded, facts)
    shown = most_affected(about["subscriptions"])
    buckets = latency_buckets(loaded.table(spark, "deliveries"))
    rows = (
        buckets.where((F.col("metric") == "lat_response") & F.col("proc_id").isin(shown))
        .select(F.col("proc_id").alias("sub_id"), "lo_us", "hi_us", "n")
        .toArrow().to_pylist()
    )  # fmt: skip
    rows.sort(key=lambda row: (row["sub_id"], row["lo_us"]))
    return figure_data("spectrum", {**about, "shown": shown}, rows)


def paint(data: FigureData, width: Width = "wide") -> Figure:
    """Paint latency by percentile, with a magnified tail: the worst hundredth is visible."""
    height = 3.5 if width == "wide" else 3.3
    figure = new_figure(width, height)
    left, right = (0.085, 0.86) if width == "wide" else (0.145, 0.80)
    axes = figure.add_axes((left, 0.72 / height, right - left, (height - 1.2) / height))
    records = data.records()
    curves = {
        sub_id: spectrum([row for row in records if row["sub_id"] == sub_id])
        for sub_id in data.about["shown"]
        if any(row["sub_id"] == sub_id for row in records)
    }
    ends = []
    for (sub_id, steps), color in zip(curves.items(), SERIES, strict=False):
        total = sum(row["n"] for row in records if row["sub_id"] == sub_id)
        shares = [min(share, 1 - 0.5 / total) for share, _ in steps]
        odds = [1 / (1 - share) for share in shares]
        axes.plot(odds, [latency for _, latency in steps], color=color, linewidth=1.4,
                  drawstyle="steps-pre")  # fmt: skip
        ends.append((steps[-1][1], odds[-1], sub_id.removesuffix("/1"), color))
    lowest = min((steps[0][1] for steps in curves.values()), default=100)
    highest = max((steps[-1][1] for steps in curves.values()), default=10_000)
    axes.set_xscale("log")
    duration_axis(axes, max(1, lowest / 1.5), highest * 1.6)
    widest = max((odds for _, odds, _, _ in ends), default=1000)
    axes.set_xlim(1, widest * 1.05)
    marks = [(2, "50"), (10, "90"), (100, "99"), (1000, "99.9"), (10_000, "99.99"), (1e5, "99.999")]
    marks = [(at, text) for at, text in marks if at <= widest]
    axes.set_xticks([at for at, _ in marks], [f"{text} %" for _, text in marks])
    axes.minorticks_off()
    _label_ends(axes, ends)
    title(figure, left, "Latency by percentile")
    label_below_axis(figure, (left + right) / 2, "share of deliveries that took no longer")
    if width == "wide":
        footer(figure, scale_text(data.about))
    return figure


def _label_ends(axes: Axes, ends: Sequence[tuple[int, float, str, str]]) -> None:
    """Write names beside the ends of their curves, moved apart to avoid overlaps."""
    low, high = axes.get_ylim()

    def place(latency: float) -> float:
        return math.log(latency / low) / math.log(high / low)

    before = -1.0
    for latency, _, name, color in sorted(ends):
        at = max(place(latency), before + 0.062)
        before = at
        axes.annotate(name, (1, at), xycoords="axes fraction", xytext=(5, 0), fontsize=8,
                      textcoords="offset points", va="center", color=color)  # fmt: skip


def metrics(data: FigureData) -> dict[str, float]:
    """Return the 50th and 99th percentile over all subscriptions shown, in µs."""
    steps = spectrum(data.records())
    if not steps:
        return {}
    return {f"p{share}_us": float(latency_at_share(steps, share / 100)) for share in (50, 99)}
