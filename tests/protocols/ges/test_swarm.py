"""Swarms of ges: losses but no other violations, and full coverage of all rules."""

import pytest

from brokerd.overlay.generate import chain
from brokerd.protocols.ges.checks.planning import is_whole_without
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER, READDRESS
from brokerd.simulator.checks.marks import compute_coverage, describe_coverage
from brokerd.simulator.checks.protocol_checks import marks_of
from brokerd.simulator.named_bugs import bugs_of, mistaken_functions
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed
from brokerd.simulator.world.faults import LOST
from tests.helpers.exchange import with_cluster

BUGS = tuple(bugs_of("ges").values())

SEEDS = [seed for seed in range(1, 37) if seed % 16 != 6]
"""Seeds without the long runs."""


def test_swarms_lose_something_and_break_nothing_else() -> None:
    """No event is duplicated, reordered or unrequested, and all brokers agree at the end."""
    reports = [run_seed(seed, "ges") for seed in SEEDS]
    assert not [(each.seed, each.violations) for each in reports if each.violations]
    assert sum(report.counters["forgiven_gap"] for report in reports) > 10
    marks = compute_coverage(marks_of("ges"), reports)
    assert all(row.is_enough for row in marks), describe_coverage(marks)
    assert sum(report.counters["deliveries"] for report in reports) > 1_000
    assert sum(report.counters.get("fault_lost", 0) for report in reports) > 3


KEEPER_MARKS = (
    "duty-taken",
    "duty-ended",
    "unit-attested",
    "publication-flooded",
    "changes-crossed",
)


def test_swarms_with_profiles_at_gatekeepers_break_nothing() -> None:
    options = SwarmOptions(settings=("keeper_policy=paper",))
    reports = [run_seed(seed, "ges", options) for seed in range(201, 219) if seed % 16 != 6]
    assert not [(each.seed, each.violations) for each in reports if each.violations]
    assert sum(report.counters["deliveries"] for report in reports) > 500
    reached = {row.mark.name for row in compute_coverage(marks_of("ges"), reports) if row.seeds}
    assert {*KEEPER_MARKS} <= reached


def test_later_seeds_draw_the_brokers_that_keep_profiles() -> None:
    drawn = {plan_of(seed, "ges").parameters.keeper_policy for seed in range(201, 231)}
    assert drawn == {EVERY_NODE, PAPER}


def test_swarms_with_parts_that_take_other_addresses_break_nothing() -> None:
    """Later seeds draw the policy often, and some of their clusters come apart for long enough."""
    drawn = [plan_of(seed, "ges").parameters.partition_policy for seed in range(201, 301)]
    assert drawn.count(READDRESS) > 35
    reports = [run_seed(seed, "ges") for seed in (208, 218, 236, 256, 300, 312)]
    assert not [(each.seed, each.violations) for each in reports if each.violations]
    assert sum(bool(each.counters["mark_cluster-part-readdressed"]) for each in reports) >= 4


def test_a_swarm_sees_the_canary() -> None:
    options = SwarmOptions(mutants=frozenset(("sent-to-all-units",)), check_purity=False)
    assert any(run_seed(seed, "ges", options).rule == "unwanted" for seed in range(1, 6))


def test_lost_brokers_leave_connected_units() -> None:
    """The lost brokers include gatekeepers, and both ends of a link between units at once."""
    at_once, gatekeepers = 0, 0
    for seed in range(0, 60, 2):
        plan = plan_of(seed, "ges")
        section = plan.topology.overlay("hierarchy")
        together = [
            move.on for move in plan.moves if type(move) is FaultInjection and move.kind == LOST
        ]
        gone = [plan.topology.number_of(name) for names in together for name in names]
        assert is_whole_without(section, gone)
        at_once += sum(len(names) > 1 for names in together)
        gatekeepers += sum(bool(section.gatekeeper_levels(number)) for number in gone)
    assert at_once > 3
    assert gatekeepers > 10


def test_a_disconnected_unit_is_not_whole() -> None:
    section = with_cluster(chain(4, 1)).overlay("hierarchy")
    found = [is_whole_without(section, [number]) for number in range(4)]
    assert found == [True, False, False, True]
    assert not is_whole_without(section, [1, 2, 3])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_row_of_a_bug_fits_the_source(bug) -> None:
    assert mistaken_functions((bug,))
