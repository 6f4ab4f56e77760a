"""Tests of named bugs: the swarm must detect each bug, enabled in every broker.

The committed ledger names the seed of the first detection, and the violated rule: an observation at
clients (gap, acknowledged), a false claim of a broker (confirmed or acknowledged too early), a
missing subscription (unaware), or a lack of progress (liveness). A change of the protocol or the
swarm shifts the events of a seed, so the search starts there and continues for a bounded number of
seeds.

    pubsubctl simulate mutants --ledger results/reliability.json
"""

import json
from pathlib import Path

import pytest

from brokerd.protocols.delta_tree.checks.ablations import ABLATIONS
from brokerd.simulator.named_bugs import bugs_of, mistaken_functions
from brokerd.simulator.search.ablations import first_catch
from tests.helpers.delta_tree_bugs import NOT_SIMULATED, Mutant, plant_mutants

MUTANTS = bugs_of("delta_tree")

LEDGER = Path(__file__).parents[2] / "results" / "reliability.json"
TABLE = json.loads(LEDGER.read_text(encoding="utf-8"))["mutants"]
BUDGET = 60


@pytest.mark.drawn("delta_tree")
@pytest.mark.parametrize("name", [name for name, row in ABLATIONS.items() if not row.unseen])
def test_a_mutant_is_caught(name: str) -> None:
    """The search starts at the seed of the table."""
    first = TABLE[name]["first_seed"] if name in TABLE else 0
    caught = first_catch(name, max(0, first), BUDGET)
    assert caught.rule, f"{name} survived seeds {first} to {first + BUDGET - 1}"
    assert f"--seeds {caught.first_seed}..{caught.first_seed}" in caught.command
    assert all(f"--mutant {mutant}" in caught.command for mutant in ABLATIONS[name].mutants)


def test_a_bug_outside_the_simulated_code_survives() -> None:
    """The search can fail, and then reports the last attempt."""
    name = str(Mutant.GONE_EARLY)
    assert ABLATIONS[name].unseen
    caught = first_catch(name, 0, 2)
    assert (caught.first_seed, caught.rule, caught.tried) == (-1, "", 2)
    assert "--seeds 1..1" in caught.command


@pytest.mark.parametrize("mutant", Mutant)
def test_the_row_of_a_mutant_fits_the_source(mutant: Mutant) -> None:
    with plant_mutants([mutant]):
        pass
    assert mistaken_functions((MUTANTS[mutant],))


def test_every_mutant_has_a_test_that_must_catch_it() -> None:
    simulated = {mutant for row in ABLATIONS.values() for mutant in row.mutants}
    assert set(Mutant) == simulated | set(NOT_SIMULATED)
    for why in (*NOT_SIMULATED.values(), *(row.unseen for row in ABLATIONS.values())):
        where = why.rpartition(": ")[2]
        assert not why or (LEDGER.parents[1] / where).exists(), why


def test_the_table_names_all_current_mutants_and_their_detection_by_a_swarm() -> None:
    assert set(TABLE) <= set(ABLATIONS)
    assert len(TABLE) > 20
    for name, row in TABLE.items():
        assert (row["first_seed"] >= 0) == (not ABLATIONS[name].unseen), name
