"""The record of recent requests compared with a plain table of ticks."""

from random import Random

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.state import Questions
from brokerd.simulator.named_bugs import bugs_of, plant

MUTANTS = bugs_of("durable")

WHILE_NS = 10


def questions() -> Questions:
    return Questions(StreamId(0, 0, 0), 0, (), DurableParameters(), has_subend=False)


def asked_anew_after_an_answer() -> list[tuple[int, int]]:
    """Return the ranges that are requested when the first request expires before the second."""
    stream = questions()
    assert stream.request([(1, 2), (3, 6)], 0, 10) == [(1, 2), (3, 6)]
    stream.on_answer(3, 6)
    assert stream.request([(3, 6)], 5, 15) == [(3, 6)]
    return stream.request([(3, 6)], 12, 22)


def test_a_repeated_request_counts_from_its_latest_time() -> None:
    assert asked_anew_after_an_answer() == []


def test_any_history_requests_exactly_the_gaps_of_a_plain_table() -> None:
    for seed in range(200):
        random, stream, until = Random(seed), questions(), dict[int, int]()
        now_ns = 0
        for _ in range(40):
            now_ns += random.randrange(4)
            start = random.randrange(1, 40)
            ticks = range(start, start + random.randrange(1, 10))
            if random.random() < 0.3:
                stream.on_answer(ticks.start, ticks.stop)
                for tick in ticks:
                    until.pop(tick, None)
                continue
            found = stream.request([(ticks.start, ticks.stop)], now_ns, now_ns + WHILE_NS)
            fresh = [tick for tick in ticks if until.get(tick, 0) <= now_ns]
            assert [tick for each in found for tick in range(*each)] == fresh, f"seed {seed}"
            until |= dict.fromkeys(fresh, now_ns + WHILE_NS)


def test_a_bug_that_forgets_it_is_seen() -> None:
    with plant([MUTANTS["repeated-request-expires-early"]]):
        assert asked_anew_after_an_answer() == [(3, 6)]
        with pytest.raises(AssertionError):
            test_any_history_requests_exactly_the_gaps_of_a_plain_table()
