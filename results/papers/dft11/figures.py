"""The figures of [DFT11] that follow from the shape of a tree alone: 9, 11 and 12.

Each function draws from the rows that `papers.dft11.connectivity` makes of a run. A drawing
contains the picture, the rows, a caption with the paper's report and our result, and the numbers
for claims.

Paper: [DFT11] §IX. The ticks of its axes and its curves are lost; its text is not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style, new_figure, plain_log_axis
from results.figures.style import DASHES, MARKERS, line_with_band
from results.papers.dft11.connectivity import (
    compute_disconnected_percent,
    neighbourhood_distribution,
    protocol_agreement,
    session_distribution,
)
from results.papers.experiment_runs import ExperimentRun, drawing_of_rows, load_run_about
from results.tables.json_files import ResultsError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Row = Any
Point = tuple[int, ...]

# Orange to blue to black: distinguishable in print and with red-green colour blindness.
DELTA_LINES = ("#d55e00", "#e69f00", "#0072b2", "#1a1a1a")
FAILED_LINES = ("#999999", "#0072b2", "#d55e00")

# A mean over fewer draws than this is not compared with another mean.
ENOUGH_LOSING_RUNS = 10


def fig9(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Pairs of brokers that failures cut off from each other, per δ; a panel per fan-out.

    Paper: [DFT11] §IX-A, Fig. 9.
    """
    run = load_run_about(spark, run_dir, "connectivity")
    return draw_fig9(run, compute_disconnected_percent(run.table(spark, "connectivity")).collect())


@house_style()
def draw_fig9(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return figure 9 from the rows of `compute_disconnected_percent`."""
    by_line = _group(rows, "fanout", "delta")
    figure, panels = new_figure(_panels(rows))
    most = max(row.failed for row in rows)
    for fanout, axes in panels.items():
        for number, ((_, delta), line) in enumerate(_lines_of(by_line, fanout)):
            colour = _get(DELTA_LINES, number)
            failed = [row.failed for row in line]
            band = [row.low_percent or 0 for row in line], [row.high_percent or 0 for row in line]
            line_with_band(
                axes, failed, [row.mean_percent for row in line], band, colour,
                marker=_get(MARKERS, number), clip_on=False, zorder=3,
                label=f"δ = {delta}:  {_percent(line[-1].mean_percent)}",
            )  # fmt: skip
        axes.set_title(f"fan-out {fanout}")
        axes.set_xlabel("failed brokers")
        axes.set_xlim(0, most)
        axes.set_ylim(bottom=0)
        axes.legend(title=f"lost with {most} failed", loc="upper left")
    panels[min(panels)].set_ylabel("pairs of live brokers cut off (%)")
    metrics = dict(_fig9_metrics(by_line))
    return drawing_of_rows(run, rows, figure, _fig9_caption(run, rows), metrics)


def fig11(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Number of brokers within δ + 1 links of a broker; a panel per fan-out.

    Paper: [DFT11] §IX-C, Fig. 11.
    """
    run = load_run_about(spark, run_dir, "neighbourhoods")
    return draw_fig11(run, neighbourhood_distribution(run.table(spark, "neighbourhoods")).collect())


@house_style()
def draw_fig11(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return figure 11 from the rows of `neighbourhood_distribution`."""
    by_line = _group(rows, "fanout", "delta")
    figure, panels = new_figure(_panels(rows))
    largest = max(row.neighbours for row in rows)
    for fanout, axes in panels.items():
        for number, ((_, delta), line) in enumerate(_lines_of(by_line, fanout)):
            _draw_distribution(
                axes, line, "neighbours", largest, _get(DELTA_LINES, number), _get(DASHES, number),
                f"δ = {delta}:  {line[-1].neighbours:,}",
            )  # fmt: skip
        axes.set_title(f"fan-out {fanout}")
        axes.set_xlabel("other brokers in the Δ-neighbourhood")
        plain_log_axis(axes, (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000), 0.9, 1.1 * largest)
        axes.legend(title="largest", loc="lower right")
    panels[min(panels)].set_ylabel("share of brokers with at most so many")
    metrics = dict(_distribution_metrics(by_line, "neighbours", ("fanout", "delta")))
    return drawing_of_rows(run, rows, figure, _fig11_caption(run, by_line), metrics)


def fig12(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Number of sessions of a live broker after the bypass of failures; a panel per fan-out.

    Paper: [DFT11] §IX-D, Fig. 12.
    """
    run = load_run_about(spark, run_dir, "active-sessions")
    deltas = run.experiment["deltas"]
    if len(deltas) > 1:
        raise ResultsError(f"{run.folder}: deltas = {deltas}; the figure shows one δ")
    sessions = run.table(spark, "active_sessions")
    agreements = [row.equal for row in protocol_agreement(sessions).collect()]
    return draw_fig12(run, session_distribution(sessions).collect(), agreements)


@house_style()
def draw_fig12(run: ExperimentRun, rows: Sequence[Row], agreed: Sequence[bool]) -> Drawing:
    """Return figure 12 from the rows of `session_distribution`.

    Args:
        agreed: for each draw in which the protocol ran too, True if it agrees with the formula.
    """
    by_line = _group(rows, "fanout", "failed")
    figure, panels = new_figure(_panels(rows))
    largest = max(row.sessions for row in rows)
    for fanout, axes in panels.items():
        for number, ((_, failed), line) in enumerate(_lines_of(by_line, fanout)):
            _draw_distribution(
                axes, line, "sessions", largest, _get(FAILED_LINES, number), _get(DASHES, number),
                f"{failed} failed:  {_mean(line, 'sessions'):.2f}, {line[-1].sessions}",
            )  # fmt: skip
        axes.set_title(f"fan-out {fanout}")
        axes.set_xlabel("active sessions of a live broker")
        plain_log_axis(axes, (1, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000), 0.9, 1.1 * largest)
        axes.legend(title="mean, most", loc="lower right")
    panels[min(panels)].set_ylabel("share of live brokers with at most so many")
    metrics = {
        **dict(_fig12_metrics(by_line)),
        "draws_the_protocol_ran_in": Metric(len(agreed)),
        "draws_where_the_protocol_differs": Metric(len(agreed) - sum(agreed)),
    }
    return drawing_of_rows(run, rows, figure, _fig12_caption(run, by_line, agreed), metrics)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "dft11.fig9": fig9,
    "dft11.fig11": fig11,
    "dft11.fig12": fig12,
}


# --- Metrics of the curves ------------------------------------------------------------------


def _fig9_metrics(by_line: Mapping[Point, Sequence[Row]]) -> Iterator[tuple[str, Metric]]:
    for (fanout, delta), line in by_line.items():
        for row in line:
            yield (
                f"disconnected_percent.fanout_{fanout}.delta_{delta}.failed_{row.failed}",
                Metric(row.mean_percent, row.low_percent, row.high_percent),
            )
    # The same brokers fail for every δ, so chance does not affect differences of these means.
    worse_with_more_delta = [
        more.failed
        for (fanout, delta), line in by_line.items()
        for more, less in _check_points(line, by_line.get((fanout, delta - 1), ()))
        if more.mean_percent > less.mean_percent
    ]
    yield "points_where_more_delta_loses_more", Metric(len(worse_with_more_delta))
    narrow, wide = min(by_line)[0], max(by_line)[0]
    compared = [
        points
        for (fanout, delta), line in by_line.items()
        if fanout == wide
        for points in _check_points(line, by_line.get((narrow, delta), ()))
        if min(row.losing_runs for row in points) >= ENOUGH_LOSING_RUNS
    ]
    against = sum(in_wide.low_percent > in_narrow.high_percent for in_wide, in_narrow in compared)
    yield "points_with_enough_losses_to_compare_fanouts", Metric(len(compared))
    yield "points_where_wider_trees_lose_more", Metric(against)
    ratio = _total_loss(by_line, narrow) / max(_total_loss(by_line, wide), 1e-12)
    yield "mean_loss_narrow_to_wide_ratio", Metric(ratio)


def _check_points(one: Sequence[Row], other: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    by_failed = {row.failed: row for row in other}
    return ((row, by_failed[row.failed]) for row in one if row.failed in by_failed)


def _total_loss(by_line: Mapping[Point, Sequence[Row]], fanout: int) -> float:
    return float(
        sum(
            row.mean_percent
            for point, line in by_line.items()
            if point[0] == fanout
            for row in line
        )
    )


def _fig12_metrics(by_line: Mapping[Point, Sequence[Row]]) -> Iterator[tuple[str, Metric]]:
    yield from _distribution_metrics(by_line, "sessions", ("fanout", "failed"))
    for (fanout, failed), line in by_line.items():
        few = max((row.share for row in line if row.sessions <= fanout), default=0.0)
        yield f"percent_within_fanout.fanout_{fanout}.failed_{failed}", Metric(100 * few)
        before = [point for point in by_line if point[0] == fanout and point[1] < failed]
        if before:
            grown = _mean(line, "sessions") - _mean(by_line[max(before)], "sessions")
            yield f"mean_growth.fanout_{fanout}.failed_{failed}", Metric(grown)


def _distribution_metrics(
    by_line: Mapping[Point, Sequence[Row]], value: str, names: tuple[str, ...]
) -> Iterator[tuple[str, Metric]]:
    for point, line in by_line.items():
        where = ".".join(f"{name}_{at}" for name, at in zip(names, point, strict=True))
        yield f"largest.{where}", Metric(line[-1][value])
        yield f"mean.{where}", Metric(_mean(line, value))
        for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
            yield f"{name}.{where}", Metric(_quantile(line, value, share))


def _mean(line: Sequence[Row], value: str) -> float:
    return float(sum(row[value] * row.brokers for row in line) / sum(row.brokers for row in line))


def _quantile(line: Sequence[Row], value: str, share: float) -> int:
    """Return the smallest value that at least this share of the brokers does not exceed."""
    return int(next(row[value] for row in line if row.share >= share))


# --- Words ----------------------------------------------------------------------------------


def _fig9_caption(run: ExperimentRun, rows: Sequence[Row]) -> str:
    failed = 60 if any(row.failed == 60 for row in rows) else max(row.failed for row in rows)
    ours = "; ".join(
        f"fan-out {fanout}: "
        + ", ".join(
            _percent(row.mean_percent)
            for row in rows
            if (row.fanout, row.failed) == (fanout, failed)
        )
        for fanout in sorted({row.fanout for row in rows})
    )
    deltas = ", ".join(str(delta) for delta in sorted({row.delta for row in rows}))
    return (
        f"Pairs of live brokers with more than δ failed brokers in a row between them, "
        f"{tree_words(run)}. Failed brokers are drawn at random; mean of "
        f"{run.experiment['runs']} draws per point, shaded: 95 % bootstrap interval of the mean. "
        "Worked out on the tree; no broker ran. The paper counts chains of brokers, where this "
        "counts pairs. The paper reports, for the same size, fan-outs and number of draws, that "
        "a larger δ loses fewer and that fan-out 3 loses more than fan-out 7; its values cannot be "
        "read any more. "
        f"Here {failed} failed brokers cut off, for δ = {deltas}: {ours}."
    )


def _fig11_caption(run: ExperimentRun, by_line: Mapping[Point, Sequence[Row]]) -> str:
    ours = "; ".join(
        f"fan-out {fanout}: "
        + ", ".join(f"{line[-1].neighbours:,}" for _, line in _lines_of(by_line, fanout))
        for fanout in _fanouts(by_line)
    )
    deltas = ", ".join(str(delta) for delta in sorted({point[1] for point in by_line}))
    return (
        f"How many other brokers lie within Δ = δ + 1 links, {tree_words(run)}. Worked out on the "
        "tree; no broker ran. The paper reports for the same size that with fan-out 3 all "
        "neighbourhoods have fewer than 100 brokers, and that with fan-out 7 and δ = 3 they grow "
        f"as large as 1,000. Here the largest have, for δ = {deltas}: {ours}."
    )


def _fig12_caption(
    run: ExperimentRun, by_line: Mapping[Point, Sequence[Row]], agreed: Sequence[bool]
) -> str:
    ours = "; ".join(
        f"fan-out {fanout}: "
        + ", ".join(
            f"{_quantile(line, 'sessions', 0.9)} ({failed} failed)"
            for (_, failed), line in _lines_of(by_line, fanout)
        )
        for fanout in _fanouts(by_line)
    )
    deltas = run.experiment["deltas"]
    how = "Worked out on the tree; no broker ran."
    if agreed:
        how = (
            f"Worked out on the tree; in {len(agreed)} draws the protocol ran too, on simulated "
            f"brokers, and ended with the same sessions in {sum(agreed)}."
        )
    return (
        f"Live brokers within Δ links with only failed ones between, for δ = {deltas[0]}, "
        f"{tree_words(run)}. Failed brokers are drawn at random; all live brokers of "
        f"{run.experiment['runs']} draws together. {how} The "
        "paper reports for the same size, with 16 and 60 failed, that the number remains very low "
        f"for the majority of brokers. Here nine in ten live brokers have at most: {ours}."
    )


def tree_words(run: ExperimentRun) -> str:
    """Return the tree of an experiment, for a caption."""
    return (
        f"in a balanced tree of {run.experiment['brokers']:,} brokers in which none has more "
        "neighbours than the fan-out"
    )


def _percent(value: float) -> str:
    if value == 0:
        return "0 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %" if value >= 0.1 else "< 0.1 %"


# --- Rows and panels ------------------------------------------------------------------------


def _group(rows: Sequence[Row], *names: str) -> dict[Point, list[Row]]:
    groups: dict[Point, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def _lines_of(
    by_line: Mapping[Point, Sequence[Row]], fanout: int
) -> list[tuple[Point, Sequence[Row]]]:
    return [(point, line) for point, line in by_line.items() if point[0] == fanout]


def _fanouts(by_line: Mapping[Point, Sequence[Row]]) -> list[int]:
    return sorted({point[0] for point in by_line})


def _panels(rows: Sequence[Row]) -> list[int]:
    return sorted({row.fanout for row in rows})


def _get(choices: Sequence[str], number: int) -> str:
    return choices[number % len(choices)]


def _draw_distribution(
    axes: "Axes", line: Sequence[Row], value: str, largest: int, colour: str, dash: str, label: str
) -> None:
    """Draw a stair from 0 up to all brokers, and on to the right edge."""
    axes.plot(
        [line[0][value], *(row[value] for row in line), 2 * largest],
        [0, *(row.share for row in line), 1],
        drawstyle="steps-post", color=colour, linestyle=dash, label=label,
    )  # fmt: skip
    axes.set_ylim(0, 1.02)
