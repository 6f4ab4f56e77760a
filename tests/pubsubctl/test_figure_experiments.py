"""Tests of the command line from `experiment FIGURE` to `claims`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.papers.dft11.simulator_speed import Speed
from bench.papers.ges.routing import RoutingError
from results.tables.seals import seal
from tests.pubsubctl.conftest import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = """\
schema = "pubsubctl/simulated-experiment/1"
name = "small"
figure = "dft11.fig10"
question = "deliveries"
brokers = 12
fanouts = [3]
deltas = [0, 1]
failed = [0, 2]
measured_s = 3
full_runs = 2
"""
CLAIMS = """\
schema = "pubsubctl/claims/1"
paper = "DFT11"
[[claims]]
name = "safety"
figure = "dft11.fig10"
statement = "no violation"
paper_value = "none"
metric = "violations"
tolerance = { at_most = 0 }
tests = "ours"
wrong = { value = 1, system = "breaks it once" }
scale = { brokers = 12 }
[[claims]]
name = "loss"
figure = "dft11.fig10"
statement = "everything arrives"
paper_value = "100 %"
metric = "delivered_percent.delta_0.failed_2"
tolerance = { at_least = 100.0 }
tests = "paper"
wrong = { value = 50.0, system = "loses half" }
scale = { brokers = 12 }
differs = "counts deliveries, not brokers"
set_after_results = "the bound"
[[claims]]
name = "large"
figure = "dft11.fig10"
statement = "no violation among 500"
paper_value = "none"
metric = "violations"
tolerance = { at_most = 0 }
tests = "ours"
wrong = { value = 1, system = "breaks it once" }
scale = { brokers = 500 }
[[claims]]
name = "other"
figure = "dft11.fig12"
statement = "few"
paper_value = "few"
metric = "few"
tolerance = { at_most = 0 }
tests = "ours"
wrong = { value = 1, system = "breaks it once" }
scale = { brokers = 12 }
set_after_results = "the bound"
"""


@pytest.fixture
def claimed(project: Path) -> Path:
    (project / "small.toml").write_text(SMALL)
    folder = project / "bench" / "claims"
    folder.mkdir(parents=True)
    (folder / "dft11.toml").write_text(CLAIMS)
    return project


def test_a_simulated_figure_is_drawn_judged_and_held_against_its_claims(
    call: Call, claimed: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = call("experiment", "small.toml", "--processes", "2", "--no-figure")
    assert answer.status == 0, answer.err
    run = Path(answer.out.splitlines()[-1])
    assert json.loads((run / "manifest.json").read_text())["state"] == "complete"
    assert "points 4/4" in answer.err or "simulating 12 brokers" in answer.err

    listed = call("claims", "list", "dft11", "-j").document
    assert listed["total"] == {"holds": 0, "fails": 0, "not run": 4}

    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext(spark))
    judged = call("claims", "run", "dft11", "-j", "-q")
    assert judged.status == 0, judged.err
    states = {row["claim"]: row["verdict"] for row in judged.document["claims"]}
    assert states == {"safety": "holds", "loss": "fails", "large": "not run", "other": "not run"}
    assert sorted(path.name for path in (run / "figures").iterdir()) == [
        f"dft11.fig10.{suffix}" for suffix in ("csv", "json", "png", "svg")
    ]

    told = call("claims", "explain", "large")
    assert "not run: dft11.fig10 was drawn with brokers = 12 instead of 500" in told.out
    assert "pubsubctl experiment dft11.fig10" in told.out
    assert call("claims", "list", "dft11").out.splitlines()[-6:] == [
        f"by run {run.name}, with brokers = 12, runs = 1, measured_s = 3 (safety, loss)",
        "not run: dft11.fig10 was drawn with brokers = 12 instead of 500 (large)",
        "not run: dft11.fig12 was not drawn (other)",
        "unlike the paper: counts deliveries, not brokers (loss)",
        "set after first results: the bound (loss, other)",
        "1 holds, 1 fails, 2 not run",
    ]
    told = call("claims", "explain", "loss").out
    assert "  unlike the paper counts deliveries, not brokers\n" in told
    assert "  set afterwards   the bound\n" in told


def test_a_sweep_on_simulated_brokers_starts_none_and_is_judged_and_drawn(
    call: Call,
    project: Path,
    tmp_path: Path,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext(spark))
    answer = call(
        *("sweep", "smoke", "--json"),
        *("--over", "simulated=true", "--over", "topology.tree.delta=0,1"),
    )
    assert answer.status == 0, answer.err
    points = answer.document["points"]
    assert [point["keys"]["topology.tree.delta"] for point in points.values()] == [0, 1]
    for point in points.values():
        assert [*point["runs"].values()] == ["VALID"]
        assert point["numbers"]["delivered_fraction"]["mean"] == 1.0
    (made,) = points["delta=1"]["runs"]
    (run,) = (project / "results").rglob(made)
    assert json.loads((run / "manifest.json").read_text())["labels"]["brokers"] == "simulated"
    series = Path(answer.document["run_directory"])
    assert [*series.rglob("series.sweep.png")]
    assert not [*tmp_path.rglob("deployment.json")], "no broker was deployed"


def test_a_measured_figure_is_drawn_as_soon_as_it_is_measured(
    call: Call, claimed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, drawn = claimed / "run", []

    def draw(figure: str, _: object, folder: Path) -> list[Path]:
        drawn.append((figure, folder))
        return [folder / f"{figure}.svg"]

    measured = "pubsubctl.runs.paper_experiments.run_figure_experiment"
    labels: list[Any] = []
    monkeypatch.setattr(measured, lambda *given: (labels.append(given[-1]), run)[1])
    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext(None))
    monkeypatch.setattr("results.figures.catalogue.draw", draw)
    answer = call("experiment", "ds03.jms", "--label", "who=ann")
    assert answer.status == 0, answer.err
    assert labels == [{"who": "ann"}]
    assert drawn == [("ds03.jms", run)]
    assert answer.out.splitlines() == [f"{run / 'ds03.jms.svg'}", f"{run}"]


def test_an_archived_run_counts_until_there_is_another(call: Call, claimed: Path) -> None:
    def draw(folder: Path, brokers: int, violations: int) -> None:
        run_id = f"2026112{brokers % 10}T000000Z-000000"
        figures = folder / "small" / run_id / "figures"
        figures.mkdir(parents=True)
        document = {
            "schema": "pubsubctl/figure/1",
            "figure": "dft11.fig10",
            "run_ids": [run_id],
            "scale": {"brokers": brokers, "runs": 1},
            "metrics": {
                "violations": {"value": violations},
                "delivered_percent.delta_0.failed_2": {"value": 100.0},
            },
        }
        (figures / "dft11.fig10.json").write_text(json.dumps(document))

    draw(claimed / "made", 12, 0)
    (small,) = (claimed / "made" / "small").iterdir()
    (small / "manifest.json").write_text("{}")
    seal(small)
    answer = call("results", "archive", str(small))
    assert answer.status == 0, answer.err
    assert "results/samples/figures/small.tar.xz: dft11.fig10" in answer.out
    absent = call("claims", "list", "dft11", "--runs", "absent")
    assert absent.status == 2
    assert absent.err.endswith("--output-dir absent: no such folder of runs\n")
    lines = call("claims", "list", "dft11").out.splitlines()
    archived = "archived run 20261122T000000Z-000000, with brokers = 12, runs = 1"
    assert f"by {archived} (safety, loss)" in lines
    below = "dft11.fig10 was drawn with brokers = 12 instead of 500 (archived run)"
    assert f"not run: {below} (large)" in lines
    assert f"holds: {archived}" in call("claims", "explain", "safety").out
    assert f"not run: {below}" in call("claims", "explain", "large").out

    draw(claimed / "results" / "runs", 500, 1)
    listed = call("claims", "list", "dft11", "-j").document["claims"]
    states = {row["claim"]: row["verdict"] for row in listed}
    assert states == {"safety": "holds", "loss": "holds", "large": "fails", "other": "not run"}

    (claimed / "elsewhere").mkdir()
    listed = call("claims", "list", "dft11", "--runs", "elsewhere", "-j").document
    assert listed["total"]["not run"] == 4


def test_in_full_a_figure_has_all_its_draws(call: Call, claimed: Path) -> None:
    document = call(
        *("experiment", "small.toml", "--full", "--no-figure", "--processes", "2", "-j", "-q")
    ).document
    assert (document["figure"], document["experiment"]) == ("dft11.fig10", "small")
    manifest = json.loads((Path(document["run_directory"]) / "manifest.json").read_text())
    assert manifest["scale"]["runs"] == 2


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["experiment", "dft11.fig13"], "did you mean 'dft11.fig1"),
        (["experiment", "dft11.fig9", "--full"], "dft11.fig9 always makes all 100 draws"),
        (["experiment", "dft11.sped"], "did you mean 'dft11.speed'?"),
        (["experiment", "overhead"], "did you mean 'dft11.overhead'?"),
        (["experiment"], "name one; `pubsubctl experiment --list` lists them"),
        (["experiment", "dft11.fig11", "--seed", "3"], "--seed is for an experiment on brokers"),
        (["experiment", "dft11.speed", "--full"], "--full is for a simulated experiment"),
        (["experiment", "dft11.stalls", "--schedules", "3"], "--schedules is for dft11.dedupe"),
        (["experiment", "gd02.fig6", "--full"], "--full is for a simulated experiment"),
        (["experiment", "gd02.fig6", "--faults", "demo"], "no such option: --faults"),
        (["experiment", "gd02.fig6", "--protocol", "ges"], "gd02.fig6 is of"),
        (["experiment", "bench/workloads/demo.toml"], "no experiment called"),
        (["claims", "explain", "safty"], "did you mean 'safety'?"),
        (["claims", "list", "dft12"], "did you mean 'dft11'?"),
        (["claims", "lst"], "id you mean 'list'?"),
    ],
)
def test_unsuitable_arguments_are_refused_with_a_suggestion(
    call: Call, claimed: Path, arguments: list[str], said: str
) -> None:
    answer = call(*arguments)
    assert answer.status == 2
    assert said in answer.err


def test_the_speed_of_the_simulator_is_a_table(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "bench.papers.dft11.simulator_speed.measure_speed",
        lambda: [Speed("publishing", 30_000, 0.5)],
    )
    assert call("experiment", "dft11.speed").out.split()[-3:] == ["30,000", "0.50", "60,000"]
    [row] = call("experiment", "dft11.speed", "-j").document["phases"]
    assert row["broker_events_per_second"] == 60_000


def test_stalls_on_failed_links_are_tabulated_with_and_without_assist(call: Call) -> None:
    rows = call("experiment", "dft11.stalls", "--seeds", "0..1", "-j").document["rows"]
    assert [(row["delta"], row["assist"]) for row in rows] == [
        (delta, assist) for delta in (1, 2, 3) for assist in ("off", "on")
    ]
    assert all(row["missing"] == row["stalled"] == 0 for row in rows if row["assist"] == "on")
    assert sum(row["missing"] for row in rows) > 0


def test_the_routing_of_hierarchies_is_a_table_and_drawn_ones_are_checked(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pubsubctl.simulation.studies.EVENTS", 5)
    answer = call("experiment", "ges.routing", "--seeds", "1..2")
    assert "t22-hi    each client  100      21.0             21.0" in answer.out
    assert "2 drawn hierarchies, " in answer.out
    assert ", 40 publications, 0 wrong" in answer.out

    def wrong(seed: int) -> None:
        raise RoutingError(f"seed {seed}: a way in a circle")

    monkeypatch.setattr("pubsubctl.simulation.studies.check", wrong)
    answer = call("experiment", "ges.routing", "--seeds", "7..7")
    assert answer.status == 1
    assert "seed 7: a way in a circle" in answer.err


def test_each_listed_experiment_says_what_it_shows(call: Call) -> None:
    answer = call("experiment", "--list")
    rows = [line.split(maxsplit=2) for line in answer.out.splitlines()[1:]]
    assert len(rows) > 40
    assert [row for row in rows if len(row) < 3 or row[2][-1] not in ".?"] == []
    figures = [line.split(maxsplit=1) for line in call("plot", "--list").out.splitlines()[1:]]
    assert [row for row in figures if len(row) < 2 or row[1][-1] not in ".?"] == []
    texts = [row[1] for row in figures]
    assert [text for text in texts if texts.count(text) > 1 or text.endswith("Fig.")] == []


def test_the_plan_of_an_experiment_has_all_of_its_runs(call: Call) -> None:
    answer = call("experiment", "mp22.m4", "--dry-run", "--json")
    assert [*answer.document["points"]] == [
        f"mp22-{mode}-multi_proxy"
        for mode in ("paper", "paper1", "arbiter", "rendezvous", "causal")
    ]
    again = call("experiment", "mp22.m4", "--instances", "2", "--dry-run", "--json")
    assert again.document["expected_ns"] == 2 * answer.document["expected_ns"] > 0


@pytest.mark.parametrize(
    "against, is_same",
    [("protocol=delta_tree", True), ("best_effort", False)],
)
def test_a_comparison_of_equal_sides_is_named(call: Call, against: str, is_same: bool) -> None:
    answer = call("compare", "chain3-paced", "--against", against, "--dry-run")
    assert answer.status == 0, answer.err
    assert ("both sides are the same" in answer.err) == is_same, answer.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["dft11.fig9", "--processes", "1"], "then the figure dft11.fig9\nschema = "),
        (["dft11.fig9", "--processes", "1", "--no-figure"], "results/runs/dft11-fig9\nschema = "),
        (["dft11.dedupe", "--processes", "3"], "schedules 25, processes 3, then its table"),
        (["dft11.stalls", "--seeds", "4..6"], "seeds 4..6, then its table"),
        (["ds03.pfs"], "this machine, 1 process, into results/runs"),
    ],
)
def test_the_plan_of_an_experiment_without_brokers_runs_nothing(
    call: Call, project: Path, arguments: list[str], said: str
) -> None:
    answer = call("experiment", *arguments, "--dry-run")
    assert (answer.status, said in answer.out) == (0, True), answer
    assert not (project / "results").exists()


def test_the_plan_of_repeated_runs_has_the_time_of_all(call: Call) -> None:
    times = []
    for repeated in ([], ["--instances", "3"]):
        answer = call("bench", "chain3", *repeated, "--dry-run", "--json")
        times.append(answer.document)
    assert times[1]["repetitions"] == 3
    load_ns = 3 * times[0]["expected_s"]["loading_s"] * 1e9
    assert times[1]["expected_ns"] > load_ns


def test_the_plan_of_a_comparison_has_its_time(call: Call) -> None:
    answer = call("compare", "--comparison", "s3", "--dry-run", "--json")
    assert answer.document["expected_ns"] > 60e9 * len(answer.document["runs"]) / 2
