"""Tests of a run on simulated brokers, judged from the records of its clients.

home – x1 – x2 – far, δ = 1. Both inner brokers are stalled while a client at home subscribes: the
subscription is accepted without x1, x2 and far, receives a notice of withheld publications, and
receives everything once they resume. Later both brokers crash; x1 restarts first and forgets its
routes.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.run.simulated_run import simulate_experiment
from bench.spec.spec import load_experiment
from fault_injection.schedule.schedule import load_schedule
from results.checker.checks import Verdict, check_runs
from results.reference.history_reader import read_history
from results.reference.rule import check
from tests.helpers.delta_tree_bugs import Mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPOLOGY = """
schema = "pubsubctl/topology/1"
name = "chain"
kind = "tree"
brokers = ["home", "x1", "x2", "far"]
links = [["home", "x1"], ["x1", "x2"], ["x2", "far"]]
[parameters]
delta = 1
persist_routing = false
"""
WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "late"
topology = "chain.toml"
protocol = "delta_tree"
seed = 10
[bars]
deliveries_per_pair_min = 20
[phases]
measure = "20s"
[attributes]
price = { uniform = [1, 100] }
[[publishers]]
at = ["far", "home", "x2"]
rate = "20/s"
size = "40B"
[[subscribers]]
at = ["home"]
filter = "price > 20"
[[subscribers]]
at = ["home"]
filter = "price <= 80"
subscribes = "5s"
"""
STEP = """
[[step]]
id = "{verb}-{broker}"
at = "{at}"
do = "{verb}"
on = "{broker}"
{lasts}
"""
BARRIER = (("freeze", "x1", "1s", 'for = "8s"'), ("freeze", "x2", "1s", 'for = "8s"'))
CRASHES = (
    ("kill", "x1", "12s", ""), ("kill", "x2", "12s", ""),
    ("restart", "x1", "13s", ""), ("restart", "x2", "16s", ""),
)  # fmt: skip
MUTANTS = {
    Mutant.TAGS_MAY_GROW: {"withheld_late", "withheld_unjustified"},
    Mutant.NO_TAGS_UNREACHABLE_DONE: {"missing", "left_out"},
    Mutant.ISLANDS_AS_BARRIERS: {"withheld_unjustified"},
}


def simulated(folder: Path, *mutants: Mutant) -> Path:
    """Return the run folder of the story, on brokers with these bugs."""
    (folder / "chain.toml").write_text(TOPOLOGY)
    (folder / "late.toml").write_text(WORKLOAD)
    steps = "".join(
        STEP.format(verb=verb, broker=broker, at=at, lasts=lasts)
        for verb, broker, at, lasts in (*BARRIER, *CRASHES)
    )
    (folder / "barrier.toml").write_text('schema = "pubsubctl/faults/1"\nname = "b"\n' + steps)
    directory = RunDirectory(new_run_directory(folder / "runs", "late"))
    simulate_experiment(
        load_experiment(folder / "late.toml"),
        load_schedule(folder / "barrier.toml"),
        mutants=frozenset(mutants),
        directory=directory,
    )
    return directory.path


def test_the_plain_checker_excuses_publications_withheld_by_the_barrier(tmp_path: Path) -> None:
    history = read_history(simulated(tmp_path))
    judgement = check(history)
    assert judgement.verdict == "VALID", judgement.because
    assert [*judgement.counts.withheld] == ["home#1.2:x1-x2"]
    late = [s for s in history.subscriptions if s.notices]
    assert [s.subscription for s in late] == ["home-sub-2/1"]
    assert {notice.source.partition("/")[0] for notice in late[0].notices} == {"far", "x2"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_plain_checker_sees_each_mutant(tmp_path: Path, mutant: Mutant) -> None:
    judgement = check(read_history(simulated(tmp_path, mutant)))
    assert judgement.verdict == "INVALID"
    assert {*judgement.counts.violations} == MUTANTS[mutant]


@pytest.mark.spark
def test_spark_judges_the_whole_run_and_its_mutants(spark: "SparkSession", tmp_path: Path) -> None:
    runs = [simulated(tmp_path), *[simulated(tmp_path, mutant) for mutant in MUTANTS]]
    whole, *wrong = check_runs(spark, runs)
    assert whole.verdict == "VALID", whole.lines()
    counts = whole.document["counts"]
    plain = check(read_history(runs[0])).counts
    assert counts["withheld_by"] == plain.withheld
    assert (counts["owed"], counts["delivered"]) == (plain.owed, plain.delivered)
    assert f"{counts['withheld']} withheld (" in whole.lines()[0]
    assert whole.document["exercised"]["at_risk_deliveries"] == plain.at_risk > 0
    for verdict, run, mutant in zip(wrong, runs[1:], MUTANTS, strict=True):
        _is_invalid_for(verdict, run, MUTANTS[mutant])


def _is_invalid_for(verdict: Verdict, run: Path, kinds: set[str]) -> None:
    assert verdict.verdict == "INVALID", verdict.lines()
    plain = check(read_history(run)).counts
    assert verdict.document["counts"]["violations"] == plain.violations
    lines = (run / "evidence" / "delivery.jsonl").read_text().splitlines()
    evidence = [json.loads(line) for line in lines]
    assert {row["kind"] for row in evidence} == kinds
    assert {row["subscription"] for row in evidence} <= {"home-sub-1/1", "home-sub-2/1"}
