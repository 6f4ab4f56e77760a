"""Tests of joined brokers: any broker on the path may withhold publications of a joined broker.

home – x – far, δ = 1, and n, which has joined at x. x is stalled while a client at home subscribes:
the subscription bypasses x to far and is accepted there at once. Publications of n are withheld
until x resumes.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.run.simulated_run import simulate_experiment
from bench.spec.spec import load_experiment
from fault_injection.schedule.schedule import load_schedule
from results.checker.checks import check_runs
from results.reference.history_reader import read_history
from results.reference.rule import check
from results.tables.seals import seal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPOLOGY = """
schema = "pubsubctl/topology/1"
name = "grown"
kind = "tree"
brokers = ["home", "x", "far"]
links = [["home", "x"], ["x", "far"]]
joined = [["n", "x", "127.0.0.1:1"]]
[parameters]
delta = 1
"""
WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "late"
topology = "grown.toml"
protocol = "delta_tree"
seed = 5
[bars]
deliveries_per_pair_min = 20
[phases]
measure = "20s"
[attributes]
price = { uniform = [1, 100] }
[[publishers]]
at = ["far", "n", "home"]
rate = "20/s"
size = "40B"
[[subscribers]]
at = ["home"]
filter = "price <= 80"
subscribes = "5s"
"""
FAULTS = """
schema = "pubsubctl/faults/1"
name = "still"
[[step]]
id = "freeze-x"
at = "1s"
do = "freeze"
on = "x"
for = "8s"
"""


def simulated(folder: Path) -> Path:
    """Return the run folder of the story."""
    (folder / "grown.toml").write_text(TOPOLOGY)
    (folder / "late.toml").write_text(WORKLOAD)
    (folder / "still.toml").write_text(FAULTS)
    directory = RunDirectory(new_run_directory(folder / "runs", "late"))
    simulate_experiment(
        load_experiment(folder / "late.toml"),
        load_schedule(folder / "still.toml"),
        directory=directory,
    )
    return directory.path


def as_if_nobody_had_joined(run: Path) -> Path:
    """Remove every broker from the list of joined brokers in the manifest of a run."""
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["joined"] == ["n"]
    (run / "manifest.json").write_text(json.dumps({**manifest, "joined": []}))
    seal(run)
    return run


def test_a_broker_may_withhold_publications_of_a_broker_that_joined_behind_it(
    tmp_path: Path,
) -> None:
    run = simulated(tmp_path)
    history = read_history(run)
    judgement = check(history)
    assert judgement.verdict == "VALID", judgement.because
    assert [*judgement.counts.withheld] == ["home#1.1:x"]
    assert {n.source for s in history.subscriptions for n in s.notices} == {"n/0"}
    judgement = check(read_history(as_if_nobody_had_joined(run)))
    assert judgement.verdict == "INVALID"
    assert [*judgement.counts.violations] == ["withheld_unjustified"]


@pytest.mark.spark
def test_spark_accounts_for_joined_brokers_in_withheld_deliveries(
    spark: "SparkSession", tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    runs = [simulated(tmp_path), as_if_nobody_had_joined(simulated(tmp_path / "other"))]
    grown, whole = check_runs(spark, runs)
    plain = check(read_history(runs[0])).counts
    assert grown.verdict == "VALID", grown.lines()
    assert grown.document["counts"]["withheld_by"] == plain.withheld
    assert whole.verdict == "INVALID"
    assert [*whole.document["counts"]["violations"]] == ["withheld_unjustified"]
