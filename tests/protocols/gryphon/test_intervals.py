"""Ranges of ticks compared with a plain set of numbers."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.gryphon.knowledge import IntervalSet
from tests.helpers.tick_structures import compare_intervals, compare_knowledge, compare_streams

SIZE = 48
ranges = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: tuple(sorted(pair)))
changes = st.lists(st.tuples(st.sampled_from(("add", "remove")), ranges), max_size=40)


def runs_of(ticks):
    """Return the ranges of a plain set, found tick by tick."""
    found = []
    for tick in range(SIZE + 1):
        if tick in ticks and found and found[-1][1] == tick:
            found[-1] = (found[-1][0], tick + 1)
        elif tick in ticks:
            found.append((tick, tick + 1))
    return found


def check_equal(ours, ticks, start, end):
    assert list(ours) == runs_of(ticks)
    assert len(ours) == len(runs_of(ticks))
    assert ours.size() == len(ticks)
    assert bool(ours) == bool(ticks)
    inside = {tick for tick in ticks if start <= tick < end}
    assert ours.within(start, end) == runs_of(inside)
    assert ours.gaps(start, end) == runs_of(set(range(start, end)) - ticks)
    for tick in (start, end):
        assert (tick in ours) == (tick in ticks)
        expected = [run for run in runs_of(ticks) if run[0] <= tick < run[1]]
        assert ours.run(tick) == (expected[0] if expected else None)
    if ticks:
        assert ours.last == max(ticks)


@given(changes, ranges)
def test_a_set_of_ranges_is_the_set_of_their_ticks(steps, asked):
    ours, ticks = IntervalSet(), set()
    for what, (start, end) in steps:
        if what == "add":
            ours.add(start, end)
            ticks |= set(range(start, end))
        else:
            ours.remove(start, end)
            ticks -= set(range(start, end))
        check_equal(ours, ticks, *asked)


def test_a_long_history_of_one_set_stays_equal():
    random = Random(7)
    ours, ticks = IntervalSet(), set()
    for step in range(20_000):
        start, end = sorted((random.randrange(SIZE), random.randrange(SIZE)))
        if random.random() < 0.5:
            ours.add(start, end)
            ticks |= set(range(start, end))
        else:
            ours.remove(start, end)
            ticks -= set(range(start, end))
        assert list(ours) == runs_of(ticks), step


def test_adding_in_order_keeps_one_range():
    ours = IntervalSet()
    for tick in range(1_000):
        ours.add(tick, tick + 1)
    assert list(ours) == [(0, 1_000)]
    ours.clear()
    assert not ours


def test_a_range_that_ends_before_it_begins_is_a_mistake():
    with pytest.raises(AssertionError, match=r"\[3, 2\)"):
        IntervalSet().add(3, 2)


def test_random_operations_leave_structures_as_plain_ones_are():
    """This test runs a small part of `python -m tests.helpers.tick_structures`."""
    compare_intervals(3_000, seed=2)
    compare_knowledge(600, seed=2)
    compare_streams(3_000, seed=2)
