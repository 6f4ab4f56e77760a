"""Tests of the figures of runs: numbers, and identical bytes for the same run."""

import os
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerd.quantiles import PERCENTILES, quantile
from results.checker.latency import latency_at_share, latency_buckets, latency_percentiles, spectrum
from results.figures.catalogue import FIGURES, draw
from results.figures.rate import count_delivered, count_published
from results.figures.run_figures import FIGURES as RUN_FIGURES
from results.figures.run_figures import narrow_svg, read_drawn_numbers
from results.rules.fault_log import fault_spans
from results.tables.json_files import IntegrityError, ResultsError
from results.tables.seals import verify_seal
from tests.helpers.runs import Scenario, write_demo_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCENARIO = Scenario(
    run_id="f-1", protocol="best_effort", measure_s=6.0, stall_s=1.0, kill_s=1.8, restart_s=3.5
)


@pytest.fixture(scope="module")
def run(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with losses, with all of its figures drawn."""
    folder = write_demo_run(tmp_path_factory.mktemp("runs"), SCENARIO)
    for name in RUN_FIGURES:
        draw(name, spark, folder)
    return folder


def bytes_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "figures").iterdir())}


def test_each_figure_has_pictures_and_its_numbers_beside_it(run: Path) -> None:
    assert [*bytes_of(run)] == sorted(
        f"{name}.{form}" for name in RUN_FIGURES for form in ("csv", "json", "png", "svg")
    )
    verify_seal(run)


REDRAW = """
import sys
from pathlib import Path
from results.figures.catalogue import draw
from results.figures.run_figures import FIGURES
for name in FIGURES:
    draw(name, None, Path(sys.argv[1]))
"""


def test_a_figure_has_the_same_bytes_under_any_machine_settings(run: Path, tmp_path: Path) -> None:
    before = bytes_of(run)
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.size: 30\nlines.linewidth: 9\nsvg.fonttype: none\nsavefig.dpi: 30\n")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(settings),
        "MPLCONFIGDIR": str(tmp_path),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    subprocess.run([sys.executable, "-c", REDRAW, str(run)], check=True, env=environment)
    after = bytes_of(run)
    assert [name for name in before if before[name] != after[name]] == []


def test_the_timeline_shows_each_delivery_and_each_loss(run: Path) -> None:
    rows = read_drawn_numbers("timeline", run).records()
    by_subscription: dict[str, int] = {}
    for row in rows:
        by_subscription[row["sub_id"]] = by_subscription.get(row["sub_id"], 0) + row["n"]
    # Four publishers at 25/s for 7 s with the warm-up; the subscription matches everything.
    assert by_subscription["s3-sub-1/1"] == 4 * 25 * 7
    lost = sum(row["lost"] for row in rows if row["sub_id"] == "s1-sub-1/1")
    assert by_subscription["s1-sub-1/1"] + lost == 4 * 25 * 7
    risky = [row for row in rows if row["at_risk"]]
    assert {row["sub_id"] for row in risky} == {"s1-sub-1/1", "s2-sub-1/1"}
    width_s = read_drawn_numbers("timeline", run).about["bin_ns"] / 1e9
    assert min(row["bin"] for row in risky) * width_s >= SCENARIO.stall_s - width_s
    assert max(row["bin"] for row in risky) * width_s <= SCENARIO.kill_s
    assert all(row["low_us"] <= row["p50_us"] <= row["high_us"] for row in rows if row["n"])


def test_the_rate_adds_up(run: Path) -> None:
    totals: dict[tuple[str, str], int] = {}
    for row in read_drawn_numbers("rate", run).records():
        key = row["series"], row["sub_id"] or ""
        totals[key] = totals.get(key, 0) + row["n"]
    assert totals["offered", ""] == totals["sent", ""] == 4 * 25 * 7
    assert totals["owed", "s1-sub-1/1"] == 4 * 25 * 7 > totals["delivered", "s1-sub-1/1"]
    assert totals["owed", "s5-sub-1/1"] == totals["delivered", "s5-sub-1/1"]
    lost = totals["owed", "s1-sub-1/1"] - totals["delivered", "s1-sub-1/1"]
    assert totals["missing", "s1-sub-1/1"] == lost
    noted = {key for key in totals if key[0] in ("missing", "duplicate", "behind")}
    assert noted == {("missing", "s1-sub-1/1"), ("missing", "s2-sub-1/1")}


def test_a_caption_states_the_protocol_scale_and_machine(run: Path) -> None:
    caption = (run / "figures" / "timeline.json").read_text(encoding="utf-8")
    assert "Best effort, 10 brokers, 4 publishers, 5 subscriptions" in caption
    assert "all on one machine: made up, 2 cores" in caption


def test_pictures_are_whole_and_ask_for_nothing(run: Path) -> None:
    for name in RUN_FIGURES:
        for text in (
            (run / "figures" / f"{name}.svg").read_text(encoding="utf-8"),
            narrow_svg(name, run),
        ):
            ElementTree.fromstring(text)
            assert "prefers-color-scheme:dark" in text
            assert "<script" not in text
            assert text.count("http") == text.count("http://www.w3.org/") + text.count(
                "http://purl.org/dc/"
            ) + text.count("http://creativecommons.org/ns#")


def test_a_figure_without_stored_values_needs_spark(tmp_path: Path) -> None:
    folder = write_demo_run(tmp_path, SCENARIO)
    with pytest.raises(ResultsError, match="Spark makes them"):
        draw("rate", None, folder)
    (folder / "figures").mkdir()
    (folder / "figures" / "rate.json").write_text('{"schema": "x"}')
    with pytest.raises(IntegrityError, match="not the words of figure rate"):
        draw("rate", None, folder)


def test_unknown_names_are_errors_with_the_nearest_one(run: Path) -> None:
    with pytest.raises(ResultsError, match="no figure called 'timelime'; did you mean 'timeline'"):
        draw("timelime", None, run)
    with pytest.raises(ResultsError, match="no format called 'pdf'"):
        draw("timeline", None, run, ["pdf"])
    assert {"timeline", "rate", "spectrum"} <= set(FIGURES)


# --- The steps below the figures --------------------------------------------------------------


def test_buckets_are_narrow_and_add_up_to_the_exact_percentiles(spark: "SparkSession") -> None:
    seed = 5
    rng = random.Random(seed)
    latencies = [int(rng.lognormvariate(7, 2)) for _ in range(3000)] + [0, 1, 255, 256, 257, -3]
    rows = [("r", "s", "application", "data", "measure", us, us // 2, True) for us in latencies]
    rows += [("r", "s", "application", "data", "measure", 10**9, 10**9, False)]  # of two clocks
    ddl = (
        "run_id STRING, sub_id STRING, layer STRING, kind STRING, phase STRING, "
        "lat_response_us BIGINT, lat_service_us BIGINT, same_clock BOOLEAN"
    )
    deliveries = spark.createDataFrame(rows, ddl)
    buckets = latency_buckets(deliveries).where("metric = 'lat_response'").toArrow().to_pylist()
    assert sum(row["n"] for row in buckets) == len(latencies)
    for row in buckets:
        inside = [us for us in latencies if row["lo_us"] <= us < row["hi_us"]]
        assert row["n"] == (len(inside) if row["lo_us"] >= 0 else 1), (seed, row)
        assert row["hi_us"] - row["lo_us"] <= max(1, row["lo_us"] / 128)
    steps = spectrum(buckets)
    (exact,) = latency_percentiles(deliveries).toArrow().to_pylist()
    for name, share in PERCENTILES.items():
        assert exact[f"response_{name}_us"] == quantile(sorted(latencies), share)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert latency_at_share(steps, share) == pytest.approx(
            exact[f"response_{name}_us"], rel=0.02
        )
    assert exact["n"] == len(latencies)


def test_rates_count_by_their_own_stamps(spark: "SparkSession") -> None:
    publications = spark.createDataFrame(
        [("r", False, 5, 15), ("r", False, 9, 9), ("r", True, 5, 5)],
        "run_id STRING, is_fence BOOLEAN, t_intended_ns BIGINT, t_sent_ns BIGINT",
    )
    counted = {
        (row["series"], row["bin"]): row["n"]
        for row in count_published(publications, 10).toArrow().to_pylist()
    }
    assert counted == {("offered", 0): 2, ("sent", 0): 1, ("sent", 1): 1}
    deliveries = spark.createDataFrame(
        [("r", "s", "application", "data", -1), ("r", "s", "wire", "data", 3),
         ("r", "s", "application", "fence", 3), ("r", "s", "application", "data", 3)],
        "run_id STRING, sub_id STRING, layer STRING, kind STRING, t_recv_ns BIGINT",
    )  # fmt: skip
    received = count_delivered(deliveries, 10).toArrow().to_pylist()
    assert {row["bin"]: row["n"] for row in received} == {-1: 1, 0: 1}


def test_faults_are_shaded_for_as_long_as_they_held() -> None:
    def row(fault_id: str, verb: str, applied: int, **more: int | None) -> dict:
        return {
            "fault_id": fault_id, "step": fault_id, "verb": verb, "target": "b1",
            "t_applied_ns": applied, "t_observed_ns": applied, "t_healed_ns": None,
            "t_recovered_ns": None, **more,
        }  # fmt: skip

    rows = [
        row("restart", "restart", 30, t_recovered_ns=35),
        row("stall", "absorb", 10),
        row("kill", "kill", 20),
        row("slow", "delay", 40, t_healed_ns=50),
        row("never", "cut", 0) | {"t_applied_ns": None},
        row("open", "freeze", 60),
    ]
    spans = [(s.fault_id, s.kind, s.from_ns, s.to_ns) for s in fault_spans(rows, 100)]
    assert spans == [
        ("stall", "held", 10, 20), ("kill", "down", 20, 30), ("restart", "back", 30, 35),
        ("slow", "limited", 40, 50), ("open", "held", 60, 100),
    ]  # fmt: skip
