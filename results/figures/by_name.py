"""Figures by name: drawn from pre-aggregated tables of a run, into the run's folder."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures import control_traffic, knee, memory, of_runs, series, sweep
from results.figures.drawing import FORMATS, Drawing
from results.papers.dft11 import behaviour_figures, delivery_figures, figures
from results.papers.ds03 import (
    churn_figures,
    consumer_figures,
    latency_figures,
    peak_figures,
    recovery_figures,
    storage_figures,
)
from results.papers.gd02 import fault_figures, overhead_figures
from results.papers.ges import latency_figures as ges_latency_figures
from results.papers.ges import load_figures, scale_figures, transmission_figures
from results.papers.mp22 import figures as mp22_figures
from results.papers.mp22 import simulated_figures as mp22_simulated_figures
from results.tables.derived import derived_of
from results.tables.json_files import ResultsError
from results.tables.seals import seal_derived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIGURES: Mapping[str, Callable[[Any, Path], Drawing]] = {
    **of_runs.FIGURES,
    **memory.FIGURES,
    **series.FIGURES,
    **sweep.FIGURES,
    **knee.FIGURES,
    **control_traffic.FIGURES,
    **figures.FIGURES,
    **delivery_figures.FIGURES,
    **behaviour_figures.FIGURES,
    **overhead_figures.FIGURES,
    **fault_figures.FIGURES,
    **transmission_figures.FIGURES,
    **ges_latency_figures.FIGURES,
    **scale_figures.FIGURES,
    **load_figures.FIGURES,
    **storage_figures.FIGURES,
    **consumer_figures.FIGURES,
    **recovery_figures.FIGURES,
    **churn_figures.FIGURES,
    **peak_figures.FIGURES,
    **latency_figures.FIGURES,
    **mp22_figures.FIGURES,
    **mp22_simulated_figures.FIGURES,
}


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
    derived = derived_of(folder)
    written = FIGURES[name](spark, folder).write(derived / "figures", name, formats)
    if derived == folder:
        seal_derived(folder)
    return written
