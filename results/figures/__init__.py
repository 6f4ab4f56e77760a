"""Figures by name: drawn from pre-aggregated tables of a run, into the run's folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from results.figures import dft11
from results.figures.drawing import FORMATS, Drawing
from results.manifest import ResultsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {**dft11.FIGURES}


def draw(
    name: str, spark: "SparkSession", run_dir: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw a figure of a run and write it beside the run's other files.

    Returns:
        The files written: pictures, the values as CSV, caption and numbers as JSON.

    Raises:
        ResultsError: there is no such figure, or not of this run.
        IntegrityError: a file of the run is not what was written when it ended.
    """
    if name not in FIGURES:
        raise ResultsError(f"no figure called {name!r}; known: {', '.join(sorted(FIGURES))}")
    return FIGURES[name](spark, run_dir).write(Path(run_dir) / "figures", name, formats)
