"""Tests of named bugs: the adversary without a clock must detect each soon after a listed seed.

The table names the setting and the seed of the first detection. A change of the core shifts the
events of a seed, so the search starts there and continues for a bounded number of seeds. For bugs
that take the swarm hundreds of seeds (no cut, half an intersection), this layer needs a few.
"""

from typing import NamedTuple

import pytest

from brokerd.simulator.search.adversary import AdversaryOptions, run_adversary
from tests.helpers.delta_tree_bugs import Mutant


class Catch(NamedTuple):
    """The setting and seed of a mutant's first detection. `budget`: seeds tried from `seed` on."""

    seed: int
    budget: int
    setting: str = ""


CAUGHT = {
    Mutant.START_BEFORE_CONFIRMED: Catch(0, 10),
    Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION: Catch(5, 30),
    Mutant.EDGE_FORGETS: Catch(381, 100, "crashes-beyond"),
    Mutant.CONFIRM_ON_RECEIPT: Catch(0, 10),
    Mutant.NO_RESEND_ON_ACTIVATION: Catch(0, 10),
    Mutant.RESEND_AFTER_NEWER: Catch(0, 20),
    Mutant.DROP_UNREACHABLE_DESTINATIONS: Catch(0, 20),
    Mutant.SUMMARY_MISSES_PENDING: Catch(1, 10),
    Mutant.RESTARTED_IS_EDGE: Catch(2, 20),
    Mutant.OLD_SESSION_FRAMES: Catch(20, 40),
    Mutant.TAGS_DROPPED_FROM_CONFIRMATION: Catch(1, 30),
    Mutant.NOTIFIER_BEFORE_TABLES: Catch(6, 40),
    Mutant.CONFIRM_COVERS_PENDING: Catch(7, 30),
    Mutant.NO_CUT: Catch(14, 100),
    Mutant.NO_UPSTREAM_COPY: Catch(13, 10),
    Mutant.NO_TAGS_UNREACHABLE_DONE: Catch(1, 20),
    Mutant.NO_NOTIFIERS: Catch(0, 10),
    Mutant.TAGS_MAY_GROW: Catch(0, 20),
    Mutant.RECEIVER_TAKES_ANY_TAGS: Catch(14, 120),
    Mutant.HALF_AN_INTERSECTION: Catch(23, 100),
    Mutant.CONFIRMED_BEFORE_DURABLE: Catch(0, 30),
    Mutant.NOTIFIER_DONE_BEFORE_DURABLE: Catch(0, 30),
    Mutant.ROWS_STAY_ON_DISK: Catch(4, 30),
    Mutant.RECOVERING_PUBLISHES: Catch(7, 30),
    Mutant.MISSING_PUBLISHERS_IGNORED: Catch(93, 60),
    Mutant.SYNC_END_BEFORE_PENDING: Catch(28, 60, "crashes-volatile"),
    # Its home and the broker between are away, and tables are volatile: more than is promised.
    Mutant.NO_LATERAL_SYNC: Catch(50, 60, "crashes-beyond-volatile"),
    # A broker and its neighbour recover together, and tables are volatile: neither.
    Mutant.SYNC_END_FROM_INACTIVE: Catch(26, 60, "crashes-beyond-volatile"),
}

KEPT = {
    Mutant.PENDING_NOT_REISSUED: "crashes-volatile",
}
"""Rules that no swarm, adversary or story has shown to be necessary, and a setting that tests them.

The design's prototype failed without these rules, and the cost is nil, so the rules stay. A home
broker that continues a pending subscription under the old id starts it after all that the broker
has received since its restart, which includes resent publications.
"""


@pytest.mark.drawn("delta_tree")
@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.value)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    catch = CAUGHT[mutant]
    options = AdversaryOptions(setting=catch.setting, mutants=frozenset((mutant,)))
    without = AdversaryOptions(setting=catch.setting)
    for seed in range(catch.seed, catch.seed + catch.budget):
        report = run_adversary(seed, options)
        if report.violations and not run_adversary(seed, without).violations:
            assert f"--mutant {mutant}" in report.command
            return
    pytest.fail(f"{mutant.name} survived seeds {catch.seed} to {catch.seed + catch.budget - 1}")


@pytest.mark.parametrize("mutant", KEPT, ids=lambda mutant: mutant.value)
def test_a_mutant_of_an_unproven_rule_causes_no_violation(mutant: Mutant) -> None:
    options = AdversaryOptions(setting=KEPT[mutant], mutants=frozenset((mutant,)))
    for seed in range(15):
        report = run_adversary(seed, options)
        assert not report.violations, f"it is needed: move it to CAUGHT\n{report.describe()}"
