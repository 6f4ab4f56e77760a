"""The timing of requests for gaps: a table compared with a dictionary, and rules by hand."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.gryphon.knowledge import IntervalSet
from brokerd.protocols.gryphon.liveness import GapTable
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS

MUTANTS = bugs_of("gryphon")

MS = MILLISECOND_NS


@dataclass(frozen=True)
class Limits:
    """The paper's limits, with chunks of 100 ticks."""

    gap_curiosity_ns: int = 200 * MS
    nack_repetition_ns: int = 600 * MS
    nack_repetition_limit_ns: int = 30_000 * MS
    nack_chunk_ticks: int = 100
    nack_window: int = 64


def ticks_in(ranges):
    return {tick for start, end in ranges for tick in range(start, end)}


sets = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), max_size=5).map(
    lambda pairs: list(IntervalSet((start, start + length) for start, length in pairs))
)


@given(st.lists(st.tuples(sets, st.integers(1, 150)), max_size=12))
def test_each_unknown_tick_keeps_the_deadline_of_when_it_was_first_missing(history):
    table, due, now = GapTable(Limits()), {}, 0
    for unknown, pause_ms in history:
        now += pause_ms * MS
        missing = ticks_in(unknown)
        due = {tick: due.get(tick, now + 200 * MS) for tick in missing}
        table.update(unknown, now)
        ours = {t: piece.due_ns for piece in table.pieces for t in range(piece.start, piece.end)}
        assert ours == due
        assert table.earliest() == min(due.values(), default=None)
        asked = ticks_in(table.due(now))
        assert asked == {tick for tick in missing if due[tick] <= now}
        due |= dict.fromkeys(asked, now + 600 * MS)
        assert not asked & ticks_in(table.due(now)), "asked twice at one instant"
        # With slow answers the estimate may grow; no answer is sampled here.
        if any(piece.requests for piece in table.pieces):
            return


def test_a_gap_is_requested_after_its_delay_and_again_while_it_lasts():
    table = GapTable(Limits())
    table.update([(10, 20)], 0)
    assert table.due(199 * MS) == []
    assert table.due(200 * MS) == [(10, 20)]
    table.update([(12, 20)], 300 * MS)
    assert table.earliest() == 800 * MS
    assert table.due(800 * MS) == [(12, 20)]


def test_the_retry_delay_doubles_to_its_limit_and_resets_on_a_message():
    table = GapTable(Limits(nack_repetition_limit_ns=2_000 * MS))
    table.update([(10, 20)], 0)
    instants = []
    now = 200 * MS
    for _ in range(5):
        assert table.due(now) == [(10, 20)]
        instants.append(table.earliest() - now)
        now = table.earliest()
    assert [wait // MS for wait in instants] == [600, 1_200, 2_000, 2_000, 2_000]
    table.knowledge_ns = now
    table.due(now)
    assert table.earliest() - now == 600 * MS


def test_a_slow_answer_makes_the_next_one_be_waited_for_longer():
    table = GapTable(Limits())
    table.update([(10, 20)], 0)
    table.due(200 * MS)
    table.update([], 700 * MS)  # took 500 ms: 500 + 4 * 250 from now on
    table.update([(30, 40)], 1_000 * MS)
    table.due(1_200 * MS)
    assert table.earliest() == 2_700 * MS


def test_answers_to_repeated_requests_do_not_adjust_the_retry_delay():
    table = GapTable(Limits())
    table.update([(10, 20)], 0)
    table.due(200 * MS)
    table.due(800 * MS)
    table.update([], 1_900 * MS)
    table.update([(30, 40)], 2_000 * MS)
    table.due(2_200 * MS)
    assert table.earliest() == 2_800 * MS


def test_a_gap_is_requested_in_pieces_within_the_nack_window():
    table = GapTable(Limits(nack_window=3))
    table.update([(0, 250)], 0)
    assert table.due(200 * MS) == [(0, 100), (100, 200), (200, 250)]
    table.update([(0, 250), (400, 700)], 210 * MS)
    assert table.earliest() == 800 * MS, "nothing more may be asked for before"
    assert table.due(500 * MS) == []
    table.update([(100, 250), (400, 700)], 510 * MS)
    assert table.earliest() == 410 * MS
    assert table.due(510 * MS) == [(400, 500)]


def test_a_long_gap_is_requested_within_the_limit_of_pieces():
    table = GapTable(Limits())
    table.update([(0, 600_000), (700_000, 740_001)], 0)
    asked = table.due(200 * MS)
    assert len(asked) <= 65
    assert ticks_in(asked[:1]) == set(range(10_001))
    assert table.due(300 * MS) == []


def pieces_of_a_gap_that_grows() -> int:
    """Return the pieces of a five-minute gap that grows every second, as its pubend is down."""
    table = GapTable(Limits())
    for second in range(1, 301):
        now_ns = 1_000 * second * MS
        table.update([(0, 1_000 * second)], now_ns)
        table.hurry(1_000 * second, now_ns)
        table.due(now_ns)
    return len(table.pieces)


def test_a_growing_gap_waits_as_one_piece():
    assert pieces_of_a_gap_that_grows() <= 65
    with plant([MUTANTS["gaps-split-without-end"]]):
        assert pieces_of_a_gap_that_grows() > 200


def test_expected_ticks_are_requested_at_once_and_only_once():
    table = GapTable(Limits())
    table.update([(10, 20), (30, 40)], 0)
    table.hurry(14, 50 * MS)
    assert table.due(50 * MS) == [(10, 15)]
    table.hurry(19, 60 * MS)
    assert table.due(60 * MS) == [(15, 20)]
    assert table.due(200 * MS) == [(30, 40)]
