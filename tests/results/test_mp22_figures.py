"""Tests of the figures on [MP22]: numbers, picture, values, words and claims."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.spec.experiment import load_deployed_experiment
from pubsubctl.runs.claims import load_claims
from results.papers.mp22.figures import SHOWN, Numbers, draw
from tests.pubsubctl.test_claims import OURS

CLAIMS = load_claims(OURS / "mp22.toml")


def series(points: int) -> Any:
    run = SimpleNamespace(manifest={"cpu": "x", "cores": 2})
    point = SimpleNamespace(modal=SimpleNamespace(run=run), runs=(run,))
    return SimpleNamespace(points=(point,) * points, run_ids=("r",))


def numbers(figure: str) -> list[Numbers]:
    """Return one run per point of an experiment; the first run loses twice as much as the next."""
    names = load_deployed_experiment(figure).workload
    return [
        Numbers(
            name.removeprefix("mp22-"), 4 if figure == "mp22.m1" else 3, 100.0 * (place + 1),
            200.0 * (place + 1), (2.0, 9.0), (1.0 + place, 3.0), 3.0 / (place + 1), place,
        )
        for place, name in enumerate(names)
    ]  # fmt: skip


@pytest.mark.parametrize("figure", SHOWN)
def test_a_figure_is_drawn_and_judged(figure: str) -> None:
    points = numbers(figure)
    drawing = draw(figure, series(len(points)), points)
    claims = [each for each in CLAIMS if each.figure == figure]
    assert claims
    for claim in claims:
        assert claim.metric in drawing.metrics, claim.name
        assert claim.scale.items() <= drawing.scale.items()
    assert [row[0] for row in drawing.rows] == [point.point for point in points]
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    assert "x, 2 cores" in drawing.caption


def test_bars_name_the_number_of_servers_and_have_readable_numbers() -> None:
    points = [
        replace(point, servers=servers, delivered_per_s=12_000.0)
        for point, servers in zip(numbers("mp22.m1"), (1, 2, 4), strict=True)
    ]
    axes = draw("mp22.m1", series(len(points)), points).figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1 server", "2 servers", "4 servers"]
    assert "10,000" in [label.get_text() for label in axes.get_yticklabels()]


def test_points_are_compared() -> None:
    points = numbers("mp22.m4")
    metrics = draw("mp22.m4", series(len(points)), points).metrics
    found = {name: metrics[name].value for name in metrics}
    assert found["growth"] == found["published_growth"] == 5
    assert found["acknowledged_ratio"] == 0.2
    assert found["lost_with_the_longer_period"] == pytest.approx(1.5)
    assert found["lost_percent.paper"] == 3
    assert found["twice.paper1"] == 1
