"""The figure of a sweep, from summaries made up for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.figures.drawing import Drawing
from results.figures.sweep import draw, lines_of, series_sweep
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


POINTS = {
    "b": point("400/s", "one", 3.0, 5.0),
    "a": point("25/s", "one", 1.0, 2.0),
    "c": point("25/s", "another", 1.0, 1.5),
    "d": point("400/s", "another", 7.0, 9.0, verdict="INVALID"),
    "large": {**point("25/s", "one", 1.0, 2.0), "keys": {"publishers.size": "64KiB"}},
}


def drawn(instances: int = 2) -> Drawing:
    return draw({**MANIFEST, "instances": instances}, [RATE, PROTOCOL, CALM], POINTS)


def test_there_is_a_line_for_each_combination_of_the_other_keys_that_vary() -> None:
    lines = lines_of(RATE, [PROTOCOL, CALM], POINTS)
    assert [line.name for line in lines] == ["protocol one", "protocol another"]
    assert [[at for at, _ in line.at] for line in lines] == [[25.0, 400.0]] * 2, "rising"
    beside = lines_of(PROTOCOL, [RATE], POINTS)
    assert [[at for at, _ in line.at] for line in beside] == [[0.0, 1.0]] * 2, "no numbers"


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


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    def folder(manifest: dict[str, Any]) -> Path:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        (tmp_path / "series.json").write_text(json.dumps({"axes": [], "points": POINTS}))
        return tmp_path

    with pytest.raises(ResultsError, match="is no series of runs"):
        series_sweep(None, folder({"kind": "run"}))
    with pytest.raises(ResultsError, match="the series is running"):
        series_sweep(None, folder({"kind": "series", "state": "running"}))
    with pytest.raises(ResultsError, match="nothing was varied"):
        series_sweep(None, folder({"kind": "series", "state": "complete"}))
