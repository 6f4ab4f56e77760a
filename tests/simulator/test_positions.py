"""Tests of positions in durable rows, which never decrease."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.interface import Change, Commit, DeadlineReached, Started
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.recounts import Position, PositionChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from tests.helpers.delta_tree_bugs import Mutant

BROKER: Any = SimpleNamespace(number=0, name="b1")


class Rows:
    """The commits of one broker, as the rule sees them."""

    def __init__(self, *positions: Position) -> None:
        self.checks = PositionChecks(positions)
        self.start({})

    def start(self, rows: dict[str, dict[str, Any]]) -> None:
        self.checks.step(BROKER, Started(1, False, rows), ())

    def commit(self, *values: Any, table: str = "released") -> None:
        for value in values:
            effect = Commit((Change(table, "0", value),), None)
            self.checks.step(BROKER, DeadlineReached(), (effect,))


def test_a_position_may_repeat_and_advance() -> None:
    rows = Rows(Position("released"))
    rows.commit(3, 3, 7)
    rows.start({"released": {"0": 5}})
    rows.commit(6)
    assert (rows.checks.advanced, rows.checks.advanced_again) == (2, 1)


@pytest.mark.parametrize(
    "positions, values, rule",
    [
        ((Position("released"),), (3, 2), "position back"),
        ((Position("released"),), (3, None), "position lost"),
        ((Position("released", lambda row: row[:2]),), ([1, 9, 0], [1, 8, 1]), "position back"),
        ((Position("released", ends=True),), (3, None, 2, 1), "position back"),
    ],
)
def test_a_position_that_decreases_is_found(
    positions: tuple[Position, ...], values: tuple[Any, ...], rule: str
) -> None:
    with pytest.raises(InvariantViolated) as found:
        Rows(*positions).commit(*values)
    assert found.value.rule == rule


def test_a_restart_keeps_the_recovered_position_and_an_accepted_loss_does_not() -> None:
    rows = Rows(Position("released"))
    rows.start({"released": {"0": 5}})
    with pytest.raises(InvariantViolated, match="position back"):
        rows.commit(4)
    rows.start({})
    rows.commit(1)


def test_incarnations_of_publishers_are_positions_of_all_protocols() -> None:
    with pytest.raises(InvariantViolated, match="position back"):
        Rows().commit([0, 7, 1, b""], [0, 6, 1, b""], table="publishers")


def test_each_protocol_with_a_log_names_its_positions() -> None:
    for name, definition in DEFINITIONS.items():
        if definition.promises.exactly_once:
            assert simulation_of(name).positions, name


def test_a_repeated_notice_does_not_move_a_position_back() -> None:
    """Seed 39300022: a client with a higher position received an old notice again."""
    assert not run_seed(39300022, "delta_tree", SwarmOptions(check_purity=False)).violations
    bug = frozenset((str(Mutant.POSITION_GOES_BACK),))
    options = SwarmOptions(mutants=bug, check_purity=False)
    assert run_seed(39300022, "delta_tree", options).rule == "position back"
