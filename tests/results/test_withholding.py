"""Tests of partitions that withhold publications: an announced gap with a fault is excused."""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from results.reference.history import History
from results.reference.rule import check
from results.rules.risks import Tree
from results.rules.terms import Fault, Guarantee, Notice, Partition
from results.rules.verdict_text import describe_withheld
from results.rules.withholding import Barriers, RequestTimes, stretches_of
from tests.helpers.history_tables import judge_on_spark
from tests.helpers.withheld_histories import (
    BARRIER,
    CUTS,
    ISLAND,
    SECOND,
    SPOILED,
    barrier_history,
    changed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(12)
PREDICATES = ("true", "price > 40")


# --- The plain checker ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_may_begin_late_at_a_gate(seed: int) -> None:
    rng = Random(seed)
    withheld = rng.randint(2, 30)
    judgement = check(barrier_history(rng, withheld=withheld))
    assert judgement.verdict == "VALID", judgement.violations
    assert judgement.counts.withheld == {"d#1.2:b-a": withheld - 1}  # one is the fence
    assert judgement.counts.owed == judgement.counts.delivered == 39 - withheld


@pytest.mark.parametrize("name", SPOILED)
def test_each_spoiled_withholding_is_reported_as_its_violation(name: str) -> None:
    spoil, kinds = SPOILED[name]
    seen: set[str] = set()
    for seed in SEEDS:
        rng = Random(seed)
        judgement = check(spoil(barrier_history(rng), rng))
        assert judgement.verdict == "INVALID", f"seed {seed}"
        found = {*judgement.counts.violations}
        assert found
        assert found <= kinds, f"seed {seed}"
        seen |= found
    assert seen == kinds


def test_withheld_deliveries_are_not_at_risk() -> None:
    faults = (*CUTS, fault("freeze", "b", 2.9, 3.55))
    history = replace(barrier_history(Random(1), withheld=35), faults=faults, calm=False)
    judgement = check(history)
    assert judgement.counts.at_risk == 0
    assert judgement.verdict == "UNKNOWN"


def test_unjustified_withholding_leaves_an_at_most_once_run_valid() -> None:
    lossy = Guarantee("at-most-once", gapless=False)
    history = replace(barrier_history(Random(1)), faults=(), guarantee=lossy)
    judgement = check(history)
    assert judgement.verdict == "VALID"
    assert judgement.counts.violations.keys() == {"withheld_unjustified"}


def test_notices_of_an_unknown_source_have_no_effect() -> None:
    history = barrier_history(Random(1), withheld=5)
    (subscription,) = history.subscriptions
    strange = Notice("a/7", 0, 1, 9, BARRIER, 0, SECOND)
    assert check(changed(history, notices=[*subscription.notices, strange])).verdict == "VALID"


# --- Reasons ----------------------------------------------------------------------------------

CHAIN = Tree([("c", "d"), ("d", "b"), ("b", "a")])


def reason(
    partition: Partition,
    *faults: Fault,
    source: str = "a",
    delta: int = 1,
    told_s: float = 1.5,
    accepted_s: float = 1.2,
    newcomers: tuple[str, ...] = (),
) -> tuple[str, ...]:
    barriers = Barriers(CHAIN, delta, faults, newcomers)
    asked = RequestTimes(SECOND, round(accepted_s * SECOND))
    excuse = barriers.excuse(partition, "c", source, asked, round(told_s * SECOND))
    return () if excuse is None else excuse.fault_ids


def fault(verb: str, target: str, from_s: float, to_s: float | None = None) -> Fault:
    healed_ns = None if to_s is None else round(to_s * SECOND)
    at_ns = round(from_s * SECOND)
    return Fault(f"{verb} {target}", verb, target, at_ns, at_ns, healed_ns)


def test_each_broker_of_a_barrier_must_have_been_cut_off() -> None:
    assert reason(BARRIER, *CUTS) == ("near", "far")
    assert reason(BARRIER, CUTS[0]) == ()
    assert reason(BARRIER, CUTS[0], fault("kill", "a", 0.5)) == ("near", "kill a")
    assert reason(BARRIER, fault("freeze", "b", 0.5, 2), fault("kill", "a", 0.5)) != ()
    assert reason(BARRIER, CUTS[0], fault("cut", "b-a", 0, 2)) == ()


def test_one_faulty_direction_or_a_frozen_detector_justifies_withholding() -> None:
    assert reason(ISLAND, fault("blackhole", "b->d", 0, 2), source="b")
    assert reason(ISLAND, fault("freeze", "d", 0, 2), source="b")
    assert not reason(ISLAND, fault("kill", "d", 0, 2), source="b")


def test_an_island_withholds_its_own_sources_only() -> None:
    cut = fault("kill", "b", 0.5)
    assert reason(ISLAND, cut, source="b")
    assert not reason(ISLAND, cut, source="a")
    assert reason(ISLAND, cut, source="a", delta=0)


def test_only_a_real_island_may_withhold_from_newcomers_behind_it() -> None:
    cut = fault("kill", "b", 0.5)
    assert reason(ISLAND, cut, newcomers=("a",)) == ("kill b",)
    assert not reason(ISLAND, cut, newcomers=("c", "b"))
    assert not reason(ISLAND, newcomers=("a",))
    assert not reason(Partition("b", 1, 1, ("d",)), cut, newcomers=("a",)), "the other way"


def test_a_fault_explains_while_it_holds_and_a_little_longer() -> None:
    assert reason(ISLAND, fault("kill", "b", -3), fault("restart", "b", -1), source="b")
    assert not reason(ISLAND, fault("kill", "b", -30), fault("restart", "b", -20), source="b")
    assert reason(ISLAND, fault("kill", "b", -30), source="b")
    assert not reason(ISLAND, fault("kill", "b", 2), source="b", told_s=1.5)
    assert not reason(ISLAND, fault("absorb", "b", -40), fault("kill", "b", -39),
                      fault("restart", "b", -38), source="b")  # fmt: skip


def test_a_partition_that_leads_elsewhere_explains_nothing() -> None:
    for nodes in (("a", "b"), ("b", "c"), ()):
        assert not reason(Partition("d", 1, 1, nodes), *CUTS)
    assert not reason(Partition("x", 1, 1, ("b", "a")), *CUTS)


def test_adjacent_stretches_are_merged_and_reported_once() -> None:
    barriers = Barriers(CHAIN, 1, CUTS)
    notices = [
        Notice("a/0", 0, first, last, BARRIER, place, SECOND)
        for first, last, place in ((1, 3, 0), (4, 6, 0), (2, 8, 0), (12, 12, 0), (11, 14, 5))
    ]
    found = stretches_of(notices, 4, barriers, "c", "a", RequestTimes(SECOND, SECOND))
    assert [(s.first[1], s.last[1], s.begun) for s in found] == [
        (1, 8, False), (12, 12, False), (11, 11, True), (13, 14, True),
    ]  # fmt: skip
    assert {stretch.until_ns for stretch in found} == {17 * SECOND}


def test_the_words_name_the_partitions() -> None:
    assert describe_withheld({}) == ""
    assert describe_withheld({"d#1.2:b-a": 1200, "d#1.1:b": 3}) == (
        "1,203 withheld (3 by d#1.1:b, 1,200 by d#1.2:b-a)"
    )


# --- Spark agrees -----------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_agrees_on_each_of_them(spark: "SparkSession") -> None:
    of: dict[str, History] = {}
    for seed in range(6):
        predicate = PREDICATES[seed % 2]
        of[f"whole, {seed}"] = barrier_history(Random(seed), f"run-{seed}", predicate=predicate)
        for name, (spoil, _) in SPOILED.items():
            rng = Random(seed)
            history = barrier_history(rng, f"run-{seed}", predicate=predicate)
            of[f"{name}, {seed}"] = spoil(history, rng)
    found = judge_on_spark(spark, of)
    for name, history in of.items():
        plain = check(history)
        verdict, doubts, findings = found[name]
        assert findings.counts == plain.counts, name
        assert (verdict, doubts) == (plain.verdict, {*plain.doubts}), name
    assert sum(verdict == "VALID" for verdict, _, _ in found.values()) < len(of) / 3
