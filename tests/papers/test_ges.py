"""Tests of the statements of [GES], as far as its text is available: best effort."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from bench.papers.ges.latency_experiments import LatencyExperiment
from bench.papers.ges.load_experiments import Case, LinkLoadExperiment
from bench.papers.ges.scale_experiments import ScaleExperiment, deciding
from bench.papers.ges.transmission_experiments import (
    Setting,
    TransmissionExperiment,
)
from bench.spec.experiment import load_deployed_experiment
from bench.spec.keys import Overrides
from bench.spec.spec import load_experiment, load_topology
from brokerd.overlay.generate import hierarchy
from brokerd.simulator.world.cluster import SimulatedCluster
from pubsubctl.runs.claims import load_claims
from results.papers.experiment_runs import ExperimentRun
from results.papers.ges.latency_figures import Latencies, draw_table2, match_percent
from results.papers.ges.load_figures import draw_load
from results.papers.ges.scale_figures import draw_scale
from results.papers.ges.surface_figures import draw_fig7 as draw_surfaces
from results.papers.ges.transmission_figures import draw_links
from tests.pubsubctl.test_claims import OURS

SMALL = TransmissionExperiment(
    schema_="pubsubctl/transmission-experiment/1",
    name="small", figure="ges.links", topologies=["t22-hi"], publisher="n22", measuring="n10",
    clients=2, match_percent=[0, 50, 100], interests=["each client", "each broker"],
    publications=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_figure_experiment(SMALL, tmp_path_factory.mktemp("runs"))


def rows_of(run):
    (path,) = run.glob("raw/*/*/transmissions.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_publication_uses_only_links_towards_matching_subscriptions(run):
    """§3, event routing: no publication is missing or duplicate; the link count is as computed."""
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
    experiment = load_figure_experiment("ges.links")
    named = [
        SimpleNamespace(**{**row, "topology": topology, "match_percent": match})
        for row in rows_of(run)
        for topology in experiment.topologies
        for match in experiment.match_percent
    ]
    manifest = json.loads((run / "manifest.json").read_text())
    loaded = ExperimentRun(run, run, manifest, experiment.model_dump())
    drawing = draw_links(loaded, named)
    claims = [each for each in load_claims(OURS / "ges.toml") if each.figure == "ges.links"]
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= manifest["scale"].keys() for claim in claims)
    assert drawing.metrics["missing_or_wrong"].value == 0
    wrong = [SimpleNamespace(**{**vars(each), "delivered": each.owed - 1}) for each in named]
    assert draw_links(loaded, wrong).metrics["missing_or_wrong"].value == len(wrong)


def latencies(match, run, mean_ms, variance_ms2):
    return Latencies(f"{match}-{run}", match, 750, mean_ms, variance_ms2)


def test_table_2_has_each_number_that_is_claimed_of_it():
    """§5, Table 2: rows by match rate; means and variances are averages over the runs."""
    names = load_deployed_experiment("ges.table2").workload
    workloads = [load_experiment(name, Overrides(), {}) for name in names]
    matches = [match_percent(each.workload.model_dump()) for each in workloads]
    assert matches == [100, 50, 25, 10]
    for spec, match in zip(workloads, matches, strict=True):
        wanted = [plan.broker for plan in spec.subscriber_plans()]
        assert wanted.count("n10") == 1
        assert len(wanted) == 101
        per_share = Counter(plan.entry.predicate for plan in spec.subscriber_plans())
        assert {*per_share.values()} - {1} == {match}
    run = SimpleNamespace(
        manifest={"cpu": "x", "cores": 2},
        topology={"brokers": [*workloads[0].topology.brokers]},
        workload={"publishers": [{"at": ["n22"], "rate": "25/s", "size": "300B"}]},
        subscribers=lambda: dict.fromkeys(range(101)),
    )
    point = SimpleNamespace(modal=SimpleNamespace(run=run), runs=(run,) * 2)
    found = [
        latencies(match, run, 10 + match / 10 + run, match) for match in matches for run in (0, 2)
    ]
    drawing = draw_table2(SimpleNamespace(points=(point,), run_ids=("r",)), found)
    claims = [each for each in load_claims(OURS / "ges.toml") if each.figure == "ges.table2"]
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.items() <= drawing.scale.items() for claim in claims)
    assert [row[:4] for row in drawing.rows][::3] == [(100, 21, 100, 10), (10, 12, 10, 3.162)]
    metrics = {name: each.value for name, each in drawing.metrics.items()}
    assert (metrics["steps_down.mean"], metrics["steps_down.variance"]) == (3, 3)
    assert metrics["reduction_percent.10"] == pytest.approx(100 * 9 / 21)
    assert metrics["variance_ratio"] == pytest.approx(0.1)
    slower = [replace(each, mean_ms=30) if each.match_percent == 50 else each for each in found]
    again = draw_table2(SimpleNamespace(points=(point,), run_ids=("r",)), slower)
    assert again.metrics["steps_down.mean"].value == 2


SMALL_SCALE = ScaleExperiment(
    schema_="pubsubctl/scale-experiment/1", name="small", figure="ges.scale", brokers=[22, 64, 128],
    fanouts=[8, 64], neighbours=8, looked_at=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def scale_run(tmp_path_factory):
    return run_figure_experiment(SMALL_SCALE, tmp_path_factory.mktemp("runs"))


def named_rows(run, table):
    (path,) = run.glob(f"raw/*/*/{table}.jsonl")
    return [SimpleNamespace(**json.loads(line)) for line in path.read_text().splitlines()]


def test_computed_views_match_simulated_brokers_and_a_change_crosses_each_link(scale_run):
    """§3, abbreviated system views; §2, at most 64 units in a unit."""
    cluster = SimulatedCluster(hierarchy(22, 8), "ges", trace=False).start()
    cluster.run_until_quiet()
    known = {
        broker.name: (
            len(broker.core.units.view.units()),
            sum(map(len, broker.core.units.view.edges.values())),
        )
        for broker in cluster.brokers
    }
    for row in named_rows(scale_run, "hierarchies"):
        if (row.brokers, row.fanout) == (22, 8):
            assert (row.graph_units, row.graph_connections) == known[row.broker]
        assert row.graph_units <= 64 * row.levels
        assert row.profile_messages == row.answers == 2 * row.links - row.brokers + 1


def test_gatekeepers_of_each_level_decide_by_a_profile():
    """§3: gatekeepers between clusters and between higher units, inside each unit around n4."""
    section = load_topology("t22-hi").overlay("hierarchy")
    number = section.brokers.index
    of_cluster, of_unit, of_half = (4, 9, 7, 6, 8), (5, 11, 12, 8, 7, 14, 13, 15), (8, 1, 15, 16)
    assert deciding(section, number("n4")) == len({*of_cluster, *of_unit, *of_half})


def test_the_figure_of_scale_has_each_number_that_is_claimed_of_it(scale_run):
    manifest = json.loads((scale_run / "manifest.json").read_text())
    loaded = ExperimentRun(scale_run, scale_run, manifest, SMALL_SCALE.model_dump())
    shapes, hierarchies = (named_rows(scale_run, name) for name in ("shapes", "hierarchies"))
    drawing = draw_scale(loaded, shapes, hierarchies)
    claims = [each for each in load_claims(OURS / "ges.toml") if each.figure == "ges.scale"]
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= drawing.scale.keys() for claim in claims)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    metrics = {name: each.value for name, each in drawing.metrics.items()}
    assert metrics["ring.clustering_ratio"] == pytest.approx(1)
    assert metrics["graph_units.largest"] == 65
    assert 2 < metrics["growth.profile_messages"] < 2.1


SMALL_LOAD = LinkLoadExperiment(
    schema_="pubsubctl/link-load-experiment/1", name="small", figure="ges.load", rate=10,
    latency_ms=2, slow_link_ms=20, check_s=1, slow_from_s=4, slow_until_s=12, seconds=20,
    case=[
        Case(name="below", title="below", delay_ms=5),
        Case(name="delay-50", title="50 ms", delay_ms=50),
        Case(name="delay-200", title="200 ms", delay_ms=200),
        Case(name="half", title="half", capacity=5),
    ],
)  # fmt: skip


def test_publications_leave_a_slow_link_and_return(tmp_path):
    """§3: link costs are updated for overload."""
    run = run_figure_experiment(SMALL_LOAD, tmp_path)
    again = run_figure_experiment(SMALL_LOAD, tmp_path / "again")
    rows = named_rows(run, "link_load")
    assert rows == named_rows(again, "link_load")
    slow = [row for row in rows if row.case == "delay-50"]
    assert [row.over_slow for row in slow if row.second in (3, 5, 10, 18)] == [10, 10, 0, 10]
    assert {row.over_slow for row in rows if row.case == "below"} == {10}
    manifest = json.loads((run / "manifest.json").read_text())
    drawing = draw_load(ExperimentRun(run, run, manifest, SMALL_LOAD.model_dump()), rows)
    claims = [each for each in load_claims(OURS / "ges.toml") if each.figure == "ges.load"]
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= drawing.scale.keys() for claim in claims)
    metrics = {name: each.value for name, each in drawing.metrics.items()}
    assert metrics["checks_to_leave.delay-50"] <= 4
    assert metrics["checks_to_return.delay-50"] <= 5
    assert (metrics["changes.below"], metrics["changes.delay-200"]) == (0, 2)


@pytest.mark.parametrize("slow", [{}, {"delay_ms": 5, "capacity": 5}])
def test_a_link_is_slow_in_one_way(slow):
    with pytest.raises(ValueError, match="either delay_ms or capacity"):
        Case(name="both", title="both", **slow)


SMALL_SURFACES = LatencyExperiment(
    schema_="pubsubctl/latency-surface-experiment/1", name="small", figure="ges.fig7",
    topologies=["t22-hi"], publisher="n22", measuring="n10", clients=1, match_percent=[100, 0],
    rates=[1, 50_000], sizes=[10, 1000], publications=4, latency_us=200, copy_us=60, byte_ns=80,
)  # fmt: skip


def test_latency_rises_with_match_rate_size_and_rate(tmp_path):
    """§5, Fig. 7: six links and those of two clients take 1.6 ms, and each copy its time."""
    run = run_figure_experiment(SMALL_SURFACES, tmp_path)
    rows = named_rows(run, "latency_surfaces")
    assert not any(row.violations for row in rows)
    assert all(row.delivered == row.publications == 4 for row in rows)
    for row in rows:  # no value of four is farther from their mean
        assert row.mean_ms <= row.p99_ms <= row.mean_ms + (3 * row.variance_ms2) ** 0.5 + 1e-9
    found = {
        (row.is_flooding, row.match_percent, row.size_bytes, row.rate): row.mean_ms for row in rows
    }
    copies = 7  # one for each link, and one for the client
    assert found[False, 0, 10, 1] == pytest.approx(1.6 + copies * 0.0608, abs=0.001)
    for size in (10, 1000):
        assert found[False, 0, size, 1] <= found[False, 100, size, 1]
        assert found[False, 100, size, 1] < found[False, 100, size, 50_000]
    assert found[False, 0, 10, 1] < found[False, 0, 1000, 1]
    assert found[True, 0, 1000, 1] >= found[False, 0, 1000, 1]
    manifest = json.loads((run / "manifest.json").read_text())
    asked = {**SMALL_SURFACES.model_dump(), "topologies": ["t22-hi", "t22-lo"]}
    both = [*rows, *(SimpleNamespace(**{**vars(row), "topology": "t22-lo"}) for row in rows)]
    drawing = draw_surfaces(ExperimentRun(run, run, manifest, asked), both)
    claims = [each for each in load_claims(OURS / "ges.toml") if each.figure == "ges.fig7"]
    assert {claim.metric for claim in claims} <= {*drawing.metrics}
    assert all(claim.scale.keys() <= drawing.scale.keys() for claim in claims)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    assert drawing.metrics["points_out_of_order.t22-hi"].value == 0
    assert drawing.metrics["low_load_ratio"].value == 1
