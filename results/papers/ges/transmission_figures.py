"""ges.links: the number of links that a publication crosses, by the number of receivers.

Paper: [GES] §5 (match rates); the latencies of Fig. 7 are in `ges.fig7`.
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
COLOURS = ("#0072b2", "#d55e00", "#1a1a1a", "#e69f00")
MARKERS = "osD^"
INTERESTS = {
    "each client": "each client has an interest of its own",
    "each broker": "the clients of a broker share one interest",
}


def links(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Links per publication against the match rate; a panel per kind of interest."""
    run = load_experiment_run(spark, Path(run_dir))
    rows = run.table(spark, "transmissions").orderBy("topology", "interest", "match_percent")
    return draw_links(run, rows.collect())


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ges.links": links}


@house_style()
def draw_links(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of the table."""
    from matplotlib.figure import Figure

    interests = [each for each in INTERESTS if any(row.interest == each for row in rows)]
    figure = Figure(figsize=(4.3 * len(interests), 3.6), layout="constrained")
    panels = figure.subplots(1, len(interests), sharey=True, squeeze=False)[0]
    for axes, interest in zip(panels, interests, strict=True):
        _draw_panel(axes, [row for row in rows if row.interest == interest])
        axes.set_title(INTERESTS[interest])
    panels[0].set_ylabel("links that a publication crosses")
    metrics = dict(_metrics(rows))
    return Drawing(
        figure=figure,
        columns=(
            "topology", "interest", "match_percent", "publications", "brokers_reached",
            "transmissions", "missing_or_wrong",
        ),
        rows=[
            (row.topology, row.interest, row.match_percent, row.publications,
             row.brokers_reached / row.publications, _mean(row), _wrong(row))
            for row in rows
        ],
        caption=_caption(run, rows, metrics),
        scale=dict(run.manifest["scale"]),
        metrics=metrics,
        run_ids=(run.run_id,),
    )  # fmt: skip


def _draw_panel(axes: "Axes", rows: Sequence[Row]) -> None:
    """Draw a line per topology, and a grey line below for the brokers that match a publication."""
    topologies = list(dict.fromkeys(row.topology for row in rows))
    for number, topology in enumerate(topologies):
        line = [row for row in rows if row.topology == topology]
        axes.plot(
            [row.match_percent for row in line], [_mean(row) for row in line],
            color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
            label=topology, clip_on=False, zorder=3,
        )  # fmt: skip
        for row in line:
            axes.annotate(
                f"{_mean(row):.1f}", (row.match_percent, _mean(row)),
                xytext=(0, 6 if number else -13), textcoords="offset points", ha="center",
                fontsize=8, color=COLOURS[number % len(COLOURS)],
            )  # fmt: skip
    first = [row for row in rows if row.topology == topologies[0]]
    axes.plot(
        [row.match_percent for row in first],
        [row.brokers_reached / row.publications for row in first],
        color="#999999", linestyle="--", label="brokers that want it", zorder=2,
    )  # fmt: skip
    axes.set_xlabel("clients that want it (%)")
    axes.set_xlim(0, 104)
    axes.set_ylim(0, 25)
    axes.legend(loc="lower right")


def _metrics(rows: Sequence[Row]) -> Iterator[tuple[str, Metric]]:
    steps: dict[str, int] = {}
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        interest = row.interest.removeprefix("each ")
        lines.setdefault((row.topology, interest), []).append(row)
        yield f"transmissions.{row.topology}.{interest}.{row.match_percent}", Metric(_mean(row))
    for (topology, _), line in lines.items():
        means = [_mean(row) for row in sorted(line, key=lambda row: row.match_percent)]
        falling = sum(less < more for less, more in pairwise(means))
        steps[topology] = steps.get(topology, 0) + falling
    for topology, falling in steps.items():
        yield f"steps_down.{topology}", Metric(falling)
    yield "missing_or_wrong", Metric(sum(map(_wrong, rows)))


def _mean(row: Row) -> float:
    return float(row.transmissions / row.publications)


def _wrong(row: Row) -> int:
    """Return the number of missing or unexpected deliveries, without cancellation."""
    return int(abs(row.owed - row.delivered) + row.violations)


def _caption(run: ExperimentRun, rows: Sequence[Row], metrics: Mapping[str, Metric]) -> str:
    setup = run.experiment
    owed, wrong = sum(row.owed for row in rows), metrics["missing_or_wrong"].value
    return (
        f"A client at {setup['publisher']} publishes {rows[0].publications:,} times per point; "
        f"everything is for a subscriber at {setup['measuring']}, and the share of the x axis for "
        f"each of {setup['clients']} at every other broker, drawn for each client (left) or alike "
        "for those of one broker (right). Links are counted by simulated brokers, which run what "
        f"real ones do; of {owed:,} deliveries {wrong:.0f} were "
        "missing or wrong. Without matching on the way every publication would go over as many "
        "links as at 100 %. The paper's latencies, which these links make, are in ges.fig7; "
        "the claims compare these numbers with values computed for the same hierarchies."
    )
