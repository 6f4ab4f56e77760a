"""Series of runs on real brokers, as figures see them: points, their runs, and the typical one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Metric
from results.repetitions.spread import spread_of
from results.tables.json_files import ResultsError, read_json
from results.tables.load import LoadedRun, load_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "series"


@dataclass(frozen=True)
class Point:
    """One thing that a series varies.

    Attributes:
        runs: those that can be drawn: complete, and judged to be as they should.
        modal: the typical one of them.
    """

    name: str
    runs: tuple[LoadedRun, ...]
    modal: LoadedRun

    @property
    def protocol(self) -> str:
        """What ran."""
        return str(self.modal.run.protocol)

    @property
    def others(self) -> tuple[LoadedRun, ...]:
        """All but the typical one."""
        return tuple(run for run in self.runs if run is not self.modal)


@dataclass(frozen=True)
class SeriesRuns:
    """A series that has come to its end."""

    folder: Path
    manifest: Mapping[str, Any]
    points: tuple[Point, ...]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Of all runs that can be drawn."""
        return tuple(loaded.run.run_id for point in self.points for loaded in point.runs)


def is_series(folder: Path) -> bool:
    """Whether this is the folder of a series."""
    manifest = Path(folder) / "manifest.json"
    return manifest.is_file() and read_json(manifest).get("kind") == KIND


def verdict_lines(folder: Path) -> list[str]:
    """What became of the runs of a series, a line for each point."""
    points = read_json(folder / "series.json")["points"]
    lines = []
    for name, about in points.items():
        verdicts = [*about["runs"].values()]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        lines.append(f"{name}: {counts}; typical: {about['modal']}")
    return lines


def load_series(spark: "SparkSession", folder: Path, verdicts: Sequence[str]) -> SeriesRuns:
    """The runs of a series, with their tables there.

    Args:
        verdicts: runs with another one are left out: a violated run is never drawn as if it
            were none.

    Raises:
        ResultsError: it is no series, has not come to its end, or a point has no run to draw.
        IntegrityError: a file of a run is not what was written when it ended.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") != KIND:
        raise ResultsError(f"{folder} is no series of runs; `pubsubctl bench FIGURE` makes one")
    if manifest.get("state") != "complete":
        raise ResultsError(f"{folder}: the series is {manifest.get('state')}")
    summary = read_json(folder / "series.json")["points"]
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
    """A number over instances: the mean, and the 95 % interval of the mean."""
    spread = spread_of(values)
    return Metric(spread.mean, spread.low, spread.high)
