"""Verdicts at the command line: Spark is started once, and its words become one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pubsubctl.console import Console, Progress
from pubsubctl.errors import PubsubctlError, VerdictInvalid, VerdictUnknown
from pubsubctl.runs import read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[*]"


@dataclass(frozen=True)
class Judged:
    """A run and its verdict.

    Attributes:
        run: its folder.
        document: what verdict.json says.
    """

    run: Path
    document: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """VALID, INVALID or UNKNOWN."""
        return str(self.document["verdict"]).upper()

    @property
    def because(self) -> list[PubsubctlError]:
        """Why the exit status is not 0; empty for VALID."""
        reasons = [str(reason) for reason in self.document["because"]] or ["no reason given"]
        kinds: dict[str, type[PubsubctlError]] = {
            "INVALID": VerdictInvalid,
            "UNKNOWN": VerdictUnknown,
        }
        kind = kinds.get(self.verdict)
        return [kind(f"{self.run}: {self.verdict}: {'; '.join(reasons)}")] if kind else []

    def painted(self, console: Console) -> str:
        return self.verdict


def judge(runs: Sequence[Path], progress: Progress, master: str = MASTER) -> list[Judged]:
    """Load and check runs, with one Spark session for all of them."""
    from results.spark import spark_session

    progress.phase("starting Spark", 5.0)
    with spark_session("pubsubctl check", master) as spark:
        return judge_with(spark, runs, progress)


def judge_with(spark: "SparkSession", runs: Sequence[Path], progress: Progress) -> list[Judged]:
    """Load and check runs with a session that is there."""
    from results.checks import check_run

    judged = []
    for run in runs:
        progress.phase(f"checking {run.name}", 8.0)
        check_run(spark, run)
        judged.append(Judged(run, read_json(run / "verdict.json")))
    return judged
