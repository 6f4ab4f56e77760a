"""Tests of subscriptions reported as started too early: a rule detects this in each protocol."""

import pytest

from brokerd.simulator.checks.protocol_checks import named_bug
from brokerd.simulator.search.swarm import SwarmOptions, run_seed

BUGS = {
    "route-started-at-first-answer": "best_effort",
    "route-started-before-its-sides": "best_effort",
    "one-answer-is-enough": "ges",
    "begins-before-disk": "ges_reliable",
    "begins-unfollowed": "multi_proxy",
    "followed-before-it-is-written": "multi_proxy",
}
"""Named bug → its protocol; the first seed detects the bug."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_report_before_all_have_the_subscription_is_seen(bug: str) -> None:
    assert named_bug(bug, BUGS[bug]).leaves_out
    options = SwarmOptions(mutants=frozenset((bug,)), check_purity=False)
    assert run_seed(1, BUGS[bug], options).rule == "started early"


def test_baseline_brokers_report_no_subscription_before_all_have_it() -> None:
    """The baseline loses publications, which seeds count; the reports are correct."""
    rules = {run_seed(seed, "best_effort").rule for seed in range(1, 13)}
    assert "started early" not in rules
