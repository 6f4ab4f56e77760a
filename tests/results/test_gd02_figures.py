"""Tests of the figures of [GD02], and of the figure of a series, from fixed numbers."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from results.figures import series as series_figure
from results.papers.gd02.fault_figures import FIG7, draw
from results.papers.gd02.faults import FaultSummary
from results.papers.gd02.overhead_figures import Cost, draw_fig4, draw_fig5
from results.repetitions.series_runs import Point, SeriesRuns
from results.repetitions.spread import spread_of
from results.tables.load import LoadedRun

MS, SECOND = 10**6, 10**9
BROKERS = ["p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"]
MANIFEST = {"cpu": "a processor", "cores": 2, "workload": "story", "schedule": "a crash"}
WORKLOAD: Mapping[str, Any] = {
    "publishers": [{"at": ["p1"], "count": 4, "rate": "25/s", "size": "100B"}],
    "subscribers": [{"at": ["s1"], "count": 2, "filter": "true"}] * 100,
}


def a_run(run_id: str, protocol: str = "gryphon", subscribers: int = 2) -> LoadedRun:
    """Return a loaded run with the attributes that figures read."""
    entries = [{**WORKLOAD["subscribers"][0], "count": subscribers}] * 100
    run = SimpleNamespace(
        run_id=run_id, manifest=MANIFEST, topology={"brokers": BROKERS}, protocol=protocol,
        workload={**WORKLOAD, "subscribers": entries}, fault_rows=[],
        phase=lambda _: SimpleNamespace(from_ns=0, to_ns=60 * SECOND),
    )  # fmt: skip
    return cast(LoadedRun, SimpleNamespace(run=run))


def request(broker: str, peer: str, at_s: float, asked_ms: int, stream: int = 0) -> dict[str, Any]:
    return {
        "broker": broker, "peer": peer, "t_ns": round(at_s * SECOND), "pubend": f"p1/{stream}",
        "asked_ns": asked_ms * MS,
    }  # fmt: skip


def a_story(run_id: str, late_ms: int = 0) -> FaultSummary:
    """Return the story of a stall: b1 stalls at 6 s for 2.5 s.

    s1 and s2 request two streams from b2, and b2 sends one request to p1.
    """
    asked = 2_500 + late_ms
    requests = [
        request(broker, peer, 8.7, asked, stream)
        for broker, peer in (("s1", "b2"), ("s2", "b2"), ("b2", "p1"))
        for stream in (0, 2)
    ]
    usual = dict.fromkeys(range(200), 2_000.0)
    slow = {**usual, 61: 2_450_000.0}
    return FaultSummary(
        run_id, 6 * SECOND, 2_500 * MS, 8_500 * MS, 38_500 * MS, requests,
        {"s1": slow, "s2": slow, "s3": usual},
    )  # fmt: skip


def test_a_crash_yields_the_numbers_of_the_paper(tmp_path: Path) -> None:
    runs = tuple(a_run(name) for name in ("r1", "r2", "r3"))
    series = SeriesRuns(tmp_path, {}, (Point("gryphon", runs, runs[1]),))
    stories = {f"r{n}": a_story(f"r{n}", late_ms=100 * (n - 2)) for n in (1, 2, 3)}
    drawing = draw(FIG7, series, stories, "r2")
    values = {name: metric.value for name, metric in drawing.metrics.items()}
    assert values["asked_ms.s1"] == pytest.approx(5_000)
    assert values["streams_asked.s1"] == 2
    assert values["asked_per_stall_and_stream.s1"] == pytest.approx(1)
    assert values["consolidation.b2"] == 0.5
    assert values["percent_asked_of.p1.by.b2"] == 100
    assert values["percent_asked_of.b2.by.s1"] == 100
    assert values["asked_ms.other_branch"] == 0
    assert values["peak_per_stall.s1"] == pytest.approx(0.98)
    assert values["peak_per_stall.s3"] < 0.01
    assert values["asked_while_down_ms"] == pytest.approx(15_000), "of an open failure, all"
    spread = drawing.metrics["asked_ms.s1"]
    factor = math.exp(4.303 * 200 / 3**0.5 / 5_000)
    assert spread.low == pytest.approx(5_000 / factor, rel=1e-3)
    assert (drawing.scale["brokers"], drawing.scale["publishers"]) == (10, 4)
    assert "typical one of 3 instances" in drawing.caption
    files = {path.name for path in drawing.write(tmp_path, "gd02.fig7", ("png",))}
    assert files == {"gd02.fig7.png", "gd02.fig7.csv", "gd02.fig7.json"}


def test_costs_are_the_excess_of_the_guarantee_over_best_effort(tmp_path: Path) -> None:
    points = tuple(
        Point(f"{protocol}-{size}", (run,), run)
        for protocol in ("gryphon", "best_effort")
        for size in (1, 4)
        if (run := a_run(f"{protocol}{size}", protocol, size))
    )
    series = SeriesRuns(tmp_path, {}, points)
    percent = {
        ("gryphon", "p1"): (13, 12), ("best_effort", "p1"): (5, 5),
        ("gryphon", "s1"): (9, 16), ("best_effort", "s1"): (7, 13),
    }  # fmt: skip
    costs = [
        Cost(protocol, broker, {100: spread_of([few]), 400: spread_of([many])})
        for (protocol, broker), (few, many) in percent.items()
    ]
    drawing = draw_fig4(series, costs)
    values = {name: metric.value for name, metric in drawing.metrics.items()}
    assert values["overhead_points.subscriber_side.largest"] == 3
    assert values["overhead_growth_points.subscriber_side"] == 1
    assert values["overhead_points.publisher_side.mean"] == 7.5
    assert drawing.scale == {"input_per_s": 100, "subscribers": 400, "instances": 1}
    assert draw_fig5(series, costs).metrics["added_ms.remote"].value == 2.5


def test_a_series_shows_what_never_arrived(tmp_path: Path) -> None:
    points = tuple(
        Point(name, (run,), run)
        for name in ("gryphon", "best_effort")
        if (run := a_run(name, name))
    )
    whole = series_figure.Timeline({0: 2.0, 1: 2.5}, {0: 4.0, 1: 9.0}, {})
    lossy = series_figure.Timeline({0: 1.0}, {0: 2.0}, {1: 17})
    numbers = [
        {"delivered_fraction": spread_of([share]), "resent_bytes": spread_of([900.0, 1_100.0])}
        for share in (1.0, 0.875)
    ]
    drawing = series_figure.draw(SeriesRuns(tmp_path, {}, points), [whole, lossy], numbers)
    assert ("best_effort", 0.3, "", "", 17) in drawing.rows
    titles = [axes.get_title(loc="right") for axes in drawing.figure.axes]
    assert titles == [
        "delivered 100.00 % · sent again 1,000 (900–1,100) B",
        "delivered 87.50 % · sent again 1,000 (900–1,100) B",
    ]
    assert drawing.metrics["delivered_fraction.best_effort"].value == 0.875
    assert "faults of a crash, the only run of each point" in drawing.caption
    assert not {"yellow", "grey", "brackets"} & {*re.findall("[a-z]+", drawing.caption)}
