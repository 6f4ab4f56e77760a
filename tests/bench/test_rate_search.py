"""How the highest rate is searched for, with brokers that are a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.rate_search import SHARES, Bounds, Probe, RateSearch

BOUNDS = Bounds(start=100, limit=100_000)


def searched(capacity: float, bounds: Bounds = BOUNDS) -> tuple[RateSearch, list[Probe]]:
    """A search on brokers that bear `capacity` and no more, and what was tried."""
    search, tried = RateSearch(bounds), []
    while (probe := search.next()) is not None:
        assert len(tried) < 100, tried
        tried.append(probe)
        search.note(probe, has_passed=probe.rate <= capacity)
    return search, tried


def test_rates_double_then_halve_the_gap_then_confirm_then_show_the_knee() -> None:
    search, tried = searched(777)
    stages = [probe.stage for probe in tried]
    assert [probe.rate for probe in tried if probe.stage == "bracket"] == [100, 200, 400, 800]
    assert stages == sorted(stages, key=("bracket", "bisect", "confirm", "knee").index)
    assert search.highest is not None
    assert search.highest <= 777 < search.lowest_failed <= 1.05 * search.highest
    assert stages.count("confirm") == 2, "it had passed once"
    assert [probe.rate / search.highest for probe in tried if probe.stage == "knee"] == [
        pytest.approx(share, rel=0.01) for share in SHARES
    ]


@given(st.floats(2, 90_000))
def test_whatever_is_borne_is_found(capacity: float) -> None:
    search, _ = searched(capacity)
    assert search.highest is not None
    assert search.lowest_failed is not None
    assert search.highest <= capacity < search.lowest_failed
    assert search.lowest_failed <= search.highest * 1.05 or search.highest < 3


def test_brokers_that_bear_whatever_may_be_tried_have_no_rate_that_failed() -> None:
    search, tried = searched(1e9, Bounds(start=100, limit=500))
    assert (search.highest, search.lowest_failed) == (500, None)
    assert [probe.rate for probe in tried if probe.stage == "bracket"] == [100, 200, 400, 500]


def test_brokers_that_bear_nothing_have_none_that_passed() -> None:
    search, tried = searched(0.1)
    assert (search.highest, search.passed) == (None, {})
    assert len(tried) == 7


def test_what_passes_once_and_not_again_has_failed() -> None:
    """800 passes, then fails when it is confirmed: the highest is one that passed below it."""
    search = RateSearch(Bounds(start=400, limit=800, confirmations=2))
    answers = iter([True, True, False])
    tried = []
    while (probe := search.next()) is not None and probe.stage != "knee":
        tried.append(probe)
        search.note(probe, has_passed=next(answers, probe.rate <= 700))
    assert [probe.rate for probe in tried[:3]] == [400, 800, 800]
    assert search.lowest_failed is not None
    assert search.highest is not None
    assert search.highest <= 700 < search.lowest_failed
    assert search.passed[search.highest] == 2


def test_who_goes_on_asks_what_the_first_one_would_have() -> None:
    _, tried = searched(777)
    for kept in range(len(tried)):
        search = RateSearch(BOUNDS)
        for probe in tried[:kept]:
            assert search.next() == probe
            search.note(probe, has_passed=probe.rate <= 777)
        assert search.next() == tried[kept]
