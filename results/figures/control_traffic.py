"""control.churn: the cost of a subscription's start or end among brokers, by protocol.

Paper: none (experiment S9 of ours).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Row = Any
LEAST = 20
"""The least number of brokers in an exponent of growth; fewer are a cluster or two."""
_LOOKS = (
    ("#1a1a1a", "o"), ("#0072b2", "s"), ("#d55e00", "^"), ("#009e73", "D"), ("#cc79a7", "v"),
    ("#e69f00", "P"), ("#56b4e9", "X"), ("#999999", "*"), ("#8c564b", "h"),
)  # fmt: skip


def churn(spark: "SparkSession", run_dir: Path) -> Drawing:
    """Messages per change, and messages of brokers while nothing happens, by number of brokers."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_churn(run, run.table(spark, "churn_messages").collect())


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {"control.churn": churn}


def per_change(row: Row) -> float:
    """Return the messages per change beyond the idle traffic; never negative."""
    more = float((row.messages - row.idle_messages) / row.changes)
    return max(0.0, more)


def idle_per_broker(row: Row) -> float:
    """Return the messages per second from a broker to other brokers, when idle."""
    return float(row.idle_messages / row.seconds / row.brokers)


@house_style()
def draw_churn(run: ExperimentRun, found: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of its table."""
    from matplotlib.figure import Figure

    titles = [side["title"] for side in run.experiment["side"]]
    rows = sorted(found, key=lambda row: (titles.index(row.title), row.brokers))
    figure = Figure(figsize=(8.6, 4.4), layout="constrained")
    changes, idle = figure.subplots(1, 2)
    _draw(changes, rows, titles, per_change, "messages per change of a subscription")
    _draw(idle, rows, titles, idle_per_broker, "messages of a broker a second, when idle")
    figure.legend(*changes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Drawing(
        figure=figure,
        columns=(
            "title", "brokers", "messages_per_change", "bytes_per_change",
            "idle_messages_per_broker_s", "mean_started_ms", "mean_kept", "most_kept",
        ),
        rows=[
            (
                row.title, row.brokers, round(per_change(row), 2),
                max(0, round((row.message_bytes - row.idle_bytes) / row.changes)),
                round(idle_per_broker(row), 3), round(row.mean_started_s * 1000, 1),
                *_kept(row),
            )
            for row in rows
        ],
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(run, rows)),
        run_ids=(run.run_id,),
    )  # fmt: skip


def _draw(
    axes: "Axes",
    rows: Sequence[Row],
    titles: Sequence[str],
    number: Callable[[Row], float],
    label: str,
) -> None:
    sizes = sorted({row.brokers for row in rows})
    for place, title in enumerate(titles):
        colour, marker = _LOOKS[place % len(_LOOKS)]
        line = [row for row in rows if row.title == title]
        axes.plot(
            [row.brokers for row in line], [number(row) for row in line],
            color=colour, marker=marker, markersize=10 - place, label=title,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)  # some brokers send nothing at all
    most = max(map(number, rows))
    highest = max(1.0, 1.5 * most)  # room for the marker of the highest
    if most == 0:
        axes.text(0.5, 0.5, "0 with every protocol", transform=axes.transAxes, ha="center")
    axes.set_ylim(bottom=-0.1, top=highest)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= highest])
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("brokers")
    axes.set_ylabel(label)


def _kept(row: Row) -> tuple[Any, Any]:
    """Return the kept subscriptions; runs of earlier versions did not count them."""
    if row.mean_kept is None:
        return "", ""
    return round(row.mean_kept, 2), row.most_kept


def _metrics(run: ExperimentRun, rows: Sequence[Row]) -> Iterator[tuple[str, Metric]]:
    for side in run.experiment["side"]:
        line = [row for row in rows if row.title == side["title"]]
        name = side.get("name") or line[-1].protocol
        yield f"messages_per_change.{name}", Metric(per_change(line[-1]))
        yield f"idle_per_broker.{name}", Metric(idle_per_broker(line[-1]))
        for row in line:
            yield f"messages_per_change.{name}.{row.brokers}", Metric(per_change(row))
        grown = [row for row in line if row.brokers >= LEAST]
        yield from _growth(f"growth.{name}", grown, per_change)
        if all(row.mean_kept for row in grown):
            yield from _growth(f"growth_of_rows.{name}", grown, lambda row: float(row.mean_kept))


def _growth(
    name: str, rows: Sequence[Row], number: Callable[[Row], float]
) -> Iterator[tuple[str, Metric]]:
    """Yield the exponent of a number's growth with the number of brokers, if it has one."""
    points = [(math.log(row.brokers), math.log(number(row))) for row in rows if number(row) > 0]
    if len(points) > 1:
        yield name, Metric(linear_regression(*zip(*points, strict=True)).slope)


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    return (
        f"Simulated brokers, one publisher, and a subscription at each broker that has clients; "
        f"then {setup['changes']} subscriptions start and end, {setup['pause_s']:g} s apart, each "
        "at a drawn broker. Left: messages among brokers, without those that the same brokers send "
        "in the same time while no subscription changes. Right: those, for each broker; heartbeats "
        "are not counted. Nothing is published. Below 1 the axes are linear."
    )
