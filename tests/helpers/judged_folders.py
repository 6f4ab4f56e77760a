"""Verdicts of both judges on many run folders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from results.checker.verdict_document import decide_verdict, doubts_about_exercise
from results.reference.files import FileRefusal
from results.reference.history import History
from results.reference.history_reader import read_history
from results.reference.rule import check
from results.rules.facts import RunFacts
from results.tables.json_files import IntegrityError
from results.tables.load import LoadedRun
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from tests.helpers.history_tables import find_on_spark, notices_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class FolderVerdict:
    """The verdict of a judge that reads run folders.

    Attributes:
        outcome: "refused", "violation", "doubt", or "VALID".
        said: violations by kind, doubts, or the reason of the refusal.
    """

    outcome: str
    said: tuple[str, ...]

    @classmethod
    def of(cls, verdict: str, violations: Mapping[str, int], doubts: list[str]) -> "FolderVerdict":
        outcome = {"INVALID": "violation", "UNKNOWN": "doubt"}.get(verdict, verdict)
        return cls(outcome, (*sorted(violations), *sorted(doubts)))

    def names(self, *parts: str) -> bool:
        """Return whether an entry of `said` contains all these parts, or equals a part."""
        return any(all(part in said for part in parts) for said in self.said)


def histories_of(folders: Mapping[str, Path]) -> dict[str, History | FileRefusal]:
    """Return the runs as the reference judge reads them, or the refusals."""
    found: dict[str, History | FileRefusal] = {}
    for name, folder in folders.items():
        try:
            found[name] = read_history(folder)
        except FileRefusal as error:
            found[name] = error
    return found


def by_reference(history: History | FileRefusal) -> FolderVerdict:
    """Return the verdict of the reference judge."""
    if isinstance(history, FileRefusal):
        return FolderVerdict("refused", (str(history),))
    found = check(history)
    return FolderVerdict.of(found.verdict, {**found.counts.violations}, [*found.doubts])


def on_spark(
    spark: "SparkSession",
    folders: Mapping[str, Path],
    histories: Mapping[str, History | FileRefusal],
) -> dict[str, FolderVerdict]:
    """Return the verdicts of `check`, with tables that all runs share."""
    found: dict[str, FolderVerdict] = {}
    loaded: dict[str, LoadedRun] = {}
    for name, folder in folders.items():
        try:
            run = read_run(folder)
            loaded[name] = LoadedRun(run, read_logs(run))
        except IntegrityError as error:
            found[name] = FolderVerdict("refused", (str(error),))
    facts, read = {}, {}
    for name, run in loaded.items():
        history = histories[name]
        assert isinstance(history, History), f"{name}: {history}"
        # Copies of one run need different ids in common tables. A place in these tables does not
        # count notices, and one in a file does.
        facts[name] = replace(RunFacts.from_run(run), run_id=name, notices=notices_of(history))
        read[name] = history
    if not read:
        return found
    for name, findings in find_on_spark(spark, read, facts).items():
        more = doubts_about_exercise(loaded[name], facts[name], findings)
        verdict, _, doubts = decide_verdict(facts[name], findings, more)
        found[name] = FolderVerdict.of(verdict, {**findings.counts.violations}, doubts)
    return found
