"""Tests of the figure of a sweep, from made-up summaries."""

import json
from functools import cache
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from results.figures import series
from results.figures.drawing import Drawing
from results.figures.style import literal
from results.figures.sweep import Line, draw, lines_of, series_sweep, zones_of
from results.repetitions.numbers import beyond, check_bounds
from results.repetitions.spread import spread_of
from results.tables.json_files import ResultsError

RATE = {"key": "publishers.rate", "values": ["25/s", "400/s"], "numbers": [25.0, 400.0]}
PROTOCOL = {"key": "protocol", "values": ["one", "another"], "numbers": []}
CALM = {"key": "calm", "values": [True], "numbers": []}
MANIFEST = {"experiment": "story", "instances": 2, "cpu": "a processor", "cores": 2}


def point(rate: str, protocol: str, *p50_ms: float, verdict: str = "VALID") -> dict[str, Any]:
    return {
        "keys": {"publishers.rate": rate, "protocol": protocol, "calm": True},
        "runs": {f"{rate}-{protocol}-{place}": verdict for place in range(len(p50_ms))},
        "numbers": {"latency_p50_ms": spread_of(p50_ms).row()},
    }


@cache  # and not on import, which every worker would wait for
def _points() -> dict[str, dict[str, Any]]:
    return {
        "b": point("400/s", "one", 3.0, 5.0),
        "a": point("25/s", "one", 1.0, 2.0),
        "c": point("25/s", "another", 1.0, 1.5),
        "d": point("400/s", "another", 7.0, 9.0, verdict="INVALID"),
        "large": {**point("25/s", "one", 1.0, 2.0), "keys": {"publishers.size": "64KiB"}},
    }


def drawn(instances: int = 2, **bounds: float) -> Drawing:
    return draw({**MANIFEST, "instances": instances}, [RATE, PROTOCOL, CALM], _points(), bounds)


def test_there_is_a_line_for_each_combination_of_the_other_keys_that_vary() -> None:
    lines = lines_of(RATE, [PROTOCOL, CALM], _points())
    assert [line.name for line in lines] == ["protocol one", "protocol another"]
    assert [[at for at, _ in line.at] for line in lines] == [[25.0, 400.0]] * 2, "rising"
    beside = lines_of(PROTOCOL, [RATE], _points())
    assert [[at for at, _ in line.at] for line in beside] == [[0.0, 1.0]] * 2, "no numbers"


def test_lines_of_simulated_brokers_are_dashed_in_the_colour_of_the_real_ones() -> None:
    simulated = {"key": "simulated", "values": [False, True], "numbers": []}
    points = {
        f"{rate}-{protocol}-{again}": {
            **point(rate, protocol, 1.0, 2.0),
            "keys": {"publishers.rate": rate, "protocol": protocol, "simulated": again},
        }
        for rate in ("25/s", "400/s")
        for protocol in ("one", "another")
        for again in (False, True)
    }
    drawing = draw(MANIFEST, [RATE, PROTOCOL, simulated], points, {})
    lines = [line for line in drawing.figure.axes[0].lines if line.get_linestyle() != "None"]
    assert [(line.get_label(), line.get_linestyle()) for line in lines] == [
        ("protocol one", "-"),
        ("protocol one, simulated", "--"),
        ("protocol another", "-"),
        ("protocol another, simulated", "--"),
    ]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()


def test_a_sweep_with_one_number_draws_its_constant_values() -> None:
    """Simulated runs have no latency of a machine, and all publications may have been delivered."""
    share = {"delivered_fraction": spread_of([1.0, 1.0]).row()}
    points = {name: {**about, "numbers": share} for name, about in _points().items()}
    (panel,) = draw(MANIFEST, [RATE, PROTOCOL, CALM], points, {}).figure.axes
    assert panel.get_title() == "delivered_fraction"
    nothing = {name: {**about, "numbers": {}} for name, about in _points().items()}
    with pytest.raises(ResultsError, match="no run has a number to draw: latency_p50_ms"):
        draw(MANIFEST, [RATE, PROTOCOL, CALM], nothing, {})


def test_values_that_are_names_are_not_joined_and_many_of_them_stand_upright() -> None:
    names = [f"broker-{number}" for number in range(10)]
    brokers = {"key": "faults.kill.on", "values": names, "numbers": []}
    points = {
        name: {**point("25/s", "one", 1.0, 3.0), "keys": {"faults.kill.on": name}} for name in names
    }
    (panel,) = draw(MANIFEST, [brokers], points, {}).figure.axes
    assert {line.get_linestyle() for line in panel.lines} == {"None"}
    (bars,) = panel.collections
    assert [path.vertices.tolist() for path in bars.get_paths()] == [
        [[place, 1.0], [place, 3.0]] for place in range(10)
    ]
    assert {label.get_rotation() for label in panel.get_xticklabels()} == {90.0}
    upright = draw(MANIFEST, [RATE, PROTOCOL, CALM], _points(), {}).figure.axes[0]
    assert {label.get_rotation() for label in upright.get_xticklabels()} == {0.0}


SHARE = {"key": "faults.slow.share", "values": [1, 3, 10, 30], "numbers": [1.0, 3.0, 10.0, 30.0]}


@pytest.mark.parametrize(
    "bound, found",
    [
        (500.0, [(1.0, sqrt(30))]),
        (100.0, [(1.0, sqrt(300))]),
        (5_000.0, []),
        (10.0, [(1.0, 30.0)]),
    ],
)
def test_the_danger_zone_is_where_a_bound_is_passed(bound, found) -> None:
    """The zone extends half way to the next value, on this logarithmic axis."""
    at = [
        (share, {"runs": {}, "numbers": {"latency_p99_ms": spread_of([ms]).row()}})
        for share, ms in ((1.0, 4_000.0), (3.0, 700.0), (10.0, 200.0), (30.0, 80.0))
    ]
    zones = zones_of(SHARE, [Line("", at)], {"latency_p99_ms": bound})
    assert zones == [pytest.approx(zone) for zone in found]


def test_a_broken_promise_and_a_missing_number_are_dangers_too() -> None:
    kept = {"runs": {"a": "VALID"}, "numbers": {"latency_p99_ms": spread_of([1.0]).row()}}
    bounds = {"latency_p99_ms": 2.0, "delivered_per_s": 10.0}
    assert [*beyond(kept, {"latency_p99_ms": 2.0})] == []
    assert [*beyond(kept, bounds)] == ["no delivered_per_s"]
    assert [*beyond({**kept, "runs": {"a": "INVALID"}}, {})] == ["1 of 1 INVALID"]
    slow = {"runs": {}, "numbers": {"delivered_per_s": spread_of([9.0]).row()}}
    assert [*beyond(slow, bounds)] == ["no latency_p99_ms", "delivered_per_s 9, bound 10"]


def test_bounds_and_danger_zone_are_drawn_and_named() -> None:
    drawing = drawn(latency_p50_ms=3.5)
    (panel, *_) = drawing.figure.axes
    (dashed,) = [line for line in panel.lines if line.get_linestyle() == "--"]
    assert [*dashed.get_ydata()] == [3.5, 3.5]
    (zone,) = [patch for patch in panel.patches if patch.get_alpha() == 0.1]
    assert (zone.get_x(), zone.get_width()) == (pytest.approx(100.0), pytest.approx(300.0))
    assert "danger zone: latency_p50_ms passes 3.5 or a promise is broken" in drawing.caption


@pytest.mark.parametrize("bounds", [{"latency_p98_ms": 5.0}, {"latency_p99_ms": -1.0}])
def test_a_bound_on_nothing_and_one_below_zero_are_refused(bounds) -> None:
    with pytest.raises(ResultsError, match="latency_p9"):
        check_bounds(bounds)


def test_lines_bands_and_crosses_are_the_values() -> None:
    (panel, *_) = drawn().figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert lines["protocol one"] == [1.5, 4.0]
    crosses = [line for line in panel.lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses] == [[], [8.0]]
    bands = [
        {tuple(map(float, corner)) for path in band.get_paths() for corner in path.vertices}
        for band in panel.collections
    ]
    assert bands[0] >= {(25.0, 1.0), (25.0, 2.0), (400.0, 3.0), (400.0, 5.0)}


def test_the_values_stand_beside_the_picture() -> None:
    drawing = drawn()
    assert drawing.columns[:3] == ("point", "publishers.rate", "protocol")
    assert drawing.rows[1][:6] == ("a", "25/s", "one", True, "latency_p50_ms", 1.5)
    assert len(drawing.rows) == 5, "those beside the axes, too"
    assert "8 VALID, 2 INVALID" in drawing.caption
    assert "the smallest and the largest" in drawing.caption
    assert "the 95 % interval" in drawn(5).caption


def test_a_folder_without_a_usable_sweep_is_refused(tmp_path: Path) -> None:
    def folder(manifest: dict[str, Any]) -> Path:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        (tmp_path / "series.json").write_text(json.dumps({"axes": [], "points": _points()}))
        return tmp_path

    with pytest.raises(ResultsError, match="is no series of runs"):
        series_sweep(None, folder({"kind": "run"}))
    with pytest.raises(ResultsError, match="the series is running"):
        series_sweep(None, folder({"kind": "series", "state": "running"}))
    with pytest.raises(ResultsError, match="nothing was varied"):
        series_sweep(None, folder({"kind": "series", "state": "complete"}))


def test_a_text_between_dollar_signs_is_no_formula() -> None:
    """The figure failed for one filter, and showed another without its dollar signs."""
    from matplotlib.cbook import is_math_text

    for text in ("a = '$x^^y$'", "a = '$A' or a = '$B'", "a > 1"):
        assert not is_math_text(literal(text))
        assert literal(text).replace(r"\$", "$") == text


def test_a_point_with_dollar_signs_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over filters ended the figure of its series."""
    name = "filter=a = '$x^^y$'"
    for part in ("_draw_point", "_caption", "_describe"):
        monkeypatch.setattr(series, part, lambda *_: "")
    run = SimpleNamespace(topology={"brokers": ["b"]}, run_id="r")
    found = SimpleNamespace(name=name, modal=SimpleNamespace(run=run), runs=[run])
    all_of: Any = SimpleNamespace(points=[found], run_ids=["r"])
    drawing = series.draw(all_of, [series.Timeline({0: 1.0}, {0: 2.0}, {})], [{}])
    assert drawing.figure.axes[0].get_title(loc="left") == literal(name)
