"""Named bugs: each is switched on in every broker and must be caught by the swarm.

The table names a seed at which each was caught, and by which rule: what the oracle saw at the
clients (gap, acknowledged), what a broker claimed (confirmed or acknowledged too early), who did
not know what (unaware), or what never came to rest (liveness). A change of the core shifts what
happens in a seed, so the search begins there and goes on for a bounded number of seeds.
"""

from typing import NamedTuple

import pytest

from brokerd.config import Mutant
from brokerd.simulator.campaign import ABLATIONS
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
    Mutant.START_BEFORE_CONFIRMED: Catch(0, "unaware source", 10),
    Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION: Catch(3, "unaware", 30),
    Mutant.EDGE_FORGETS: Catch(14, "AssertionError", 40),
    Mutant.CONFIRM_ON_RECEIPT: Catch(0, "acknowledged too early", 10),
    Mutant.NO_RESEND_ON_ACTIVATION: Catch(0, "liveness", 10),
    Mutant.RESEND_AFTER_NEWER: Catch(0, "confirmed too early", 20),
    Mutant.DROP_UNREACHABLE_DESTINATIONS: Catch(0, "confirmed too early", 20),
    Mutant.SUMMARY_MISSES_PENDING: Catch(0, "liveness", 20),
    Mutant.RESTARTED_IS_EDGE: Catch(0, "unaware source", 20),
    Mutant.OLD_SESSION_FRAMES: Catch(11, "unaware", 40),
    Mutant.CONFIRM_COVERS_PENDING: Catch(1, "confirmed too early", 10),
    Mutant.NO_UPSTREAM_COPY: Catch(4, "unaware", 30),
    Mutant.NO_TAGS_UNREACHABLE_DONE: Catch(2, "unaware source", 20),
    Mutant.TAGS_DROPPED_FROM_CONFIRMATION: Catch(1, "unaware source", 40),
    Mutant.NOTIFIER_BEFORE_TABLES: Catch(2, "unaware source", 40),
    Mutant.NO_NOTIFIERS: Catch(0, "liveness", 10),
    Mutant.TAGS_MAY_GROW: Catch(2, "gate closed", 40),
    Mutant.HOLD_OUT_OF_ORDER: Catch(10, "gap", 40),
    Mutant.DRAIN_COMPARES_PEERS: Catch(0, "transfer", 10),
}

ELSEWHERE = {
    Mutant.RELAYED_OUTLIVES_LEG: "waits until the link is back: test_assist.py",
    Mutant.RELAY_RESUMES: "waits until the link is back: test_assist.py",
    Mutant.SWITCHED_UNTOLD: "a gap in test_assist.py",
    Mutant.NO_CUT: "one random seed in some hundreds: test_stories.py tells how it fails",
    Mutant.NO_LAST_IN_CUT: "one random seed in some hundreds: test_stories.py tells how it fails",
    Mutant.HALF_AN_INTERSECTION: "first at seed 81: delta_tree/test_regions.py tells how",
    Mutant.RECEIVER_TAKES_ANY_TAGS: "first at seed 387: delta_tree/test_gates.py tells how",
    Mutant.NO_TOMBSTONES: "leaves rows only: test_unsubscription.py",
    Mutant.TOMBSTONES_VOLATILE: "leaves rows only: test_unsubscription.py",
    Mutant.NO_HOME_AUTHORITY: "leaves rows only: test_unsubscription.py",
    Mutant.ISLANDS_AS_BARRIERS: "safe, but hears less: test_stories.py",
    Mutant.PARTITIONS_SPREAD_DELTA: "seed 11 of profile paper: test_profiles.py",
    Mutant.EVERY_PARTITION_TAGGED: "safe, but hears less: test_islands_and_barriers.py",
    Mutant.GONE_EARLY: "partition tables: delta_tree/test_partitions.py",
    Mutant.ACKNOWLEDGED_BEFORE_DURABLE: "publication logs: test_publication_log.py",
    Mutant.LOG_RELEASED_ON_APPEND: "publication logs: test_publication_log.py",
    Mutant.NEWCOMER_IS_COMPLETE: "who joins: test_joining.py tells how it fails",
    Mutant.SHORT_VECTORS: "where only links fail: test_duplicate_detection.py",
    Mutant.FULL_QUEUE_DROPS_OLDEST: "the queue between core and socket: tests/runtime",
    Mutant.HALF_A_FRAME: "the writer of a session: tests/runtime",
    Mutant.HEARTBEATS_IN_QUEUE: "the writer of a session: tests/runtime",
}


@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.value)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    catch = CAUGHT[mutant]
    options = SwarmOptions(mutants=frozenset((mutant,)))
    for seed in range(catch.seed, catch.seed + catch.budget):
        report = run_seed(seed, "delta_tree", options)
        if report.violations:
            assert f"--mutant {mutant}" in report.command
            return
    pytest.fail(f"{mutant.name} survived seeds {catch.seed} to {catch.seed + catch.budget - 1}")


def test_the_campaign_runs_every_bug_that_a_simulation_can_have() -> None:
    elsewhere = [mutant for mutant, why in ELSEWHERE.items() if "tests/runtime" in why]
    assert set(ABLATIONS) == set(Mutant) - set(elsewhere)


def test_every_mutant_has_a_test_that_must_catch_it() -> None:
    assert set(Mutant) == {*CAUGHT, *ELSEWHERE}
