"""Series of runs on real brokers, for figures: points, their runs, and the typical run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Metric
from results.repetitions.spread import spread_of
from results.tables.json_files import IntegrityError, ResultsError, problem_of_manifest, read_json
from results.tables.load import LoadedRun, load_run
from results.tables.seals import CHECKSUMS, verify_seal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "series"


@dataclass(frozen=True)
class Point:
    """A point of a series.

    Attributes:
        runs: the runs that can be drawn: complete, with an accepted verdict.
        modal: the typical run.
    """

    name: str
    runs: tuple[LoadedRun, ...]
    modal: LoadedRun

    @property
    def protocol(self) -> str:
        """Return the protocol of the point."""
        return str(self.modal.run.protocol)

    @property
    def others(self) -> tuple[LoadedRun, ...]:
        """Return all runs but the typical run."""
        return tuple(run for run in self.runs if run is not self.modal)


@dataclass(frozen=True)
class SeriesRuns:
    """A complete series."""

    folder: Path
    manifest: Mapping[str, Any]
    points: tuple[Point, ...]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Return the ids of all runs that can be drawn."""
        return tuple(loaded.run.run_id for point in self.points for loaded in point.runs)


def is_series(folder: Path) -> bool:
    """Return True if this is the folder of a series."""
    manifest = Path(folder) / "manifest.json"
    return manifest.is_file() and read_json(manifest).get("kind") == KIND


def read_series(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the manifest of a complete series, and the summaries of its points.

    Raises:
        ResultsError: the folder is no series, or the series is incomplete.
        IntegrityError: a file has changed since the end of the series, or both files differ; names
            file and key.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") != KIND:
        raise ResultsError(
            f"{folder} is no series of runs; `pubsubctl experiment FIGURE` makes one"
        )
    if problem := problem_of_manifest(manifest):
        raise IntegrityError(f"{folder / 'manifest.json'}: {problem}")
    if manifest.get("state") != "complete":
        raise ResultsError(f"{folder}: the series is {manifest.get('state')}")
    if not verify_seal(folder).is_there:
        raise IntegrityError(f"{folder}: no {CHECKSUMS}: its files may have changed since it ended")
    file = folder / "series.json"
    points, runs = read_json(file).get("points"), manifest.get("runs")
    if not isinstance(points, dict) or not isinstance(runs, dict):
        raise IntegrityError(f"{file}: points: not those of the runs in manifest.json")
    for name in sorted({*points} | {*runs}):
        about: Any = points.get(name)
        about = about if isinstance(about, dict) else {}
        verdicts = about.get("runs")
        if not isinstance(verdicts, dict) or {*verdicts} != {*runs.get(name, ())}:
            raise IntegrityError(f"{file}: points.{name}.runs: not the runs of manifest.json")
        if not all(isinstance(verdict, str) for verdict in verdicts.values()):
            raise IntegrityError(f"{file}: points.{name}.runs: a verdict is no text")
        if about.get("modal") not in verdicts and verdicts:
            raise IntegrityError(f"{file}: points.{name}.modal: no run of this point")
    return manifest, points


def verdict_lines(folder: Path) -> list[str]:
    """Return the verdicts on the runs of a series, a line for each point."""
    _, points = read_series(folder)
    lines = []
    for name, about in points.items():
        verdicts = [*about["runs"].values()]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        lines.append(f"{name}: {counts}; typical: {about['modal']}")
    return lines


def load_series(spark: "SparkSession", folder: Path, verdicts: Sequence[str]) -> SeriesRuns:
    """Return the runs of a series, with loaded tables.

    Args:
        verdicts: runs with another verdict are left out, so that a run with a violation is never
            drawn as a run without.

    Raises:
        ResultsError: the folder is no series, is incomplete, or a point has no run to draw.
        IntegrityError: a file of a run has changed since the run's end.
    """
    manifest, summary = read_series(folder)
    points = []
    for name, run_ids in manifest["runs"].items():
        about = summary[name]
        drawn = [run_id for run_id in run_ids if about["runs"][run_id] in verdicts]
        if not drawn:
            raise ResultsError(f"{folder}: {name}: no run is {' or '.join(verdicts)}")
        loaded = {run_id: load_run(spark, folder.parent / run_id) for run_id in drawn}
        modal = loaded.get(about["modal"]) or loaded[drawn[0]]
        points.append(Point(name, tuple(loaded.values()), modal))
    return SeriesRuns(folder, manifest, tuple(points))


def metric_of(values: Sequence[float]) -> Metric:
    """Return a number over instances: the mean, and the 95 % interval of the mean."""
    spread = spread_of(values)
    return Metric(spread.mean, spread.low, spread.high)
