"""The campaign's rows, 50 seeds each; a longer one is run by hand."""

import pytest

from brokerd.errors import ConfigError
from brokerd.simulator.campaign import CAMPAIGN, setting
from brokerd.simulator.swarm import SwarmOptions, run_swarm, total

SEEDS = 50


@pytest.mark.parametrize("name", [name for name, row in CAMPAIGN.items() if row.bound])
def test_a_row_of_the_campaign_shows_no_violation(name: str) -> None:
    reports = []
    for report in run_swarm(range(SEEDS), "delta_tree", options=SwarmOptions(campaign=name)):
        assert not report.violations, report.in_words()
        reports.append(report)
    ledger = total(reports)
    for what in ("deliveries", "at_risk", "announced", "notifiers_sent"):
        assert ledger[what] > SEEDS, f"too little of {what} in {ledger}"
    assert f"--campaign {name}" in reports[0].command


def test_rows_differ_in_what_fails() -> None:
    (report,) = run_swarm([1], "delta_tree", options=SwarmOptions(campaign="links"))
    assert not any(kind in name for name in report.counters for kind in ("kill", "freeze"))


def test_an_unknown_row_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean links-beyond"):
        setting("links-beyon")
