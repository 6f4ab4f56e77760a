"""No way to fake a VALID run folder comes out VALID without a doubt, whoever judges it."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from results.checker.checks import decided, doubts_about_exercise
from results.reference.files import Refused
from results.reference.history import History
from results.reference.reading import read_history
from results.reference.rule import check
from results.rules.facts import RunFacts
from results.tables.json_files import IntegrityError
from results.tables.load import LoadedRun
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from tests.helpers.forged_runs import (
    FORGERIES,
    Forgery,
    write_forged_run,
    write_honest_run,
    write_ordered_run,
)
from tests.helpers.history_tables import found_on_spark, notices_of
from tests.helpers.online import Online

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HONEST = ("honest", "honest behind a gate")
ORDERED = "honest in a total order"


@dataclass(frozen=True)
class Judged:
    """What a checker that reads run folders says of one.

    Attributes:
        outcome: "refused", "violation", "doubt", or "VALID".
        said: violations by kind, doubts, or why it is refused.
    """

    outcome: str
    said: tuple[str, ...]

    @classmethod
    def of(cls, verdict: str, violations: dict[str, int], doubts: list[str]) -> "Judged":
        outcome = {"INVALID": "violation", "UNKNOWN": "doubt"}.get(verdict, verdict)
        return cls(outcome, (*sorted(violations), *sorted(doubts)))

    def agrees_with(self, forgery: Forgery) -> bool:
        named = forgery.says in self.said or any(forgery.says in said for said in self.said)
        return self.outcome == forgery.outcome and named


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every forged run, and the honest ones they are made from."""
    folder = tmp_path_factory.mktemp("runs")
    found = {
        name: write_honest_run(folder, f"honest-{number}", gated=bool(number))
        for number, name in enumerate(HONEST)
    }
    found[ORDERED] = write_ordered_run(folder, "honest-ordered")
    for number, (name, forgery) in enumerate(FORGERIES.items()):
        found[name] = write_forged_run(folder, f"forged-{number}", forgery)
    return found


@pytest.fixture(scope="module")
def histories(folders: dict[str, Path]) -> dict[str, History | Refused]:
    """The same as the reference reads them, or why it does not."""
    found: dict[str, History | Refused] = {}
    for name, folder in folders.items():
        try:
            found[name] = read_history(folder)
        except Refused as error:
            found[name] = error
    return found


def by_reference(history: History | Refused) -> Judged:
    if isinstance(history, Refused):
        return Judged("refused", (str(history),))
    found = check(history)
    return Judged.of(found.verdict, {**found.counts.violations}, [*found.doubts])


def on_spark(
    spark: "SparkSession", folders: dict[str, Path], histories: dict[str, History | Refused]
) -> dict[str, Judged]:
    """As `check` reads and judges them, but for its tables, which all runs share here."""
    found: dict[str, Judged] = {}
    loaded: dict[str, LoadedRun] = {}
    for name, folder in folders.items():
        try:
            run = read_run(folder)
            loaded[name] = LoadedRun(run, read_logs(run))
        except IntegrityError as error:
            found[name] = Judged("refused", (str(error),))
    ids = {run.run.run_id: name for name, run in loaded.items()}
    facts, read = {}, {}
    for run_id, name in ids.items():
        history = histories[name]
        assert isinstance(history, History), f"{name}: {history}"
        # A place in these tables does not count notices, and one in a file does.
        facts[run_id] = replace(RunFacts.of_run(loaded[name]), notices=notices_of(history))
        read[run_id] = history
    for run_id, findings in found_on_spark(spark, read, facts).items():
        of = facts[run_id]
        more = doubts_about_exercise(loaded[ids[run_id]], of, findings)
        verdict, _, doubts = decided(of, findings, more)
        found[ids[run_id]] = Judged.of(verdict, {**findings.counts.violations}, doubts)
    return found


def test_the_reference_is_not_fooled(histories: dict[str, History | Refused]) -> None:
    judged = {name: by_reference(history) for name, history in histories.items()}
    assert {judged.pop(name).outcome for name in (*HONEST, ORDERED)} == {"VALID"}
    wrong = {name: j for name, j in judged.items() if not j.agrees_with(FORGERIES[name])}
    assert wrong == {}


@pytest.mark.spark
def test_spark_is_not_fooled(
    spark: "SparkSession", folders: dict[str, Path], histories: dict[str, History | Refused]
) -> None:
    judged = on_spark(spark, folders, histories)
    assert {judged.pop(name).outcome for name in (*HONEST, ORDERED)} == {"VALID"}
    wrong = {name: j for name, j in judged.items() if not j.agrees_with(FORGERIES[name])}
    assert wrong == {}
    assert judged.keys() == FORGERIES.keys()


def test_the_online_checker_sees_what_subscribers_are_told(
    histories: dict[str, History | Refused],
) -> None:
    truths = {}
    for gated, name in enumerate(HONEST):
        truth = histories[name]
        assert isinstance(truth, History)
        truths[bool(gated)] = truth
        assert Online(truth).anomalies() == set(), name
    ordered = histories[ORDERED]
    assert isinstance(ordered, History)
    assert ordered.order == "total"
    assert Online(ordered).anomalies() == set()
    wrong = {}
    for name, forgery in FORGERIES.items():
        history = histories[name]
        if isinstance(history, Refused):
            assert forgery.blind, name
            continue
        truth = truths[forgery.gated]
        truth = replace(
            truth,
            content=history.content,
            promises=history.promises,
            guarantee=history.guarantee,
        )
        anomalies = Online(history, truth).anomalies()
        seen = forgery.online in anomalies if forgery.online else not anomalies
        if not seen:
            wrong[name] = anomalies
    assert wrong == {}


def test_the_table_is_as_long_as_it_says() -> None:
    assert len(FORGERIES) == 80
    outcomes = Counter(forgery.outcome for forgery in FORGERIES.values())
    assert outcomes == {"refused": 8, "doubt": 49, "violation": 23}
    assert sum(bool(forgery.online) for forgery in FORGERIES.values()) == 28
    assert Counter(f.blind for f in FORGERIES.values() if f.blind) == {
        "faults": 17,
        "publishers' logs": 10,
        "subscriptions' log": 6,
        "manifest": 6,
        "seal": 6,
        "clocks": 4,
        "sidecars": 2,
        "logged kinds": 1,
    }
