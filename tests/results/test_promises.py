"""A run is judged by what its protocol promises: order, announced gaps, and redelivery."""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from results.reference.history import History
from results.reference.rule import check
from tests.helpers.histories import random_history
from tests.helpers.history_tables import judged_on_spark
from tests.helpers.promised_histories import CASES, RELEASED, promised_history, with_noise
from tests.helpers.withheld_histories import barrier_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(12)


def histories(name: str) -> list[History]:
    case = CASES[name]
    found = []
    for seed in SEEDS:
        rng = Random(seed)
        found.append(case.change(promised_history(rng, case.promises), rng))
    return found


# --- The plain checker ------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_promised_is_named_and_what_is_promised_is_not(name: str) -> None:
    seen: set[str] = set()
    for seed, history in enumerate(histories(name)):
        judgement = check(history)
        found = {*judgement.counts.violations}
        wanted = "INVALID" if CASES[name].kinds else "VALID"
        assert judgement.verdict == wanted, f"seed {seed}: {found}, {judgement.because}"
        seen |= found
    assert seen == CASES[name].kinds


def test_what_is_in_a_promised_gap_is_announced_and_not_owed() -> None:
    for history in histories("a_gap_is_announced_for_a_promised_reason"):
        counts = check(history).counts
        assert counts.announced == {RELEASED: 3}
        assert counts.owed == counts.delivered
        assert counts.missing == 0


def test_what_is_given_again_is_counted() -> None:
    for history in histories("what_was_not_committed_comes_again"):
        counts = check(history).counts
        assert counts.redelivered == 3
        assert counts.owed == counts.delivered


# --- Spark ------------------------------------------------------------------------------------


def agree(spark: "SparkSession", of: dict[str, History]) -> Counter[str]:
    """Both must; returns in how many histories each kind of violation was found."""
    found = judged_on_spark(spark, of)
    seen: Counter[str] = Counter()
    for name, history in of.items():
        plain = check(history)
        verdict, doubts, findings = found[name]
        assert findings.counts == plain.counts, name
        assert (verdict, doubts) == (plain.verdict, {*plain.doubts}), name
        seen.update(plain.counts.violations.keys())
        seen["announced"] += bool(plain.counts.announced)
        seen["redelivered"] += bool(plain.counts.redelivered)
    return seen


@pytest.mark.spark
def test_spark_agrees_with_the_plain_checker(spark: "SparkSession") -> None:
    of = {
        f"{name}, seed {seed}": history
        for name in CASES
        for seed, history in enumerate(histories(name))
    }
    agree(spark, of)


@pytest.mark.spark
def test_both_agree_on_whatever_may_be_promised_and_happen(spark: "SparkSession") -> None:
    of = {}
    for seed in range(400):
        rng = Random(seed)
        made = (random_history, barrier_history)[seed % 5 == 0](rng, f"run-{seed}")
        of[f"seed {seed}"] = with_noise(made, rng)
    seen = agree(spark, of)
    for kind in ("order_differs", "reordered", "duplicate", "gap_unpromised", "gap_delivered",
                 "announced", "redelivered", "missing"):  # fmt: skip
        assert seen[kind] >= 10, seen
