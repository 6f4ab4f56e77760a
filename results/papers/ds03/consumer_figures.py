"""ds03.jms: subscribers with commits of single events at their broker, few and many.

Paper: [DS03] §5.2, in words, without a figure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Way = tuple[int, int]
"""Lanes, and how many commits share a transaction at most; 0: any."""

PAPER_PER_S: Mapping[int, float] = {25: 4_000, 200: 7_600}
PAPERS_WAY: Way = (4, 0)
COLOURS = ("#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


@dataclass(frozen=True)
class ConsumerRates:
    """The rates of a number of subscribers with a way of committing: medians of the repetitions.

    Attributes:
        per_s: events, each committed separately.
        commits_per_transaction: the mean number of commits that share a transaction.
    """

    subscribers: int
    way: Way
    per_s: float
    commits_per_transaction: float
    transactions_per_s: float


def jms(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Rates of commits, and commits per transaction."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_jms(run, consumed(run.table(spark, "consumed").orderBy("run").collect()))


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ds03.jms": jms}


def consumed(rows: Sequence[Any]) -> list[ConsumerRates]:
    """Return an entry per number of subscribers and way, in order."""
    found = []
    for subscribers, lanes, batch in sorted({(r.subscribers, r.lanes, r.batch) for r in rows}):
        these = [
            row
            for row in rows
            if (row.subscribers, row.lanes, row.batch) == (subscribers, lanes, batch)
        ]
        found.append(
            ConsumerRates(
                subscribers,
                (lanes, batch),
                median(row.consumed / row.wall_s for row in these),
                median(row.commits / row.transactions for row in these),
                median(row.transactions / row.wall_s for row in these),
            )
        )
    return found


@house_style()
def draw_jms(run: ExperimentRun, found: Sequence[ConsumerRates]) -> Drawing:
    """Return the figure from the measured rates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _bars(left, found, [each.per_s for each in found], "committed events/s, all subscribers")
    _bars(right, found, [each.commits_per_transaction for each in found], "commits per transaction")
    right.legend(loc="upper left", fontsize=7)
    metrics = dict(_metrics(found))
    return Drawing(
        figure=figure,
        columns=(
            "subscribers", "lanes", "batch", "events_per_s", "transactions_per_s",
            "commits_per_transaction",
        ),
        rows=[
            (each.subscribers, *each.way, each.per_s, each.transactions_per_s,
             each.commits_per_transaction)
            for each in found
        ],
        caption=_caption(run, metrics),
        scale=dict(run.manifest["scale"]),
        metrics=metrics,
        run_ids=(run.run_id,),
    )  # fmt: skip


def _bars(
    axes: "Axes", found: Sequence[ConsumerRates], values: Sequence[float], label: str
) -> None:
    numbers = sorted({each.subscribers for each in found})
    ways = sorted({each.way for each in found}, key=lambda way: (way[1] > 0, way))
    width = 0.8 / len(ways)
    axes.set_axisbelow(True)
    for place, way in enumerate(ways):
        lanes, batch = way
        name = f"{lanes} lane{'s' if lanes > 1 else ''}" + (f", {batch} each" if batch else "")
        of_way = {
            each.subscribers: value
            for each, value in zip(found, values, strict=True)
            if each.way == way
        }
        at = [numbers.index(each) + (place - (len(ways) - 1) / 2) * width for each in of_way]
        colour = "#999999" if batch else COLOURS[place % len(COLOURS)]
        hatch = "//" if batch and lanes > 1 else None
        axes.bar(at, list(of_way.values()), width * 0.92, color=colour, label=name, hatch=hatch)
    axes.set_xticks(range(len(numbers)), [f"{number} subscribers" for number in numbers])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(0, 1.15 * max(values))
    axes.set_ylabel(label)
    axes.grid(visible=False, axis="x")


def _metrics(found: Sequence[ConsumerRates]) -> Mapping[str, Metric]:
    by_key = {(each.subscribers, each.way): each for each in found}
    numbers = sorted({each.subscribers for each in found})
    metrics: dict[str, Metric] = {}
    for number in numbers:
        if (ours := by_key.get((number, PAPERS_WAY))) is None:
            continue
        metrics[f"events_per_s.{number}"] = Metric(ours.per_s)
        metrics[f"commits_per_transaction.{number}"] = Metric(ours.commits_per_transaction)
        metrics[f"transactions_per_s.{number}"] = Metric(ours.transactions_per_s)
        if (alone := by_key.get((number, (1, 0)))) is not None:
            metrics[f"times_one_lane.{number}"] = Metric(ours.per_s / alone.per_s)
        if (single := by_key.get((number, (1, 1)))) is not None and alone is not None:
            metrics[f"times_without_batches.{number}"] = Metric(alone.per_s / single.per_s)
    least, most = by_key.get((numbers[0], PAPERS_WAY)), by_key.get((numbers[-1], PAPERS_WAY))
    if least is not None and most is not None and least is not most:
        metrics["growth"] = Metric(most.per_s / least.per_s)
    return metrics


def _caption(run: ExperimentRun, metrics: Mapping[str, Metric]) -> str:
    setup = run.experiment
    text = "; ".join(
        f"{number} subscribers: {metrics[f'events_per_s.{number}'].value:,.0f} events/s, "
        f"{metrics[f'commits_per_transaction.{number}'].value:.1f} commits in a transaction (the "
        f"paper reports {PAPER_PER_S[number]:,.0f} events/s)"
        for number in PAPER_PER_S
        if f"events_per_s.{number}" in metrics
    )
    return (
        f"{setup['deliveries']:,} deliveries of events of {setup['event_bytes']} bytes in each "
        f"run, or as many as {setup['seconds']} s allow; every subscriber commits each event at "
        "its broker, on disk, before it receives the next. One publishers' broker, one "
        f"subscribers' broker and the subscribers, in {setup['processes']} processes, on one "
        f"machine; repetitions: {setup['repetitions']}. With the paper's method, four lanes that "
        f"each batch waiting requests: {text}. Its database is DB2 behind a battery-backed write "
        "cache, with four connections; ours is SQLite, which has one writer, so lanes only bound "
        "the transactions that wait for it. Grey: with that bound on the commits in a transaction."
    )
