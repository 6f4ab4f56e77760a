"""Latency by send time, with a row per subscription, and with the faults."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brokerd.units import SECOND_NS
from results.checker.latency import quantile_of
from results.figures.context import (
    FigureData,
    describe_run,
    exposure_rows,
    fault_label,
    figure_data,
    scale_text,
)
from results.figures.style import (
    BLUE,
    DOWN,
    HELD,
    MUTED,
    ORANGE,
    RED,
    WIDTHS_INCHES,
    Width,
    duration_axis,
    footer,
    label_below_axis,
    legend,
    literal,
    new_figure,
    title,
)
from results.rules.facts import RunFacts
from results.rules.timing import publisher_entries, segments_of
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BINS = 320
LARGEST_ROWS = 8
_NICE = (1, 2, 5)


def collect(spark: "SparkSession", loaded: LoadedRun, facts: RunFacts) -> FigureData:
    """Return latency per subscription and stretch of send time, separately at risk."""
    from pyspark.sql import functions as F

    about = describe_run(loaded, facts)
    bin_ns = nice((about["to_ns"] - about["from_ns"]) / BINS)
    shown = most_affected(about["subscriptions"])
    exposed = spark.createDataFrame(
        exposure_rows(facts), "sub_id STRING, pubend STRING, from_ns BIGINT, to_ns BIGINT"
    )

    def with_risk(rows: Any) -> Any:
        """Return each row once, with a column for risk."""
        inside = (F.col("t_ns") >= F.col("from_ns")) & (F.col("t_ns") < F.col("to_ns"))
        return (
            rows.where(F.col("sub_id").isin(shown))
            .join(F.broadcast(exposed), ["sub_id", "pubend"], "left")
            .groupBy("sub_id", "pubend", "incarnation", "seq", "t_ns", "latency_us")
            .agg(F.max(F.coalesce(inside, F.lit(False)).cast("INT")).alias("at_risk"))
            .withColumn("bin", F.floor(F.col("t_ns") / bin_ns).cast("INT"))
        )

    deliveries = loaded.table(spark, "deliveries").where(
        (F.col("layer") == "application")
        & (F.col("kind") == "data")
        & F.col("same_clock")
        & F.col("lat_response_us").isNotNull()
    )
    first = (
        deliveries.groupBy("sub_id", "pubend", "incarnation", "seq")
        .agg(F.min("t_sent_ns").alias("t_ns"), F.min("lat_response_us").alias("latency_us"))
    )  # fmt: skip
    arrived = (
        with_risk(first)
        .groupBy("sub_id", "bin", "at_risk")
        .agg(
            F.count("*").alias("n"),
            F.min("latency_us").alias("low_us"),
            quantile_of("latency_us", 0.5).cast("BIGINT").alias("p50_us"),
            F.max("latency_us").alias("high_us"),
        )
        .withColumn("lost", F.lit(0).cast("BIGINT"))
    )
    missing = loaded.table(spark, "violations").where(F.col("kind") == "missing")
    lost = (
        with_risk(missing.withColumn("latency_us", F.lit(None).cast("BIGINT")))
        .groupBy("sub_id", "bin", "at_risk")
        .agg(F.count("*").alias("lost"))
        .select("sub_id", "bin", "at_risk", F.lit(0).cast("BIGINT").alias("n"),
                *(F.lit(None).cast("BIGINT").alias(c) for c in ("low_us", "p50_us", "high_us")),
                "lost")
    )  # fmt: skip
    order = {sub_id: place for place, sub_id in enumerate(shown)}
    rows = arrived.unionByName(lost).toArrow().to_pylist()
    rows.sort(key=lambda row: (order[row["sub_id"]], row["bin"], row["at_risk"], row["lost"]))
    rates = total_rates(loaded.run.workload, about["from_ns"], about["to_ns"])
    shapes = {"rates": rates} if rates else {}
    return figure_data("timeline", {**about, "bin_ns": bin_ns, "shown": shown, **shapes}, rows)


def total_rates(workload: Mapping[str, Any], from_ns: int, to_ns: int) -> list[tuple[float, float]]:
    """Return the intended rate of all publishers, at each change; [] without a rate shape.

    Each entry has the time in seconds after the begin of the measurement, and publications per
    second.

    Args:
        from_ns, to_ns: begin of the warm-up, and end of the measurement.
    """
    if not any(isinstance(entry.get("rate"), list) for entry in workload.get("publishers", ())):
        return []
    changes: dict[int, Fraction] = defaultdict(Fraction)
    for shape, _ in publisher_entries(workload).values():
        before = Fraction(0)
        for begin_ns, _, rate in segments_of(shape or (), max(0, -from_ns), to_ns - from_ns):
            changes[from_ns + begin_ns] += rate - before
            before = rate
    found, total = [], Fraction(0)
    for at_ns in sorted(changes):
        total += changes[at_ns]
        found.append((at_ns / SECOND_NS, float(total)))
    return found


def nice(number: float) -> int:
    """Return 1, 2 or 5 times a power of ten, not below `number`."""
    power = 10 ** math.floor(math.log10(max(number, 1.0)))
    return int(next(power * step for step in (*_NICE, 10) if power * step >= number))


def most_affected(subscriptions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the subscriptions with most faults on their routes, as many as are legible."""
    ordered = sorted(subscriptions, key=lambda s: -len(s["faults"]))[:LARGEST_ROWS]
    return sorted(s["sub_id"] for s in ordered)


def paint(data: FigureData, width: Width = "wide") -> Figure:
    """Paint latency of each subscription by send time: stalls, kills, risks and recoveries."""
    about = data.about
    shown = about["shown"]
    lanes = len(_lane_of(about))
    strip_inches = 0.2 * lanes
    rate_inches = 0.55 if about.get("rates") else 0.0
    row_inches, head_inches, foot_inches = 1.02, 0.52 + strip_inches + rate_inches, 0.62
    height = head_inches + row_inches * len(shown) + foot_inches
    figure = new_figure(width, height)
    left, right = (0.085, 0.985) if width == "wide" else (0.145, 0.98)
    known = [row for row in data.records() if row["n"]]
    lowest = max(1, min((row["low_us"] for row in known), default=100) / 1.6)
    highest = max((row["high_us"] for row in known), default=10_000) * 2.2
    highest = max(highest, lowest * 300)

    def box(top_inches: float, inches: float) -> tuple[float, float, float, float]:
        return left, 1 - (top_inches + inches) / height, right - left, inches / height

    if lanes:
        _draw_strip(figure.add_axes(box(0.46, strip_inches)), about, width)
    if rate_inches:
        _draw_rates(figure.add_axes(box(0.62 + strip_inches, rate_inches - 0.2)), about)
    for number, sub_id in enumerate(shown):
        axes = figure.add_axes(box(head_inches + number * row_inches + 0.22, row_inches - 0.34))
        _draw_row(axes, data, sub_id, lowest, highest, width)
        last = number == len(shown) - 1
        axes.tick_params(labelbottom=last)
    title(figure, left, "Latency by send time")
    key = [("●", BLUE, "arrived")]
    if any(row["at_risk"] for row in known):
        key.append(("●", ORANGE, "at risk, arrived"))
    if any(row["lost"] for row in data.records()):
        key.append(("×", RED, "never arrived"))
    legend(figure, right, key)
    bottom = "publication sent, seconds after measuring began"
    if (whole := len(about["subscriptions"])) > len(shown):
        bottom += f" · {len(shown)} of {whole} subscriptions: most faults on their routes"
    label_below_axis(figure, (left + right) / 2, bottom)
    if width == "wide":
        footer(figure, scale_text(about))
    return figure


def _lane_of(about: Mapping[str, Any]) -> dict[str, int]:
    """Return a line of the strip for each target."""
    targets = dict.fromkeys(fault["target"] for fault in about["faults"])
    return {target: lane for lane, target in enumerate(targets)}


def seconds(about: Mapping[str, Any]) -> tuple[float, float]:
    return about["from_ns"] / SECOND_NS, about["to_ns"] / SECOND_NS


def _draw_strip(axes: Axes, about: Mapping[str, Any], width: Width) -> None:
    """Draw faults by target and time; a label that does not fit is placed behind its bar."""
    lanes = _lane_of(about)
    axes.set_xlim(*seconds(about))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.axis("off")
    letter_s = (axes.get_xlim()[1] - axes.get_xlim()[0]) / WIDTHS_INCHES[width] * 0.068
    for target, lane in lanes.items():
        faults = [fault for fault in about["faults"] if fault["target"] == target]
        outside: dict[str, list[str]] = {"right": [], "left": []}
        for number, fault in enumerate(faults):
            start, end = fault["from_ns"] / SECOND_NS, fault["to_ns"] / SECOND_NS
            axes.barh(lane, end - start, left=start, height=0.7, **_span_style(fault["kind"]))
            text = fault_label(fault)
            if len(text) * letter_s < end - start:
                axes.text((start + end) / 2, lane, text, fontsize=7.5, va="center", ha="center")
            else:
                outside["right" if number == 0 else "left"].append(text)
        edges = {
            "right": min(fault["from_ns"] for fault in faults) / SECOND_NS - letter_s,
            "left": max(fault["to_ns"] for fault in faults) / SECOND_NS + letter_s,
        }
        for side, texts in outside.items():
            axes.text(edges[side], lane, ", ".join(texts), fontsize=7.5, va="center", ha=side,
                      clip_on=False)  # fmt: skip


def _draw_rates(axes: Axes, about: Mapping[str, Any]) -> None:
    """Draw the intended rate of all publishers over time."""
    times = [at_s for at_s, _ in about["rates"]]
    rates = [rate for _, rate in about["rates"]]
    first, last = seconds(about)
    axes.set_xlim(first, last)
    axes.set_ylim(0, 1.15 * max(rates))
    axes.fill_between([*times, last], [*rates, rates[-1]], step="post", color=BLUE, alpha=0.25)
    axes.set_yticks([max(rates)], [f"{max(rates):,.0f}/s"])
    axes.tick_params(labelbottom=False)
    axes.grid(visible=False)
    note_row(axes, "intended rate of all publishers", MUTED)


def _span_style(kind: str) -> dict[str, Any]:
    if kind == "held":
        return {"facecolor": HELD, "edgecolor": ORANGE, "hatch": "////", "linewidth": 0}
    if kind == "down":
        return {"facecolor": DOWN, "alpha": 0.75, "linewidth": 0}
    if kind == "back":
        return {"facecolor": BLUE, "alpha": 0.45, "linewidth": 0}
    return {"facecolor": DOWN, "alpha": 0.3, "linewidth": 0}


def _draw_row(
    axes: Axes, data: FigureData, sub_id: str, lowest: float, highest: float, width: Width
) -> None:
    about = data.about
    subscription = next(s for s in about["subscriptions"] if s["sub_id"] == sub_id)
    axes.set_xlim(*seconds(about))
    duration_axis(axes, lowest, highest)
    axes.grid(visible=True, axis="y")
    axes.grid(visible=False, axis="x")
    for number in subscription["faults"]:
        shade(axes, about["faults"][number])

    rows = [row for row in data.records() if row["sub_id"] == sub_id]
    width_s = about["bin_ns"] / SECOND_NS
    for at_risk, color, line in ((0, BLUE, 1.1), (1, ORANGE, 2.2)):
        part = [row for row in rows if row["n"] and row["at_risk"] == at_risk]
        middle = [(row["bin"] + 0.5) * width_s for row in part]
        axes.vlines(
            middle, [row["low_us"] for row in part], [row["high_us"] for row in part],
            color=color, linewidth=line, alpha=0.38 if not at_risk else 0.55, zorder=3,
        )  # fmt: skip
        axes.plot(
            middle, [row["p50_us"] for row in part], linestyle="none", marker="o",
            markersize=1.5 if not at_risk else 2.6, markeredgewidth=0, color=color, zorder=4,
        )  # fmt: skip
    lost_rows = [row for row in rows if row["lost"]]
    axes.plot(
        [(row["bin"] + 0.5) * width_s for row in lost_rows], [highest / 1.55] * len(lost_rows),
        linestyle="none", marker="x", markersize=3.6, markeredgewidth=0.9, color=RED, zorder=5,
    )  # fmt: skip
    words, color = _fate(rows)
    name_row(axes, subscription, width)
    note_row(axes, words, color)


def shade(axes: Axes, fault: Mapping[str, Any]) -> None:
    start, end = fault["from_ns"] / SECOND_NS, fault["to_ns"] / SECOND_NS
    if fault["kind"] == "held":
        axes.axvspan(start, end, facecolor=HELD, edgecolor=ORANGE, alpha=0.28, hatch="////",
                     linewidth=0, zorder=0)  # fmt: skip
    elif fault["kind"] == "down":
        axes.axvspan(start, end, facecolor=DOWN, alpha=0.3, linewidth=0, zorder=0)


def name_row(axes: Axes, subscription: Mapping[str, Any], width: Width) -> None:
    """Write the subscription's name and predicate at its row."""
    name = axes.annotate(
        subscription["sub_id"].removesuffix("/1"), (0, 1), xycoords="axes fraction",
        xytext=(0, 4), textcoords="offset points", fontsize=8.5, weight="bold", va="bottom",
    )  # fmt: skip
    longest = 76 if width == "wide" else 24
    predicate = subscription["predicate"]
    if len(predicate) > longest:
        predicate = predicate[: longest - 1] + "…"
    axes.annotate(
        literal(predicate), (1, 0), xycoords=name, xytext=(7, 0), textcoords="offset points",
        fontsize=7.5, va="bottom", color=MUTED, annotation_clip=False,
    )  # fmt: skip


def note_row(axes: Axes, text: str, color: str) -> None:
    """Write a remark on a row, at the right end."""
    axes.annotate(
        text, (1, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points",
        fontsize=7.5, ha="right", va="bottom", color=color,
    )  # fmt: skip


def _fate(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    at_risk = sum(row["n"] + row["lost"] for row in rows if row["at_risk"])
    recovered = sum(row["n"] for row in rows if row["at_risk"])
    lost = sum(row["lost"] for row in rows)
    if lost:
        risk = f"{at_risk:,} at risk, {recovered:,} recovered · " if at_risk else ""
        return f"{risk}{lost:,} lost", RED
    if at_risk:
        return f"{at_risk:,} at risk, all recovered", ORANGE
    return "nothing at risk", MUTED


def metrics(data: FigureData) -> dict[str, float]:
    """Return the deliveries at risk, recovered and lost, over the subscriptions shown."""
    rows = data.records()
    return {
        "at_risk": float(sum(row["n"] + row["lost"] for row in rows if row["at_risk"])),
        "recovered": float(sum(row["n"] for row in rows if row["at_risk"])),
        "lost": float(sum(row["lost"] for row in rows)),
    }
