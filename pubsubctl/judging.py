"""Verdicts at the command line: Spark is started once, and its words become one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pubsubctl.console import Console, Progress, Style
from pubsubctl.errors import PubsubctlError, VerdictInvalid, VerdictUnknown

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
        """The verdict in a few lines, its first word in colour."""
        styles: dict[str, Style] = {"VALID": "good", "INVALID": "bad", "UNKNOWN": "doubtful"}
        text = "\n".join(map(str, self.document["lines"]))
        word, _, rest = text.partition(" ")
        if word != self.verdict:
            return text
        return f"{console.colored(word, styles[word])} {rest}"


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
        judged.append(Judged(run, check_run(spark, run).document))
    return judged


def judge_and_report(
    runs: Sequence[Path], report: Path, progress: Progress, master: str = MASTER
) -> list[Judged]:
    """Check runs and write one report on all of them, with one Spark session."""
    from results.report import write_report

    from results.spark import spark_session

    progress.phase("starting Spark", 5.0)
    with spark_session("pubsubctl report", master) as spark:
        judged = judge_with(spark, runs, progress)
        progress.phase("drawing the report", 10.0)
        write_report(spark, runs, report)
    return judged
