"""A catch-up stream compared with a sorted list, with reordered, deferred and lost answers."""

from random import Random

import pytest

from brokerd.model.losses import stream_marker
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.catchup import (
    NOTHING_LOST,
    Batch,
    BatchReader,
    Catchup,
    LostPart,
    LostRange,
)
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from tests.helpers.stream_runs import run_at


def next_of(wanted: list[int], catchup: Catchup, most: int, end: int) -> Batch:
    """Return the batch after the last delivered tick, with at most `most` ticks."""
    ticks = [tick for tick in wanted if tick > catchup.given][:most]
    upto = ticks[-1] if len(ticks) == most else end
    return Batch(catchup.given, catchup.given, tuple(ticks), upto)


def pieces(random: Random, needed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Split the ranges of a request into the ranges of its answers, in random order."""
    found = []
    for start, end in needed:
        while start < end:
            cut = random.randint(start + 1, end)
            found.append((start, cut))
            start = cut
    random.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_each_event_is_given_once_and_in_order_whatever_is_deferred(seed: int) -> None:
    """Answers may overlap, and a deferred range may have been answered before."""
    random = Random(seed)
    end = random.randrange(5, 60)
    wanted = sorted(random.sample(range(1, end + 1), random.randrange(1, min(end, 25))))
    catchup = Catchup(BatchReader(FilterLog("log"), 1, 100), 0, 0, 0)
    given: list[int] = []
    rounds = 0
    while catchup.given < end:
        rounds += 1
        assert rounds < 500, "it does not get on"
        needed = catchup.next_batch(next_of(wanted, catchup, random.randrange(1, 9), end))
        may_defer = random.random() < 0.6
        for start, stop in pieces(random, needed):
            if may_defer and random.random() < 0.3 and (start, stop) != needed[0]:
                catchup.defer([(start, stop)])
                continue
            answer = run_at([tick for tick in wanted if start <= tick < stop])
            catchup.take(NOTHING_LOST, [(start, stop)], answer)
            if random.random() < 0.2:
                catchup.take(NOTHING_LOST, [(start, stop)], answer)
        if catchup.open:  # the first part was split, and a piece deferred others
            (low, _), *_ = catchup.open
            catchup.take(
                NOTHING_LOST,
                [*catchup.open],
                run_at([tick for tick in wanted if low <= tick <= catchup.upto]),
            )
        for item in catchup.finish():
            assert isinstance(item, PublicationRun)
            given += item.sequences
        assert given == [tick for tick in wanted if tick <= catchup.given]
    assert given == wanted
    assert catchup.rest() == []


@pytest.mark.parametrize("seed", range(200))
def test_each_tick_is_delivered_or_announced_as_lost_and_never_both(seed: int) -> None:
    """The pubend loses a growing prefix while the stream catches up."""
    random = Random(seed)
    end = random.randrange(10, 60)
    wanted = sorted(random.sample(range(1, end + 1), random.randrange(2, min(end, 25))))
    catchup = Catchup(BatchReader(FilterLog("log"), 1, 100), 0, 0, 0)
    through = 0
    given: list[int] = []
    lost: list[tuple[int, int]] = []
    while catchup.given < end:
        if random.random() < 0.5:
            through = min(end, max(through, catchup.given + random.randrange(12)))
        source = run_at([1]).origins[0].source
        what = LostPart(through, ((source, 10**6),)) if through else NOTHING_LOST
        needed = catchup.next_batch(next_of(wanted, catchup, random.randrange(1, 9), end))
        for start, stop in pieces(random, needed):
            ticks = [tick for tick in wanted if start <= tick < stop]
            gone = sum(tick <= through for tick in ticks)
            had = ticks[random.randint(0, gone) if random.random() < 0.3 else gone :]
            catchup.take(what, [(start, stop)], run_at(had) if had else None)
        for item in catchup.finish():
            if isinstance(item, LostRange):
                lost.append((item.first, item.last))
            else:
                given += item.sequences
        assert given == sorted({*given}), "in order, and none twice"
    lost += [(item.first, item.last) for item in catchup.rest()]
    assert lost == sorted(lost)
    assert all(any(low <= tick <= high for low, high in lost) for tick in {*wanted} - {*given})


def test_ticks_below_a_loss_marker_are_lost_before_an_event_that_survived() -> None:
    """The pubend has lost both events; another broker still has the later event."""
    marker = stream_marker(0, 1_000_000, 0, 4).source
    catchup = Catchup(BatchReader(FilterLog("log"), 1, 100), 0, 0, 0)
    lost = LostPart(90, ((marker, 1),))
    assert catchup.next_batch(Batch(0, 0, (10, 20), 20)) == [(10, 11), (20, 21)]
    catchup.take(NOTHING_LOST, [(20, 21)], run_at([20]))
    catchup.take(lost, [(10, 11)], None)
    gap, survivor = catchup.finish()
    assert gap == LostRange(10, 10, ((marker, 1),))
    assert isinstance(survivor, PublicationRun)
    assert [*survivor.sequences] == [20]
    assert catchup.next_batch(Batch(20, 20, (30,), 30)) == [(30, 31)], "it may be in the log"


def begun(after: int = 0) -> Catchup:
    return Catchup(BatchReader(FilterLog("log"), 1, 100), after, after, after)


def test_a_batch_requests_its_own_ticks_that_are_not_lost() -> None:
    assert begun(5).next_batch(Batch(5, 9, (12,), 12)) == [(6, 10), (12, 13)]
    catchup = begun(5)
    catchup.lost = LostPart(15, ((run_at([2]).origins[0].source, 3),))
    assert catchup.next_batch(Batch(5, 5, (7, 20), 20)) == [(20, 21)]


def test_a_lost_range_ends_before_the_next_event_and_is_joined_across_batches() -> None:
    """Even ticks are of one source, with numbers one higher."""
    source = run_at([2]).origins[0].source
    lost, catchup = LostPart(30, ((source, 100),)), begun()
    needed = catchup.next_batch(Batch(0, 0, (10, 12, 14, 16), 16))
    for (tick, end), is_lost in zip(needed, (False, True, False, True), strict=True):
        run = None if is_lost else run_at([tick])
        catchup.take(lost if is_lost else NOTHING_LOST, [(tick, end)], run)
    first, gap, second = catchup.finish()
    assert gap == LostRange(12, 12, ((source, 14),))
    assert all(isinstance(each, PublicationRun) for each in (first, second))
    assert catchup.next_batch(Batch(16, 16, (20, 40), 40)) == [(40, 41)]
    catchup.take(NOTHING_LOST, [(40, 41)], run_at([40]))
    gap, _ = catchup.finish()
    assert gap == LostRange(16, 20, ((source, 40),))


def test_a_lost_range_is_reported_with_the_batch_behind_the_loss() -> None:
    source = run_at([2]).origins[0].source
    catchup = begun()
    catchup.next_batch(Batch(0, 0, (10,), 30))
    catchup.take(LostPart(30, ((source, 100),)), [(10, 11)], None)
    assert [*catchup.finish()] == [LostRange(10, 10, ((source, 100),))]
    assert catchup.rest() == []
