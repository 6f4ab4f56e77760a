"""Tests of honest runs of every protocol on simulated brokers: no judge doubts any run."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.run.simulated_run import simulate_experiment
from bench.spec.spec import load_experiment
from results.checker.checks import check_runs
from results.reference.history_reader import judge_folder
from tests.helpers.every_protocol import HOMES, PROTOCOLS, topology_text
from tests.helpers.judged_folders import FolderVerdict, histories_of, on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = {"gryphon": ("total",), "multi_proxy": ("arbiter", "rendezvous", "causal")}
"""Parameters that determine the promised order."""
_KEYS = {"gryphon": "order", "multi_proxy": "ownership"}
WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "honest"
topology = "three.toml"
protocol = "{protocol}"
seed = {seed}
calm = true
[bars]
deliveries_per_pair_min = 5
[phases]
measure = "6s"
[attributes]
symbol = {{ choose = 7 }}
price = {{ uniform = [1, 100] }}
[[publishers]]
at = {homes}
count = 2
rate = "{rate}"
arrivals = "{arrivals}"
size = "40B"
[[subscribers]]
at = {homes}
filter = "price > 20"
"""
RUNS = [
    (protocol, value, rate, arrivals)
    for protocol in PROTOCOLS
    for value in (None, *ORDERS.get(protocol, ()))
    for rate, arrivals in (("20/s", "fixed"), ("700/min", "poisson"))
]


def simulated(folder: Path, protocol: str, value: str | None, rate: str, arrivals: str) -> Path:
    folder.mkdir()
    parameters = {} if value is None else {_KEYS[protocol]: value}
    (folder / "three.toml").write_text(topology_text(protocol, **parameters))
    (folder / "honest.toml").write_text(
        WORKLOAD.format(
            protocol=protocol, seed=len(rate) + len(protocol), rate=rate, arrivals=arrivals,
            homes=[*HOMES],
        )
    )  # fmt: skip
    directory = RunDirectory(new_run_directory(folder / "runs", "honest"))
    simulate_experiment(load_experiment(folder / "honest.toml"), None, directory=directory)
    return directory.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str | None, ...], Path]:
    folder = tmp_path_factory.mktemp("honest")
    return {run: simulated(folder / str(n), *run) for n, run in enumerate(RUNS)}


def test_the_plain_judge_doubts_none(runs: dict[tuple[str | None, ...], Path]) -> None:
    for name, folder in runs.items():
        judgement = judge_folder(folder)
        assert (judgement.verdict, judgement.doubts) == ("VALID", ()), (name, judgement.because)


@pytest.mark.spark
def test_spark_doubts_none(spark: "SparkSession", runs: dict[tuple[str | None, ...], Path]) -> None:
    """One run of each kind is judged as `check` does, the others in the same Spark jobs."""
    of_jobs = {str(name): folder for name, folder in runs.items() if name[-1] == "fixed"}
    judged = on_spark(spark, of_jobs, histories_of(of_jobs))
    assert judged == dict.fromkeys(of_jobs, FolderVerdict("VALID", ()))
    wholly = {name: folder for name, folder in runs.items() if str(name) not in of_jobs}
    for name, verdict in zip(wholly, check_runs(spark, [*wholly.values()]), strict=True):
        document = verdict.document
        assert (document["verdict"], document["doubts"]) == ("valid", []), name
        words = {"total": "total order", "causal": "within each stream"}
        by_protocol = {"multi_proxy": "within each topic"}
        wanted = words.get(str(name[1]), by_protocol.get(str(name[0]), "publisher order"))
        assert wanted in document["lines"][0], name
