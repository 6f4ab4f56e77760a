"""What was offered, owed and delivered per second."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.facts import RunFacts
from results.figures.context import SECOND_NS, about_run, scale_text
from results.figures.data import FigureData, figure_data
from results.figures.style import BLUE, DOWN, INK, MUTED, RED, Width, footer, new_figure
from results.figures.timeline import most_affected, nice, seconds, shade
from results.load import LoadedRun
from results.throughput import delivered_per_bin, published_per_bin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BINS = 120


def collect(spark: "SparkSession", loaded: LoadedRun, facts: RunFacts) -> FigureData:
    """Publications and deliveries per stretch of time."""
    from pyspark.sql import functions as F

    about = about_run(loaded, facts)
    bin_ns = nice((about["to_ns"] - about["from_ns"]) / BINS)
    shown = most_affected(about["subscriptions"])
    deliveries = loaded.table(spark, "deliveries")
    published = published_per_bin(loaded.table(spark, "publications"), bin_ns)
    received = delivered_per_bin(deliveries, bin_ns).withColumn("series", F.lit("delivered"))
    # What was owed is what arrived at least once and what never did, by when it was sent.
    sent = (
        deliveries.where((F.col("layer") == "application") & (F.col("kind") == "data"))
        .where(F.col("t_sent_ns").isNotNull())
        .select("sub_id", "pubend", "incarnation", "seq", F.col("t_sent_ns").alias("t_ns"))
    )
    missing = loaded.table(spark, "violations").where(F.col("kind") == "missing")
    owed = (
        sent.groupBy("sub_id", "pubend", "incarnation", "seq").agg(F.min("t_ns").alias("t_ns"))
        .unionByName(missing.select("sub_id", "pubend", "incarnation", "seq", "t_ns"))
        .groupBy("sub_id", F.floor(F.col("t_ns") / bin_ns).cast("INT").alias("bin"))
        .agg(F.count("*").alias("n"))
        .withColumn("series", F.lit("owed"))
    )  # fmt: skip
    columns = ("series", "sub_id", "bin", "n")
    rows = (
        published.withColumn("sub_id", F.lit("")).select(*columns)
        .unionByName(received.where(F.col("sub_id").isin(shown)).select(*columns))
        .unionByName(owed.where(F.col("sub_id").isin(shown)).select(*columns))
        .toArrow().to_pylist()
    )  # fmt: skip
    rows.sort(key=lambda row: (row["sub_id"], row["series"], row["bin"]))
    return figure_data("rate", {**about, "bin_ns": bin_ns, "shown": shown}, rows)


def paint(data: FigureData, width: Width = "wide") -> Figure:
    """Publications offered and sent, deliveries owed and made, per second and subscription."""
    about = data.about
    names = ["", *about["shown"]]
    row_inches, head_inches, foot_inches = 0.88, 0.42, 0.62
    height = head_inches + row_inches * len(names) + foot_inches
    figure = new_figure(width, height)
    left, right = (0.085, 0.985) if width == "wide" else (0.145, 0.98)
    for number, name in enumerate(names):
        top = head_inches + number * row_inches + 0.16
        bottom = 1 - (top + row_inches - 0.28) / height
        axes = figure.add_axes((left, bottom, right - left, (row_inches - 0.28) / height))
        _draw_row(axes, data, name)
        axes.tick_params(labelbottom=number == len(names) - 1)
    figure.text(left, 1 - 0.10 / height, "Rates, per second", fontsize=10.5, weight="bold",
                va="top", color=INK)  # fmt: skip
    figure.text((left + right) / 2, 0.30 / height, "seconds after measuring began", fontsize=8,
                color=MUTED, ha="center", va="center")  # fmt: skip
    if width == "wide":
        footer(figure, scale_text(about))
    return figure


def _draw_row(axes: Axes, data: FigureData, sub_id: str) -> None:
    about = data.about
    per_second = SECOND_NS / about["bin_ns"]
    rows = [row for row in data.records() if (row["sub_id"] or "") == sub_id]
    backdrop, line = ("owed", "delivered") if sub_id else ("offered", "sent")
    axes.set_xlim(*seconds(about))
    axes.grid(visible=False, axis="x")
    highest = max((row["n"] for row in rows), default=1) * per_second
    for subscription in about["subscriptions"]:
        if subscription["sub_id"] == sub_id:
            for number in subscription["faults"]:
                shade(axes, about["faults"][number])
    first, last = (round(about[key] / about["bin_ns"]) for key in ("from_ns", "to_ns"))
    edges = [number * about["bin_ns"] / SECOND_NS for number in range(first, last + 1)]
    wanted = _series(rows, backdrop, first, last, per_second)
    made = _series(rows, line, first, last, per_second)
    axes.stairs(wanted, edges, fill=True, color=DOWN, alpha=0.45, linewidth=0, zorder=1)
    axes.stairs(made, edges, color=BLUE, linewidth=1.1, zorder=3, baseline=None)
    axes.set_ylim(0, highest * 1.12)
    axes.locator_params(axis="y", nbins=3, integer=True)
    label = sub_id.removesuffix("/1") if sub_id else "all publishers"
    axes.annotate(label, (0, 1), xycoords="axes fraction", xytext=(0, 3), fontsize=8.5,
                  textcoords="offset points", weight="bold", va="bottom")  # fmt: skip
    gap = sum(wanted) - sum(made)
    short = sub_id and gap > 0.5 * per_second
    text = f"{round(gap / per_second):,} less than owed" if short else f"{line}, before {backdrop}"
    axes.annotate(text, (1, 1), xycoords="axes fraction", xytext=(0, 3), fontsize=7.5,
                  textcoords="offset points", ha="right", va="bottom",
                  color=RED if short else MUTED)  # fmt: skip


def _series(
    rows: Sequence[Mapping[str, Any]], series: str, first: int, last: int, per_second: float
) -> list[float]:
    found = {row["bin"]: row["n"] for row in rows if row["series"] == series}
    return [found.get(number, 0) * per_second for number in range(first, last)]


def metrics(data: FigureData) -> dict[str, float]:
    """Deliveries owed and made, over the subscriptions shown."""
    totals = dict.fromkeys(("owed", "delivered"), 0)
    for row in data.records():
        if row["series"] in totals:
            totals[row["series"]] += row["n"]
    return {series: float(total) for series, total in totals.items()}
