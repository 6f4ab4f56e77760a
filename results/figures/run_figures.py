"""Figures of events in a run, drawn from numbers that are stored beside the figures."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from results.figures.drawing import Drawing, Metric, adapt_to_dark_pages
from results.tables.json_files import ResultsError
from results.tables.manifest import read_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from results.figures.data import FigureData


def timeline(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """Latency by send time per subscription, with stalls, kills, risks, recoveries and losses."""
    return _drawing("timeline", spark, run_dir)


def rate(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """Publications offered and sent, deliveries owed and made, per second and subscription."""
    return _drawing("rate", spark, run_dir)


def spectrum(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """Latency by percentile per subscription, the tail spread out."""
    return _drawing("spectrum", spark, run_dir)


def topology(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """The tree of brokers by host and failure domain, with faults; needs no Spark."""
    from results.figures import topology as module
    from results.figures.style import run_style

    run = read_run(run_dir)
    data = module.collect(run)
    with run_style():
        figure = module.paint(data, "wide")
    return Drawing(
        figure=figure,
        columns=data.columns,
        rows=[["" if value is None else value for value in row] for row in data.rows],
        caption=_CAPTIONS["run.topology"],
        scale={"brokers": data.about["brokers"], "hosts": data.about["hosts"]},
        metrics={key: Metric(value) for key, value in module.metrics(data).items()},
        run_ids=(run.run_id,),
        about=data.about,
    )


FIGURES: Mapping[str, Callable[["SparkSession | None", Path], Drawing]] = {
    "timeline": timeline,
    "rate": rate,
    "spectrum": spectrum,
    "run.topology": topology,
}
WITHOUT_SPARK = ("run.memory", "run.topology")
OF_LATENCY = ("timeline", "spectrum")

_CAPTIONS = {
    "run.topology": (
        "The tree of brokers, from the first publishers' one outwards. The number in a disc is "
        "that of its host, and hosts of one failure domain have shades of one colour. Marked: "
        "what was broken, in seconds after measuring began."
    ),
    "timeline": (
        "How long each publication took to arrive, from when it was meant to be sent, by when it "
        "was sent. Bars reach from the fastest to the slowest of a short stretch, dots are their "
        "medians. Orange: at risk, sent through a fault while it held. Crosses: never arrived. "
        "Hatched: a broker or link held everything back; grey: it was gone."
    ),
    "rate": (
        "Lines: publications sent and deliveries made, by when they happened. Grey: what was "
        "offered to the publishers, and what each subscription was owed (delivered + missing; what "
        "is undecided is left out), by when it was sent. "
        "Red: what never came or came again, and what was still behind when the load ended."
    ),
    "spectrum": (
        "Latency, from when a publication was meant to be sent, that so large a share of the "
        "deliveries of the measure phase did not exceed. Nothing is left out."
    ),
}


def _drawing(name: str, spark: "SparkSession | None", run_dir: Path) -> Drawing:
    from results.figures.context import scale_text
    from results.figures.style import run_style

    data = _numbers(name, spark, run_dir) if spark is not None else numbers_beside(name, run_dir)
    with run_style():
        figure = _module(name).paint(data, "wide")
    about = data.about
    return Drawing(
        figure=figure,
        columns=data.columns,
        rows=[["" if value is None else value for value in row] for row in data.rows],
        caption=f"{_CAPTIONS[name]} {scale_text(about)}.",
        scale={
            "brokers": about["brokers"],
            "publishers": about["publishers"],
            "subscriptions": len(about["subscriptions"]),
            "seconds": (about["to_ns"] - about["from_ns"]) / 1e9,
        },
        metrics={key: Metric(value) for key, value in _module(name).metrics(data).items()},
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
        figure = _module(name).paint(numbers_beside(name, run_dir), "narrow")
    stream = io.BytesIO()
    with house_style():
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return adapt_to_dark_pages(stream.getvalue().decode("utf-8"))


def numbers_beside(name: str, run_dir: Path) -> "FigureData":
    """Return the numbers of a figure that was drawn before.

    Raises:
        ResultsError: the figure was not drawn.
        IntegrityError: the files belong to another figure.
    """
    from results.figures.data import FigureData

    folder = read_run(run_dir).derived / "figures"
    if not (folder / f"{name}.json").is_file():
        raise ResultsError(f"the numbers of figure {name} are not in {folder}; Spark makes them")
    return FigureData.read(folder, name)


def _numbers(name: str, spark: "SparkSession", run_dir: Path) -> "FigureData":
    """Return the numbers of a figure, from the run's tables; judge the run first if necessary."""
    from results.checker.checks import check_run
    from results.checker.spark import plan_for
    from results.rules.facts import RunFacts
    from results.tables.load import load_run, table_folder

    loaded = load_run(spark, run_dir)
    if name in OF_LATENCY and not loaded.shares_a_clock:
        raise ResultsError(
            f"figure {name}: no publisher of this run has a clock with a subscriber in common, "
            "so there is no latency of record; the report says what is known between clocks"
        )
    if not table_folder(loaded.run, "violations").is_dir():
        check_run(spark, run_dir)
    with plan_for(spark, loaded.logs.rows):
        data: FigureData = _module(name).collect(spark, loaded, RunFacts.from_run(loaded))
    return data


def _module(name: Literal["timeline", "rate", "spectrum"] | str) -> ModuleType:
    """Return the module that collects and paints a figure; the modules import matplotlib."""
    from results.figures import rate, spectrum, timeline, topology

    modules = {"timeline": timeline, "rate": rate, "spectrum": spectrum}
    return {**modules, "run.topology": topology}[name]
