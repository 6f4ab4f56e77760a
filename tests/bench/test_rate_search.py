"""Tests of the search for the highest rate, with a number in place of brokers."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.rate_search import SHARES, Bounds, Probe, RateSearch

BOUNDS = Bounds(start=100, limit=100_000)


def searched(
    capacity: float | Callable[[float], bool], bounds: Bounds = BOUNDS
) -> tuple[RateSearch, list[Probe]]:
    """Return a search on brokers that sustain `capacity` and no more, and its probes."""
    search: RateSearch = RateSearch(bounds)
    tried: list[Probe] = []
    passes = capacity if callable(capacity) else (lambda rate: rate <= capacity)
    while (probe := search.next()) is not None:
        assert len(tried) < 100, tried
        tried.append(probe)
        search.note(probe, has_passed=passes(probe.rate))
    return search, tried


def test_rates_double_then_halve_the_gap_then_confirm_then_show_the_knee() -> None:
    search, tried = searched(777)
    stages = [probe.stage for probe in tried if probe.stage != "repeat"]
    doubled = [probe.rate for probe in tried if probe.stage == "bracket"]
    assert doubled == [100, 200, 400, 800, 1600], "twice the rate that failed is tried, too"
    assert stages == sorted(stages, key=("bracket", "bisect", "confirm", "knee").index)
    assert search.highest is not None
    assert search.lowest_failed is not None
    assert search.highest <= 777 < search.lowest_failed <= 1.05 * search.highest
    assert search.votes[search.highest].passed == 3
    assert search.votes[search.lowest_failed].failed == 3
    assert search.failed_below == ()
    assert [probe.rate / search.highest for probe in tried if probe.stage == "knee"] == [
        pytest.approx(share, rel=0.01) for share in SHARES
    ]


def test_no_rate_above_the_limit_is_tried() -> None:
    search, tried = searched(777, Bounds(start=100, limit=400))
    assert search.highest == 400
    assert search.lowest_failed is None
    assert max(probe.rate for probe in tried) == 400
    assert sum(probe.stage == "knee" for probe in tried) == len(SHARES) - 1


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
    assert search.highest is None
    assert min(search.votes) == pytest.approx(100 / 64, rel=0.01)
    assert len(tried) == 16, "each of eight rates twice"


def test_a_rate_that_passes_once_and_then_fails_has_failed() -> None:
    """800 passes, then fails its confirmation: the result is a lower rate that passed."""
    search = RateSearch(Bounds(start=400, limit=800, confirmations=2))
    answers = iter([True, True, False])
    tried = []
    while (probe := search.next()) is not None and probe.stage != "knee":
        tried.append(probe)
        search.note(probe, has_passed=next(answers, probe.rate <= 700))
    assert [probe.rate for probe in tried[:4]] == [400, 800, 800, 800]
    assert search.lowest_failed is not None
    assert search.highest is not None
    assert search.highest <= 700 < search.lowest_failed
    assert search.votes[search.highest].passed == 2


def test_a_failed_probe_is_repeated() -> None:
    search = RateSearch(BOUNDS)
    search.note(Probe(100, "bracket"), has_passed=False)
    assert search.next() == Probe(100, "repeat")
    search.note(Probe(100, "repeat"), has_passed=True)
    assert search.next() == Probe(100, "repeat")
    search.note(Probe(100, "repeat"), has_passed=True)
    assert search.next() == Probe(200, "bracket")


def test_a_window_that_fails_is_reported_and_searched_beyond() -> None:
    search, _ = searched(lambda rate: rate <= 5000 and not 700 <= rate <= 900)
    assert search.highest == pytest.approx(5000, rel=0.05)
    assert search.failed_below == (800,)


LIMIT = 5000.0
"""The limit of the brokers of `test_four_hundred_searches_find_the_limit`, per second."""


@dataclass(frozen=True)
class Brokers:
    """Brokers with a blurred limit.

    Attributes:
        chance: the chance that a probe below the limit fails.
        spread: the variation of the limit between probes, as a share.
        drift: the change of the limit in the course of thirty probes, as a share.
        window: rates that fail although higher rates pass.
        bad: searches of 400 that may end below 0.9 of the limit or above 1.1.
    """

    chance: float = 0.0
    spread: float = 0.0
    drift: float = 0.0
    window: tuple[float, float] = (0, 0)
    bad: int = 0

    def sustains(self, rate: float, random: Random, probe: int) -> bool:
        limit = LIMIT * (1 + self.spread * random.uniform(-1, 1))
        limit *= 1 - self.drift * min(probe, 30) / 30
        if self.window[0] <= rate <= self.window[1]:
            return False
        return rate <= limit and random.random() >= self.chance

    def highest(self, seed: int) -> float:
        """Return the result of a search."""
        random, search, probes = Random(seed), RateSearch(BOUNDS), 0
        while (probe := search.next()) is not None and probe.stage != "knee":
            probes += 1
            assert probes < 200, search
            search.note(probe, has_passed=self.sustains(probe.rate, random, probes))
        return search.highest or 0.0


@pytest.mark.parametrize(
    "brokers",
    [
        Brokers(),
        Brokers(chance=0.01),
        Brokers(chance=0.02),
        Brokers(chance=0.05, bad=2),
        Brokers(chance=0.10, bad=8),
        Brokers(spread=0.02),
        Brokers(spread=0.10, bad=4),
        Brokers(spread=0.30, bad=120),
        Brokers(window=(700, 900)),
        Brokers(drift=0.10, bad=400),
    ],
    ids=repr,
)
def test_four_hundred_searches_find_the_limit(
    brokers: Brokers, record_property: Callable[[str, object], None]
) -> None:
    found = sorted(brokers.highest(seed) for seed in range(400))
    low, high = LIMIT * 0.9 * (1 - brokers.drift), LIMIT * 1.1
    bad = sum(not low <= rate <= high for rate in found)
    record_property("measured", f"{brokers}: {found[0]:.0f} to {found[-1]:.0f}, {bad} bad of 400")
    assert bad <= brokers.bad, found


def test_a_resumed_search_continues_with_the_same_probes() -> None:
    _, tried = searched(777)
    for kept in range(len(tried)):
        search = RateSearch(BOUNDS)
        for probe in tried[:kept]:
            assert search.next() == probe
            search.note(probe, has_passed=probe.rate <= 777)
        assert search.next() == tried[kept]
