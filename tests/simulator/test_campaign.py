"""Tests of the campaign's rows, 8 seeds per row; `make campaign` runs the full rows."""

import os

import pytest

from brokerd.errors import ConfigError
from brokerd.simulator.search.campaign import CAMPAIGN, find_setting
from brokerd.simulator.search.seed_report import total
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_swarm

SEEDS = 8
CORES = os.cpu_count() or 1


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name, row in CAMPAIGN.items() if row.bound])
def test_a_row_of_the_campaign_shows_no_violation(name: str) -> None:
    reports = []
    options = SwarmOptions(campaign=name)
    for report in run_swarm(range(SEEDS), "delta_tree", CORES, options):
        assert not report.violations, report.describe()
        reports.append(report)
    ledger = total(reports)
    assert ledger["adversarial_seeds"] == SEEDS // 2
    for what in ("deliveries", "at_risk", "announced", "notifiers_sent"):
        assert ledger[what] > SEEDS, f"too little of {what} in {ledger}"
    crashes = sum(count for kind, count in ledger.items() if kind.endswith("kill"))
    assert bool(crashes) == bool(CAMPAIGN[name].elements_at_once)
    assert f"--campaign {name}" in reports[0].command


@pytest.mark.parametrize("name", CAMPAIGN)
def test_a_row_equals_its_text(name: str) -> None:
    row = CAMPAIGN[name]
    for seed in range(20):
        plan = plan_of(seed, "delta_tree", SwarmOptions(campaign=name))
        assert len(plan.topology.brokers) == row.brokers
        assert plan.topology.delta == row.delta
        assert plan.parameters.persist_routing == row.persist_routing
        assert plan.links_at_once == row.links_at_once
        assert plan.failures_at_once == row.elements_at_once


def test_an_unknown_row_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean links-beyond"):
        find_setting("links-beyon")
