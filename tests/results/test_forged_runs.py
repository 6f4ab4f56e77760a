"""Tests of forged run folders: no judge returns VALID without a doubt."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from results.reference.files import FileRefusal
from results.reference.history import History
from tests.helpers.forged_folders import (
    Forgery,
    write_forged_run,
    write_honest_run,
    write_ordered_run,
)
from tests.helpers.forged_runs import FORGERIES
from tests.helpers.judged_folders import FolderVerdict, by_reference, histories_of, on_spark
from tests.helpers.online import Online

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HONEST = ("honest", "honest behind a gate")
ORDERED = "honest in a total order"


def agrees(judged: FolderVerdict, forgery: Forgery) -> bool:
    return judged.outcome == forgery.outcome and judged.names(forgery.says)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return all forged runs, and the honest runs behind them."""
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
def histories(folders: dict[str, Path]) -> dict[str, History | FileRefusal]:
    """Return the histories that the reference reads, or the refusals."""
    return histories_of(folders)


def test_the_reference_is_not_fooled(histories: dict[str, History | FileRefusal]) -> None:
    judged = {name: by_reference(history) for name, history in histories.items()}
    assert {judged.pop(name).outcome for name in (*HONEST, ORDERED)} == {"VALID"}
    wrong = {name: j for name, j in judged.items() if not agrees(j, FORGERIES[name])}
    assert wrong == {}


@pytest.mark.spark
def test_spark_is_not_fooled(
    spark: "SparkSession", folders: dict[str, Path], histories: dict[str, History | FileRefusal]
) -> None:
    judged = on_spark(spark, folders, histories)
    assert {judged.pop(name).outcome for name in (*HONEST, ORDERED)} == {"VALID"}
    wrong = {name: j for name, j in judged.items() if not agrees(j, FORGERIES[name])}
    assert wrong == {}
    assert judged.keys() == FORGERIES.keys()


def test_the_online_checker_detects_every_forgery_visible_to_subscribers(
    histories: dict[str, History | FileRefusal],
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
        if isinstance(history, FileRefusal):
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


def test_the_table_has_its_stated_length() -> None:
    assert len(FORGERIES) == 83
    outcomes = Counter(forgery.outcome for forgery in FORGERIES.values())
    assert outcomes == {"refused": 8, "doubt": 53, "violation": 22}
    assert sum(bool(forgery.online) for forgery in FORGERIES.values()) == 28
    assert Counter(f.blind for f in FORGERIES.values() if f.blind) == {
        "faults": 17,
        "publishers' logs": 13,
        "subscriptions' log": 6,
        "manifest": 6,
        "seal": 6,
        "clocks": 4,
        "sidecars": 2,
        "logged kinds": 1,
    }
