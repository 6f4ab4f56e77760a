"""Figures of events in a run, drawn from numbers that are stored beside the figures."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from results.figures.drawing import Drawing, Metric, adapt_to_dark_pages
from results.tables.json_files import ResultsError
from results.tables.manifest import read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

    from results.figures.context import FigureData


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure of one run, drawn by a module of this package.

    Attributes:
        module: name of the module, with `collect`, `paint` and `metrics`; it imports matplotlib.
        description: one line for a list of figures.
        title: heading in a report.
        caption: text below the figure, before the scale of the run.
        is_latency: True if the figure needs publishers and subscribers with a common clock.
        needs_spark: True if Spark collects the numbers from the tables of the run.
    """

    name: str
    module: str
    description: str
    title: str
    caption: str
    is_latency: bool = False
    needs_spark: bool = True


RUN_FIGURES = (
    RunFigure(
        "run.topology",
        "topology",
        "The tree of brokers by host and failure domain, with faults; needs no Spark.",
        "The brokers",
        "The tree of brokers, from the first publishers' one outwards. The number in a disc is "
        "that of its host, and hosts of one failure domain have shades of one colour. Marked: "
        "what was broken, in seconds after measuring began.",
        needs_spark=False,
    ),
    RunFigure(
        "timeline",
        "timeline",
        "Latency by send time per subscription, with stalls, kills, risks, recoveries and losses.",
        "Latency over time",
        "How long each publication took to arrive, from when it was meant to be sent, by when it "
        "was sent. Bars reach from the fastest to the slowest of a short stretch, dots are their "
        "medians. Orange: at risk, sent through a fault while it held. Crosses: never arrived. "
        "Hatched: a broker or link held everything back; grey: it was gone.",
        is_latency=True,
    ),
    RunFigure(
        "rate",
        "rate",
        "Publications offered and sent, deliveries owed and made, per second and subscription.",
        "Rates over time",
        "Lines: publications sent and deliveries made, by when they happened. Grey: what was "
        "offered to the publishers, and what each subscription was owed (delivered + missing; what "
        "is undecided is left out), by when it was sent. "
        "Red: what never came or came again, and what was still behind when the load ended.",
    ),
    RunFigure(
        "spectrum",
        "spectrum",
        "Latency by percentile per subscription, the tail spread out.",
        "Spread of latencies",
        "Latency, from when a publication was meant to be sent, that so large a share of the "
        "deliveries of the measure phase did not exceed. Nothing is left out.",
        is_latency=True,
    ),
)
"""The figures of a run, in the order of a report."""

WITHOUT_SPARK = ("run.memory", *(each.name for each in RUN_FIGURES if not each.needs_spark))


def _draw_function(figure: RunFigure) -> Callable[["SparkSession | None", Path], Drawing]:
    """Return the function that draws a figure; its docstring is the description."""

    def draw(spark: "SparkSession | None", run_dir: Path) -> Drawing:
        from results.figures.style import run_style

        data = _collect(figure, spark, run_dir)
        with run_style():
            picture = _module(figure.name).paint(data, "wide")
        return _drawing(figure, data, picture)

    draw.__doc__ = figure.description
    return draw


FIGURES: Mapping[str, Callable[["SparkSession | None", Path], Drawing]] = {
    each.name: _draw_function(each) for each in RUN_FIGURES
}


def _drawing(figure: RunFigure, data: "FigureData", picture: "Figure") -> Drawing:
    from results.figures.context import scale_text

    about = data.about
    caption, scale = figure.caption, {"brokers": about["brokers"]}
    if figure.needs_spark:
        caption = f"{caption} {scale_text(about)}."
        scale |= {
            "publishers": about["publishers"],
            "subscriptions": len(about["subscriptions"]),
            "seconds": (about["to_ns"] - about["from_ns"]) / 1e9,
        }
    else:
        scale["hosts"] = about["hosts"]
    return Drawing(
        figure=picture,
        columns=data.columns,
        rows=[["" if value is None else value for value in row] for row in data.rows],
        caption=caption,
        scale=scale,
        metrics={key: Metric(value) for key, value in _module(figure.name).metrics(data).items()},
        run_ids=(about["run_id"],),
        about=about,
    )


def narrow_svg(name: str, run_dir: Path) -> str:
    """Return a figure for a page as wide as a telephone, from the numbers of an earlier drawing.

    Raises:
        ResultsError: the figure was never drawn.
    """
    from results.figures.drawing import house_style
    from results.figures.style import run_style

    with run_style():
        figure = _module(name).paint(read_drawn_numbers(name, run_dir), "narrow")
    stream = io.BytesIO()
    with house_style():
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return adapt_to_dark_pages(stream.getvalue().decode("utf-8"))


def read_drawn_numbers(name: str, run_dir: Path) -> "FigureData":
    """Return the numbers of a figure that was drawn before.

    Raises:
        ResultsError: the figure was not drawn.
        IntegrityError: the files belong to another figure.
    """
    from results.figures.context import FigureData

    folder = read_run(run_dir).derived / "figures"
    if not (folder / f"{name}.json").is_file():
        raise ResultsError(f"the numbers of figure {name} are not in {folder}; Spark makes them")
    return FigureData.read(folder, name)


def _collect(figure: RunFigure, spark: "SparkSession | None", run_dir: Path) -> "FigureData":
    """Return the numbers of a figure; without Spark, those of an earlier drawing."""
    if not figure.needs_spark:
        data: FigureData = _module(figure.name).collect(read_run(run_dir))
        return data
    if spark is None:
        return read_drawn_numbers(figure.name, run_dir)
    return _collect_by_spark(figure, spark, run_dir)


def _collect_by_spark(figure: RunFigure, spark: "SparkSession", run_dir: Path) -> "FigureData":
    """Return the numbers of a figure, from the run's tables; judge the run first if necessary."""
    from results.checker.checks import check_run
    from results.checker.spark import plan_for
    from results.rules.facts import RunFacts
    from results.tables.load import load_run, table_folder

    loaded = load_run(spark, run_dir)
    if figure.is_latency and not loaded.shares_a_clock:
        raise ResultsError(
            f"figure {figure.name}: no publisher of this run has a clock with a subscriber in "
            "common, so there is no latency of record; the report says what is known between clocks"
        )
    if not table_folder(loaded.run, "violations").is_dir():
        check_run(spark, run_dir)
    with plan_for(spark, loaded.logs.rows):
        data: FigureData = _module(figure.name).collect(spark, loaded, RunFacts.from_run(loaded))
    return data


def _module(name: str) -> ModuleType:
    """Return the module that collects and paints a figure."""
    module = next(each.module for each in RUN_FIGURES if each.name == name)
    return import_module(f"results.figures.{module}")
