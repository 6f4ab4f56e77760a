"""Named bugs: each is switched on in every broker and must be caught by the swarm.

The table names a seed at which each was caught, and by which rule. A change of the core shifts
what happens in a seed, so the search begins there and goes on for a bounded number of seeds.
"""

from typing import NamedTuple

import pytest

from brokerd.config import Mutant
from brokerd.simulator.swarm import SwarmOptions, run_seed


class Catch(NamedTuple):
    """Where a mutant was caught.

    Attributes:
        rule: what it broke then; another rule of the same bug counts too.
        budget: seeds tried from `seed` on.
    """

    seed: int
    rule: str
    budget: int


CAUGHT = {
    Mutant.START_BEFORE_CONFIRMED: Catch(0, "acknowledged too early", 10),
    Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION: Catch(39, "confirmed too early", 60),
    Mutant.EDGE_FORGETS: Catch(165, "gap", 60),
    Mutant.CONFIRM_ON_RECEIPT: Catch(0, "acknowledged too early", 10),
    Mutant.NO_RESEND_ON_ACTIVATION: Catch(0, "liveness", 10),
    Mutant.RESEND_AFTER_NEWER: Catch(3, "confirmed too early", 20),
    Mutant.DROP_UNREACHABLE_DESTINATIONS: Catch(1, "acknowledged too early", 20),
    Mutant.SUMMARY_MISSES_PENDING: Catch(298, "acknowledged too early", 100),
    Mutant.RESTARTED_IS_EDGE: Catch(1, "acknowledged too early", 20),
    Mutant.OLD_SESSION_FRAMES: Catch(9, "RemoteProtocolError", 40),
    Mutant.CONFIRM_COVERS_PENDING: Catch(0, "acknowledged too early", 10),
    Mutant.NO_TAGS_UNREACHABLE_DONE: Catch(0, "acknowledged too early", 10),
    Mutant.NO_CUT: Catch(505, "gap", 100),
    Mutant.NO_LAST_IN_CUT: Catch(165, "gap", 100),
}

ELSEWHERE = {
    Mutant.FULL_QUEUE_DROPS_OLDEST: "the queue between core and socket: tests/runtime",
    Mutant.HALF_A_FRAME: "the writer of a session: tests/runtime",
    Mutant.HEARTBEATS_IN_QUEUE: "the writer of a session: tests/runtime",
    Mutant.NO_UPSTREAM_COPY: "too rare for random seeds: test_stories.py",
}


@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.value)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    catch = CAUGHT[mutant]
    options = SwarmOptions(mutants=frozenset((mutant,)))
    for seed in range(catch.seed, catch.seed + catch.budget):
        report = run_seed(seed, "delta_tree", options)
        if report.violations:
            print(f"{mutant}: seed {seed}: {report.rule}")
            assert f"--mutant {mutant}" in report.command
            return
    pytest.fail(f"{mutant.name} survived seeds {catch.seed} to {catch.seed + catch.budget - 1}")


def test_every_mutant_has_a_test_that_must_catch_it() -> None:
    assert set(Mutant) == {*CAUGHT, *ELSEWHERE}
