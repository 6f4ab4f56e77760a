"""[GES], statement by statement, as far as its text is left: best effort."""

import json
from types import SimpleNamespace

import pytest

from bench.papers.figure_experiments import load_figure_experiment
from bench.papers.ges.transmission_experiments import (
    Setting,
    TransmissionExperiment,
    run_transmission_experiment,
)
from bench.spec.spec import load_topology
from pubsubctl.running.claims import load_claims
from results.papers.experiment_runs import ExperimentRun
from results.papers.ges.transmission_figures import draw_fig7
from tests.pubsubctl.test_claims import OURS

SMALL = TransmissionExperiment(
    schema_="pubsubctl/transmission-experiment/1",
    name="small", figure="ges.fig7", topologies=["t22-hi"], publisher="n22", measuring="n10",
    clients=2, match_percent=[0, 50, 100], interests=["each client", "each broker"],
    publications=10,
)  # fmt: skip


class Silent:
    def phase(self, name, expected_s=None):
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_transmission_experiment(SMALL, tmp_path_factory.mktemp("runs"), Silent())


def rows_of(run):
    (path,) = run.glob("raw/*/*/transmissions.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_publication_goes_only_where_somebody_wants_it(run):
    """§3, event routing; nothing is missing or twice, and as many links are used as computed."""
    rows = {(row["interest"], row["match_percent"]): row for row in rows_of(run)}
    assert all(row["owed"] == row["delivered"] for row in rows.values())
    assert not any(row["violations"] for row in rows.values())
    for interest in SMALL.interests:
        assert [rows[interest, match]["transmissions"] for match in (0, 100)] == [60, 210]
    assert 60 < rows["each broker", 50]["transmissions"] < 210
    assert rows["each broker", 50]["brokers_reached"] == 10 + 20 * 5


def test_a_delivery_that_is_missing_is_counted():
    setting = Setting(SMALL, load_topology("t22-hi"))
    setting.cluster.broker("n14").kill()
    setting.cluster.run_until_quiet()
    row = setting.measure("each client", 100)
    assert row["owed"] - row["delivered"] == 10 * SMALL.clients


def test_the_figure_has_each_number_that_is_claimed_of_it(run):
    experiment = load_figure_experiment("ges.fig7")
    named = [
        SimpleNamespace(**{**row, "topology": topology, "match_percent": match})
        for row in rows_of(run)
        for topology in experiment.topologies
        for match in experiment.match_percent
    ]
    manifest = json.loads((run / "manifest.json").read_text())
    loaded = ExperimentRun(run, run, manifest, experiment.model_dump())
    drawing = draw_fig7(loaded, named)
    claims = load_claims(OURS / "ges.toml")
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= manifest["scale"].keys() for claim in claims)
    assert drawing.metrics["missing_or_wrong"].value == 0
    wrong = [SimpleNamespace(**{**vars(each), "delivered": each.owed - 1}) for each in named]
    assert draw_fig7(loaded, wrong).metrics["missing_or_wrong"].value == len(wrong)
