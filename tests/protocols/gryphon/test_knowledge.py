"""The knowledge of a stream compared with a plain list that has one value per tick."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.gryphon.knowledge import Knowledge, RetainedEvents
from tests.helpers.stream_runs import run_at

SIZE = 40
"""The range of received ticks is 1 to SIZE - 1, with a fixed set of events per history."""

truths = st.frozensets(st.integers(1, SIZE - 1))
told = st.tuples(st.integers(1, SIZE - 1), st.integers(1, SIZE)).filter(lambda r: r[0] < r[1])
steps = st.lists(
    st.one_of(st.tuples(st.just("tell"), told), st.tuples(st.just("finish"), st.integers(0, SIZE))),
    max_size=30,
)


def within(truth, start, end):
    ticks = sorted(tick for tick in truth if start <= tick < end)
    return run_at(ticks) if ticks else None


def events_of(knowledge):
    return [
        (tick, bytes(payload))
        for run in knowledge.events
        for tick, _, payload in run.publications()
    ]


@given(truths, steps)
def test_knowledge_matches_a_plain_list_of_ticks(truth, history):
    knowledge, values = Knowledge(), ["F"] + ["Q"] * SIZE
    for what, argument in history:
        if what == "tell":
            start, end = argument
            fresh = knowledge.accumulate(start, end, within(truth, start, end))
            assert {t for low, high in fresh for t in range(low, high)} == {
                tick for tick in range(start, end) if values[tick] == "Q"
            }
            for tick in range(start, end):
                if values[tick] == "Q":
                    values[tick] = "D" if tick in truth else "S"
            knowledge.condense(SIZE)
        else:
            grew = knowledge.finish(argument)
            assert grew == (values[argument] != "F")
            values[: argument + 1] = ["F"] * (argument + 1)
        expected = [(tick, tick.to_bytes(4)) for tick in range(SIZE) if values[tick] == "D"]
        assert events_of(knowledge) == expected
        assert knowledge.events.events == len(expected)
        assert knowledge.events.payload_bytes == 4 * len(expected)
        assert [tick in knowledge.known for tick in range(SIZE)] == [
            value != "Q" for value in values[:SIZE]
        ]
        check_questions(knowledge, values)


def test_compacted_knowledge_matches_a_plain_list_of_ticks() -> None:
    with patch.multiple("brokerd.protocols.gryphon.knowledge", _SCATTERED=1, _RUN_EVENTS=3):
        test_knowledge_matches_a_plain_list_of_ticks()


def test_lone_events_that_stay_become_long_runs_of_one_piece() -> None:
    knowledge = Knowledge()
    for tick in range(1, 6_001):
        knowledge.accumulate(tick, tick + 1, run_at([tick]))
        knowledge.condense(9_000)
    runs = [*knowledge.events]
    assert len(runs) < 2_200
    assert max(len(run) for run in runs) == 64
    assert max(len(run.payload) for run in runs) == 1
    assert knowledge.finish(5_990)
    assert [run.first for run in knowledge.events] == [*range(5_991, 6_001)]


def test_events_before_a_gap_stay_as_they_are_while_it_may_be_filled() -> None:
    knowledge = Knowledge()
    for tick in range(3, 2_000, 2):
        knowledge.accumulate(tick, tick + 1, run_at([tick]))
        knowledge.condense(2_000)
    assert len([*knowledge.events]) == 999
    knowledge.accumulate(1, 2_000, run_at([*range(1, 2_000)]))
    assert events_of(knowledge) == [(tick, tick.to_bytes(4)) for tick in range(1, 2_000)]


def check_questions(knowledge, values):
    final = max(tick for tick, value in enumerate(values) if value == "F")
    assert knowledge.final == final
    assert knowledge.highest == max(t for t, value in enumerate(values) if value != "Q")
    for after in range(final, SIZE):
        unknown = [t for t in range(after + 1, SIZE + 1) if values[t] == "Q"]
        assert knowledge.horizon(after) == (unknown[0] - 1 if unknown else SIZE)
        before = [t for t in range(after) if values[t] == "D"]
        assert knowledge.events.before(after) == (before[-1] if before else None)
        part = knowledge.events.within(after, SIZE)
        events = [t for t in range(after, SIZE) if values[t] == "D"]
        assert ([*part.sequences] if part else []) == events
        assert knowledge.events.ticks(after, SIZE) == events


@given(truths.filter(bool), told, st.data())
def test_contradicting_knowledge_is_found_and_consistent_knowledge_is_accepted(truth, first, data):
    knowledge = Knowledge()
    knowledge.accumulate(*first, within(truth, *first))
    assert knowledge.contradiction(1, SIZE, within(truth, 1, SIZE)) is None
    tick = data.draw(st.integers(first[0], first[1] - 1))
    other = truth ^ {tick}
    assert knowledge.contradiction(1, SIZE, within(other, 1, SIZE)) == tick
    knowledge.finish(tick)
    assert knowledge.contradiction(1, SIZE, within(other, 1, SIZE)) is None


def test_silence_never_replaces_an_event_and_payloads_are_not_copied():
    knowledge, run = Knowledge(), run_at([3, 5, 6, 9])
    knowledge.accumulate(1, 10, run)
    knowledge.accumulate(1, 12, None)
    part = knowledge.events.within(3, 9)
    assert part is not None
    assert [*part.sequences] == [3, 5, 6]
    assert part.payload[0].obj is run.payload[0]


runs_of_lengths = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=6)


@given(runs_of_lengths, st.booleans(), st.integers(0, 60), st.integers(1, 8))
def test_the_newest_events_of_a_weight_are_found_as_in_a_plain_list(
    lengths, equal, kept_bytes, event_bytes
):
    events, weights, tick = RetainedEvents(), [], 1
    for each in lengths:
        sizes = [each[0]] * len(each) if equal else each
        ticks = [tick + 2 * place for place in range(len(sizes))]
        events.add(
            replace(
                run_at(ticks),
                payload_lengths=sizes[0] if equal else tuple(sizes),
                payload=(bytes(sum(sizes)),),
            )
        )
        weights += [(at, size + event_bytes) for at, size in zip(ticks, sizes, strict=True)]
        tick = ticks[-1] + 2
    kept = []
    for at, weight in reversed(weights):
        if sum(each for _, each in kept) >= kept_bytes:
            break
        kept.append((at, weight))
    through = events.before_newest(kept_bytes, event_bytes)
    assert {at for at, _ in weights if at > through} == {at for at, _ in kept}
