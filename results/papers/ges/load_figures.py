"""ges.load: the share of each of two links in publications while a link is slow, over time.

Paper: [GES] §3 (link costs are updated for overload every few seconds); experiment G14 of ours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Row = Any
FEW, MOST = 0.05, 0.95
"""Shares of publications over a link below which the link counts as unused, or above as used."""


def load(spark: "SparkSession", run_dir: Path) -> Drawing:
    """Share over the slow link, and latency, by second, of each case."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_load(run, run.table(spark, "link_load").collect())


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {"ges.load": load}


def share(row: Row) -> float:
    """Return the share of a second's publications over the slow link."""
    return float(row.over_slow / row.published)


def seconds_until(rows: Sequence[Row], second: int, holds: Callable[[float], bool]) -> int | None:
    """Return the seconds until the share meets the condition; None if never."""
    return next((r.second - second for r in rows if r.second >= second and holds(share(r))), None)


def ways_changed(rows: Sequence[Row]) -> int:
    """Return the number of changes of the link with most publications."""
    return sum((share(one) > 0.5) != (share(other) > 0.5) for one, other in pairwise(rows))


@house_style()
def draw_load(run: ExperimentRun, found: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of its table."""
    from matplotlib.figure import Figure

    cases = run.experiment["case"]
    by_case = {
        case["name"]: sorted(
            (row for row in found if row.case == case["name"]), key=lambda row: int(row.second)
        )
        for case in cases
    }
    figure = Figure(figsize=(8.6, 1.5 + 1.9 * ((len(cases) + 2) // 3) * 2), layout="constrained")
    panels = figure.subplots(2 * ((len(cases) + 2) // 3), 3, squeeze=False, sharex=True)
    for axes in panels.flat[:]:
        axes.set_visible(False)
    for place, case in enumerate(cases):
        above, column = 2 * (place // 3), place % 3
        rows = by_case[case["name"]]
        _draw_share(panels[above][column], run, case["title"], rows)
        _draw_latency(panels[above + 1][column], run, rows)
        if column == 0:
            panels[above][column].set_ylabel("share over the link")
            panels[above + 1][column].set_ylabel("latency, ms")
    for axes in panels[-1]:
        axes.set_xlabel("seconds")
        axes.tick_params(labelbottom=True)
    return Drawing(
        figure=figure,
        columns=("case", "second", "is_slow", "share_over_slow", "delivered", "mean_latency_ms"),
        rows=[
            (
                row.case, row.second, row.is_slow, round(share(row), 3), row.delivered,
                None if row.mean_latency_ms is None else round(row.mean_latency_ms, 2),
            )
            for rows in by_case.values() for row in rows
        ],
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(run, by_case)),
        run_ids=(run.run_id,),
    )  # fmt: skip


def _draw_share(axes: "Axes", run: ExperimentRun, title: str, rows: Sequence[Row]) -> None:
    _mark_slow(axes, run)
    axes.step([row.second for row in rows], [share(row) for row in rows], color="#0072b2")
    axes.set_ylim(-0.05, 1.05)
    axes.set_title(title)


def _draw_latency(axes: "Axes", run: ExperimentRun, rows: Sequence[Row]) -> None:
    _mark_slow(axes, run)
    late = [row for row in rows if row.mean_latency_ms is not None]
    axes.plot([row.second for row in late], [row.mean_latency_ms for row in late], color="#d55e00")
    axes.set_yscale("log")
    axes.set_ylim(5, 20_000)
    axes.minorticks_off()


def _mark_slow(axes: "Axes", run: ExperimentRun) -> None:
    axes.set_visible(True)
    begins, ends = run.experiment["slow_from_s"], run.experiment["slow_until_s"]
    axes.axvspan(begins, ends, color="#cccccc", alpha=0.5, linewidth=0)


def _metrics(
    run: ExperimentRun, by_case: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, Metric]]:
    setup = run.experiment
    for name, rows in by_case.items():
        yield f"changes.{name}", Metric(ways_changed(rows))
        yield f"lost.{name}", Metric(sum(row.published - row.delivered for row in rows))
        left_s = seconds_until(rows, setup["slow_from_s"], lambda each: each <= FEW)
        back_s = seconds_until(rows, setup["slow_until_s"], lambda each: each >= MOST)
        if left_s is not None:
            yield f"checks_to_leave.{name}", Metric(left_s / setup["check_s"])
        was_left = share(rows[setup["slow_until_s"] - 1]) <= FEW
        if was_left and back_s is not None:
            yield f"checks_to_return.{name}", Metric(back_s / setup["check_s"])


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    return (
        f"Simulated brokers of ges: two clusters of three with two links between them, "
        f"{setup['rate']} publications a second from one to the other. In the shaded time the "
        "link in use is slow: the title has the additional delay of each message, or the highest "
        f"rate. A round trip of more than {setup['slow_link_ms']} ms raises the cost of a link; "
        f"checks run every {setup['check_s']} s. Publications that are overtaken on another route "
        "are lost. Latency is the mean of a second's deliveries."
    )
