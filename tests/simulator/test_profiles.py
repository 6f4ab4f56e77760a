"""Tests of delta_tree's profiles: the paper's lost publication, and swarms of profile paper."""

from dataclasses import replace

import pytest

from brokerd.overlay.topology import Topology
from brokerd.protocols.delta_tree.checks.planning import PAPER_LITERAL
from brokerd.simulator.search.campaign import CAMPAIGN
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport, total
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.cluster import STEADY, tree
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

SEEDS = 8
LITERAL = "paper-literal"
SOURCE = {"dedupe": "source", "legitimacy": "observe"}


def bypass_resurrects(profile: str, **switches: str) -> tuple[list[int], list[str]]:
    """Return the effects of a link failure on a subscription that starts while a branch is slow.

    Home s, then x, v, and the source broker p; z is another child of x, where a stalled application
    wants n = 6 only. `late` subscribes at s to everything: v and p confirm at once, z is slow.
    Meanwhile p publishes n = 6, which x keeps for z, and n = 7, which has no other match. Then z
    confirms, `late` starts, and the link x–v breaks.

    Returns:
        The values of n that `late` received, and the violated rules.
    """
    topology = tree("s-x", "x-v", "v-p", "x-z")
    chosen = (("profile", profile.removesuffix("-literal")), *switches.items())
    topology = replace(topology, settings=(("delta_tree", chosen),))
    with plant_mutants(PAPER_LITERAL if profile == LITERAL else ()):
        return _played(topology)


def _played(topology: Topology) -> tuple[list[int], list[str]]:
    cluster = SimulatedCluster(topology, network=STEADY, strict=False).start()
    other = cluster.subscribe("z", "n = 6", "other")
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    other.client.take_after_ns = 60 * SECOND_NS
    cluster.link("x", "z").delay(400 * MILLISECOND_NS)
    late = cluster.subscribe("s", "true", "late")
    cluster.run_for(0.02)
    for n in (6, 7):
        cluster.publish("p", n=n)
        cluster.run_for(0.02)
    assert not late.started
    cluster.run_for(1)
    assert late.started
    cluster.link("x", "v").cut()
    cluster.run_for(3)
    cluster.publish("p", n=8)
    cluster.run_for(3)
    cluster.link("x", "v").heal()
    other.client.take_after_ns = 0
    cluster.run_for(60)
    assert cluster.oracle.obligations.describe_undelivered() == []
    return [5 + got.sequence for got in late.received], cluster.oracle.first_violations


def test_to_the_letter_of_the_paper_n_7_is_lost_between_n_6_and_n_8() -> None:
    """v reaches s around x and sends n = 6 again; n = 7 is lost because x has confirmed n = 7.

    Paper: [DFT11] §VI lines 614-621, whose condition holds of each delivered publication.
    """
    got, violations = bypass_resurrects(LITERAL)
    assert got == [6, 8]
    assert violations[0].startswith("gap: late/1")


def test_late_acceptance_with_the_cut_of_source_brokers_alone_loses_it_too() -> None:
    """p confirmed before publishing n = 6; x has confirmed n = 7."""
    got, violations = bypass_resurrects("paper", cut="src")
    assert got == [6, 8]
    assert violations[0].startswith("gap: late/1")


@pytest.mark.parametrize("profile", ["robust", "paper"])
def test_with_a_start_cut_the_stream_begins_with_n_8(profile: str) -> None:
    assert bypass_resurrects(profile) == ([8], [])


def _play(row: str, seeds: range, **switches: str) -> list[SeedReport]:
    """Return reports of a campaign row in profile paper, with some other switches."""
    options = SwarmOptions(campaign=row, profile="paper", check_purity=False)
    reports = []
    for seed in seeds:
        plan = plan_of(seed, "delta_tree", options)
        parameters = replace(plan.parameters, **switches)  # type: ignore[arg-type]
        run = PlanRun(replace(plan, parameters=parameters), check_purity=False)
        reports.append(run.report(seed, ""))
    return reports


def test_profile_paper_bears_as_many_link_failures_as_it_tolerates() -> None:
    reports = _play("links", range(SEEDS))
    assert [report.describe() for report in reports if report.violations] == []
    ledger = total(reports)
    assert ledger["announced"] > SEEDS, "nothing was withheld, so no tag was asked for"
    assert ledger["tags_missing"] == ledger["tags_extra"] == 0


@pytest.mark.parametrize("row", [name for name, row in CAMPAIGN.items() if row.bound])
def test_source_sequences_bear_the_faults_of_the_campaign(row: str) -> None:
    reports = _play(row, range(SEEDS // 2), **SOURCE)
    assert [report.describe() for report in reports if report.violations] == []
    ledger = total(reports)
    assert ledger["deliveries"] > SEEDS
    assert ledger["tags_missing"] == ledger["tags_extra"] == 0


def test_a_crash_within_the_bound_is_too_much_for_sequence_vectors() -> None:
    """The first broker that forwards twice is detected, at seed 0; PROTOCOL.md has the reason."""
    rules = [report.rule for report in _play("crashes-delta2", range(4))]
    assert "delivered again" in rules


def test_to_the_letter_of_the_paper_a_swarm_fails_soon() -> None:
    """One of the first sixty seeds of this row fails, usually because an open gate closes again."""
    options = SwarmOptions(campaign="links", profile=LITERAL, check_purity=False)
    assert any(run_seed(seed, "delta_tree", options).violations for seed in range(60))


def test_partition_notices_limited_to_delta_links_leave_publications_untagged() -> None:
    """Half of D_PT is not enough; the first failure is seed 11 of this row.

    Paper: [DFT11] §VIII lines 917-944.
    """
    options = SwarmOptions(
        campaign="links-beyond-chain",
        profile="paper",
        settings=("assist=off",),
        mutants=frozenset((Mutant.PARTITIONS_SPREAD_DELTA,)),
        check_purity=False,
    )
    reports = [run_seed(seed, "delta_tree", options) for seed in range(11, 12)]
    assert any(report.rule == "closed gate" for report in reports)
    assert total(reports)["tags_missing"] > 0
