"""Tests of moves of a plan: each class reads its own text, and permits the removal of a broker."""

import pytest

from brokerd.simulator.search.move import Move, PlanError, PlanScope
from brokerd.simulator.search.moves import MOVES

LINES = {
    "publish": 's1-b2 a,10,3 true,40,0 "1",40,0',
    "subscribe": "s1-b2 kind = 'a'  and price < 30",
    "unsubscribe": "s1-b2 1",
    "detach": "s1-b2",
    "forget": "s1-b2 99",
    "reattach": "s1-b2 b3",
    "move": "s1-b2 b3",
    "join": "n1 b2 b3",
    "depart": "b2",
    "role": "b2 publisher",
    "retain": "b2 1 age=2s",
    "fault": "cut b2 b3 then 0.5 0.75",
    "take": "b2>b3",
}
AT_THE_NEIGHBOUR = {
    "publish": 's1-b1 a,10,3 true,40,0 "1",40,0',
    "subscribe": "s1-b1 kind = 'a'  and price < 30",
    "unsubscribe": "s1-b1 1",
    "detach": "s1-b1",
    "forget": "s1-b1 99",
    "reattach": "s1-b1 b3",
    "move": "s1-b1 b3",
    "join": "n1 b1 b3",
    "depart": None,
    "role": None,
    "retain": None,
    "fault": "cut b1 b3 then 0.5 0.75",
    "take": None,
}


def _scope(verb: str) -> PlanScope:
    protocol = "ges_reliable" if verb in ("reattach", "role") else "delta_tree"
    protocol = "durable" if verb == "retain" else protocol
    return PlanScope(protocol, False, ["b1", "b2", "b3"], [])


def _read(verb: str) -> tuple[Move, PlanScope]:
    scope = _scope(verb)
    return MOVES[verb].read(7, LINES[verb], scope), scope


def test_every_verb_has_a_line() -> None:
    assert list(MOVES) == list(LINES) == list(AT_THE_NEIGHBOUR)


@pytest.mark.parametrize("verb", MOVES)
def test_a_move_is_written_as_it_was_read(verb: str) -> None:
    move, scope = _read(verb)
    assert (move.when, move.verb, move.write(scope)) == (7, verb, LINES[verb])


@pytest.mark.parametrize("verb", MOVES)
def test_a_line_without_arguments_is_refused(verb: str) -> None:
    with pytest.raises((PlanError, ValueError, IndexError)):
        MOVES[verb].read(7, "", _scope(verb))


@pytest.mark.parametrize("verb", MOVES)
def test_without_a_broker_its_moves_are_left_out_or_happen_at_the_neighbour(verb: str) -> None:
    move, scope = _read(verb)
    assert move.without_broker("b2", "") is None
    moved = move.without_broker("b2", "b1")
    assert (moved and moved.write(scope)) == AT_THE_NEIGHBOUR[verb]


@pytest.mark.parametrize("verb", [verb for verb in MOVES if verb != "take"])
def test_without_another_broker_a_move_stays_as_it_is(verb: str) -> None:
    move, _ = _read(verb)
    assert move.without_broker("b1", "b2") == move
