"""What a run directory says, gathered for the report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.manifest import Run, read_json, read_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunStory:
    """One run as the report shows it.

    Attributes:
        verdict: what verdict.json says; empty where the run was not judged.
    """

    run: Run
    verdict: Mapping[str, Any]

    @property
    def word(self) -> str:
        """VALID, INVALID, UNKNOWN or NOT JUDGED."""
        return str(self.verdict.get("verdict", "not judged")).upper()


def read_story(spark: "SparkSession", run_dir: Path) -> RunStory:
    """Everything the report shows of a run."""
    run = read_run(run_dir)
    path = run.folder / "verdict.json"
    return RunStory(run, read_json(path) if path.is_file() else {})
