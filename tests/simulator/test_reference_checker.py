"""Two judges of one history: the simulator's oracle, and the checker for runs of real brokers.

They share no code: the oracle follows each delivery, the checker numbers what was published and
looks for ranks that are not there. On sound swarms both find nothing; where a bug has the
oracle object to what a client saw, the checker objects to the same.
"""

import pytest

from brokerd.config import Mutant
from brokerd.simulator.swarm import SwarmOptions, plan_of
from tests.helpers.swarm_histories import Recorder

SOUND = range(50)

ALIKE = {
    "gap": ("missing",),
    "duplicate": ("duplicate",),
    "order": ("reordered", "duplicate", "withheld_delivered"),
    "incomplete": ("missing",),
    "unwanted": ("wrong_match",),
    "phantom": ("phantom", "corrupted"),
}
"""The oracle's rules, and what the checker may call the same."""


@pytest.mark.parametrize("first", range(SOUND.start, SOUND.stop, 10))
def test_both_find_nothing_in_sound_swarms(first: int) -> None:
    streams = 0
    for seed in range(first, first + 10):
        if seed % 8 == 6:
            continue  # ten minutes, of which the oracle says as much as of others
        recorder = Recorder(plan_of(seed, "delta_tree"))
        report, found = recorder.play()
        assert not report.violations, report.in_words()
        assert not found, f"seed {seed}: {found[:5]}"
        streams += report.counters["deliveries"]
    assert streams > 500


BUGS = {
    Mutant.EDGE_FORGETS: (0, 40, "crashes-beyond"),
    Mutant.RESEND_AFTER_NEWER: (0, 12, ""),
    Mutant.NO_UPSTREAM_COPY: (0, 12, ""),
    Mutant.NO_TAGS_UNREACHABLE_DONE: (0, 12, ""),
    Mutant.TAGS_MAY_GROW: (0, 12, ""),
}


@pytest.mark.parametrize("mutant", BUGS, ids=lambda mutant: mutant.value)
def test_what_the_oracle_calls_wrong_at_a_client_is_wrong_by_rank(mutant: Mutant) -> None:
    first, count, row = BUGS[mutant]
    rules = []
    for seed in range(first, first + count):
        options = SwarmOptions(mutants=frozenset((mutant,)), campaign=row)
        report, found = Recorder(plan_of(seed, "delta_tree", options)).play()
        if report.rule in ALIKE:
            rules.append(report.rule)
            kinds = {violation.kind for violation in found}
            assert kinds & set(ALIKE[report.rule]), f"{report.in_words()}\n{found[:5]}"
    assert rules, "no seed went wrong where a client could see it"
