"""Tests of ds03.jms: the commits of subscribers as picture, words and numbers."""

from types import SimpleNamespace

import pytest

from pubsubctl.runs.claims import load_claims
from results.papers.ds03.consumer_figures import consumed, draw_jms
from tests.pubsubctl.test_claims import OURS


def row(subscribers: int, lanes: int, batch: int, per_s: int, shared: int) -> SimpleNamespace:
    return SimpleNamespace(
        subscribers=subscribers, lanes=lanes, batch=batch, run=0, consumed=10 * per_s, wall_s=10.0,
        commits=10 * per_s, transactions=10 * per_s // shared,
    )  # fmt: skip


def test_rates_are_of_all_subscribers_and_compared_with_the_papers() -> None:
    rows = [
        row(25, 1, 0, 400, 5), row(25, 4, 0, 500, 4), row(25, 1, 1, 100, 1),
        row(200, 1, 0, 900, 30), row(200, 4, 0, 1_000, 20), row(200, 1, 1, 100, 1),
    ]  # fmt: skip
    run = SimpleNamespace(
        run_id="r",
        manifest={"scale": {"subscribers": 200, "subscribers_least": 25}},
        experiment={
            "deliveries": 10_000, "event_bytes": 250, "seconds": 10, "processes": 2,
            "repetitions": 1,
        },
    )  # fmt: skip
    drawing = draw_jms(run, consumed(rows))
    found = {name: metric.value for name, metric in drawing.metrics.items()}
    assert found["events_per_s.200"] == 1_000
    assert found["commits_per_transaction.200"] == 20
    assert found["growth"] == 2
    assert found["times_without_batches.200"] == 9
    assert found["times_one_lane.25"] == pytest.approx(1.25)
    assert "7,600 events/s" in drawing.caption
    for claim in load_claims(OURS / "ds03.toml"):
        if claim.figure == "ds03.jms":
            assert claim.metric in drawing.metrics, claim.name
            assert claim.scale.items() <= drawing.scale.items()
