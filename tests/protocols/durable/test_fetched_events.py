"""The cache of fetched events compared with a plain list of events."""

from random import Random

import pytest

from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.fetching import RUNS, FetchedEvents
from brokerd.protocols.gryphon.knowledge import IntervalSet
from brokerd.simulator.named_bugs import bugs_of, plant

MUTANTS = bugs_of("durable")

STREAMS = StreamId(0, 0, 0), StreamId(0, 1, 0)
LIMIT_BYTES = 400


def run_of(stream: StreamId, ticks: list[int]) -> PublicationRun:
    payload = b"".join(b"%10d" % tick for tick in ticks)
    return PublicationRun(stream, tuple(ticks), (b"",), bytes(len(ticks)), 10, (payload,))


def events_of(run: PublicationRun) -> list[tuple[StreamId, int, bytes]]:
    return [(run.source, tick, bytes(payload)) for tick, _, payload in run.publications()]


def test_fetched_events_match_a_plain_list_for_any_history() -> None:
    for seed in range(200):
        random, kept = Random(seed), FetchedEvents(LIMIT_BYTES)
        plain: list[PublicationRun] = []
        for _ in range(30):
            stream = random.choice(STREAMS)
            act = random.random()
            if act < 0.5:
                ticks = sorted(random.sample(range(1, 60), random.randrange(1, 12)))
                kept.add(run_of(stream, ticks))
                plain.append(run_of(stream, ticks))
                while sum(10 * len(run) for run in plain) > LIMIT_BYTES or len(plain) > RUNS:
                    del plain[0]
            elif act < 0.7:
                through = random.randrange(60)
                kept.drop_through(stream, through)
                plain = [run for run in plain if run.source != stream or run.last > through]
            else:
                low, length, gap = (random.randrange(1, 30) for _ in range(3))
                ranges = [(low, low + length), (low + length + gap, low + length + gap + 5)]
                asked = {tick for each in ranges for tick in range(*each)}
                there = {event for run in plain for event in events_of(run) if event[0] == stream}
                expected = sorted(event for event in there if event[1] in asked)
                left = IntervalSet(ranges)
                parts = kept.take(stream, left)
                found = sorted(event for part in parts for event in events_of(part))
                assert found == expected, f"seed {seed}"
                rest = {tick for each in left for tick in range(*each)}
                assert rest == asked - {event[1] for event in expected}, f"seed {seed}"
            assert kept.payload_bytes == sum(10 * len(run) for run in plain)


def test_small_runs_are_not_more_than_one_looks_at() -> None:
    kept = FetchedEvents(10**9)
    for tick in range(1, RUNS + 3):
        kept.add(run_of(STREAMS[0], [tick]))
    left = IntervalSet([(1, RUNS + 3)])
    assert len(kept.take(STREAMS[0], left)) == RUNS
    assert list(left) == [(1, 3)]


def test_events_of_another_stream_are_seen() -> None:
    with plant([MUTANTS["fetched-from-another-stream"]]), pytest.raises(AssertionError):
        test_fetched_events_match_a_plain_list_for_any_history()
