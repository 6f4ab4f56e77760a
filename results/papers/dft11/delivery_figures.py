"""Figure 10 of [DFT11]: deliveries past failures, by the protocol on simulated brokers.

Paper: [DFT11] §IX-B. The ticks of its axes and its curves are lost; its text is not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style, new_figure
from results.figures.style import MARKERS, line_with_band
from results.papers.dft11.figures import tree_words
from results.papers.dft11.simulated_deliveries import (
    check_tables_agree,
    delivered_percent,
    deliveries_per_second,
)
from results.papers.experiment_runs import ExperimentRun, load_experiment_run
from results.tables.json_files import ResultsError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = Any

DELTA_LINES = ("#d55e00", "#e69f00", "#0072b2", "#1a1a1a")

TOLERANCE_BELOW_BOUND = 5.0
"""Percentage points that may be lost to start-up of bypasses within the window."""


def fig10(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Deliveries past failed brokers, in % of all deliveries expected at live brokers, per δ.

    Paper: [DFT11] §IX-B, Fig. 10.
    """
    run = _run_for(spark, run_dir)
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
    return Drawing(
        figure=figure,
        columns=[*rows[0].asDict()],
        rows=[[*row] for row in rows],
        caption=_caption(run, rows),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(rows)),
        run_ids=(run.run_id,),
    )


def fig10_seconds(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Deliveries per second within figure 10's window, with the most failures, per δ."""
    run = _run_for(spark, run_dir)
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
    return Drawing(
        figure=figure,
        columns=[*rows[0].asDict()],
        rows=[[*row] for row in rows],
        caption=(
            f"Deliveries within the window of figure 10 over time, {tree_words(run)}, with {most} "
            f"of them failed {_failure_time(run)}. The paper gives no such series."
        ),
        scale=dict(run.manifest["scale"]),
        metrics={},
        run_ids=(run.run_id,),
    )


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


def _run_for(spark: "SparkSession", run_dir: "Path") -> ExperimentRun:
    run = load_experiment_run(spark, run_dir)
    wanted_question = run.experiment.get("question")
    if wanted_question != "deliveries":
        raise ResultsError(
            f"{run.folder}: the run is about {wanted_question!r}, the figure 'deliveries'"
        )
    return run
