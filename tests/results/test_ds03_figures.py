"""ds03.pfs: from a run to picture, values, words and numbers."""

import csv
import json

import pytest

from bench.papers.ds03.storage_experiments import StorageExperiment, run_storage_experiment
from bench.papers.ds03.ways import WAYS
from pubsubctl.running.claims import load_claims
from results.figures.by_name import draw
from tests.pubsubctl.test_claims import OURS

pytestmark = pytest.mark.spark


def test_the_log_of_matches_is_drawn_beside_the_other_ways(spark, tmp_path) -> None:
    experiment = StorageExperiment(
        schema_="pubsubctl/storage-experiment/1",
        name="small", figure="ds03.pfs",
        seconds=2, events_per_s=8, subscribers=4, kinds=2, event_bytes=50, kept_s=1,
        repetitions=2,
    )  # fmt: skip
    run = run_storage_experiment(experiment, tmp_path)
    (table,) = run.glob("raw/*/*/stored.jsonl")
    raw = [json.loads(line) for line in table.read_text().splitlines()]
    written = {path.suffix: path for path in draw("ds03.pfs", spark, run)}
    assert {*written} == {".svg", ".png", ".csv", ".json"}
    rows = list(csv.DictReader(written[".csv"].read_text().splitlines()))
    assert {row["way"] for row in rows} == {*WAYS}
    for row in rows:
        walls = [each["wall_s"] for each in raw if each["way"] == row["way"]]
        assert (float(row["wall_s_least"]), float(row["wall_s_most"])) == (min(walls), max(walls))
    words = json.loads(written[".json"].read_text())
    assert {claim.metric for claim in load_claims(OURS / "ds03.toml")} <= words["metrics"].keys()
    assert words["scale"]["events"] == 16
