"""Tests of Figure 10: simulated run, tables, verdict, picture, words and numbers."""

import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark.sql import Row

from bench.papers.experiments import load_figure_experiment, run_figure_experiment
from brokerd.text import toml_text
from pubsubctl.commands.app import run
from results.figures.catalogue import draw
from results.papers.dft11.delivery_figures import check_simulated_run, delivered_percent, draw_fig10
from results.papers.experiment_runs import load_experiment_run
from results.tables.json_files import IntegrityError, ResultsError
from results.tables.seals import seal, verify_seal

EXPERIMENT = {
    "schema": "pubsubctl/simulated-experiment/1",
    "name": "small",
    "figure": "dft11.fig10",
    "question": "deliveries",
    "brokers": 20,
    "fanouts": [3],
    "deltas": [0, 1],
    "failed": [0, 6],
    "measured_s": 4,
    "runs": 2,
    "seed": 1,
}


class Silent:
    def phase(self, name, expected_s=None): ...
    def update(self, numbers): ...


@pytest.fixture(scope="module")
def the_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fig10")
    path = folder / "small.toml"
    path.write_text(toml_text(EXPERIMENT))
    return run_figure_experiment(load_figure_experiment(path), folder / "runs", Silent(), 2)


def rows_of(run, table):
    path = run / "raw" / "controller" / "simulator" / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_deliveries_equal_the_static_bound_if_failures_precede_publications(spark, the_run):
    loaded = load_experiment_run(spark, the_run)
    rows = delivered_percent(
        *(loaded.table(spark, name) for name in
          ("simulated_points", "simulated_brokers", "connectivity"))
    ).collect()  # fmt: skip
    assert [(row.delta, row.failed, row.runs) for row in rows] == [
        (0, 0, 2), (0, 6, 2), (1, 0, 2), (1, 6, 2),
    ]  # fmt: skip
    raw = rows_of(the_run, "simulated_points")
    for row in rows:
        draws = [
            100 * point["deliveries"] / (point["published"] * point["live_brokers"])
            for point in raw
            if (point["delta"], point["failed"]) == (row.delta, row.failed)
        ]
        assert row.delivered_percent == pytest.approx(sum(draws) / 2)
        assert row.delivered_percent == pytest.approx(row.bound_percent)
        assert abs(row.over_bound_percent) < 1e-9
        assert min(draws) - 1e-9 <= row.low_percent <= row.high_percent <= max(draws) + 1e-9
        assert (row.violations, row.withheld) == (0, 0)
    assert rows[0].delivered_percent == 100 > rows[1].delivered_percent


def test_the_figure_has_picture_values_words_and_numbers(spark, the_run):
    written = draw("dft11.fig10", spark, the_run)
    assert [path.name for path in written] == [
        f"dft11.fig10.{suffix}" for suffix in ("svg", "png", "csv", "json")
    ]
    words = json.loads((the_run / "figures" / "dft11.fig10.json").read_text())
    assert words["scale"] == {"brokers": 20, "runs": 2, "measured_s": 4}
    assert "The paper reports, for 500 brokers, 120 s" in words["caption"]
    assert "0 deliveries broke exactly-once, order or gaplessness" in words["caption"]
    assert words["metrics"]["violations"] == {"value": 0}
    assert words["metrics"]["points_off_the_static_bound"] == {"value": 0}
    assert draw("dft11.fig10.seconds", spark, the_run, ["svg"])
    verify_seal(the_run)
    with pytest.raises(ResultsError, match="about 'deliveries', the figure 'connectivity'"):
        draw("dft11.fig9", spark, the_run)


def test_a_run_is_valid_when_no_delivery_broke_a_rule(spark, the_run):
    document = check_simulated_run(spark, the_run)
    assert (document["verdict"], document["exit_code"], document["because"]) == ("valid", 0, [])
    points = rows_of(the_run, "simulated_points")
    assert document["deliveries"] == sum(point["deliveries"] for point in points)
    assert 0 < document["past_failures"] < document["deliveries"]


def spoiled(the_run, tmp_path, change):
    """Return a sealed copy of the run with a changed row of one point."""
    copy = tmp_path / the_run.name
    for part in ("raw", "spec"):
        shutil.copytree(the_run / part, copy / part)
    shutil.copy(the_run / "manifest.json", copy)
    path = copy / "raw" / "controller" / "simulator" / "simulated_points.jsonl"
    rows = rows_of(copy, "simulated_points")
    rows[-1].update(change)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(copy)
    return copy


def test_a_single_violation_makes_a_run_invalid(spark, the_run, tmp_path):
    spoiled_run = spoiled(the_run, tmp_path, {"violations": 1, "violated": ["gap"]})
    document = check_simulated_run(spark, spoiled_run)
    assert (document["verdict"], document["exit_code"]) == ("invalid", 1)
    assert document["because"] == ["1 violations: gap"]


def test_counts_that_contradict_each_other_are_no_result(spark, the_run, tmp_path):
    deliveries = rows_of(the_run, "simulated_points")[-1]["deliveries"]
    spoiled_run = spoiled(the_run, tmp_path, {"deliveries": deliveries + 1})
    with pytest.raises(IntegrityError, match=rf"{deliveries + 1} deliveries, {deliveries} by"):
        check_simulated_run(spark, spoiled_run)


def test_load_and_check_recognise_a_simulated_run(spark, the_run, monkeypatch, capsys):
    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext(spark))
    assert run(["results", "tables", str(the_run), "--force", "-j", "-q"]) == 0
    [tables] = json.loads(capsys.readouterr().out)["tables"].values()
    assert tables == [
        "connectivity", "failures", "simulated_brokers", "simulated_points", "simulated_seconds",
    ]  # fmt: skip
    assert run(["check", str(the_run), "-q"]) == 0
    assert capsys.readouterr().out.startswith("VALID ")


def row(delta, failed, percent, bound, **changes):
    values = {
        "fanout": 5, "delta": delta, "failed": failed, "runs": 1, "published": 415.0,
        "expected": 172225.0, "deliveries": 1722.25 * percent, "delivered_percent": percent,
        "low_percent": None, "high_percent": None, "bound_percent": bound,
        "over_bound_percent": percent - bound, "violations": 0, "withheld": 0, "suppressed": 0,
        "unexplained": 0, "duplicates": 0, "resent": 0, **changes,
    }  # fmt: skip
    return Row(**values)


def numbers_of(rows):
    of_run = SimpleNamespace(
        experiment={"brokers": 500, "runs": 1, "measured_s": 120, "publications_per_broker": 1,
                    "fail": "before"},
        manifest={"scale": {"brokers": 500, "runs": 1, "measured_s": 120}},
        run_id="20261120T113502Z-7f3a9c",
    )  # fmt: skip
    return {name: metric.value for name, metric in draw_fig10(of_run, rows).metrics.items()}


def test_steps_order_and_distance_from_the_bound_are_reported_as_numbers():
    numbers = numbers_of(
        [row(0, 85, 25.0, 25.0), row(1, 85, 92.0, 93.0), row(2, 85, 91.5, 97.0),
         row(3, 85, 99.0, 98.9, violations=2)]
    )  # fmt: skip
    assert numbers["delivered_percent.delta_3.failed_85"] == 99
    assert numbers["step_percent.delta_3_to_2.failed_85"] == pytest.approx(7.5)
    assert numbers["step_percent.delta_1_to_0.failed_85"] == pytest.approx(67)
    assert numbers["points_where_more_delta_delivers_less"] == 1
    assert numbers["points_off_the_static_bound"] == 2  # 5.5 points below, and above
    assert numbers["violations"] == 2
