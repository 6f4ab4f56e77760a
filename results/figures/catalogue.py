"""Figures by name: drawn from pre-aggregated tables of a run, into the run's folder."""

import difflib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import results.papers
from results.figures import control_traffic, knee, memory, run_figures, series, sweep
from results.figures.drawing import FORMATS, Drawing
from results.papers.experiment_runs import is_experiment_run, plan_for_experiment
from results.tables.derived import find_unsealed_derived
from results.tables.json_files import ResultsError
from results.tables.seals import seal_derived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _paper_modules() -> Iterator[ModuleType]:
    """Yield the modules of papers' figures, which are named `figures` or `*_figures`."""
    for found in pkgutil.walk_packages(results.papers.__path__, f"{results.papers.__name__}."):
        if found.name.endswith("figures"):
            yield import_module(found.name)


FIGURES: Mapping[str, Callable[[Any, Path], Drawing]] = {
    name: draw
    for module in (run_figures, memory, series, sweep, knee, control_traffic, *_paper_modules())
    for name, draw in module.FIGURES.items()
}

OF_ONE_RUN: Sequence[str] = (*run_figures.FIGURES, *memory.FIGURES)
"""Figures of a run of brokers; all others show a series or an experiment."""


def draw(
    name: str, spark: "SparkSession | None", run_dir: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw a figure of a run and write it beside the run's other files.

    Args:
        spark: computes the values; None to draw a figure of `of_runs` from the values in the run's
            folder. Either way equal runs result in equal bytes.

    Returns:
        The files written: pictures, the values as CSV, caption and numbers as JSON.

    Raises:
        ResultsError: there is no such figure, or not of this run.
        IntegrityError: a file of the run has changed since the run's end.
    """
    if name not in FIGURES:
        near = difflib.get_close_matches(name, FIGURES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(FIGURES))}"
        raise ResultsError(f"no figure called {name!r}; {hint}")
    if unknown := [form for form in formats if form not in FORMATS]:
        raise ResultsError(f"no format called {unknown[0]!r}; known: {', '.join(FORMATS)}")
    folder = Path(run_dir)
    derived = find_unsealed_derived(folder)
    with _plan_for_run(spark, folder):
        drawing = FIGURES[name](spark, folder)
    written = drawing.write(derived / "figures", name, formats)
    if derived == folder:
        seal_derived(folder)
    return written


def _plan_for_run(spark: "SparkSession | None", folder: Path) -> AbstractContextManager[None]:
    """Return the plan for an experiment's rows; figures of runs of brokers plan for themselves."""
    if spark is None or not is_experiment_run(folder):
        return nullcontext()
    return plan_for_experiment(spark, folder)
