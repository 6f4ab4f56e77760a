"""Tests of subscriptions reported as started too early: a rule detects this in each protocol."""

import pytest

from brokerd.simulator.checks.protocol_checks import named_bug
from brokerd.simulator.search.swarm import SwarmOptions, run_seed

BUGS = {
    "route-started-at-first-answer": ("best_effort", 1),
    "route-started-before-its-sides": ("best_effort", 1),
    "one-answer-is-enough": ("ges", 2),
    "begins-before-disk": ("ges_reliable", 1),
    "begins-unfollowed": ("multi_proxy", 1),
    "followed-before-it-is-written": ("multi_proxy", 27),
}
"""Named bug → its protocol, and the seed that detects the bug."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_report_before_all_have_the_subscription_is_seen(bug: str) -> None:
    protocol, seed = BUGS[bug]
    assert named_bug(bug, protocol).leaves_out
    options = SwarmOptions(mutants=frozenset((bug,)), check_purity=False)
    assert run_seed(seed, protocol, options).rule == "started early"


def test_baseline_brokers_report_no_subscription_before_all_have_it() -> None:
    """The baseline loses publications, which seeds count; the reports are correct."""
    rules = {run_seed(seed, "best_effort").rule for seed in range(1, 13)}
    assert "started early" not in rules
