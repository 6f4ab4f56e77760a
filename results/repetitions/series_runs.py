"""Series of runs on real brokers, for figures: points, their runs, and the typical run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.checker.latency import latencies_by_send_time
from results.figures.drawing import Metric
from results.repetitions.series_files import (
    SUMMARY,
    check_files,
    check_members,
    differences,
    points_of_runs,
    verdict_of,
)
from results.repetitions.spread import modal, spread_of
from results.tables.json_files import (
    IntegrityError,
    ResultsError,
    check_journal,
    problem_of_manifest,
    read_json,
)
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
        IntegrityError: a file has changed since the end of the series, two files differ, or a run
            is of another point; names files and key.
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
    file = folder / SUMMARY
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
    check_journal(folder, manifest)
    check_files(folder, manifest, read_json(file))
    check_members(folder, runs)
    return manifest, points


def read_points(folder: Path) -> tuple[Mapping[str, Any], dict[str, dict[str, Any]]]:
    """Return the manifest of a complete series, and its points with the numbers of their runs.

    Raises:
        ResultsError, IntegrityError: see `read_series`; or a run has no verdict.
    """
    manifest, _ = read_series(folder)
    return manifest, points_of_runs(folder, read_json(folder / SUMMARY))


def verdict_lines(folder: Path) -> list[str]:
    """Return the verdicts on the runs of a series, a line for each point, and the doubts."""
    _, stated = read_series(folder)
    points = points_of_runs(folder, read_json(folder / SUMMARY))
    lines = []
    for name, about in points.items():
        verdicts = [*about["runs"].values()]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        lines.append(f"{name}: {counts}; typical: {about['modal']}")
    return [*lines, *(f"UNKNOWN: {each}" for each in differences(stated, points))]


def load_series(spark: "SparkSession", folder: Path, verdicts: Sequence[str]) -> SeriesRuns:
    """Return the runs of a series, with loaded tables.

    Args:
        verdicts: runs with another verdict are left out, so that a run with a violation is never
            drawn as a run without.

    Raises:
        ResultsError: the folder is no series, is incomplete, or a point has no run to draw.
        IntegrityError: a file of a run has changed since the run's end.
    """
    manifest, _ = read_series(folder)
    points = []
    for name, run_ids in manifest["runs"].items():
        found = {run_id: verdict_of(folder.parent / run_id) for run_id in run_ids}
        drawn = [run_id for run_id in run_ids if found[run_id] in verdicts]
        if not drawn:
            raise ResultsError(f"{folder}: {name}: no run is {' or '.join(verdicts)}")
        loaded = {run_id: load_run(spark, folder.parent / run_id) for run_id in drawn}
        typical = find_typical(spark, {run: folder.parent / run for run in run_ids}, found)
        points.append(Point(name, tuple(loaded.values()), loaded.get(typical) or loaded[drawn[0]]))
    return SeriesRuns(folder, manifest, tuple(points))


def find_typical(
    spark: "SparkSession", runs: Mapping[str, Path], verdicts: Mapping[str, str]
) -> str:
    """Return the id of the run with the typical latency, among runs with a verdict.

    Args:
        runs: folders by id; at least one.
    """
    whole = [run_id for run_id in runs if verdicts[run_id] != "UNKNOWN"] or [*runs]
    if len(whole) == 1:
        return whole[0]
    return modal({run_id: latencies_by_send_time(spark, runs[run_id]) for run_id in whole})


def metric_of(values: Sequence[float]) -> Metric:
    """Return a number over instances: the mean, and the 95 % interval of the mean."""
    spread = spread_of(values)
    return Metric(spread.mean, spread.low, spread.high)
