"""Offered, owed and delivered publications per second."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brokerd.units import SECOND_NS
from results.figures.context import FigureData, describe_run, figure_data, scale_text
from results.figures.style import (
    BLUE,
    DOWN,
    RED,
    Width,
    footer,
    label_below_axis,
    legend,
    new_figure,
    title,
)
from results.figures.timeline import most_affected, name_row, nice, note_row, seconds, shade
from results.rules.facts import RunFacts
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BINS = 120
BEHIND_NS = SECOND_NS
"""The age beyond which a publication in flight at the end of the load counts as waiting."""
WRONG = ("missing", "duplicate")
NOTES = {
    "missing": "missing",
    "duplicate": "delivered again",
    "behind": f"more than {BEHIND_NS // SECOND_NS} s behind when the load ended",
}


def collect(spark: "SparkSession", loaded: LoadedRun, facts: RunFacts) -> FigureData:
    """Return publications and deliveries per stretch of time."""
    from pyspark.sql import functions as F

    about = describe_run(loaded, facts)
    bin_ns = nice((about["to_ns"] - about["from_ns"]) / BINS)
    shown = most_affected(about["subscriptions"])
    deliveries = loaded.table(spark, "deliveries")
    published = count_published(loaded.table(spark, "publications"), bin_ns)
    received = count_delivered(deliveries, bin_ns).withColumn("series", F.lit("delivered"))
    # Owed are deliveries that arrived at least once or surely never did, by send time; undecided
    # deliveries are left out.
    arrived = (
        deliveries.where((F.col("layer") == "application") & (F.col("kind") == "data"))
        .where(F.col("t_sent_ns").isNotNull())
        .groupBy("sub_id", "pubend", "incarnation", "seq")
        .agg(F.min("t_sent_ns").alias("t_ns"), F.min("t_recv_ns").alias("arrived_ns"))
    )
    wrong = loaded.table(spark, "violations").where(F.col("kind").isin(*WRONG))
    behind = arrived.where(
        (F.col("t_ns") < about["to_ns"] - BEHIND_NS) & (F.col("arrived_ns") >= about["to_ns"])
    )
    counted = {
        "owed": arrived.select("sub_id", "t_ns").unionByName(
            wrong.where(F.col("kind") == "missing").select("sub_id", "t_ns")
        ),
        "behind": behind,
        **{kind: wrong.where(F.col("kind") == kind) for kind in WRONG},
    }
    noted = reduce(
        lambda one, other: one.unionByName(other),
        (
            rows.select("sub_id", F.lit(series).alias("series"), "t_ns")
            for series, rows in counted.items()
        ),
    )
    owed = noted.groupBy(
        "series", "sub_id", F.floor(F.col("t_ns") / bin_ns).cast("INT").alias("bin")
    ).agg(F.count("*").alias("n"))
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
    """Paint publications offered and sent, deliveries owed and made, by subscription."""
    about = data.about
    names = ["", *about["shown"]]
    row_inches, head_inches, foot_inches = 0.92, 0.42, 0.62
    height = head_inches + row_inches * len(names) + foot_inches
    figure = new_figure(width, height)
    left, right = (0.085, 0.985) if width == "wide" else (0.145, 0.98)
    for number, name in enumerate(names):
        top = head_inches + number * row_inches + 0.22
        bottom = 1 - (top + row_inches - 0.34) / height
        axes = figure.add_axes((left, bottom, right - left, (row_inches - 0.34) / height))
        _draw_row(axes, data, name, width)
        axes.tick_params(labelbottom=number == len(names) - 1)
    title(figure, left, "Rates, per second")
    legend(figure, right, [("—", BLUE, "sent, delivered"), ("■", DOWN, "offered, owed")])
    label_below_axis(figure, (left + right) / 2, "seconds after measuring began")
    if width == "wide":
        footer(figure, scale_text(about))
    return figure


def _draw_row(axes: Axes, data: FigureData, sub_id: str, width: Width) -> None:
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
    if not sub_id:
        name_row(axes, {"sub_id": "all publishers", "predicate": ""}, width)
        return
    name_row(axes, next(s for s in about["subscriptions"] if s["sub_id"] == sub_id), width)
    notes = [
        f"{n:,} {words}"
        for series, words in NOTES.items()
        if (n := sum(row["n"] for row in rows if row["series"] == series))
    ]
    if notes:
        note_row(axes, ", ".join(notes), RED)


def _series(
    rows: Sequence[Mapping[str, Any]], series: str, first: int, last: int, per_second: float
) -> list[float]:
    found = {row["bin"]: row["n"] for row in rows if row["series"] == series}
    return [found.get(number, 0) * per_second for number in range(first, last)]


def metrics(data: FigureData) -> dict[str, float]:
    """Return deliveries owed and made, over the subscriptions shown."""
    totals = dict.fromkeys(("owed", "delivered"), 0)
    for row in data.records():
        if row["series"] in totals:
            totals[row["series"]] += row["n"]
    return {series: float(total) for series, total in totals.items()}


def count_published(publications: "DataFrame", bin_ns: int) -> "DataFrame":
    """Return the intended and sent publications of publishers, per interval of `bin_ns`.

    Returns:
        run_id, series ("offered" by intended time, "sent" by the time sent), bin, n.
    """
    from pyspark.sql import functions as F

    data = publications.where(~F.col("is_fence"))
    parts = [
        data.groupBy("run_id", _bin(stamp, bin_ns)).count().withColumn("series", F.lit(series))
        for series, stamp in (("offered", "t_intended_ns"), ("sent", "t_sent_ns"))
    ]
    return parts[0].unionByName(parts[1]).withColumnRenamed("count", "n")


def count_delivered(deliveries: "DataFrame", bin_ns: int) -> "DataFrame":
    """Return the deliveries to applications, per subscription and interval of `bin_ns`, by receipt.

    Returns:
        run_id, sub_id, bin, n.
    """
    from pyspark.sql import functions as F

    data = deliveries.where((F.col("layer") == "application") & (F.col("kind") == "data"))
    received = data.groupBy("run_id", "sub_id", _bin("t_recv_ns", bin_ns))
    return received.count().withColumnRenamed("count", "n")


def _bin(column: str, bin_ns: int) -> "Column":
    from pyspark.sql import functions as F

    return F.floor(F.col(column) / bin_ns).cast("INT").alias("bin")
