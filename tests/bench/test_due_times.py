"""Property test: a publisher's schedule has the same times however its chunks are cut."""

from array import array
from random import Random
from typing import Any

import pytest

from bench.load.load_generator import _Schedule

T0_NS = 1_000


@pytest.mark.parametrize("seed", range(20))
def test_each_time_is_due_once_and_in_order_however_chunks_are_cut(seed: int) -> None:
    random = Random(seed)
    offsets = sorted(random.randrange(60) for _ in range(random.randrange(1, 30)))
    chunks, at = [], 0
    while at < len(offsets):
        size = random.randrange(1, 6)
        chunks.append(array("q", offsets[at : at + size]))
        at += size
    client: Any = None
    schedule = _Schedule(client, iter(chunks), T0_NS)
    found: list[int] = []
    for now_ns in range(T0_NS, T0_NS + 61):
        while not schedule.is_over and schedule.next_ns <= now_ns:
            assert schedule.next_ns == T0_NS + offsets[len(found)]
            due = schedule.take_due(now_ns)
            assert len(due) > 0
            found += due
        assert found == [T0_NS + each for each in offsets if T0_NS + each <= now_ns]
    assert schedule.is_over


def test_a_schedule_without_times_is_over() -> None:
    client: Any = None
    assert _Schedule(client, iter([]), T0_NS).is_over


def test_schedules_are_ordered_by_their_next_time() -> None:
    client: Any = None
    first, second = (_Schedule(client, iter([array("q", [at])]), T0_NS) for at in (3, 5))
    assert first < second
    assert not second < first
