"""Tests of the figure of a rate search, from a made-up search."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.figures.knee import draw, search_knee
from results.tables.json_files import ResultsError

MANIFEST = {"experiment": "story-max", "cpu": "a processor", "cores": 2}


def tried(rate: float, p50_ms: float, p99_ms: float, why_not: str = "") -> dict[str, Any]:
    return {
        "rate": rate, "stage": "bracket", "run_id": f"r{rate}", "why_not": why_not,
        "p50_us": 1000 * p50_ms, "p99_us": 1000 * p99_ms, "delivered_per_s": rate,
    }  # fmt: skip


FOUND = {
    "publishers": 2, "highest_passed": 200.0, "lowest_failed": 400.0, "p99_ns": 50_000_000,
    "first_limit": "broker b1: 97% of a core",
    "tried": [tried(400, 80, 900, "p99 900.0 ms"), tried(100, 1, 2), tried(200, 3, 9)],
}  # fmt: skip


def test_passed_and_failed_rates_have_separate_marks() -> None:
    drawing = draw(MANIFEST, FOUND)
    (axes,) = drawing.figure.axes
    marks = {
        (line.get_marker(), tuple(line.get_xdata()), tuple(line.get_ydata()))
        for line in axes.lines
        if line.get_linestyle() == "None"
    }
    assert ("o", (200.0, 400.0), (2.0, 9.0)) in marks
    assert ("x", (800.0,), (900.0,)) in marks
    assert [row[0] for row in drawing.rows] == [200, 400, 800], "of all publishers"
    highest = drawing.metrics["highest"]
    assert (highest.value, highest.high) == (400, 800)
    assert "limited by broker b1" in drawing.caption


def test_the_caption_states_that_no_rate_failed() -> None:
    found = {**FOUND, "lowest_failed": None, "first_limit": "", "tried": [tried(200, 3, 9)]}
    drawing = draw(MANIFEST, found)
    assert "none failed" in drawing.caption
    assert drawing.metrics["highest"].high == 400


@pytest.mark.parametrize(
    "manifest, found, words",
    [
        ({"kind": "run"}, FOUND, "is no search"),
        ({"kind": "search", "state": "running"}, FOUND, "the search is running"),
        (
            {"kind": "search", "state": "complete"},
            {**FOUND, "highest_passed": None},
            "no rate passed",
        ),
    ],
)
def test_an_unusable_search_is_refused(
    tmp_path: Path, manifest: dict[str, Any], found: dict[str, Any], words: str
) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "search.json").write_text(json.dumps(found))
    with pytest.raises(ResultsError, match=words):
        search_knee(None, tmp_path)
