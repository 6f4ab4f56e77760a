"""Tests of Figures 4 to 6 of [DS03]: numbers, picture, values, words and claims."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pubsubctl.runs.claims import load_claims
from results.papers.ds03.churn_figures import Advance, Return, draw_fig5, draw_fig6, rates
from results.papers.ds03.latency_figures import draw_latency
from results.papers.ds03.peak_figures import Load, draw_fig4
from tests.pubsubctl.test_claims import OURS

CHURN = {"disconnected": "5s", "every": "2min", "pattern": "independent"}
RETURNS = [
    Return("s1-sub-1", 5.0, 20.0, 125, 0.2),
    Return("s1-sub-2", 5.0, 40.0, 125, 0.1),
    Return("s1-sub-3", 5.0, 60.0, 125, 0.6),
]
QUIET = Load("r", 1, 40, False, 4000.0, 3990.0, 20.0, 30.0, 90.0)


def series(protocols=("durable",), **workload):
    def point(protocol, churn):
        run = SimpleNamespace(
            run_id="r",
            manifest={"cpu": "x", "cores": 2},
            topology={"brokers": ["c1", "c2", "c3", "c4", "c5"]},
            words=SimpleNamespace(title=protocol),
            subscribers=lambda: dict.fromkeys(range(40)),
            workload={
                "publishers": [{"count": 4, "rate": "25/s", "size": "250B"}],
                **({"churn": CHURN} if churn else {}),
            },
        )
        return SimpleNamespace(modal=SimpleNamespace(run=run), protocol=protocol, runs=(run,))

    points = tuple(point(protocol, churn) for protocol in protocols for churn in (True, False))
    return SimpleNamespace(points=points, run_ids=("r",))


def is_judged_by_claims(figure, drawing):
    claims = [each for each in load_claims(OURS / "ds03.toml") if each.figure == figure]
    assert claims
    for claim in claims:
        assert claim.metric in drawing.metrics, claim.name
        assert not claim.needs or drawing.metrics[claim.needs].value, claim.name
        assert claim.scale.items() <= drawing.scale.items()


def test_durations_of_returns_are_drawn_and_judged() -> None:
    drawing = draw_fig5(series(), {"durable": RETURNS})
    is_judged_by_claims("ds03.fig5", drawing)
    assert drawing.metrics["catchup_s.median.durable"].value == 0.2
    assert drawing.metrics["catchup_s.largest.durable"].value == 0.6
    assert len(drawing.rows) == 3
    assert "Their promises differ" not in drawing.caption


def test_the_caption_notes_that_two_protocols_promise_different_things() -> None:
    found = {"durable": RETURNS, "delta_tree": [replace(each, took_s=1.0) for each in RETURNS]}
    drawing = draw_fig5(series(("durable", "delta_tree")), found)
    assert "Their promises differ" in drawing.caption
    assert drawing.metrics["catchup_s.median.delta_tree"].value == 1


def test_the_advance_rates_of_streams_are_drawn_and_judged() -> None:
    """Delivered is steady but for one second; released is stalled and then jumps."""
    delivered = [(float(at), float(at)) for at in range(30)]
    delivered[15] = (15.0, 14.8)
    released = [(float(at), float(at - at % 6)) for at in range(30)]
    assert rates(delivered)[:2] == [(1.0, 1000.0), (2.0, 1000.0)]
    drawing = draw_fig6(series(), Advance({"0.0": delivered}, {"0.0": released}), RETURNS)
    is_judged_by_claims("ds03.fig6", drawing)
    assert drawing.metrics["delivered_ms_per_s.mean"].value == pytest.approx(1000)
    assert drawing.metrics["delivered_ms_per_s.least"].value == pytest.approx(800)
    assert drawing.metrics["released_deviation_per_delivered"].value > 20


def test_the_peak_is_of_the_largest_load_that_was_borne() -> None:
    four = replace(QUIET, brokers=4, subscribers=160, wanted_per_s=16000, delivered_per_s=15900)
    loads = [
        QUIET,
        replace(QUIET, subscribers=20, wanted_per_s=2000, delivered_per_s=2000),
        four,
        replace(QUIET, churn=True, delivered_per_s=3980),
        replace(four, churn=True, delivered_per_s=9000),  # too much
        replace(four, churn=True, subscribers=80, wanted_per_s=8000, delivered_per_s=7990),
    ]
    drawing = draw_fig4(series(), loads)
    is_judged_by_claims("ds03.fig4", drawing)
    assert drawing.metrics["growth.without_churn"].value == pytest.approx(15900 / 3990)
    assert drawing.metrics["peak_per_s.with_churn.4"].value == 7990
    assert drawing.metrics["with_churn_per_without"].value == pytest.approx(7990 / 15900)
    assert "If the larger load was too high" in drawing.caption
    assert (
        "No load was too high"
        in draw_fig4(series(), [*loads[:4], four, replace(four, churn=True)]).caption
    )


def test_the_share_of_logging_is_drawn_and_judged() -> None:
    logged = [0.5 + percent / 100 for percent in range(1, 100)]
    drawing = draw_latency(series(), logged, [2 * each for each in logged])
    assert drawing.metrics["logging_share"].value == 0.5
    assert drawing.metrics["end_to_end_ms.median"].value == pytest.approx(2.0)
    claims = [each for each in load_claims(OURS / "ds03.toml") if each.figure == "ds03.latency"]
    assert {claim.metric for claim in claims} <= drawing.metrics.keys()
    assert all(claim.scale.items() <= drawing.scale.items() for claim in claims)


def test_a_load_that_no_run_sustained_is_no_peak() -> None:
    lost = replace(QUIET, brokers=4, subscribers=160, wanted_per_s=16000, delivered_per_s=5000)
    churning = replace(QUIET, churn=True)
    four = replace(lost, churn=True, delivered_per_s=16000)
    drawing = draw_fig4(series(), [QUIET, churning, lost, four])
    borne = {name: each.value for name, each in drawing.metrics.items() if "borne" in name}
    assert borne == {
        "borne.growth.with_churn": True,
        "borne.growth.without_churn": False,
        "borne.with_churn_per_without": False,
    }
    assert "that is no peak" in drawing.caption
