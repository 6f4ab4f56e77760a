"""Tests of pacing: instants are kept, and durations are counted to within a sixteenth."""

import re
import time
from itertools import product
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bench.load.pacing import Alarm, Histogram, Turn, _bucket, _upper_bound, offsets_of
from bench.spec.values import read_rate
from brokerd.units import SECOND_NS
from results.figures.timeline import total_rates
from results.reference.times import due_times, parts_of
from results.rules.timing import publisher_entries, segments_of, shaped_schedule


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
    assert (histogram.total, histogram.sum_ns) == (5000, sum(values))
    for times in (0, 3):
        histogram.add(-7, times)
        histogram.add(10**6, times)
    assert (histogram.total, histogram.sum_ns) == (5006, sum(values) + 3 * 10**6)
    assert Histogram().quantile_ns(0.99) == 0


def test_an_exhausted_turn_stays_exhausted_until_its_renewal() -> None:
    turn = Turn(100)
    assert [turn.is_over(40) for _ in range(4)] == [False, False, True, True]
    turn.renew()
    assert not turn.is_over(99)
    assert turn.is_over(1)


SHAPE = [
    {"for": "400ms", "at": "50/s"},
    {"for": "2s", "at": "10/s", "to": "400/s"},
    {"for": "300ms", "at": "0/s"},
]


def test_load_generators_and_both_judges_compute_the_same_times_of_a_rate_shape() -> None:
    values: tuple[object, ...] = (SHAPE, SHAPE[:1], "70/s")
    for arrivals, value in product(("fixed", "poisson"), values):
        _compare_times(arrivals, value)


def _compare_times(arrivals: str, value: object) -> None:
    lead_ns, measure_ns, seed, index = 500_000_000, 6 * SECOND_NS, 11, 3
    rate = read_rate(value)
    assert rate.per_second is not None
    made = [
        at_ns
        for chunk in offsets_of(
            rate.per_second,
            rate.segments(lead_ns, measure_ns),
            arrivals=arrivals,
            seed=seed,
            index=index,
            duration_ns=lead_ns + measure_ns,
        )
        for at_ns in chunk
    ]
    entries = publisher_entries({"publishers": [{"at": "b1", "rate": value}]})
    shape, _ = entries["b1-pub-1"]
    assert shape is not None
    parts = segments_of(shape, lead_ns, lead_ns + measure_ns)
    judged = shaped_schedule(parts, arrivals, seed, index, len(made) + 1)
    assert judged.tolist() == made
    of_plain = parts_of(value, lead_ns, (lead_ns, lead_ns + measure_ns))
    assert [*due_times(of_plain or (), seed, index, arrivals)] == made
    assert made == sorted(made)
    if value == SHAPE:
        pause_ns = lead_ns + 2_400_000_000
        assert not [at for at in made if pause_ns <= at < pause_ns + 300_000_000]
        assert sum(lead_ns <= at < pause_ns for at in made) > 3 * sum(at < lead_ns for at in made)


@pytest.mark.parametrize(
    "value, said",
    [
        ([], "a shape has steps"),
        ([{"for": "1s"}], "step 0: "),
        ([{"for": "1s", "at": "max"}], '"max" is no rate of a step'),
        ([{"for": "1ms", "at": "5/s"}], "at least 100ms"),
        ([{"for": "1s", "at": "5/s", "to": "9/s"}], "at least 2s for a ramp"),
        ([{"for": "1s", "at": "0/s"}], "every step is a pause"),
    ],
)
def test_a_wrong_rate_shape_names_step_and_valid_values(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_rate(value)


def test_a_timeline_has_the_intended_rate_of_all_publishers_at_each_change() -> None:
    steps = [{"for": "1s", "at": "50/s"}, {"for": "500ms", "at": "0/s"}]
    workload = {"publishers": [{"at": ["b1", "b2"], "rate": steps}, {"at": "b3", "rate": "5/s"}]}
    found = total_rates(workload, -2 * SECOND_NS, 3 * SECOND_NS)
    assert found == [(-2.0, 105.0), (0.0, 105.0), (1.0, 5.0), (1.5, 105.0), (2.5, 5.0)]
    assert total_rates({"publishers": [{"at": "b3", "rate": "5/s"}]}, 0, SECOND_NS) == []


@pytest.mark.parametrize("first, second", [((1, 900), (7,)), ((7,), (1, 900)), ((), (7,))])
def test_joined_histograms_are_that_of_all_durations(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for histogram, durations in ((one, first), (other, second), (both, (*first, *second))):
        for duration_ns in durations:
            histogram.add(duration_ns)
    one.add_all(other)
    assert vars(one) == vars(both)
