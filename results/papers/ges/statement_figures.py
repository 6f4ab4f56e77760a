"""ges.statements: statements of connections until all brokers have the whole graph.

Paper: [GES] §3 (dissemination of connections).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Any


def statements(spark: "SparkSession", run_dir: Path) -> Drawing:
    """Statements per link until all brokers have the whole graph, by system size."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_statements(run, run.table(spark, "statements").orderBy("brokers").collect())


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {"ges.statements": statements}


@house_style()
def draw_statements(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of its table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.3, 3.6), layout="constrained")
    axes = figure.subplots()
    per_link = [row.statements / row.links for row in rows]
    axes.plot([row.brokers for row in rows], per_link, marker="o")
    axes.set_xlabel("brokers")
    axes.set_ylabel("statements per link")
    return Drawing(
        figure=figure,
        columns=("brokers", "links", "statements"),
        rows=[(row.brokers, row.links, row.statements) for row in rows],
        caption="Statements that brokers receive until each of them has the whole graph.",
        scale=dict(run.manifest["scale"]),
        metrics={"statements_per_link": Metric(per_link[-1])},
        run_ids=(run.run_id,),
    )
