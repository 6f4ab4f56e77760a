"""Instants are kept, and durations counted to within a sixteenth."""

import time
from random import Random

import trio
from hypothesis import given
from hypothesis import strategies as st

from bench.load.pacing import Alarm, Histogram, Turn, _bucket, _upper_bound


def test_an_alarm_never_rings_early() -> None:
    async def ring() -> list[int]:
        alarm = Alarm()
        left = []
        for wait_ns in (0, 10_000, 300_000, 1_700_000, -5):
            at_ns = time.monotonic_ns() + wait_ns
            await alarm.sleep_until(at_ns)
            left.append(at_ns - time.monotonic_ns())
        alarm.close()
        return left

    assert max(trio.run(ring)) <= 0


def test_an_alarm_can_be_cancelled_and_set_again() -> None:
    async def ring() -> bool:
        alarm = Alarm()
        with trio.move_on_after(0.001):
            await alarm.sleep_until(time.monotonic_ns() + 3600 * 10**9)
        at_ns = time.monotonic_ns() + 1_000_000
        await alarm.sleep_until(at_ns)
        alarm.close()
        return time.monotonic_ns() >= at_ns

    assert trio.run(ring)


@given(st.integers(0, 10**13))
def test_a_duration_lies_in_its_bucket_and_the_bucket_is_narrow(duration_ns: int) -> None:
    bucket = _bucket(duration_ns)
    low = _upper_bound(bucket - 1) + 1 if bucket else 0
    assert low <= duration_ns <= _upper_bound(bucket)
    assert _upper_bound(bucket) - low <= duration_ns / 16


def test_quantiles_are_those_of_the_sorted_list_to_within_a_sixteenth() -> None:
    random = Random(8)
    values = [int(random.expovariate(1 / 3e6)) for _ in range(5000)]
    histogram, other = Histogram(), Histogram()
    for place, value in enumerate(values):
        (histogram if place % 3 else other).add(value)
    histogram.add_all(other)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = sorted(values)[max(0, round(share * 5000) - 1)]
        assert exact <= histogram.quantile_ns(share) <= exact * 17 / 16 + 1
    assert histogram.quantile_ns(1.0) == max(values)
    assert Histogram().quantile_ns(0.99) == 0


def test_an_exhausted_turn_stays_exhausted_until_its_renewal() -> None:
    turn = Turn(100)
    assert [turn.is_over(40) for _ in range(4)] == [False, False, True, True]
    turn.renew()
    assert not turn.is_over(99)
    assert turn.is_over(1)
