"""Tests of intended times: exact at fixed rates, and the right distribution otherwise."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.pacing import intended_offsets
from brokerd.units import SECOND_NS


def offsets(
    rate: Fraction, duration_ns: int, *, arrivals: str = "fixed", seed: int = 1, index: int = 0
) -> list[int]:
    chunks = intended_offsets(
        numerator=rate.numerator, denominator=rate.denominator, arrivals=arrivals,
        seed=seed, index=index, duration_ns=duration_ns,
    )  # fmt: skip
    return [offset for chunk in chunks for offset in chunk]


@given(
    rate=st.fractions(Fraction(1, 10), 5000, max_denominator=60),
    start_ns=st.integers(0, SECOND_NS),
    seed=st.integers(0, 1000),
)
def test_every_window_of_n_periods_holds_n_publications(
    rate: Fraction, start_ns: int, seed: int
) -> None:
    """The count in a measured window is rate x time, to within rounding to ns."""
    periods = 7
    window_ns = periods * SECOND_NS / rate
    times = offsets(rate, int(start_ns + window_ns) + 1, seed=seed)
    inside = [time for time in times if start_ns <= time < start_ns + window_ns]
    assert abs(len(inside) - periods) <= (0 if (SECOND_NS / rate).denominator == 1 else 1)


def test_the_rate_does_not_drift() -> None:
    """A third of a second is no whole number of nanoseconds; the 300,000th is still on time."""
    times = offsets(Fraction(3), 100_000 * SECOND_NS)
    assert len(times) == 300_000
    assert times[-1] - times[0] == 299_999 * SECOND_NS // 3
    assert {later - earlier for earlier, later in pairwise(times)} <= {333333333, 333333334}


def test_publishers_do_not_fire_at_once_and_replay_from_the_seed() -> None:
    starts = [offsets(Fraction(25), SECOND_NS, index=index)[0] for index in range(40)]
    assert len(set(starts)) == 40
    assert all(0 <= start < SECOND_NS // 25 for start in starts)
    assert starts == [offsets(Fraction(25), SECOND_NS, index=index)[0] for index in range(40)]
    assert starts[0] != offsets(Fraction(25), SECOND_NS, seed=2)[0]


def test_poisson_gaps_are_exponential() -> None:
    """Mean 1/rate, and a share e^-1 of the gaps is longer than the mean (seed 4, 100,000 gaps)."""
    times = offsets(Fraction(1000), 100 * SECOND_NS, arrivals="poisson", seed=4)
    assert len(times) == pytest.approx(100_000, rel=0.015)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0
    longer = sum(gap > 1_000_000 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(0.3679, abs=0.008)


def test_a_schedule_ends_with_its_duration() -> None:
    for arrivals in ("fixed", "poisson"):
        times = offsets(Fraction(999), SECOND_NS, arrivals=arrivals)
        assert times[0] >= 0
        assert times[-1] < SECOND_NS
        assert times == sorted(times)
    assert offsets(Fraction(1, 3600), SECOND_NS, seed=1) == []
